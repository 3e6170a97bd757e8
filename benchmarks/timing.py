"""Times several ways of doing something in turn, so that whatever else the machine does falls on all of them alike.

    A B C  A B C  A B C ...       a ratio is the median over rounds of A's time / B's time in the same round

In its turn a way is repeated for a fraction of a second, so that it runs with its own data in the caches. With one
thread the clock counts the processor time of this process: waiting for a busy machine does not count, page faults do.
With several threads it is the clock on the wall, and the machine had better be idle.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rounds:
    """Seconds of every way in every round."""

    seconds: Mapping[str, tuple[float, ...]]
    clock: str

    def ratio(self, above: str, below: str) -> float:
        pairs = zip(self.seconds[above], self.seconds[below], strict=True)
        return statistics.median(a / b for a, b in pairs)

    def range_of_ratio(self, above: str, below: str) -> tuple[float, float]:
        """The middle half of the rounds: how far to trust the ratio."""
        ratios = [a / b for a, b in zip(self.seconds[above], self.seconds[below], strict=True)]
        if len(ratios) < 4:
            return min(ratios), max(ratios)
        first, _, third = statistics.quantiles(ratios, n=4)
        return first, third

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    @property
    def count(self) -> int:
        return len(next(iter(self.seconds.values())))


def interleave(ways: Mapping[str, Callable[[], object]], rounds: int, turn: float = 0.25) -> Rounds:
    """Seconds per call; a turn takes at least `turn` seconds or one call."""
    one_thread = torch.get_num_threads() == 1
    clock = time.process_time if one_thread else time.perf_counter
    repeats = {}
    for name, way in ways.items():
        way()
        start = clock()
        way()
        repeats[name] = max(1, math.ceil(turn / max(clock() - start, 1e-6)))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    gc.collect()
    gc.disable()  # a collection would fall on whoever happens to run
    try:
        for _ in range(rounds):
            for name, way in ways.items():
                start = clock()
                for _ in range(repeats[name]):
                    way()
                seconds[name].append((clock() - start) / repeats[name])
    finally:
        gc.enable()
    kept = {name: tuple(times) for name, times in seconds.items()}
    return Rounds(kept, "processor time" if one_thread else "wall")
