"""Mutants of the mathematics: small wrong changes of the source, each with the tests that must fail with it.

    python -m tests.mutants [TEXT ...] [--write FILE]        only mutants whose name or file holds one of the TEXTs

Every mutant is made in a temporary copy of `src` and only its named tests run, in a process of their own; the tree
itself is never touched. The list is mutants.txt; test_mutants.py holds it to the source. `make mutants` writes
docs/mutants.md. Not a part of the tests: it takes half an hour.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("semisight.training.trainer", "semisight.inference.captions", "semisight.sampling.mcem", "semisight.data")


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in `file` (below src/semisight); `tests` are files or node ids below tests/."""

    name: str
    file: str
    tests: tuple[str, ...]
    old: str
    new: str


def read(text: str) -> list[Mutant]:
    """mutants.txt: after a line `@ FILE | TESTS` the mutants of this file, each a name with its lines - and +."""
    found: list[Mutant] = []
    for part in re.split(r"^@ ", text, flags=re.MULTILINE)[1:]:
        head, _, body = part.partition("\n")
        file, tests = head.split(" | ")
        for name, old, new in re.findall(r"^(.+)\n((?:- .*\n)+)((?:\+.*\n)+)", body, re.MULTILINE):
            sides = ("\n".join(line[2:] for line in side.splitlines()) for side in (old, new))
            found.append(Mutant(name, file, tuple(tests.split()), *sides))
    return found


MUTANTS = read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))


def place(mutant: Mutant, source: Path) -> str:
    """Writes the mutant into a copy of the source; gives the text to put back."""
    file = source / "semisight" / mutant.file
    text = file.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}")
    file.write_text(text.replace(mutant.old, mutant.new))
    return text


def warm(source: Path) -> None:
    """Imports what every child needs, once: the libraries stay, the package itself is forgotten again."""
    sys.path.insert(0, str(source))
    sys.dont_write_bytecode = True
    for name in (
        "pytest_timeout",
        "hypothesis.extra.numpy",
        "torch._dynamo",
        "scipy.stats",
        "sklearn.linear_model",
        *PACKAGES,
    ):
        import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] == "semisight"]:
        del sys.modules[name]


def run_tests(source: Path, tests: Sequence[str]) -> int:
    """pytest's exit code, in a forked process that imports the mutated package anew."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = str(source)  # for processes that tests start
    import pytest

    import semisight

    assert str(semisight.__file__).startswith(str(source)), "the mutant would not be seen"
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # some take longer to import than the tests to run
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout"]
    code = pytest.main([*options, *(f"tests/{test}" for test in tests)])
    os._exit(int(code))


OUTCOMES = {0: "survived", 1: "killed"}  # any other code is a mutant or a test that is broken


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", help="only mutants whose name or file holds one of these")
    parser.add_argument("--write", type=Path, help="write the outcome to this Markdown file")
    parser.add_argument("--check", action="store_true", help="only see that every mutant can be made")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in MUTANTS if not chosen.texts or any(text in f"{m.name} {m.file}" for text in chosen.texts)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if not chosen.check:
            warm(source)
        for number, mutant in enumerate(mutants, start=1):
            text, started = place(mutant, source), time.monotonic()
            code = -1 if chosen.check else run_tests(source, mutant.tests)
            (source / "semisight" / mutant.file).write_text(text)
            outcome = OUTCOMES.get(code, f"broken ({code})")
            rows.append((mutant, outcome))
            seconds = time.monotonic() - started
            print(f"{number:3}/{len(mutants)} {outcome:9} {seconds:5.1f} s  {mutant.file}: {mutant.name}", flush=True)
    killed = sum(outcome == "killed" for _, outcome in rows)
    print(f"{killed} of {len(rows)} killed")
    if chosen.write:
        chosen.write.write_text(page(rows, killed))
    return 0 if killed == len(rows) else 1


def page(rows: Sequence[tuple[Mutant, str]], killed: int) -> str:
    lines = [
        "# Mutants",
        "",
        "Small wrong changes of the mathematics, each with the tests that must fail with it (`tests/mutants.txt`;",
        f"`make mutants` writes this page). **{killed} of {len(rows)} are killed ({killed / len(rows):.0%}).**",
        "",
        "The list is written by hand, not drawn: it holds the mistakes that someone made or feared. On its first run",
        "ten survived. Three had been given the wrong tests; for seven there was none, and one was added for each.",
        "",
        "| file | mutant | tests | outcome |",
        "|---|---|---|---|",
    ]
    for mutant, outcome in rows:
        tests = ", ".join(f"`{test.split('::')[0]}`" for test in mutant.tests)
        lines.append(f"| `{mutant.file}` | {mutant.name} | {tests} | {outcome} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
