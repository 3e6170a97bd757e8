"""A folder of 100,000 small images, made from a few: how long it takes to inspect, how much memory to learn from.

`python -m benchmarks.folder FOLDER` prints the peak memory, in bytes, of a short training on a folder.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.figures import Figure, Goal

MB = 1e6
SIDE = 32
_PER_FOLDER = 1000
_STEPS = 12


def make_folder(folder: Path, n: int) -> None:
    """n PNGs: a few pictures, each file with a number behind its end, so that no two are the same."""
    rng = np.random.default_rng(0)
    few = []
    for _ in range(20):
        stream = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8).repeat(4, 0).repeat(4, 1)).save(stream, "PNG")
        few.append(stream.getvalue())
    for i in range(n):
        below = folder / f"{i // _PER_FOLDER:04d}"
        if i % _PER_FOLDER == 0:
            below.mkdir(parents=True)
        (below / f"{i:06d}.png").write_bytes(few[i % len(few)] + i.to_bytes(8, "little"))


def part_of(folder: Path, n: int, out: Path) -> None:
    """The first n images of a folder, by links to the folders that they lie in."""
    out.mkdir()
    for below in sorted(folder.iterdir())[: max(1, n // _PER_FOLDER)]:
        (out / below.name).symlink_to(below)


def measure_folder(n: int, part: int) -> Iterator[Figure]:
    """Seconds to inspect n images, and megabytes that learning from n takes above learning from `part` of them."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as temporary:
        large, small = Path(temporary, "large"), Path(temporary, "small")
        make_folder(large, n)
        part_of(large, part, small)
        environment = os.environ | {"XDG_CACHE_HOME": temporary, "OMP_NUM_THREADS": "1"}
        start = time.perf_counter()
        command = [sys.executable, "-m", "semisight", "inspect", str(large), "--format", "json"]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        seconds = time.perf_counter() - start
        found = json.loads(done.stdout)
        assert found["images"] == n and found["decoded"] == n
        details = {"images": n, "side": SIDE, "cores": os.cpu_count()}
        yield Figure(f"inspecting {n:,} images", seconds, "s, wall", Goal("<=", 60), details)
        peaks = {}
        for folder in (small, large):
            command = [sys.executable, "-m", "benchmarks.folder", str(folder)]
            done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
            peaks[folder.name] = json.loads(done.stdout.splitlines()[-1])
        more = (peaks["large"]["own"] - peaks["small"]["own"]) / MB
        compared = {
            "images": n,
            "and": part,
            "own_mb": {name: peak["own"] / MB for name, peak in peaks.items()},
            "resident_mb": {name: peak["resident"] / MB for name, peak in peaks.items()},
        }
        yield Figure("memory of learning from many images above few", more, "MB", Goal("<=", 200), compared)


def peaks_of_training(folder: str) -> dict[str, int]:
    """The most memory of its own that a short training had, and the most with the mapped file that it read from.

    Pages of a mapped file can be dropped at any time: where memory is short, they are.
    """
    from semisight.runs.settings import resolve
    from semisight.runs.train import train_run

    watch = _Watch()
    chosen = {"source": folder, "max_steps": _STEPS, "threads": 1, "progress": False, "tensorboard": False}
    settings = resolve({**chosen, "layers": [{"maps": 16, "kernel": 5, "pool": 4}, {"maps": 16, "kernel": 3}]})
    with tempfile.TemporaryDirectory() as run, watch:
        train_run(settings, Path(run, "run"), resume=False, overwrite=False, say=lambda line: None)
    return {"own": watch.own, "resident": watch.resident}


class _Watch:
    """Looks every few milliseconds how much memory this process has."""

    def __init__(self) -> None:
        self.own = self.resident = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(0.01):
            lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            own, resident = (int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "VmRSS"))
            self.own, self.resident = max(self.own, own), max(self.resident, resident)


if __name__ == "__main__":
    print(json.dumps(peaks_of_training(sys.argv[1])))
