"""The command: `python -m benchmarks --help`."""

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.captions import (
    SMALL_DECODING,
    SMALL_TRAINING,
    Decoding,
    Training,
    measure_decoding,
    measure_training,
)
from benchmarks.cost import SMALL_COST, Cost, measure_cost
from benchmarks.deep import measure_deep
from benchmarks.exported import measure_export
from benchmarks.features import SMALL_PHOTOS, Photos, measure_answers, measure_features
from benchmarks.figures import Figure
from benchmarks.folder import measure_folder
from benchmarks.machines import measure_machines
from benchmarks.memory import measure_memory
from benchmarks.scale import SMALL_SCALE, Scale, measure_rows, measure_scale
from benchmarks.serving import SMALL_SERVING, Serving, measure_serving
from benchmarks.speed import measure_encoding, measure_steps
from semisight.model.architecture import PRESETS, Architecture, Layer, preset
from semisight.training.allocator import keep_memory


@dataclass(frozen=True)
class Size:
    """How much to measure."""

    speed: dict[str, Architecture]
    batch: int
    images: int
    rounds: int
    turn: float
    mm_size: int
    presets: tuple[str, ...]
    pixels: tuple[int, ...]
    decoding: Decoding = field(default_factory=Decoding)
    training: Training = field(default_factory=Training)
    folder: tuple[int, int] = (100_000, 10_000)
    exported: int = 28
    photos: Photos = field(default_factory=Photos)
    serving: Serving = field(default_factory=Serving)
    scale: Scale = field(default_factory=Scale)
    cost: Cost = field(default_factory=Cost)
    machines: tuple[int, int] = (100_000, 250)


FULL = Size(
    speed={name: preset(name) for name in ("mnist", "cifar-10")},
    batch=64,
    images=256,
    rounds=11,
    turn=0.25,
    mm_size=2048,
    presets=tuple(PRESETS),
    pixels=(32, 64, 128),
)
SMOKE = Size(
    speed={"tiny": Architecture((1, 12, 12), (Layer(4, 5, 2), Layer(6, 3)))},
    batch=4,
    images=8,
    rounds=3,
    turn=0.0,
    mm_size=128,
    presets=("mnist",),
    pixels=(8, 16),
    decoding=SMALL_DECODING,
    training=SMALL_TRAINING,
    folder=(2_000, 1_000),
    exported=8,
    photos=SMALL_PHOTOS,
    serving=SMALL_SERVING,
    scale=SMALL_SCALE,
    cost=SMALL_COST,
    machines=(600, 5),
)


def steps(size: Size, limit: float) -> Iterator[Figure]:
    for name, architecture in size.speed.items():
        yield from measure_steps(name, architecture, size.batch, size.rounds, size.turn, size.mm_size)


def deep(size: Size, limit: float) -> Iterator[Figure]:
    for name, architecture in size.speed.items():
        yield from measure_deep(name, architecture, 2 * size.batch, size.rounds, size.turn, size.mm_size)


def encoding(size: Size, limit: float) -> Iterator[Figure]:
    for name, architecture in size.speed.items():
        yield from measure_encoding(name, architecture, size.images, size.rounds, size.turn)


def memory(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_memory(size.presets, size.pixels, size.batch, limit)


def decoding(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_decoding(size.decoding, size.rounds)


def captions(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_training(size.training)


def folder(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_folder(*size.folder)


def exported(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_export(size.exported)


def features(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_features(size.photos)
    yield from measure_answers(size.photos)


def serving(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_serving(size.serving)


def cost(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_cost(size.cost)


def scale(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_scale(size.scale)


def rows(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_rows(size.scale)


def machines(size: Size, limit: float) -> Iterator[Figure]:
    yield from measure_machines(*size.machines)


PARTS: dict[str, Callable[[Size, float], Iterator[Figure]]] = {
    "step": steps,
    "deep": deep,
    "encode": encoding,
    "memory": memory,
    "decode": decoding,
    "captions": captions,
    "serving": serving,
    "folder": folder,
    "export": exported,
    "features": features,
    "cost": cost,
    "scale": scale,
    "rows": rows,
    "machines": machines,
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Speed and memory of the image model as ratios measured in one run, one JSON line per figure.",
        epilog="example: python -m benchmarks --only step,encode --out results/bench.jsonl",
    )
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help=f"rounds of every comparison (default: {FULL.rounds})")
    parser.add_argument(
        "--memory-limit",
        type=float,
        default=6.0,
        metavar="GB",
        help="steps estimated above this are worked out on paper instead of measured (default: %(default)s)",
    )
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: says whether it runs, not how fast")
    parser.add_argument("--out", type=Path, help="also append the lines to this file")
    options = parser.parse_args(arguments)
    parts = [part.strip() for part in options.only.split(",")]
    for part in parts:
        if part not in PARTS:
            parser.error(f"--only: there is no part {part!r}; there are {', '.join(PARTS)}")

    torch.set_num_threads(options.threads)
    keep_memory()
    size = SMOKE if options.smoke else FULL
    if options.rounds:
        size = dataclasses.replace(size, rounds=options.rounds)
    for part in parts:
        for figure in PARTS[part](size, options.memory_limit * 1e9):
            line = figure.line()
            print(line, flush=True)
            if options.out:
                options.out.parent.mkdir(parents=True, exist_ok=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()
