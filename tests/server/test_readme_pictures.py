"""docs/pictures/make.py: the README's pictures from the runs of a demo."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from semisight.data import load
from semisight.experiments import results
from semisight.runs.run import load_run

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "pictures" / "make.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_of_runs(
    make: ModuleType, digits_run: Path, scenes_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = [make.digits(load_run(digits_run))]
    monkeypatch.setattr(make, "set_aside", lambda run: load("builtin:scenes?n=10&size=16"))  # so small a run has none
    sheets.append(make.scenes(load_run(scenes_run)))
    for number, sheet in enumerate(sheets):
        make.save(sheet, tmp_path / f"{number}.png")
        assert Image.open(tmp_path / f"{number}.png").size == sheet.size
        assert len(sheet.getcolors(100_000)) > 20  # something is on it
    with pytest.raises(SystemExit, match="too many"):
        make.save(Image.effect_noise((900, 900), 90).convert("RGB"), tmp_path / "c.png")


def test_the_picture_of_table_1_is_of_the_rows_that_are_there(make: ModuleType, tmp_path: Path) -> None:
    rows = results.read(ROOT / "results" / "table1.csv")
    make.save(make.table1(rows), tmp_path / "table1.png")
    for picture in (tmp_path / "table1.png", ROOT / "docs" / "pictures" / "table1.png"):
        note = Image.open(picture).info[make.DRAWN_FROM]
        assert note == make.fingerprint(rows), f"{picture} is out of date: make pictures"
    drawn = [row for row in rows if row.row == "mnist/vae"]
    assert make.fingerprint([replace(drawn[0], value=0.0), *drawn[1:]]) != make.fingerprint(drawn)


def test_the_readme_shows_small_pictures_that_are_there() -> None:
    front, guide = ((ROOT / page).read_text() for page in ("README.md", "docs/guide/serving.md"))
    shown = {word.split(")")[0].split('"')[0] for word in front.split("docs/pictures/")[1:]}
    assert shown == {"digits.png"}  # one picture is enough for the front page
    results_page = (ROOT / "docs" / "results.md").read_text() + (ROOT / "docs" / "guide" / "captions.md").read_text()
    everywhere = front + guide + results_page
    assert all(name in everywhere for name in ("scenes.png", "table1.png", "try.png", "label.png"))
    for name in ("digits.png", "scenes.png", "table1.png", "try.png", "label.png"):
        assert 1000 < (ROOT / "docs" / "pictures" / name).stat().st_size < 150_000
