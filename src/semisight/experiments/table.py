"""What every table does: leaves out what the results file holds, measures the rest, says where each number comes from.

A cell that takes long keeps its checkpoints in the folder TABLE-unfinished beside the results file until it is
measured: a command that was stopped goes on from there.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from semisight.errors import UserError
from semisight.experiments import results
from semisight.training.config import TrainConfig
from semisight.training.progress import ProgressBar
from semisight.training.trainer import Fitted, Trainer

SMOKE_DATA = "builtin:digits"


@dataclass(frozen=True)
class Request:
    """What to measure: which data, rows, numbers of labels per class and splits, and within which time."""

    data: str | Path | None
    out: Path | None = None
    rows: Sequence[str] = ()
    n: Sequence[int] = (10,)
    splits: Sequence[int] = (0,)
    minutes: float = 40.0
    steps: int | None = None  # of rows that learn as long as the minutes say: so many steps instead
    smoke: bool = False
    threads: int = 1
    progress: bool = True
    cache: Path | None = None  # of scaled images
    size: int | None = None  # of images, in pixels, where a table has no size of its own
    run: Path | None = None  # that figure 2 asks for captions

    def file(self, table: str) -> Path:
        return self.out or Path("results") / f"{table}.csv"

    def source(self) -> str | Path:
        if self.data is not None:
            return self.data
        if self.smoke:
            return SMOKE_DATA
        raise UserError("say where the images of the paper are: --data FOLDER (MNIST's idx files), or try --smoke.")

    def chosen(self, rows: Sequence[str], where: str) -> tuple[str, ...]:
        """The rows that are asked for, of those there are; all of these if none are named."""
        unknown = [row for row in self.rows if row not in rows]
        if unknown:
            raise UserError(f"no row {unknown[0]!r} in {where}. There are: {', '.join(rows)}")
        return tuple(self.rows or rows)

    def training(self, **settings: Any) -> TrainConfig:
        """On these threads and as quiet as asked; to the end of its epochs or steps unless `settings` say otherwise."""
        fixed = {"patience": None, "validation_batch_size": 500, "keep_memory": True, "tensorboard": False}
        return TrainConfig(**{**fixed, "threads": self.threads, "progress": self.progress, **settings})


@dataclass(frozen=True)
class Cell:
    """A place in a table, measured if the results file has all its metrics; `paper` is what the paper prints there."""

    row: str
    seed: int
    metrics: tuple[str, ...]
    N: str = ""
    paper: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its files."""
        return "-".join(part for part in (self.row.replace("/", "-"), self.N, str(self.seed)) if part)


@dataclass(frozen=True)
class Measured:
    """Values by metric, and the seconds that were spent on them before: by a command that was stopped, or for a part
    that is shared with other cells."""

    values: Mapping[str, float]
    before: float = 0.0


class Unfinished(Exception):
    """A cell has used up its minutes, and is saved."""


def fill(
    table: str, request: Request, cells: Iterable[Cell], measure: Callable[[Cell, Path], Measured]
) -> list[results.Row]:
    """Measures one cell after the other and adds each at once; `measure` is given a place for what is unfinished."""
    out, added = request.file(table), []
    for cell in cells:
        if results.has(out, table, cell.row, cell.N, cell.metrics, cell.seed):
            continue
        began, place = time.monotonic(), unfinished(out) / cell.name
        try:
            found = measure(cell, place)
        except Unfinished as pause:
            ProgressBar(False, None, 0, start_step=0).tell(f"{cell.row}: {pause}. The same command goes on with it.")
            continue
        minutes = (found.before + time.monotonic() - began) / 60
        origin = {"minutes": minutes, "commit": results.commit(), "hardware": results.hardware(request.threads)}
        new = [
            results.Row(table, cell.row, cell.N, metric, cell.seed, value, cell.paper.get(metric, ""), **origin)  # type: ignore[arg-type]
            for metric, value in found.values.items()
        ]
        results.add(out, new)
        forget([place, place.with_suffix(".safetensors")])
        added += new
    return added


def fit(trainer: Trainer) -> tuple[Fitted, float]:
    """Trains, or goes on with what a stopped command left; with the seconds that were spent before."""
    began = time.monotonic()
    fitted = trainer.fit(resume=trainer.folder.newest.exists())
    return fitted, max(0.0, fitted.seconds - (time.monotonic() - began))


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.stem}-unfinished")


def forget(places: Iterable[Path]) -> None:
    """Removes files or folders that are no longer needed, and the folder around them with the last."""
    for place in places:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
        if place.parent.exists() and not any(place.parent.iterdir()):
            place.parent.rmdir()
