"""A training whose server was killed: it saves and ends, and its run is not taken for whole."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semisight.runs.run import load_run
from tests.cli.commands import ok, refused
from tests.server.conftest import client_of
from tests.server.server import served

linux = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in Linux's /proc")


def until(done: Callable[[], object], what: str, seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def processes_of(folder: Path) -> list[int]:
    """Those that were told to train in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if str(folder).encode() in words:
            found.append(int(process.name))
    return found


@linux
@pytest.mark.timeout(700)  # three processes one after the other
def test_a_training_ends_with_its_killed_server(tmp_path: Path) -> None:
    old, new = tmp_path / "digits", tmp_path / "digits-2"
    ok("train", "builtin:digits", "--labels-per-class", "3", "--limit", "250", "--minutes", "0.01", "--no-report",
       "--batch-size", "64", "--out", old)  # fmt: skip
    with served(old, tmp_path / "labels.csv") as server:
        server.wait_until_read()
        server.post("/api/training", {"minutes": 60})
        until(lambda: bool(processes_of(new)), "the child")  # it takes a moment to be there
        until(lambda: server.get("/api/training")["step"] > 0 or not processes_of(new), "a first step")
        (child,) = processes_of(new)
        assert os.getpgid(child) == child  # a signal to the server's group does not reach it
        server.kill(signal.SIGKILL)
        until(lambda: not processes_of(new), "the end of the child")
        # what is left is a run that can be resumed and says that it is not whole
        assert "saved in" in (new / "output.txt").read_text()
        assert load_run(new).step > 0 and "--resume" in load_run(new).unfinished
        assert not (new / "model_card.md").exists()
        server.start()  # as before, with the old run
        server.wait_until_read()
        status = server.get("/api/status")
        assert status["run"] == str(old) and status["training"]["state"] == "none"
        assert "has not come to its end" not in status["advice"]
    with client_of(new, labels=tmp_path / "labels.csv") as client:
        assert "has not come to its end" in client.get("/api/status").json()["advice"]
    ok("train", "--out", new, "--resume", "--minutes", "0.01", "--no-report")  # which are over
    assert load_run(new).unfinished == "" and (new / "model_card.md").exists()


@linux
def test_whatever_it_does_the_child_ends(tmp_path: Path) -> None:
    """Also while it still imports or reads: no training is there yet that could save."""
    code = f"""
import pathlib, time
from semisight.server.retraining import Retraining
child = "import semisight.server.train_child as c, threading, time; threading.Thread(target=c.end_with_parent).start();"
child += "print('here', flush=True); time.sleep(600)"
training = Retraining(print)
training.start(lambda out: ["{sys.executable}", "-c", child, str(out)], pathlib.Path("{tmp_path}/run"))
print("started", flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    folder = tmp_path / "run-2"
    assert parent.stdout is not None and parent.stdout.readline() == b"started\n"
    until(lambda: "here" in (folder / "output.txt").read_text(), "the child's first word")
    assert len(processes_of(folder)) == 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not processes_of(folder), "the end of the child")


def test_a_refused_resumption_leaves_a_whole_run_whole(own_digits: Path) -> None:
    assert "other settings" in refused("train", "--out", own_digits, "--resume", "--batch-size", "32", "--no-report")
    assert load_run(own_digits).unfinished == ""
