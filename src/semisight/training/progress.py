"""The progress bar: where training is, how long it will still take, and every term of the bound."""

import math
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Column

_REFRESH_SECONDS = 0.5
_LINE_SECONDS = 15.0  # between two lines where there is no terminal
_HELD_OUT = ("error", "mAP", "perplexity")  # validation terms that such a line repeats


class ProgressBar:
    """A rich bar on a terminal; where there is none (a file, a log), a line for every validation, and one now and then.

    Drawn from the training loop, at most twice a second: a drawing thread would take turns with the training.
    """

    def __init__(self, shown: bool, total_steps: int | None, max_seconds: float, *, start_step: int) -> None:
        self._console = Console(stderr=True)
        self._shown = shown
        self._total, self._max_seconds = total_steps, max_seconds
        self._started, self._start_step = time.monotonic(), start_step
        self._drawn = self._started
        self._terms = ""
        self._held_out = ""
        self._place = (start_step, 0.0, 0.0)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        if shown and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=16),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.fields[terms]}", table_column=Column(no_wrap=False)),  # none is cut off
                console=self._console,
                auto_refresh=False,
            )
            self._task = self._bar.add_task("training", total=1.0, left="", terms="")
            self._bar.start()

    def step(self, step: int, epoch: float, seconds: float, *, terms: Mapping[str, float] | None = None) -> None:
        """Called after every step; `terms` only when they were brought to the CPU for the log."""
        if not self._shown:
            return
        if terms is not None:
            self._terms = " ".join(f"{name} {value:.4g}" for name, value in terms.items())
        now = time.monotonic()
        self._place = (step, epoch, seconds)
        if now - self._drawn >= (_LINE_SECONDS if self._bar is None else _REFRESH_SECONDS):
            self._drawn = now
            if self._bar is None:
                self._print_place(now)
            else:
                self._draw(self._bar, now)

    def _print_place(self, now: float) -> None:
        step, epoch, seconds = self._place
        left = self._done_and_left(step, seconds, now)[1]
        place = f"step {step:,}" + (f" of {self._total:,}" if self._total else "")
        words = [place, f"epoch {epoch:.2f}", "" if left is None else f"{_clock(left)} left", self._held_out]
        self._console.print(", ".join(filter(None, words)), highlight=False, soft_wrap=True)

    def _draw(self, bar: Progress, now: float) -> None:
        step, epoch, seconds = self._place
        done, left = self._done_and_left(step, seconds, now)
        left_text = "" if left is None else f"{_clock(left)} left"
        place = f"epoch {epoch:.2f} step {step}"
        bar.update(self._task, completed=done, description=place, left=left_text, terms=self._terms)
        bar.refresh()

    def _done_and_left(self, step: int, seconds: float, now: float) -> tuple[float, float | None]:
        """The fraction done and the seconds left by the limit that comes first."""
        limits: list[tuple[float, float]] = []  # (seconds left, fraction done)
        if self._total and step > self._start_step:
            per_step = (now - self._started) / (step - self._start_step)
            limits.append((per_step * (self._total - step), step / self._total))
        if self._max_seconds < math.inf:
            limits.append((max(0.0, self._max_seconds - seconds), min(1.0, seconds / self._max_seconds)))
        if not limits:
            return 0.0, None
        left, done = min(limits)
        return done, left

    def validated(self, step: int, epoch: float, terms: Mapping[str, float], note: str) -> None:
        """A line that stays, for every validation."""
        if self._shown:
            self._drawn = time.monotonic()
            held_out = [f"{name} {terms[name]:.4g}" for name in _HELD_OUT if name in terms]
            self._held_out = f"on what is held out: {', '.join(held_out)}" if held_out else ""
            text = " ".join(f"{name} {value:.5g}" for name, value in terms.items())
            self._console.print(f"epoch {epoch:.2f} step {step}: {text}{note}", highlight=False, soft_wrap=True)

    def tell(self, message: str) -> None:
        """A warning; shown even where the bar is not."""
        self._console.print(message, style="yellow", highlight=False, soft_wrap=True, markup=False)

    def close(self) -> None:
        if self._bar is not None:
            self._draw(self._bar, time.monotonic())
            self._bar.stop()
            self._bar = None


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
