"""Progress where there is no terminal, and the second Ctrl-C: it stops at once, also while a checkpoint is written."""

import itertools
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from semisight.cli import console
from semisight.training import progress
from semisight.training.checkpoint import read_checkpoint
from semisight.training.folder import RunFolder
from tests.cli.commands import TINY


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_line_at_least_every_15_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    bar = progress.ProgressBar(True, 1000, float("inf"), start_step=0)
    lines = []
    for step in range(1, 101):
        clock.now += 1.0
        if step == 20:
            bar.validated(step, 1.0, {"bound": -3.0, "error": 12.5, "nll": 0.4}, "")
        bar.step(step, step / 20, float(step))
        for line in capsys.readouterr().err.splitlines():
            lines.append((clock.now, line))
    times = [100.0, *(when for when, _ in lines)]
    assert max(late - early for early, late in itertools.pairwise(times)) <= 15
    assert lines[0][1] == "step 15 of 1,000, epoch 0.75, 16:25 left"
    assert lines[1][1].startswith("epoch 1.00 step 20: bound -3")
    assert lines[2] == (135.0, "step 35 of 1,000, epoch 1.75, 16:05 left, on what is held out: error 12.5")
    assert len(lines) == 7  # and not more often


def test_nothing_is_printed_where_no_progress_is_wanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    bar = progress.ProgressBar(False, 1000, float("inf"), start_step=0)
    clock.now += 100
    bar.step(50, 1.0, 100.0)
    bar.validated(50, 1.0, {"bound": 1.0}, "")
    assert capsys.readouterr().err == ""


def test_reading_images_is_told_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(console, "time", clock)
    with console.reading() as progress:
        for done in range(1, 41):
            clock.now += 1.0
            progress(1000 * done, 40_000)
    assert capsys.readouterr().err == "reading images: 15,000 of 40,000\nreading images: 30,000 of 40,000\n"


SLOW = """
import sys, time
from pathlib import Path
from semisight import files
from semisight.cli.main import main

sync = files.sync
def slow(path):
    if Path(sys.argv[1]).exists():
        Path(sys.argv[1]).unlink()  # this one alone: what is left to write on the way out is quick
        print("writing", flush=True)
        time.sleep(120)
    sync(path)
files.sync = slow
main(sys.argv[2:])
"""


def test_the_second_ctrl_c_stops_at_once_also_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-c",
        SLOW,
        str(tmp_path / "slow"),
        "train",
        *TINY,
        "--out",
        str(out),
        "--epochs",
        "100000",
        "--no-report",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # a shell's background jobs ignore it, and so would theirs
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    try:
        deadline = time.monotonic() + 90
        while not ((out / "log.csv").exists() and "valid" in (out / "log.csv").read_text()):
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()
            time.sleep(0.05)
        (tmp_path / "slow").touch()
        assert any(line == "writing\n" for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert any("Once more stops at once" in line for line in process.stdout)
        assert process.poll() is None  # it saves first
        second = time.monotonic()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert time.monotonic() - second < 30 and process.returncode == 130, said
    assert "Traceback" not in said
    assert "step" in read_checkpoint(RunFolder(out).newest).meta["counters"]  # the one before is whole
    assert not list(out.rglob("*.tmp")) and not list((out / "checkpoints").glob(".*"))
