"""The command itself: it starts, says where it is, refuses what it cannot do, and a kill loses no label."""

import signal
import socket
import sys
from pathlib import Path

import pytest

from semisight.data.label_csv import Entry
from semisight.data.label_table import Table
from tests.cli.commands import refused
from tests.server.server import served


def test_labels_survive_a_kill(digits_run: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    with served(digits_run, table) as server:
        assert "Only this machine" in server.said[-1]
        server.wait_until_read()
        files = [one["file"] for one in server.get("/api/suggestions?n=3")["images"]]
        for file, label in zip(files, "abc", strict=True):
            server.post("/api/labels", {"file": file, "label": label})
        server.kill(signal.SIGKILL)
    given = {file: Entry(label) for file, label in zip(files, "abc", strict=True)}
    assert Table(table).entries().items() >= given.items()
    assert len(Table(table).entries()) == 33


def test_what_it_cannot_do_is_said(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no run" in refused("serve", tmp_path / "none", "--port", "0")
    assert "at least 16" in refused("serve", digits_run, "--token", "short")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "Choose another --port" in refused("serve", digits_run, "--port", port)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setattr("semisight.server.running.find_spec", lambda name: None)
    assert "pip install 'semisight[serve]'" in refused("serve", digits_run)
