"""`semisight inspect`: what it counts, what it finds wrong, and that it looks only."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisight.data import survey
from semisight.runs.images import sets_of
from semisight.runs.inspecting import inspect
from semisight.runs.settings import DataSettings, resolve
from tests.cli.commands import ok, refused
from tests.cli.photos import write_photos


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inspect") / "photos"
    return folder, write_photos(folder, n=60)


def inspected(*arguments: str | Path) -> dict[str, Any]:
    found = json.loads(ok("inspect", *arguments, "--size", "16", "--format", "json"))
    assert isinstance(found, dict)
    return found


def kinds(found: dict[str, Any]) -> set[str]:
    return {mistake["kind"] for mistake in found["mistakes"]}


def test_a_folder_with_labels_and_broken_files(photos: tuple[Path, Path]) -> None:
    folder, table = photos
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.parent.rglob("*"))
    found = inspected(folder, "--labels", table)
    assert found["images"] == 60 and found["decoded"] == 60
    assert sum(found["sizes"].values()) == 60 and found["modes"] == {"RGB": 60} and found["formats"] == {"JPEG": 60}
    assert found["classes"] == {"ball": 2, "dark": 2, "stripes": 2} and found["labelled"] == 6
    reasons = {entry["file"]: entry["reason"] for entry in found["unreadable"]}
    assert set(reasons) == {"holiday/broken-empty.jpg", "home/broken-half.jpg", "home/broken-noise.jpg", "notes.txt"}
    assert reasons["home/broken-half.jpg"].startswith("truncated or corrupt")
    assert found["duplicates"] == []
    assert found["shape"][0] == 3 and found["architecture"]["image_shape"] == found["shape"]
    assert found["expected"]["steps"] >= 4000 and found["expected"]["minutes"] > 0
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.parent.rglob("*")) == before


def test_train_reads_what_inspect_announces(photos: tuple[Path, Path], tmp_path: Path) -> None:
    folder, table = photos
    size = ("--size", "16")
    found = inspected(folder, "--labels", table)
    said = ok("train", folder, "--labels", table, *size, "--out", tmp_path / "run", "--minutes", "0.01", "--no-report")
    _, height, width = found["shape"]
    assert f"{found['images']} colour images of {width} x {height} pixels" in said
    assert "4 files skipped" in said
    layers = [layer["maps"] for layer in found["architecture"]["layers"]]
    assert f"{len(layers)} layers: {layers[0]} maps" in said
    assert f"at most {found['expected']['epochs']} epochs" in said


def test_with_captions_too_train_reads_what_inspect_announces(
    photos: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of captions has a size, channels, batches and epochs of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, table = photos[0], tmp_path / "captions.csv"
    table.write_text("file,caption\n" + "".join(f"home/{i:04d}.jpg,a light ball\n" for i in range(0, 40, 2)))
    arguments = (folder, "--captions", table, "--channels", "1")
    found = json.loads(ok("inspect", *arguments, "--format", "json"))
    assert found["shape"] == [1, 64, 64] and found["captions"] == {"images": 20, "captions": 20}
    out = ("--out", tmp_path / "run", "--minutes", "0.001", "--no-report", "--hidden-size", "4")
    said = ok("train", *arguments, *out)
    assert f"{found['images']} grey images of 64 x 64 pixels" in said
    assert f"at most {found['expected']['epochs']} epochs" in said


def test_likely_mistakes_are_found(tmp_path: Path, photos: tuple[Path, Path]) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos[0], folder)
    shutil.copy(folder / "home/0000.jpg", folder / "home/again.jpg")
    Image.new("RGB", (40, 40), (200, 30, 30)).save(folder / "red.png")
    noise = np.random.default_rng(0).integers(0, 256, (20, 100, 3), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "panorama.png")
    table = tmp_path / "labels.csv"
    rows = ["home/0000.jpg,ball", "home/again.jpg,dark", "home/0002.jpg,Ball", "home/0004.jpg,dark", "gone.jpg,dark"]
    table.write_text("\n".join(["file,label", *rows]) + "\n")
    found = inspected(folder, "--labels", table)
    assert found["duplicates"] == [["home/0000.jpg", "home/again.jpg"]]
    of_kind = {mistake["kind"]: mistake for mistake in found["mistakes"]}
    assert of_kind["two labels"]["files"] == ["home/0000.jpg", "home/again.jpg"]
    assert of_kind["constant"]["files"] == ["red.png"]
    assert of_kind["long"]["files"] == ["panorama.png"]
    assert "'Ball', 'ball'" in of_kind["alike classes"]["message"]
    assert "dark" not in of_kind["alike classes"]["message"]
    assert "gone.jpg" in " ".join(m["message"] for m in found["mistakes"] if m["kind"] == "labels")
    assert "tiny class" in of_kind
    text = ok("inspect", folder, "--labels", table, "--size", "16")
    assert "likely mistakes" in text and "red.png" in text and "1 image repeat" in text


def test_a_table_that_train_would_refuse_is_a_finding(photos: tuple[Path, Path], tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("file,label\nhome/0000.jpg,a\nhome/0000.jpg,b\n")
    found = inspected(photos[0], "--labels", table)
    assert found["classes"] is None
    assert any("more than one label" in mistake["message"] for mistake in found["mistakes"])


def test_folders_that_look_like_classes(photos: tuple[Path, Path]) -> None:
    found = inspected(photos[0])
    assert "folders" in kinds(found)
    found = inspected(photos[0], "--class-per-folder")
    assert found["classes"] == {"holiday": 30, "home": 30} and "folders" not in kinds(found)


def test_captions_are_counted(photos: tuple[Path, Path], tmp_path: Path) -> None:
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nhome/0000.jpg,a ball\nhome/0000.jpg,a light ball\nhome/gone.jpg,nothing\n")
    found = inspected(photos[0], "--captions", table)
    assert found["captions"] == {"images": 1, "captions": 2}
    assert "captions" in kinds(found)


def test_sets_that_are_not_folders(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 9, 7), dtype=np.uint8)
    images[3] = images[8]
    images[5] = 17
    np.savez(tmp_path / "set.npz", images=images, labels=np.arange(12) % 2)
    found = inspected(tmp_path / "set.npz")
    assert found["sizes"] == {"16 x 16": 12} and found["classes"] == {"0": 6, "1": 6}
    assert len(found["duplicates"]) == 1 and {"constant", "two labels"} <= kinds(found)
    assert inspected("builtin:scenes?n=20&size=16")["captions"] == {"images": 20, "captions": 20}


def test_several_processes_see_what_one_sees(photos: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    one = survey.survey_folder(photos[0])
    monkeypatch.setattr(survey, "_FEW", 0)
    progress: list[tuple[int, int]] = []
    several = survey.survey_folder(photos[0], workers=2, progress=lambda done, n: progress.append((done, n)))
    assert several == one
    assert progress[-1] == (64, 64)


def test_large_images_are_decoded_by_chance(photos: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semisight.data.workers.SMALL", 0)
    monkeypatch.setattr("semisight.data.formats.pictures._QUICK_JPEG", 0)
    monkeypatch.setattr(survey, "LARGE_DECODED", 10)
    found = survey.survey_folder(photos[0])
    assert 0 < found.n_decoded <= 10 < len(found.seen)
    assert f"{found.n_decoded} were decoded" in ok("inspect", photos[0], "--size", "16")


def test_what_cannot_be_inspected_is_refused(tmp_path: Path) -> None:
    assert "is missing" in refused("inspect", tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    assert "is empty" in refused("inspect", tmp_path / "empty")
    (tmp_path / "out.json").write_text("mine")
    refused("inspect", "builtin:digits", "--out", tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text() == "mine"


def _write_scene(path: Path, number: int, size: tuple[int, int] = (96, 72), quality: int = 90) -> None:
    """Smooth colours that no two numbers share."""
    small = np.random.default_rng(number).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(small).resize(size, Image.Resampling.BICUBIC).save(path, quality=quality)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 scenes; the first again smaller and harder pressed, the second again as it is, the third mirrored."""
    folder = tmp_path_factory.mktemp("copies") / "photos"
    folder.mkdir()
    for number in range(40):
        _write_scene(folder / f"{number:02}.jpg", number)
    _write_scene(folder / "first-small.jpg", 0, (64, 48), 60)
    shutil.copy(folder / "01.jpg", folder / "second-again.jpg")
    Image.open(folder / "02.jpg").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "third-mirrored.jpg")
    return folder


