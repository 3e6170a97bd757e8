"""Several labels per image from end to end: train, predict, evaluate, suggest, inspect, with a file of tags."""

import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from semisight.data.builtin.scenes import read_scenes
from semisight.runs.run import load_run
from semisight.runs.run_images import reload_sets
from tests.cli.commands import ok, refused, semisight

SCENES = "builtin:scenes?n=300&size=12"
QUICK = ("--batch-size", "64", "--threads", "1", "--no-report")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tags of scenes, half of whose entries are hidden; no labels."""
    folder = tmp_path_factory.mktemp("tags") / "run"
    ok("train", SCENES, "--no-labels", "--tags", "builtin", "--tags-known", "0.5", "--steps", "60", "--learning-rate",
       "0.005", "--out", folder, *QUICK)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Scenes as pictures, with a table that has a column for each tag: 1, 0 or nothing."""
    folder = tmp_path_factory.mktemp("photos") / "p"
    folder.mkdir()
    scenes = read_scenes(40, 12, seed=3)
    assert scenes.tags is not None
    rows = [["file", *scenes.tags.names]]
    for i, pixels in enumerate(scenes.images):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{i:02d}.png")
        known = [str(value) if (i + c) % 3 else "" for c, value in enumerate(scenes.tags.values[i].tolist())]
        rows.append([f"{i:02d}.png", *known])
    table = folder.parent / "tags.csv"
    table.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return folder, table


def test_train_says_what_it_learns_and_what_comes_next(tmp_path: Path, photos: tuple[Path, Path]) -> None:
    folder, table = photos
    out = ok("train", folder, "--tags", table, "--steps", "1", "--out", tmp_path / "run", *QUICK)
    assert "tags: 11 of them; 293 entries are known (67%)" in out
    assert f"Next: semisight predict {tmp_path / 'run'} IMAGES" in out
    assert load_run(tmp_path / "run").data().settings.tags == str(table)


def test_predict_in_three_formats(run: Path) -> None:
    source = "builtin:scenes?n=6&size=12&seed=9"
    names = load_run(run).tags.names
    rows = list(csv.DictReader(io.StringIO(ok("predict", run, source, "--format", "csv"))))
    found = json.loads(ok("predict", run, source, "--format", "json"))
    assert list(rows[0]) == ["file", "tags", *names] and found["tag_names"] == list(names)
    assert "classes" not in found and found["tags_calibrated"] == load_run(run).tags.calibrated
    for row, entry in zip(rows, found["images"], strict=True):
        probabilities = {name: float(row[name]) for name in names}
        assert probabilities == entry["tag_probabilities"]
        assert set(filter(None, row["tags"].split(";"))) == {name for name, p in probabilities.items() if p >= 0.5}
        assert entry["tags"] == sorted(entry["tags"], key=lambda name: -probabilities[name])
    result = semisight("predict", run, source)
    assert "tags" in result.out.splitlines()[0] and "label" not in result.out.splitlines()[0]
    assert "Probabilities of tags" in result.err


def test_evaluate_on_hidden_entries_and_with_a_file(run: Path, photos: tuple[Path, Path]) -> None:
    result = semisight("evaluate", run, "--format", "json")
    found = json.loads(result.out)
    assert "tags were hidden from the training" in result.err
    measured = reload_sets(load_run(run)).measured("tags")
    assert measured is not None and measured.tags is not None and found["n"] == len(measured)
    assert sum(one["known"] for one in found["tags"]) == int((measured.tags.values >= 0).sum())
    assert 0 < found["mAP"] <= 1 and 0 <= found["F1"] <= 1
    assert json.loads(ok("evaluate", run, "--tags", "builtin", "--format", "json")) == found
    folder, table = photos
    given = json.loads(ok("evaluate", run, folder, "--tags", table, "--format", "json"))
    assert given["n"] == 40 and sum(one["known"] for one in given["tags"]) == 293
    rows = list(csv.DictReader(io.StringIO(ok("evaluate", run, folder, "--tags", table, "--format", "csv"))))
    values = {row["metric"]: float(row["value"]) for row in rows if not row["label"]}
    assert values["mAP"] == pytest.approx(given["mAP"]) and values["n"] == 40
    assert "average precision" in ok("evaluate", run, folder, "--tags", table)
    assert "give one of them" in refused("evaluate", run, folder, "--tags", table, "--top", "2")
    assert "carries no tags" in refused("evaluate", run, folder)


def test_suggest_goes_by_the_mean_doubt_of_tags(run: Path, photos: tuple[Path, Path]) -> None:
    folder, table = photos
    found = json.loads(ok("suggest", run, folder, "-n", "5", "--format", "json"))
    names = set(load_run(run).tags.names)
    assert len({one["file"] for one in found["label"]}) == 5 and found["check"] == []
    for one in found["label"]:
        assert 0 <= one["score"] <= 1 and set((one["guess"] or "").split(";")) - {""} <= names
    tasks = semisight("suggest", run, "-n", "2", "--format", "label-studio")
    assert tasks.code == 0 and 'choice="multiple"' in tasks.err and len(json.loads(tasks.out)) == 2
    whole = table.with_name("whole.csv")  # of some images everything is known: nobody need label them
    header = table.read_text().splitlines()[0]
    known = [f"{i:02d}.png" + ",1" * header.count(",") for i in range(30)]
    whole.write_text("\n".join([header, *known]) + "\n")
    found = json.loads(ok("suggest", run, folder, "--tags", whole, "-n", "40", "--format", "json"))
    assert {one["file"] for one in found["label"]} == {f"{i:02d}.png" for i in range(30, 40)}


def test_inspect_counts_tags(photos: tuple[Path, Path]) -> None:
    folder, table = photos
    found = json.loads(ok("inspect", folder, "--tags", table, "--format", "json"))
    assert found["tagged"] == 40 and len(found["tags"]) == 11
    assert sum(one["has"] + one["has_not"] for one in found["tags"].values()) == 293
    text = ok("inspect", folder, "--tags", table)
    assert "has it not" in text and "293 entries" in text


def test_labels_and_tags_are_said_side_by_side(tmp_path: Path) -> None:
    run = tmp_path / "both"
    ok("train", SCENES, "--tags", "builtin", "--steps", "2", "--out", run, *QUICK)
    header = ok("predict", run, "builtin:scenes?n=2&size=12", "--format", "csv", "--top", "1").splitlines()[0]
    assert header.startswith("file,label,probability,spread,tags,")
    assert "error" in json.loads(ok("evaluate", run, "--format", "json"))  # labels come first
    assert "mAP" in json.loads(ok("evaluate", run, "--tags", "builtin", "--format", "json"))
