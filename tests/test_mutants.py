"""The list of mutants is true of the source: each can be made, its tests are there, and docs/mutants.md has it."""

import re
from pathlib import Path

from tests.mutants import MUTANTS, ROOT, read


def test_every_mutant_can_be_made() -> None:
    for mutant in MUTANTS:
        text = (ROOT / "src" / "semisight" / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, f"{mutant.file}: {mutant.name}"
        assert mutant.old != mutant.new


def test_the_tests_that_must_notice_are_there() -> None:
    for test in {test for mutant in MUTANTS for test in mutant.tests}:
        file, _, name = test.partition("::")
        assert not name or f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


def test_the_page_lists_the_same_and_all_are_killed() -> None:
    page = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| .+ \| (.+?) \|$", page, re.MULTILINE)
    assert rows == [(mutant.file, mutant.name, "killed") for mutant in MUTANTS]
    assert f"**{len(rows)} of {len(rows)} are killed" in page


def test_the_list_is_read_line_by_line() -> None:
    text = Path(__file__).with_name("mutants.txt").read_text(encoding="utf-8")
    assert len(MUTANTS) == len(re.findall(r"^(?![@+-]).+$", text, re.MULTILINE)) > 100  # no name is passed over
    (one,) = read("@ a.py | x.py y.py::test\nname: of it\n- if a:\n-     b\n+ if a:\n")
    assert (one.name, one.file, one.tests, one.old, one.new) == (
        "name: of it",
        "a.py",
        ("x.py", "y.py::test"),
        "if a:\n    b",
        "if a:",
    )
