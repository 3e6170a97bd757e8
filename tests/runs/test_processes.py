"""Labels, tags and captions learned by several processes equal what one learns; one that dies is told, and replaced."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from semisight.errors import UserError
from semisight.runs.settings import resolve
from semisight.runs.train import train_run
from semisight.training.checkpoint import read_checkpoint, read_meta
from semisight.training.folder import RunFolder

pytestmark = pytest.mark.timeout(300)  # seconds where nothing else runs
SOURCE = "builtin:scenes?n=48&size=16"
SETTINGS = {
    **{"tags": "builtin", "captions": "builtin", "labels_per_class": 3, "captioned_images": 20, "tags_known": 0.3},
    **{"max_steps": 8, "batch_size": 13, "precision": "64", "threads": 1, "progress": False, "tensorboard": False},
    **{
        "layers": [{"maps": 6, "kernel": 5, "pool": 4}, {"maps": 8, "kernel": 3}],
        "hidden_size": 16,
        "embedding_size": 16,
    },
    **{"checkpoint_steps": 1, "valid_fraction": 0.15, "spreading": 1.0, "validate_every": 1},
}
# Sums in another order, in 64-bit numbers, and images augmented in 32-bit numbers, whose last bit depends on how many
# are augmented at once. A contrastive term over each process's own rows moves weights by 1e-3.
TOLERANCE = 1e-5


def config_file(folder: Path) -> Path:
    import yaml

    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump({"source": SOURCE, **SETTINGS}))
    return file


def start(
    folder: Path, out: Path, *options: str, launcher: tuple[str, ...] = (), prefix: tuple[str, ...] = ()
) -> "subprocess.Popen[str]":
    command = [*prefix, sys.executable, *launcher, "-m", "semisight", "train", "--config", str(config_file(folder))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--out", str(out), "--no-report", *options],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


def saved_step(run: Path) -> int:
    try:
        return int(read_meta(RunFolder(run).newest)["counters"]["step"])
    except UserError:
        return -1  # not yet there


def wait_for_step(process: "subprocess.Popen[str]", run: Path, step: int, seconds: float = 250) -> None:
    deadline = time.monotonic() + seconds
    while saved_step(run) < step:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the training did not get there"
        time.sleep(0.002)


def children(pid: int) -> list[int]:
    """The processes that a process has started, by what the kernel says."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return sorted(int(child) for task in tasks for child in task.read_text().split())


def assert_same(one: Path, other: Path) -> None:
    a, b = (read_checkpoint(RunFolder(run).newest) for run in (one, other))
    assert a.meta["counters"]["step"] == b.meta["counters"]["step"] == SETTINGS["max_steps"]
    assert {"head.labels", "head.tags", "head.captions", "model"} <= a.tensors.keys() == b.tensors.keys()
    state = b.training("state")
    assert a.meta["data"]["valid"]["number"] > 0  # the first validates, and the others wait for it
    assert (
        len(state["targets.0.responsibilities"]) == a.meta["data"]["train"]["number"]
    )  # labels were spread, and all processes learned from them
    for part in a.tensors:
        for name, value in a.tensors[part].items():
            if not name.startswith("meter/"):
                torch.testing.assert_close(
                    b.tensors[part][name], value, rtol=TOLERANCE, atol=TOLERANCE, msg=f"{part} {name}"
                )


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one")
    resolved = resolve({}, config_file(folder), None)
    train_run(resolved, folder / "run", resume=False, overwrite=False, say=lambda line: None)
    return folder / "run"


def test_two_processes_learn_all_targets_as_one_does(tmp_path: Path, one: Path) -> None:
    process = start(tmp_path, tmp_path / "run", "--processes", "2")
    output = process.communicate(timeout=280)[0]
    assert process.returncode == 0, output
    assert output.count("Stopped because") == 1  # only the first speaks
    assert_same(one, tmp_path / "run")


def test_a_process_that_dies_ends_the_others_and_torchrun_goes_on_from_the_newest_checkpoint(
    tmp_path: Path, one: Path
) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    process = start(tmp_path, tmp_path / "run", launcher=(*torchrun, "--monitor-interval", "1"))
    try:
        wait_for_step(process, tmp_path / "run", 2)
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        output = process.communicate(timeout=280)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    assert "another of the 2 processes of this training ended" in output
    assert_same(one, tmp_path / "run")


def test_a_process_that_dies_ends_the_others_within_seconds(tmp_path: Path) -> None:
    """Also where nobody starts it again: one sentence, and what was saved is there."""
    process = start(tmp_path, tmp_path / "run", "--processes", "2", "--steps", "100000", "--epochs", "100000")
    try:
        wait_for_step(process, tmp_path / "run", 2)
        [*_, second] = children(process.pid)
        killed = time.monotonic()
        os.kill(second, signal.SIGKILL)
        output = process.communicate(timeout=120)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode not in (0, None) and time.monotonic() - killed < 60  # seconds; the machine may be busy
    assert "another of the 2 processes of this training ended" in output and "Traceback" not in output
    assert saved_step(tmp_path / "run") >= 2


def test_a_restart_goes_on_with_the_run_of_its_own_job_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semisight.runs.train import _how_to_go_on, is_restarted

    folder = RunFolder(tmp_path)
    folder.newest.parent.mkdir(parents=True, exist_ok=True)
    folder.newest.write_bytes(b"")
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "mine")):
        monkeypatch.setenv(name, value)
    folder.file("unfinished.txt").write_bytes(_how_to_go_on(folder))
    assert is_restarted(tmp_path)  # a machine that was replaced, too
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not is_restarted(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun was given no name
    assert not is_restarted(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert is_restarted(tmp_path)
    folder.file("unfinished.txt").unlink()
    assert not is_restarted(tmp_path)  # it has come to its end
