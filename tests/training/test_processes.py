"""Real processes: killed with -9 in the middle of an epoch, told to stop, and two of them instead of one."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from semisight.errors import UserError
from semisight.training.checkpoint import read_checkpoint, read_meta
from semisight.training.folder import RunFolder
from semisight.training.logs import read_log
from tests.training.toy import MODELS, train_image_model, train_toy

ROOT = Path(__file__).parents[2]


def start(*arguments: str, launcher: tuple[str, ...] = ()) -> "subprocess.Popen[str]":
    command = [sys.executable, *launcher, "-m", "tests.training.toy", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def saved_step(run: Path) -> int:
    try:
        return int(read_meta(RunFolder(run).newest)["counters"]["step"])
    except UserError:
        return -1  # not yet there


def wait_for_step(process: "subprocess.Popen[str]", run: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while saved_step(run) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the training did not get there"
        time.sleep(0.005)


def assert_same_checkpoints(a: Path, b: Path) -> None:
    one, two = read_checkpoint(a).tensors, read_checkpoint(b).tensors
    assert one.keys() == two.keys() == {"model", "training"}
    assert {name.split("/")[0] for name in one["training"]} >= {"weights", "optimiser", "state", "average"}
    for part in one:
        assert one[part].keys() == two[part].keys()
        for name, value in one[part].items():
            assert torch.equal(value, two[part][name]), f"{part}:{name}"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple["subprocess.Popen[str]", Path]]]:
    """Two trainings, started together because starting is what takes long."""
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in ("kill", "ctrl-c")}
    settings = {"kill": ("average_decay=0.9",), "ctrl-c": ("max_epochs=100000",)}
    processes = {name: start(str(run), *settings[name], "--pause", "0.03") for name, run in folders.items()}
    yield {name: (processes[name], folders[name]) for name in folders}
    for process in processes.values():
        process.kill()
        process.communicate()


def test_kill_9_in_the_middle_of_an_epoch_then_resume_equals_an_uninterrupted_run(
    tmp_path: Path, running: dict[str, tuple["subprocess.Popen[str]", Path]]
) -> None:
    whole, (process, run) = tmp_path / "whole", running["kill"]
    wait_for_step(process, run, 12)  # epochs end at 9, 18, 27; checkpoints come every 4 steps and at the ends
    time.sleep(0.05)  # on into the steps that are not saved
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 12 <= saved_step(run) < 27

    train_toy(run, resume=True, average_decay=0.9)
    train_toy(whole, average_decay=0.9)
    assert saved_step(run) == saved_step(whole) == 27
    for name in ("newest", "best"):
        assert_same_checkpoints(getattr(RunFolder(run), name), getattr(RunFolder(whole), name))
    rows = [{**row, "seconds": 0} for row in read_log(run / "log.csv")]
    assert rows == [{**row, "seconds": 0} for row in read_log(whole / "log.csv")]  # none is missing, none stands twice


def test_ctrl_c_saves_and_says_how_to_go_on(running: dict[str, tuple["subprocess.Popen[str]", Path]]) -> None:
    process, run = running["ctrl-c"]
    wait_for_step(process, run, 2)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "--resume" in output and "finishing the step" in output
    assert f"after step {saved_step(run)}" in output


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# One process and two add the same numbers in another order. The stated tolerance, relative and absolute, in 64-bit
# numbers (in 32-bit numbers the weights agreed to 1e-7, nvil's variance of about 50 to 4e-6). Whitened patches of noise
# and batch normalisation make the most of a rounding: 3e-12 in the deep encoder, 1e-13 elsewhere.
TOLERANCE = 1e-11
KEPT = ("weights", "state")  # of what resuming needs; the model's part holds the averages


def assert_same_training(one: Path, two: Path) -> None:
    a, b = (read_checkpoint(RunFolder(run).newest) for run in (one, two))
    assert b.meta["config"]["processes"] == 2 and a.meta["counters"]["step"] == b.meta["counters"]["step"] == 21
    for mine, theirs in ((a.part("model"), b.part("model")), *((a.training(n), b.training(n)) for n in KEPT)):
        assert mine.keys() == theirs.keys() and mine
        for name, value in mine.items():
            torch.testing.assert_close(theirs[name], value, rtol=TOLERANCE, atol=TOLERANCE, msg=name)
    for mine, theirs in zip(read_log(one / "log.csv"), read_log(two / "log.csv"), strict=True):
        assert theirs["split"] == mine["split"] and theirs["bound"] == pytest.approx(mine["bound"], rel=1e-6)


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """The image model with two of its estimators, learned and exact alpha0; encoders with batch normalisation, ours and
    torch's, with labels; and the toy. Processes of our own."""
    two, one = tmp_path / "two", tmp_path / "one"
    both = start(str(two), "processes=2", "batch_size=10", "precision=64", "average_decay=0.9", "--models")
    settings: dict[str, Any] = {"batch_size": 10, "precision": "64", "average_decay": 0.9}
    for name in MODELS:
        train_image_model(one / name, name, **settings)
    train_toy(one / "toy", **settings)
    output = both.communicate(timeout=100)[0]
    assert both.returncode == 0, output
    assert output.count("already holds a run") == 2  # a mistake is told by both and leaves none of them waiting
    for name in (*MODELS, "toy"):
        assert_same_training(one / name, two / name)
    # a cycle that ends with the time: processes go by one clock
    rates = [row["rate"] for row in read_log(two / "timed" / "log.csv") if row["split"] == "train"]
    assert rates[0] < max(rates) > 2 * rates[-1]


@pytest.mark.slow
def test_torchrun_starts_the_processes_too(tmp_path: Path) -> None:
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))
    both = start(str(tmp_path / "two"), "batch_size=10", "precision=64", "average_decay=0.9", launcher=torchrun)
    train_toy(tmp_path / "one", batch_size=10, precision="64", average_decay=0.9)
    assert both.wait(100) == 0, both.communicate()[0]
    assert_same_training(tmp_path / "one", tmp_path / "two")
