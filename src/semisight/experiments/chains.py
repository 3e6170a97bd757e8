"""A chain within a budget: shown as it goes, and saved when its time is up or a signal comes, to go on another time."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from semisight.sampling.gibbs import GibbsChain
from semisight.sampling.mcem import MCEM
from semisight.training.interrupts import Interrupted, caught_signals
from semisight.training.progress import ProgressBar


class Unfinished(Exception):
    """A chain has used up its minutes and is saved."""


@contextmanager
def watching(
    chain: GibbsChain | MCEM, total: int, saved: Path, minutes: float, shown: bool
) -> Iterator[Callable[[float, float], None]]:
    """What a chain tells after every sweep is shown; it ends, saved, after a signal or when its time is up."""
    began, begun_at = time.monotonic(), chain.number
    bar = ProgressBar(shown, total, minutes * 60, start_step=begun_at)
    with caught_signals(notice=shown) as signals:

        def told(alpha0: float, mean_square: float) -> None:
            number, seconds = chain.number, time.monotonic() - began
            terms = {"alpha0": alpha0, "mean_square": mean_square}
            bar.step(number, number, seconds, terms=terms)
            if number % 10 == 0:
                bar.validated(number, number, terms, f" after {seconds / 60:.1f} minutes")
            if signals.number or (seconds > 60 * minutes and number < total):
                chain.save(saved)
                if signals.number:
                    raise Interrupted(f"{number} of {total} sweeps are done and saved.", signals.number)
                raise Unfinished(f"{number} of {total} sweeps are done and saved after {minutes:g} minutes")

        try:
            yield told
        finally:
            bar.close()
