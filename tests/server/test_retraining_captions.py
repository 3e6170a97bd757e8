"""Training again from the labelling page when the run learned captions, alone or beside labels: end to end."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from semisight.data import load
from semisight.runs.run import load_run
from tests.cli.commands import ok
from tests.server.conftest import client_of, wait_until_read
from tests.server.test_retraining import wait_for

WORD = "zeppelin"  # in no caption of the built-in scenes


def retrained(client: TestClient, minutes: float | None = None) -> Path:
    answer = client.post("/api/training", json={"minutes": minutes})
    assert answer.status_code == 202, answer.text
    last = wait_for(client, "done", "failed")[-1]
    assert last["state"] == "done", last
    wait_until_read(client)
    return Path(last["run"])


def say_of(client: TestClient, n: int, **what: Any) -> list[str]:
    """The same of the next n suggested images; their names."""
    files = [one["file"] for one in client.get(f"/api/suggestions?n={n}").json()["images"]]
    for file in files:
        assert client.post("/api/labels", json={"file": file, **what}).status_code == 200
    return files


def answer_of(client: TestClient, picture: bytes) -> dict[str, Any]:
    found = client.post("/api/predict?captions=2", content=picture, headers={"Content-Type": "image/png"})
    assert found.status_code == 200
    image: dict[str, Any] = found.json()["images"][0]
    return image


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small scenes, with a caption of most and a label of some."""
    folder = tmp_path_factory.mktemp("scenes")
    images = load("builtin:scenes?n=60&size=16")
    assert images.captions is not None
    names = [f"{number:02}.png" for number in range(len(images))]
    (folder / "photos").mkdir()
    for name, pixels in zip(names, images.images.numpy(), strict=True):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(folder / "photos" / name)
    with (folder / "captions.csv").open("w", newline="") as file:
        told = [(name, said) for name, of_image in zip(names[:50], images.captions, strict=False) for said in of_image]
        csv.writer(file).writerows([("file", "caption"), *told])
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("file", "label"), *((name, ("even", "odd")[int(name[1]) % 2]) for name in names[:12])]
        )
    return folder


@pytest.mark.timeout(600)  # two trainings, each in a process of its own
def test_captions_alone_and_then_labels_beside_them(scenes_run: Path, tmp_path: Path, scenes: Path) -> None:
    picture = (scenes / "photos" / "00.png").read_bytes()
    run = Path(shutil.copytree(scenes_run, tmp_path / "scenes"))
    known = json.loads((run / "vocabulary.json").read_text())
    with client_of(run) as client:
        wait_until_read(client)
        files = say_of(client, 6, caption=f"a {WORD} above the sea")
        second = retrained(client)
        assert second == tmp_path / "scenes-2"
        found = load_run(second)
        assert found.has("captions") and not found.has("labels")
        assert WORD not in str(known) and WORD in (second / "vocabulary.json").read_text()
        told = list(csv.DictReader((second / "captions.csv").open(encoding="utf-8")))
        assert {row["file"] for row in told if WORD in row["caption"]} == set(files)
        assert len({row["file"] for row in told}) == 60  # those that the run knew are kept
        assert client.get("/api/status").json()["run"] == str(second)
        assert answer_of(client, picture)["captions"]
        # and now labels
        for label in ("near", "far"):
            say_of(client, 4, label=label)
        third = retrained(client, minutes=0.01)  # the settings of a run with labels are not those of one without
        found = load_run(third)
        assert found.has("captions") and found.labels.class_names == ("far", "near")
        assert WORD in (third / "vocabulary.json").read_text()  # what was said before is not forgotten
        image = answer_of(client, picture)
        assert {guess["label"] for guess in image["labels"]} == {"far", "near"} and image["captions"]


@pytest.mark.timeout(300)
def test_labels_and_captions_of_a_folder(scenes: Path, tmp_path: Path) -> None:
    run, table = tmp_path / "run", Path(shutil.copy(scenes / "labels.csv", tmp_path / "labels.csv"))
    ok("train", scenes / "photos", "--labels", table, "--captions", scenes / "captions.csv", "--size", "16",
       "--steps", "4", "--batch-size", "16", "--no-report", "--out", run)  # fmt: skip
    before = (scenes / "captions.csv").read_bytes()
    with client_of(run) as client:
        wait_until_read(client)
        assert client.get("/api/status").json()["table"]["path"] == str(table)
        files = say_of(client, 3, label="neither", caption=f"a {WORD} over a town")
        new = retrained(client)
        found = load_run(new)
        assert found.labels.class_names == ("even", "neither", "odd")
        assert found.has("captions") and WORD in (new / "vocabulary.json").read_text()
        image = answer_of(client, (scenes / "photos" / "07.png").read_bytes())
        assert len(image["labels"]) == 3 and image["captions"] and image["nearest"]
    settings = json.loads((new / "data.json").read_text())["settings"]
    assert (settings["labels"], settings["captions"]) == (str(table), str(new / "captions.csv"))
    assert (scenes / "captions.csv").read_bytes() == before
    rows = {row["file"]: row for row in csv.DictReader(table.open(encoding="utf-8"))}
    assert len(rows) == 15 and all(rows[file]["label"] == "neither" for file in files)
