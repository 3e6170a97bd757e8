"""`semisight serve` as a process of its own, to be killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


class Served:
    """A server process. `start` may be called again after `kill`; the port stays the same."""

    def __init__(self, run: Path, table: Path, *words: str) -> None:
        self.table = table
        self._words = ["serve", str(run), "--labels", str(table), *words]
        self._child: subprocess.Popen[str] | None = None
        self.port = 0
        self.said: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self) -> None:
        command = [sys.executable, "-m", "semisight", *self._words, "--port", str(self.port)]
        child = self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert child.stdout is not None
        self.said = []
        for line in child.stdout:
            self.said.append(line)
            if line.startswith("Serving at "):
                self.port = int(line.split()[2].split("#")[0].rstrip("/").rsplit(":", 1)[1])
                return
        pytest.fail(f"it did not start: {''.join(self.said)}")

    def wait_until_read(self) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if self.get("/api/status")["reading"]["state"] == "ready":
                    return
            time.sleep(0.1)
        pytest.fail("the images were never read")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, content: dict[str, Any]) -> Any:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.address + path, json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        child, self._child = self._child, None
        assert child is not None
        os.kill(child.pid, how)
        code = child.wait(60)
        assert child.stdout is not None
        self.said += child.stdout.readlines()
        child.stdout.close()
        return code

    def close(self) -> None:
        """As a person would end it."""
        if self._child is not None:
            assert self.kill(signal.SIGTERM) in (0, -signal.SIGTERM)
            assert "Traceback" not in "".join(self.said), self.said


@contextlib.contextmanager
def served(run: Path, table: Path, *words: str) -> Iterator[Served]:
    server = Served(run, table, *words)
    try:
        server.start()
        yield server
    finally:
        server.close()
