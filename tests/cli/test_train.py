"""`semisight train`: what it writes, what it refuses, and going on after it was stopped."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.files import locked
from semisight.runs import train as training
from semisight.runs.run import DataRecord, load_run
from semisight.training.checkpoint import read_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.folder import RunFolder
from semisight.training.interrupts import Interrupted
from semisight.training.logs import read_log
from semisight.training.trainer import Trainer
from tests.cli.commands import TINY, ok, refused, semisight


def test_a_run_folder_holds_everything(shared_run: Path) -> None:
    for name in (
        "config.json",
        "data.json",
        "log.csv",
        "report.html",
        "checkpoints/newest.safetensors",
        "checkpoints/best.safetensors",
    ):
        assert (shared_run / name).is_file(), name
    meta = json.loads((shared_run / "config.json").read_text())
    assert meta["about"]["model"]["architecture"]["image_shape"] == [1, 8, 8]
    assert meta["about"]["model"]["pooling"] == "expected"
    assert meta["config"]["batch_size"] == 16
    assert "torch" in meta["versions"]
    record = DataRecord.read(RunFolder(shared_run))
    assert (record.n_train, record.n_valid, record.settings.source) == (32, 8, "builtin:digits")


def test_it_says_what_it_found_and_where_the_report_is(tmp_path: Path) -> None:
    out = ok("train", *TINY, "--out", tmp_path / "run", "--epochs", "1")
    assert "40 grey images of 8 x 8 pixels from builtin:digits; 8 are set aside for validation" in out
    assert "1 epochs are done" in out
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in out


def test_settings_reach_the_model(tmp_path: Path) -> None:
    options = [
        "--pooling",
        "sampled",
        "--gradient",
        "nvil",
        "--nonlinearity",
        "relu",
        "--schedule",
        "cosine",
        "--size",
        "12",
    ]
    more = [
        "--learning-rate",
        "0.01",
        "--seed",
        "3",
        "--precision",
        "64",
        "--threads",
        "1",
        "--device",
        "cpu",
        "--no-report",
    ]
    ok("train", *TINY, "--out", tmp_path, "--epochs", "1", *options, *more)
    run = load_run(tmp_path)
    assert run.architecture.image_shape == (1, 12, 12)
    assert run.architecture.nonlinearity == "relu"
    assert not run.model.encoder.mean_is_exact  # its places are drawn
    assert (run.about["model"]["pooling"], run.about["model"]["gradient"]) == ("sampled", "nvil")
    config = run.config
    assert (config.schedule, config.learning_rate, config.seed, config.precision) == ("cosine", 0.01, 3, "64")
    assert not (tmp_path / "report.html").exists()


def test_a_preset_brings_its_size_of_image(tmp_path: Path) -> None:
    ok("train", *TINY, "--out", tmp_path, "--epochs", "1", "--preset", "mnist", "--no-report")
    run = load_run(tmp_path)
    assert run.architecture.image_shape == (1, 28, 28)
    assert [layer.maps for layer in run.architecture.layers] == [30, 80]


def test_a_file_of_settings_with_own_layers_and_options_that_win(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "layers:\n - {maps: 4, kernel: 3, pool: 2}\n - {maps: 5, kernel: 2}\nepochs: 9\nlearning-rate: 1e-3\n"
    )
    ok("train", *TINY, "--out", tmp_path / "run", "--config", settings, "--epochs", "1", "--no-report")
    run = load_run(tmp_path / "run")
    assert [(layer.maps, layer.kernel, layer.pool) for layer in run.architecture.layers] == [(4, 3, 2), (5, 2, 1)]
    assert (run.config.max_epochs, run.config.learning_rate) == (1, 1e-3)


def test_the_settings_of_one_run_serve_another(shared_run: Path, tmp_path: Path) -> None:
    ok(
        "train",
        *TINY[:1],
        "--limit",
        "40",
        "--out",
        tmp_path,
        "--config",
        shared_run / "config.json",
        "--epochs",
        "1",
        "--no-report",
    )
    new, old = load_run(tmp_path), load_run(shared_run)
    assert new.architecture == old.architecture
    assert (new.config.batch_size, new.config.average_decay) == (16, 0.9)


def test_a_folder_with_files_that_are_no_images(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    random = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(random.integers(0, 256, (10 + number, 12, 3), np.uint8)).save(photos / f"{number}.png")
    (photos / "notes.txt").write_text("not a picture")
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 garbage")
    out = ok("train", photos, "--size", "8", "--out", tmp_path / "run", "--epochs", "1", "--batch-size", "4")
    assert "12 colour images of 8 x 8 pixels" in out
    assert "2 files skipped" in out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "notes.txt" in page
    assert "broken.jpg" in page


def test_after_training_every_process_stands_alone(tmp_path: Path) -> None:
    """The report adds up terms: with the group still there, the first process would wait for those that have left."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        ok("train", *TINY, "--out", tmp_path / "run", "--epochs", "1")
        assert not torch.distributed.is_initialized()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize("valid", ["0", "0.5"])
