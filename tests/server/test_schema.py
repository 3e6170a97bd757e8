"""schemathesis makes up requests from the OpenAPI description, right ones and wrong ones, and finds nothing."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from semisight.runs.run import load_run
from semisight.server.access import Access
from semisight.server.running import open_socket
from semisight.server.service import Options, Service
from semisight.server.web import create_app

ROOT = Path(__file__).parents[2]


@pytest.fixture
def address(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real server in a thread. Trainings are not started: that is tested elsewhere."""
    service = Service(load_run(digits_run), Options(labels=tmp_path / "labels.csv"))
    monkeypatch.setattr(service.training, "start", lambda command, beside: None)
    listening = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(service, Access()), log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while service.reading.state not in ("ready", "failed"):
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.timeout(300)  # seconds on an idle machine
def test_nothing_is_found(address: str, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        pytest.skip("schemathesis is not installed")
    words = ["run", f"{address}/api/openapi.json", "--phases", "examples,coverage,fuzzing", "--max-examples", "3"]
    words += ["--seed", "1", "--no-color", "--generation-database", "none"]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.server.schema_hooks", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [program, *words], cwd=tmp_path, env={**os.environ, **hooks}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "15 selected / 15 total" in done.stdout
