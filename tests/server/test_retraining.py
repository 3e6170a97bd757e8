"""A training in the background: a child process whose progress is seen, and whose run takes over."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semisight.data.caption_files import read_captions
from semisight.data.label_csv import Entry
from semisight.runs.run import load_run
from semisight.server.retraining import Busy, Retraining, _new_folder, train_command, write_captions
from tests.server.conftest import client_of, png, wait_until_read


def wait_for(client: TestClient, *states: str) -> list[dict[str, Any]]:
    """All that was said on the way to one of these states."""
    seen = []
    for _ in range(2500):
        seen.append(client.get("/api/training").json())
        if seen[-1]["state"] in states:
            return seen
        time.sleep(0.1)
    pytest.fail(f"never {states}: {seen[-1]}")


@pytest.mark.timeout(300)  # a busy machine takes long to start a process
def test_new_labels_are_learned_and_the_new_run_answers(own_digits: Path, tmp_path: Path) -> None:
    with client_of(own_digits, labels=tmp_path / "labels.csv") as client:
        wait_until_read(client)
        for one in client.get("/api/suggestions?n=4").json()["images"]:
            client.post("/api/labels", json={"file": one["file"], "label": "strange"})
        assert client.post("/api/training", json={}).status_code == 202
        assert client.post("/api/training", json={}).status_code == 409  # one at a time
        assert client.post("/api/predict", content=png(), headers={"Content-Type": "image/png"}).status_code == 200
        seen = wait_for(client, "done", "failed")
        assert seen[-1]["state"] == "done", seen[-1]
        fractions = [one["fraction"] for one in seen if one["fraction"] is not None]
        assert fractions == sorted(fractions) and fractions[-1] == 1
        assert seen[-1]["step"] > 0 and "bound" in seen[-1]["terms"] and seen[-1]["lines"]
        folder = Path(seen[-1]["run"])
        assert folder == own_digits.with_name("digits-2")
        status = client.get("/api/status").json()
        assert status["run"] == str(folder)
        assert "strange" in load_run(folder).labels.class_names
        wait_until_read(client)
        image = client.post("/api/predict?top=20", content=png(), headers={"Content-Type": "image/png"}).json()[
            "images"
        ][0]
        assert "strange" in [guess["label"] for guess in image["labels"]] and image["nearest"]
    settings = json.loads((folder / "data.json").read_text())["settings"]
    assert settings["labels"] == str(tmp_path / "labels.csv")


def test_a_training_needs_two_classes(scenes_run: Path, tmp_path: Path) -> None:
    data = json.loads((scenes_run / "data.json").read_text())
    assert data["settings"]["captions"]  # a run without labels; its captions are left out by another folder of images
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(png(i, size=16))
    with client_of(scenes_run, images=str(tmp_path), labels=tmp_path / "labels.csv") as client:
        wait_until_read(client)
        answer = client.post("/api/training", json={})
        assert answer.status_code == 409 and "two classes" in answer.json()["detail"]
        assert client.get("/api/training").json()["state"] == "none"


def child(code: str) -> Any:
    return lambda out: [sys.executable, "-c", code]


def wait(training: Retraining, *states: str) -> None:
    for _ in range(300):
        if training.progress().state in states:
            return
        time.sleep(0.05)
    pytest.fail(str(training.progress()))


def test_a_failure_is_said_and_the_next_one_may_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what a child prints to a file is then held back
    taken: list[Path] = []
    training = Retraining(taken.append)
    training.start(child("print('reading'); raise SystemExit('error: no labels')"), tmp_path / "run")
    wait(training, "failed")
    assert training.progress().message == "error: no labels"
    assert training.progress().lines == ("reading", "error: no labels")
    training.start(child("pass"), tmp_path / "run")
    wait(training, "done")
    assert taken == [tmp_path / "run-3"]
    training.start(lambda out: ["/no/such/program"], tmp_path / "run")
    assert training.progress().state == "failed"


def test_stopping_and_the_end_of_the_server(tmp_path: Path) -> None:
    training = Retraining(lambda folder: None)
    training.start(child("import time; time.sleep(60)"), tmp_path / "run")
    with pytest.raises(Busy):
        training.start(child("pass"), tmp_path / "run")
    training.stop()
    wait(training, "stopped")
    assert "--resume" in training.progress().message
    training.start(child("import time; time.sleep(60)"), tmp_path / "run")
    training.close()
    assert training.progress().state == "stopped"


def test_folders_are_new_ones(tmp_path: Path) -> None:
    for wanted in ("photos-2", "photos-3"):
        assert _new_folder(tmp_path / "photos").name == wanted
    assert _new_folder(tmp_path / "photos-3").name == "photos-4"
    assert _new_folder(tmp_path / "-7").name == "-7-2"
    assert _new_folder(tmp_path / "2024-05-x").name == "2024-05-x-2"


def test_captions_of_the_run_and_of_the_table_go_together(scenes_run: Path, tmp_path: Path) -> None:
    known = {"a": ("one", "two words"), "b": ("three",)}
    entries = {"a": Entry("x", "one"), "b": Entry("", "four"), "c": Entry("y", "five, six"), "d": Entry("z")}
    file = write_captions(tmp_path, known, entries)
    found = read_captions(file)
    assert dict(zip(found.names, found.captions, strict=True)) == {
        "a": ("one", "two words"), "b": ("three", "four"), "c": ("five, six",),
    }  # fmt: skip
    words = train_command(load_run(scenes_run), "builtin:scenes", None, file, tmp_path / "new", 3.0)
    assert words[words.index("--captions") + 1] == str(file) and "--no-labels" in words
    assert words[words.index("--minutes") + 1] == "3.0"