def test_a_set_too_small_to_spare_an_image_still_trains(tmp_path: Path, valid: str) -> None:
    Image.new("L", (8, 8), 90).save(tmp_path / "one.png")
    out = ok("train", tmp_path / "one.png", "--out", tmp_path / "run", "--epochs", "2", "--valid-fraction", valid)
    assert "none are set aside" in out
    assert load_run(tmp_path / "run").checkpoint.name == "newest.safetensors"
    assert "from the training set, as none were set aside" in (tmp_path / "run" / "report.html").read_text()


def test_an_existing_run_is_neither_touched_nor_repeated_unasked(own_run: Path) -> None:
    before = {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()}
    message = refused("train", *TINY, "--out", own_run, "--epochs", "1")
    assert "--resume" in message
    assert "--overwrite" in message
    assert before == {path: path.read_bytes() for path in own_run.rglob("*") if path.is_file()}


def test_overwrite_replaces_the_run_and_spares_other_files(own_run: Path) -> None:
    (own_run / "mine.txt").write_text("mine")
    ok("train", *TINY, "--out", own_run, "--overwrite", "--epochs", "1", "--no-report")
    assert load_run(own_run).config.max_epochs == 1
    assert (own_run / "mine.txt").read_text() == "mine"
    assert not (own_run / "report.html").exists()  # it showed the former run


def test_resume_needs_no_repeated_settings(own_run: Path) -> None:
    ok("train", "--out", own_run, "--resume", "--epochs", "3", "--no-report")
    rows = [row for row in read_log(own_run / "log.csv") if row["split"] == "valid"]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["epoch"] for row in read_log(own_run / "log.csv") if row["split"] == "train"] == [1, 2, 3]
    assert load_run(own_run, "newest").config.average_decay == 0.9


def test_resume_refuses_other_images_and_settings(own_run: Path) -> None:
    record = (own_run / "data.json").read_text()
    assert "data.train" in refused("train", "builtin:digits", "--limit", "30", "--out", own_run, "--resume")
    assert "learning_rate" in refused("train", "--out", own_run, "--resume", "--learning-rate", "0.5")
    assert "about.model.pooling" in refused("train", "--out", own_run, "--resume", "--pooling", "sampled")
    assert (own_run / "data.json").read_text() == record


