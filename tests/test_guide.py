"""Every command and every piece of Python in README and guide runs, on a folder of photos as people have them.

Trainings are cut to a few steps on small images, and the demo to a moment: what is tested is that each line is right as
it stands.
"""

import csv
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.commands import ok
from tests.cli.photos import write_photos

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/guide").glob("*.md"))
SHORT, SMALL = {"train": ("--steps", "2")}, ("--size", "16")
PROCESSES = "many-machines.md"  # processes start others from the command line that they were started with
SERVED = "serving.md"  # a server does not end: tests/app/serve


def commands(page: Path) -> list[list[str]]:
    lines = re.findall(r"^    (semisight .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in lines]


def snippets(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def shell(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "semisight", *arguments], check=True, timeout=200)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages speak of: photos/, labels.csv, captions.csv, two.yaml."""
    folder = tmp_path_factory.mktemp("guide")
    write_photos(folder / "photos", n=45)
    with (folder / "captions.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "caption"])
        for path in sorted((folder / "photos").rglob("0*.jpg"))[:40]:
            table.writerow([path.relative_to(folder / "photos").as_posix(), f"a picture number {int(path.stem) % 5}"])
    (folder / "two.yaml").write_text("processes: 2\n")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(400)  # processes are started, and a busy machine takes long for each
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != SERVED], ids=lambda page: page.stem)
def test_every_command_of_the_guide_runs(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, small_demo: None
) -> None:
    monkeypatch.chdir(folder)
    for arguments in commands(page):
        short = ("--steps", "3") if "--resume" in arguments else SHORT.get(arguments[0], ())
        run = shell if page.name == PROCESSES else ok
        if page.name == PROCESSES:  # reports are made by other pages, of as many images
            short = (*short, "--no-report", *(() if "--resume" in arguments else ("--limit", "100")))
        run(*arguments, *short, *(SMALL if "--size" in arguments else ()))


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=lambda page: page.stem)
def test_every_piece_of_python_in_the_guide_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shutil.rmtree("runs/python", ignore_errors=True)
    images = np.random.default_rng(0).random((40, 12, 12))
    labels = np.where(np.arange(40) < 20, np.arange(40) % 2, -1)
    for snippet in snippets(page):
        exec(compile(snippet, page.name, "exec"), {"images": images, "labels": labels})


def test_every_page_is_listed_and_every_link_leads_somewhere() -> None:
    listed = (ROOT / "docs/guide/README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert page.name == "README.md" or f"]({page.name})" in listed, page.name
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), (page.name, link)
