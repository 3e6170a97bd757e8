"""Piles of images: predict with one worker and two, Ray against worker processes, shards against a folder, memory; and
what a second process costs a training step.

The images are 32 x 32 PNGs made from twenty pictures (folder.py), the run a few steps on generated scenes. Rates leave
out the start of workers: they are taken from the answers between the first and the last, by the clock.

`python -m benchmarks.scale RUN SOURCE OUT` predicts in this process and prints its peak memory, in bytes.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Goal
from benchmarks.folder import MB, make_folder, part_of
from benchmarks.memory import peak_bytes
from semisight.data.samples import parts_of, pyarrow_parquet, read_part
from semisight.data.shards import write_shards
from semisight.engines import Engine
from semisight.runs.bulk import Asked, answer
from semisight.runs.settings import resolve
from semisight.runs.train import train_run
from semisight.training.logs import read_log

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Scale:
    """How many images, and of how many workers are compared; of how many a part is; how many steps; whether Ray is
    started. And rows of shards, many and few, whose memory is compared."""

    n: int = 100_000
    some: int = 20_000
    rows: tuple[int, int] = (1_000_000, 10_000)
    per_part: int = 1000  # as the command has it
    steps: int = 60
    batch: int = 128
    ray: bool = True


SMALL_SCALE = Scale(n=40, some=20, rows=(40, 20), per_part=10, steps=3, batch=8, ray=False)


def measure_scale(size: Scale) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        make_folder(place / "images", size.n)
        part_of(place / "images", size.some, place / "some")
        run = str(place / "run")
        train_few(place / "run", 2, 1)
        rates = {workers: _rate(run, place, "some", size, "local", workers) for workers in (1, 2)}
        details: dict[str, Any] = {"images": size.some, "images_per_second": {str(w): r for w, r in rates.items()}}
        yield Figure("predict with 2 workers over 1", rates[2] / rates[1], "times as fast", Goal(">=", 1.8), details)
        if size.ray and importlib.util.find_spec("ray") is not None:
            both = {engine: _rate(run, place, "images", size, engine, 2) for engine in ("local", "ray")}
            details = {"images": size.n, "images_per_second": {"ray": both["ray"], "processes": both["local"]}}
            value, goal = both["ray"] / both["local"], Goal(">=", 0.87)  # 15 % slower
            yield Figure("predict by Ray over worker processes", value, "times as fast", goal, details)
        write_shards(str(place / "images"), place / "shards", per_shard=1000)
        seconds = {name: _read(str(place / name)) for name in ("images", "shards")}
        ratio, per_second = seconds["images"] / seconds["shards"], {name: size.n / s for name, s in seconds.items()}
        yield Figure("reading shards over a folder", ratio, "times as fast", None, {"images_per_second": per_second})
        yield _second_process(place, size)


def measure_rows(size: Scale) -> Iterator[Figure]:
    """Memory of predicting a million rows above that of a few: a shard of a thousand, again and again."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        per_shard = min(1000, *size.rows)
        source = "builtin:digits"  # small: it is rows that are counted, and they are a million
        write_shards(source, place / "one", per_shard=per_shard)
        shard = sorted((place / "one").glob("*.tar"))[0]
        chosen = {"source": source, "max_steps": 2, "progress": False, "tensorboard": False, "threads": 1}
        small = {"layers": [{"maps": 4, "kernel": 3, "pool": 2}, {"maps": 8, "kernel": 3}], "valid_fraction": 0.0}
        settings = resolve({**chosen, **small})
        train_run(settings, place / "run", resume=False, overwrite=False, say=lambda line: None)
        peaks, rows = {}, {}
        for n in size.rows:
            shards, out = place / f"{n}-rows", place / f"{n}-answers"
            shards.mkdir()
            for i in range(n // per_shard):
                (shards / f"images-{i:06d}.tar").hardlink_to(shard)
            peaks[str(n)] = _peak(str(place / "run"), shards, out) / MB
            rows[str(n)] = sum(_rows_of(file) for file in out.glob("part-*.parquet"))
        many, few = (peaks[str(n)] for n in size.rows)
        details = {"rows": rows, "peak_mb": peaks}
        yield Figure("memory of predicting many above few", many - few, "MB", Goal("<=", 100), details)


def _rows_of(file: Path) -> int:
    return int(pyarrow_parquet().read_metadata(file).num_rows)


def _rate(run: str, place: Path, source: str, size: Scale, engine: Engine, workers: int) -> float:
    """Images per second after the first answer."""
    times: list[float] = []
    out = place / f"{source}-{engine}-{workers}"
    asked = Asked("predict", run, str(place / source), str(out))
    answer(asked, engine=engine, workers=workers, per_part=size.per_part,
           progress=lambda done, total: times.append(time.perf_counter()))  # fmt: skip
    skipped = max(1, workers)  # the first of each worker came with its start
    return (len(times) - skipped) * size.per_part / (times[-1] - times[skipped - 1])


def _read(source: str) -> float:
    start = time.perf_counter()
    assert all(sample.image for part in parts_of(source) for sample in read_part(part))
    return time.perf_counter() - start


def _peak(run: str, source: Path, out: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.scale", run, str(source), str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _settings(steps: int, processes: int, batch: int = 32) -> dict[str, Any]:
    source = {"source": "builtin:scenes?n=600&size=32&seed=1", "labels_per_class": 10, "valid_fraction": 0.0}
    quiet = {"progress": False, "tensorboard": False, "threads": 1, "log_every": 1, "max_epochs": None}
    return {**source, **quiet, "max_steps": steps, "processes": processes, "batch_size": batch}


def train_few(out: Path, steps: int, processes: int, batch: int = 32) -> None:
    settings = resolve(_settings(steps, processes, batch))
    train_run(settings, out, resume=False, overwrite=False, say=lambda line: None)


def _second_process(place: Path, size: Scale) -> Figure:
    """Time of a step of two processes over half of that of one, which is what two would take if they cost nothing."""
    seconds = {}
    for processes in (1, 2):
        file = place / f"p{processes}.json"
        file.write_text(json.dumps(_settings(size.steps, processes, size.batch)))
        command = [
            sys.executable,
            "-m",
            "semisight",
            "train",
            "--config",
            str(file),
            "--out",
            str(place / f"p{processes}"),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run([*command, "--no-report"], cwd=ROOT, env=environment, capture_output=True, check=True)
        times = [row["seconds"] for row in read_log(place / f"p{processes}" / "log.csv") if row["split"] == "train"]
        seconds[processes] = (times[-1] - times[0]) / (len(times) - 1)
    details = {"batch": size.batch, "ms_per_step": {str(n): 1000 * value for n, value in seconds.items()}}
    return Figure(
        "step of two processes over half of a step of one", 2 * seconds[2] / seconds[1], "times", None, details
    )


if __name__ == "__main__":
    run_folder, source, out = sys.argv[1:4]
    answer(Asked("predict", run_folder, source, out), workers=0)
    print(json.dumps(peak_bytes()))
