"""Peak memory of one training step: measured in a process of its own, or worked out on paper where it would not fit.

`python -m benchmarks.memory '{"image_shape": ..., "layers": ...}' 64` prints the peak of such a step in bytes.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.figures import Figure
from benchmarks.on_paper import step_bytes
from benchmarks.speed import TrainingStep
from semisight.model.architecture import Architecture, Layer, preset, suggest_architecture
from semisight.objectives.step import Batch, Rows
from semisight.training.allocator import keep_memory

MB = 1e6


def peak_bytes() -> int:
    """The most memory this process has had so far."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage's figure is inherited from the parent process, this one is not
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes() -> float:
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = meminfo.read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) / 2


def own_peak(architecture: Architecture, batch: int) -> int:
    """Bytes that a step needs on top of Python, torch and its libraries; to be called in a fresh process."""
    torch.set_num_threads(1)
    keep_memory()
    # A tiny step first: it loads what libraries load when they are first used.
    TrainingStep(Architecture((1, 8, 8), (Layer(2, 3, 2), Layer(2, 3))), batch=2)()
    before = peak_bytes()
    step = TrainingStep(architecture, batch)
    one = Batch(step.batch.images[:1], step.batch.index[:1])
    step.take(one, Rows(0, 1, 1))  # Adam's averages exist from the second step on
    step()
    return peak_bytes() - before


def measure_in_new_process(architecture: Architecture, batch: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", json.dumps(architecture.to_dict()), str(batch)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"the step of {architecture} failed:\n{done.stderr}")
    return int(done.stdout)


def measure_peak(name: str, architecture: Architecture, batch: int, limit: float) -> Figure:
    """Measured if the estimate is below `limit` bytes and below what the machine has free."""
    paper = step_bytes(architecture, batch)
    fits = paper < limit and 1.5 * paper < available_bytes()
    measured = measure_in_new_process(architecture, batch) if fits else None
    details: dict[str, object] = {"batch": batch, "image": list(architecture.image_shape), "on_paper_mb": paper / MB}
    if measured is None:
        details["how"] = "on paper"
    else:
        details |= {"how": "measured", "on_paper_over_measured": paper / measured}
    return Figure(f"{name} peak memory of a training step", (measured or paper) / MB, "MB", None, details)


def measure_memory(names: tuple[str, ...], sizes: tuple[int, ...], batch: int, limit: float) -> Iterator[Figure]:
    known: dict[str, Figure] = {}
    for name in names:
        key = json.dumps(preset(name).to_dict())
        if key not in known:  # two data sets may share a row's layers
            known[key] = measure_peak(name, preset(name), batch, limit)
        yield Figure(f"{name} peak memory of a training step", known[key].value, "MB", None, known[key].details)
    peaks = {}
    for size in sizes:
        figure = measure_peak(f"{size} x {size} pixels", suggest_architecture((3, size, size)), batch, limit)
        peaks[size] = figure.value
        per_pixel = figure.value * MB / (size * size * batch)
        yield Figure(figure.figure, figure.value, "MB", None, figure.details | {"bytes_per_pixel": per_pixel})
    if len(peaks) > 1:
        first, last = min(peaks), max(peaks)
        power = math.log(peaks[last] / peaks[first]) / (2 * math.log(last / first))
        yield Figure(
            "growth of peak memory with the number of pixels",
            power,
            "power (1: in proportion)",
            None,
            {"mb_by_size": {str(size): peak for size, peak in peaks.items()}, "batch": batch},
        )


if __name__ == "__main__":
    print(own_peak(Architecture.from_dict(json.loads(sys.argv[1])), int(sys.argv[2])))
