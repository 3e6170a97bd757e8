"""`semisight reproduce`: the paper's tables by command, cell by cell, into results/*.csv."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from semisight.errors import UserError
from semisight.experiments.results import Row, Summary, read

SMOKE_DATA = "builtin:digits"


@dataclass(frozen=True)
class Request:
    """What to measure: which data, rows, numbers of labels per class and splits, and within which time."""

    data: str | None
    out: Path | None = None
    rows: Sequence[str] = ()
    n: Sequence[int] = (10,)
    splits: Sequence[int] = (0,)
    minutes: float = 40.0
    smoke: bool = False
    threads: int = 1
    progress: bool = True

    def file(self, table: str) -> Path:
        return self.out or Path("results") / f"{table}.csv"

    def source(self) -> str:
        if self.data is not None:
            return self.data
        if self.smoke:
            return SMOKE_DATA
        raise UserError("say where the images of the paper are: --data FOLDER (MNIST's idx files), or try --smoke.")


def _image_model(request: Request) -> list[Row]:
    from semisight.experiments import image_model

    rows = request.rows or image_model.ROWS
    out = request.file(image_model.TABLE)
    return [
        row
        for seed in request.splits
        for row in image_model.run(request.source(), out, rows, seed, request.smoke, request.threads, request.progress)
    ]


def _table1(request: Request) -> list[Row]:
    from semisight.experiments import table1

    return table1.run(
        request.source(),
        request.file(table1.TABLE),
        request.rows or table1.ROWS,
        request.splits,
        request.minutes,
        request.smoke,
        request.threads,
        request.progress,
    )


def _table2(request: Request) -> list[Row]:
    from semisight.experiments import table2

    return table2.run(
        request.source(),
        request.file(table2.TABLE),
        request.rows or table2.ROWS,
        request.n,
        request.splits,
        request.minutes,
        request.smoke,
        request.threads,
        request.progress,
    )


def _table3(request: Request) -> list[Row]:
    from semisight.experiments import table3

    data = request.data or table3.SCENES
    rows, out = request.rows or table3.rows_of(data), request.file(table3.TABLE)
    return table3.run(
        data, out, rows, request.splits, request.minutes, request.smoke, request.threads, request.progress
    )


def _suggest(request: Request) -> list[Row]:
    from semisight.experiments import suggest

    rows, out = request.rows or suggest.ROWS, request.file(suggest.TABLE)
    data = request.data or suggest.DATA
    return suggest.run(data, out, rows, request.splits, request.smoke, request.threads, request.progress)


EXPERIMENTS: dict[str, Callable[[Request], list[Row]]] = {
    "image-model": _image_model,
    "table1": _table1,
    "table2": _table2,
    "table3": _table3,
    "suggest": _suggest,
}


def reproduce(name: str, request: Request) -> list[Row]:
    """Measures what the results file does not hold yet; gives the rows that were added."""
    _check_name(name)
    return EXPERIMENTS[name](request)


def _check_name(name: str) -> None:
    if name not in EXPERIMENTS:
        near = get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UserError(f"no experiment named {name!r}{hint} There are: {', '.join(EXPERIMENTS)}")


def compared(name: str, request: Request, pair: str) -> str:
    """Of two rows of the results file, named with a comma between them, how they differ, metric by metric."""
    from semisight.experiments.paired import differences
    from semisight.runs.predicting import columns

    _check_name(name)
    one, comma, other = (part.strip() for part in pair.partition(","))
    if not (one and comma and other) or "," in other:
        raise UserError(f"--compare takes two rows, such as mnist/vae,mnist/vae-d, not {pair!r}.")
    file = request.file(name.replace("-", "_"))
    if not file.exists():
        raise UserError(f"there are no results to compare at {file}: measure them first, or name their file by --out.")
    found = differences(read(file), one, other)
    head = ("metric", "N", f"{one} and {other}, difference +- standard error")
    return "\n".join(columns([head, *((d.metric, d.N, d.words()) for d in found)]))


def summary_text(cells: Sequence[Summary]) -> str:
    """A table for people."""
    from semisight.runs.predicting import columns

    head = ("row", "N", "metric", "splits", "mean +- spread", "paper")
    rows = [(cell.row, cell.N, cell.metric, ",".join(map(str, cell.seeds)), cell.words(), cell.paper) for cell in cells]
    return "\n".join(columns([head, *rows]))


def numbers(text: str, what: str) -> tuple[int, ...]:
    """ "0,1,2" as whole numbers."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 0:
        raise UserError(f"{what} takes whole numbers separated by commas, such as 0,1,2, not {text!r}.")
    return values
