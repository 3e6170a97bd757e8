"""`semisight suggest`: what it writes, in every format, and from which images it chooses."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.commands import ok, refused, semisight


def test_csv_names_images_without_label_and_labels_to_check(labelled_run: Path) -> None:
    text = ok("suggest", labelled_run, "-n", "7", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    label, check = ([row for row in rows if row["what"] == what] for what in ("label", "check"))
    assert len(label) == 7 and len({row["file"] for row in label}) == 7 and len(check) <= 7
    assert all(row["label"] == "" and row["guess"] and 0 <= float(row["score"]) <= 1 for row in label)
    assert all(row["label"] != row["guess"] and float(row["score"]) > 0.5 for row in check)
    found = json.loads(ok("suggest", labelled_run, "-n", "7", "--format", "json"))
    assert [one["file"] for one in found["label"]] == [row["file"] for row in label]
    assert label[0]["file"] in ok("suggest", labelled_run, "-n", "7")


def test_wrong_labels_are_found(labelled_run: Path, tmp_path: Path) -> None:
    """Labels of new images, some of them swapped: the swapped ones lead the list."""
    guesses = json.loads(ok("predict", labelled_run, "builtin:digits", "--limit", "60", "--format", "json"))["images"]
    sure = sorted(guesses, key=lambda one: -one["probability"])[:30]
    swapped = {sure[3]["file"], sure[8]["file"]}
    rows = [(one["file"], one["top"][1]["label"] if one["file"] in swapped else one["label"]) for one in sure]
    table = tmp_path / "labels.csv"
    table.write_text("file,label\n" + "".join(f"{file},{label}\n" for file, label in rows))
    text = ok("suggest", labelled_run, "builtin:digits", "--labels", table, "-n", "4", "--format", "json")
    check = json.loads(text)["check"]
    assert swapped <= {one["file"] for one in check[:4]}


@pytest.mark.parametrize("good", [True, False])
def test_it_is_said_how_far_to_believe_the_list_and_a_weak_model_lists_none(
    good: bool, labelled_run: Path, tmp_path: Path
) -> None:
    """Labels as the model itself gives them, or drawn by lot: no neighbour could doubt one of those."""
    guesses = json.loads(ok("predict", labelled_run, "builtin:digits", "--limit", "200", "--format", "json"))["images"]
    sure = sorted(guesses, key=lambda one: -one["probability"])[:80]
    table = tmp_path / "labels.csv"
    rows = [f"{one['file']},{one['label'] if good else (7 * i) % 10}\n" for i, one in enumerate(sure)]
    table.write_text("file,label\n" + "".join(rows))
    result = semisight("suggest", labelled_run, "builtin:digits", "--labels", table, "-n", "9", "--format", "json")
    assert result.code == 0
    assert ("of the wrong ones would be listed" in result.err) == good
    assert ("No labels to check are listed" in result.err) == (not good)
    assert good or json.loads(result.out)["check"] == []


def test_tasks_for_label_studio(labelled_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "tasks.json"
    result = semisight(
        "suggest", labelled_run, "-n", "3", "--format", "label-studio", "--images-at", "https://x.org/", "--out", out
    )
    assert result.code == 0 and "images to label" in result.out
    assert '<Choices name="label" toName="image">' in result.err
    tasks = json.loads(out.read_text())
    for task in tasks:
        assert task["data"]["image"].startswith("https://x.org/")
        (prediction,) = task["predictions"]
        (choice,) = prediction["result"]
        assert (choice["from_name"], choice["to_name"], choice["type"]) == ("label", "image", "choices")
        assert choice["value"]["choices"][0] in {str(digit) for digit in range(10)}
    assert {task["meta"]["what"] for task in tasks} <= {"label", "check"}


def test_a_run_without_labels_suggests_images_unlike_each_other(shared_run: Path) -> None:
    result = semisight("suggest", shared_run, "-n", "5", "--format", "csv")
    assert result.code == 0 and "knows no labels" in result.err
    assert len(result.out.splitlines()) == 6


def test_nothing_is_replaced_unasked(labelled_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "next.csv"
    out.write_text("mine")
    assert "--overwrite" in refused("suggest", labelled_run, "--out", out)
    assert out.read_text() == "mine"


@pytest.mark.slow
def test_the_measured_curve_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "suggest.csv"
    ok("reproduce", "suggest", "--smoke", "--rows", "suggest", "--out", out)
    rows = list(csv.DictReader(out.open()))
    assert [(row["row"], row["N"], row["metric"]) for row in rows] == [
        ("suggest", "10", "error"),
        ("suggest", "20", "error"),
    ]
    assert "Nothing to do" in ok("reproduce", "suggest", "--smoke", "--rows", "suggest", "--out", out)
    assert "no row" in refused("reproduce", "suggest", "--smoke", "--rows", "magic", "--out", out)