def test_stopped_by_a_signal_it_saves_and_goes_on_exactly(tmp_path: Path) -> None:
    stopped, straight = tmp_path / "stopped", tmp_path / "straight"
    command = [
        sys.executable,
        "-m",
        "semisight",
        "train",
        *TINY,
        "--out",
        str(stopped),
        "--epochs",
        "100000",
        "--no-report",
    ]
    process = subprocess.Popen([*command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 90
        while not ((stopped / "log.csv").exists() and "valid" in (stopped / "log.csv").read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 143, err
    assert f"semisight train --out {stopped} --resume" in err
    step = read_checkpoint(RunFolder(stopped).newest).meta["counters"]["step"]
    epochs = str(step // 2 + 2)
    ok("train", "--out", stopped, "--resume", "--epochs", epochs, "--no-report")
    ok("train", *TINY, "--out", straight, "--epochs", epochs, "--no-report")
    once, twice = (read_checkpoint(RunFolder(path).newest).part("model") for path in (straight, stopped))
    assert once.keys() == twice.keys()
    assert all(torch.equal(once[name], twice[name]) for name in once)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_the_exit_code_that_a_shell_expects(
    number: int, code: int, own_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*arguments: object, **options: object) -> None:
        raise Interrupted("stopped after step 7, saved.", number)

    monkeypatch.setattr(Trainer, "fit", fit)
    result = semisight("train", "--out", own_run, "--resume")
    assert result.code == code
    assert "stopped after step 7" in result.err
    assert f"semisight train --out {own_run} --resume" in result.err
    assert semisight("demo", "--out", own_run.with_name("demo")).code == code


def test_a_busy_machine_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(training.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert "--threads 1" in training.advice(TrainConfig(device="cpu"))[0]
    assert training.advice(TrainConfig(device="cpu", threads=2)) == []
    monkeypatch.setattr(training.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert training.advice(TrainConfig(device="cpu")) == []


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["train", "builtin:digits"], "--out"),
        (["train", "--out", "RUN"], "which images"),
        (["train", "builtin:digits", "--out", "RUN", "--resume"], "no run in RUN to resume"),
        (["train", "builtin:digits", "--out", "RUN", "--resume", "--overwrite"], "give one of them"),
        (["train", "nowhere", "--out", "RUN"], "nowhere is missing"),
        (["train", "scenes", "--out", "RUN"], "Did you mean builtin:scenes"),
        (["train", "empty", "--out", "RUN"], "empty"),
        (["train", "builtin:digits", "--out", "file.txt"], "is a file"),
        (["train", "builtin:digits", "--out", "RUN", "--preset", "mnits"], "did you mean 'mnist'"),
        (["train", "builtin:digits", "--out", "RUN", "--preset", "mnist", "--size", "30"], "Sizes that would"),
        (["train", "builtin:digits", "--out", "RUN", "--config", "wrong.yaml"], "Did you mean 'learning_rate'"),
        (["train", "builtin:digits", "--out", "RUN", "--config", "layers.json"], "did you mean 'kernel'"),
        (["train", "builtin:digits", "--out", "RUN", "--config", "none.yaml"], "none.yaml"),
        (["train", "builtin:digits", "--out", "RUN", "--config", "file.txt"], "file.txt"),
        (["train", "builtin:digits", "--out", "RUN", "--gradient", "reinforce"], "straight-through"),
        (["train", "builtin:digits", "--out", "RUN", "--device", "tpu"], "tpu"),
        (["train", "builtin:digits", "--out", "RUN", "--epochs", "0"], "max_epochs must be at least 1"),
        (["train", "builtin:digits", "--out", "RUN", "--valid-fraction", "1.5"], "valid_fraction"),
        (["train", "builtin:digits", "--out", "RUN", "--size", "-3"], "size"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    arguments: list[str], fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("just text")
    (tmp_path / "wrong.yaml").write_text("learnin_rate: 0.1")
    (tmp_path / "layers.json").write_text('{"layers": [{"maps": 4, "kernle": 3}, {"maps": 5, "kernel": 2}]}')
    assert fragment in refused(*arguments)
    assert not (tmp_path / "RUN").exists()


def test_a_full_disk_at_the_report_says_that_the_run_is_safe(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semisight.errors import UserError
    from semisight.report import build

    def fail(path: Path, content: str) -> None:
        raise UserError(f"could not write {path}: No space left on device.")

    monkeypatch.setattr(build, "write_atomic", fail)
    message = semisight("train", "--out", own_run, "--resume", "--epochs", "3")
    assert message.code == 2
    assert "the run is complete and saved" in message.err
    assert "No space left" in message.err


def test_two_trainings_into_one_folder(tmp_path: Path) -> None:
    """The second is told who the first is, and leaves its files alone."""
    run = tmp_path / "run"
    ok("train", *TINY, "--epochs", "1", "--no-report", "--out", run)
    before = {file: file.read_bytes() for file in run.rglob("*.json")}
    with locked(run, "another training"):
        for how in ("--overwrite", "--resume"):
            words = TINY if how == "--overwrite" else ()
            said = refused("train", *words, "--epochs", "2", "--no-report", "--out", run, how)
            assert "in use by another process (another training" in said, how
    assert {file: file.read_bytes() for file in run.rglob("*.json")} == before