def test_near_duplicates_are_found_and_listed(copies: Path) -> None:
    found = inspected(copies)
    assert found["near_duplicates"] == [["00.jpg", "first-small.jpg"]]
    assert found["duplicates"] == [["01.jpg", "second-again.jpg"]]
    text = ok("inspect", copies, "--size", "16")
    assert "1 image nearly repeats others, such as 00.jpg ~ first-small.jpg" in text


def test_near_duplicates_with_two_labels_are_a_mistake(copies: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    rows = [f"{n:02}.jpg,{'cat' if n % 2 else 'dog'}" for n in range(20)]
    table.write_text("\n".join(["file,label", *rows, "first-small.jpg,cat", "second-again.jpg,cat"]))
    found = inspected(copies, "--labels", table)
    (mistake,) = [one for one in found["mistakes"] if one["kind"] == "two labels"]
    assert mistake["message"].startswith("nearly the same picture has the labels ")
    assert mistake["files"] == ["00.jpg", "first-small.jpg"]


def test_copies_on_both_sides_of_the_split_are_a_mistake(copies: Path) -> None:
    pairs = [{"00.jpg", "first-small.jpg"}, {"01.jpg", "second-again.jpg"}]
    seen: dict[bool, int] = {}  # a seed that parts a pair, and one that does not
    for seed in range(60):
        valid = sets_of(DataSettings(source=str(copies), size=16), seed).valid
        assert valid is not None
        seen.setdefault(any(len(pair & set(valid.names)) == 1 for pair in pairs), seed)
        if len(seen) == 2:
            break
    assert set(seen) == {True, False}
    for parts, seed in seen.items():
        found = inspect(resolve({"source": str(copies), "size": 16, "seed": seed}))
        assert ("on both sides" in {mistake.kind for mistake in found.mistakes}) == parts


def test_small_pictures_are_not_called_near_duplicates() -> None:
    assert inspected("builtin:digits", "--limit", "200")["near_duplicates"] == []
