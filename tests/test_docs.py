"""The documentation says what the code does: its pictures, names, steps and examples are held to the source."""

import ast
import re
import runpy
from pathlib import Path

import pytest
import yaml

import semisight

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "semisight"
HOW_TO = sorted((DOCS / "howto").glob("*.md"))


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    drawn = runpy.run_path(str(DOCS / "arrows.py"))
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["svg"](), "python docs/arrows.py draws it anew"


def test_only_arrows_that_no_longer_way_stands_for_are_dark() -> None:
    needed = runpy.run_path(str(DOCS / "arrows.py"))["needed"]
    chain = {("cli", "runs"): 1, ("runs", "model"): 1, ("cli", "model"): 5}
    assert needed(chain) == {("cli", "runs"), ("runs", "model")}


def test_the_reference_has_every_public_name() -> None:
    named = re.findall(r"^::: semisight\.(\w+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(set(semisight.__all__) - {"__version__"})


def test_the_site_leads_to_every_page() -> None:
    listed = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert nav[0] == {"Home": "index.md"}


def test_every_step_of_the_walk_exists() -> None:
    steps = re.findall(r"`([\w/]+\.py):([\w.]+)`", (DOCS / "architecture.md").read_text(encoding="utf-8"))
    for file, name in steps:
        body = ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            found = [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part]
            assert found, f"{file} has no {name}"
            body = found[0].body


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_every_how_to_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippets = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert snippets
    names: dict[str, object] = {"__name__": page.stem}
    for snippet in snippets:
        exec(compile(snippet, page.name, "exec"), names)
    right, error = names.get("right", 1.0), names.get("error", 0.0)
    assert isinstance(right, float) and right > 0.3  # of ten digits, by chance 0.1
    assert isinstance(error, float) and error < 0.5  # of the mean, 1
