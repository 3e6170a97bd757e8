"""`semisight serve` under load: requests per second, the slowest of a hundred, and what answering together is worth.

Two client processes (load.py) keep it busy, each with several connections that ask again at once. The same load
is given to a server that answers in batches and to one that answers one image at a time, in turns.
"""

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Goal

WORKERS = 2
_ROOT = Path(__file__).parents[1]
_WARM_UP = 2.0  # seconds

_SERVER = """
import sys
import torch
from pathlib import Path
from semisight.cli.console import prepare_process
from semisight.server.limits import Limits
from semisight.server.running import serve
from semisight.server.service import Options
prepare_process()
torch.set_num_threads(1)
limits = Limits(batch=int(sys.argv[2]))
options = Options(labels=Path(sys.argv[3]), limits=limits)
serve(Path(sys.argv[1]), options, host="127.0.0.1", port=0, token=None, say=lambda line: print(line, flush=True))
"""


@dataclass(frozen=True)
class Serving:
    """A run to make, how long to keep it busy, and how long and often to compare."""

    train: tuple[str, ...] = ("--preset", "mnist", "--limit", "600", "--labels-per-class", "20", "--epochs", "1")
    seconds: float = 60.0
    connections: int = 16  # of each client
    rounds: int = 3
    turn: float = 6.0


SMALL_SERVING = Serving(("--limit", "60", "--labels-per-class", "2", "--epochs", "1"), 1.0, 4, 1, 0.7)


@dataclass(frozen=True)
class Load:
    """What the clients saw; times in seconds."""

    times: tuple[float, ...]
    failed: tuple[str, ...]
    took: float
    processor: float  # seconds of the server

    @property
    def processor_ms(self) -> float:
        """Of the server, for a request: hardly depends on what else the machine does."""
        return 1000 * self.processor / max(1, len(self.times))

    @property
    def per_second(self) -> float:
        return len(self.times) / self.took

    def at(self, share: float) -> float:
        return sorted(self.times)[min(len(self.times) - 1, int(share * len(self.times)))]


def measure_serving(size: Serving) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        run, image = folder / "run", folder / "digit.png"
        _call("train", "builtin:digits", "--out", str(run), "--no-report", "--threads", "1", *size.train)
        image.write_bytes(digit())
        batched = stack.enter_context(server(run, 32, folder / "a.csv"))
        alone = stack.enter_context(server(run, 1, folder / "b.csv"))
        for one in (batched, alone):
            load(one, min(_WARM_UP, size.turn), size.connections, image)
        found = load(batched, size.seconds, size.connections, image)
        details = {
            "seconds": found.took,
            "clients": WORKERS,
            "connections": WORKERS * size.connections,
            "requests": len(found.times),
            "failed": len(found.failed),
            "median_ms": 1000 * found.at(0.5),
            "processor_ms_per_request": found.processor_ms,
        }
        yield Figure("serving under load, failed requests", len(found.failed), "requests", Goal("<=", 0), details)
        yield Figure("serving under load", found.per_second, "requests per second", None, details)
        yield Figure("serving under load, 99th percentile", 1000 * found.at(0.99), "ms", None, details)
        turns = [
            (load(batched, size.turn, size.connections, image), load(alone, size.turn, size.connections, image))
            for _ in range(size.rounds)
        ]
        yield Figure(
            "serving in batches against one at a time",
            statistics.median(together.per_second / single.per_second for together, single in turns),
            "ratio",
            Goal(">=", 3),
            {
                "rounds": size.rounds,
                "batched_per_second": [together.per_second for together, _ in turns],
                "alone_per_second": [single.per_second for _, single in turns],
                "batched_processor_ms": [together.processor_ms for together, _ in turns],
                "alone_processor_ms": [single.processor_ms for _, single in turns],
                "failed": sum(len(one.failed) for pair in turns for one in pair),
            },
        )


@dataclass(frozen=True)
class Server:
    port: int
    process: int

    def processor_seconds(self) -> float:
        """Used so far; 0 where Linux does not tell."""
        try:
            fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(run: Path, batch: int, table: Path) -> Iterator[Server]:
    """A server that answers up to `batch` images at a time, once it is ready."""
    words = [sys.executable, "-c", _SERVER, str(run), str(batch), str(table)]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        line = next((line for line in child.stdout if line.startswith("Serving at ")), None)
        if line is None:
            raise RuntimeError("the server did not start")
        port = int(line.split()[2].rstrip("/").rsplit(":", 1)[1])
        while _status(port).get("reading", {}).get("state") != "ready":
            time.sleep(0.1)
        yield Server(port, child.pid)
    finally:
        child.terminate()
        child.wait(60)


def load(server: Server, seconds: float, connections: int, image: Path) -> Load:
    words = [sys.executable, "-m", "benchmarks.load", str(server.port), str(seconds), str(connections), str(image)]
    before = server.processor_seconds()
    clients = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=_ROOT) for _ in range(WORKERS)]
    found = [json.loads(client.communicate()[0]) for client in clients]
    times = tuple(value for one in found for value in one["seconds"])
    failed = tuple(value for one in found for value in one["failed"])
    return Load(times, failed, max(one["took"] for one in found), server.processor_seconds() - before)


def _status(port: int) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/status", timeout=10) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, urllib.error.URLError):
        return {}


def _call(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "semisight", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)


def digit() -> bytes:
    from PIL import Image

    from semisight.data import load as load_images

    stream = io.BytesIO()
    Image.fromarray(load_images("builtin:digits").images[3, 0].numpy()).resize((28, 28)).save(stream, "PNG")
    return stream.getvalue()
