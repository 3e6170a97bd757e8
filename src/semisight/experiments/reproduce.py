"""`semisight reproduce`: the paper's tables and figures by command, cell by cell, into results/*.csv."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from semisight.errors import UserError
from semisight.experiments import (
    figure2,
    figures,
    image_model,
    photos,
    suggest,
    table1,
    table2,
    table3,
    table3_photos,
    table4,
)
from semisight.experiments.paired import differences
from semisight.experiments.results import Row, Summary, read
from semisight.experiments.table import Request

EXPERIMENTS: dict[str, Callable[[Request], list[Row]]] = {
    "image-model": image_model.run,
    "table1": table1.run,
    "table2": table2.run,
    "table3": table3.run,
    "table3-photos": table3_photos.run,
    "table4": table4.run,
    "suggest": suggest.run,
    "photos": photos.run,
}

FIGURES: dict[str, Callable[[Request], Path]] = {
    name: lambda request, name=name: figures.draw(name, request) for name in figures.FIGURES
} | {figure2.FIGURE: figure2.draw}
ALL, STATUS = "all", "status"
DEFAULT_N = {"table4": table4.SHARES}  # where it is not labels per class


def reproduce(name: str, request: Request) -> list[Row]:
    """Measures what the results file does not hold yet; gives the rows that were added."""
    return EXPERIMENTS[_known(name)](request)


def draw(name: str, request: Request) -> Path:
    """The file of a figure."""
    return FIGURES[name](request)


def everything(request: Request) -> tuple[list[Row], list[Path]]:
    """Every row of every table, and every figure, at smoke size; the files go into the folder `request.out`."""
    if not request.smoke:
        raise UserError("all runs at smoke size only: add --smoke. A real table needs its images: name it by itself.")
    folder = request.out or Path("smoke")
    rows: list[Row] = []
    for name, run in EXPERIMENTS.items():
        rows += run(replace(request, data=None, out=folder / f"{name.replace('-', '_')}.csv", rows=()))
    of_table4 = replace(request, data=None, out=folder / f"{table4.TABLE}.csv", rows=())
    return rows, [draw(name, of_table4) for name in FIGURES]


def _known(name: str) -> str:
    names = (*EXPERIMENTS, *FIGURES, ALL, STATUS)
    if name not in EXPERIMENTS:
        near = get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UserError(f"no experiment named {name!r}{hint} There are: {', '.join(names)}")
    return name


def compared(name: str, request: Request, pair: str) -> str:
    """Of two rows of the results file, named with a comma between them, how they differ, metric by metric."""
    file = request.file(_known(name).replace("-", "_"))
    one, comma, other = (part.strip() for part in pair.partition(","))
    if not (one and comma and other) or "," in other:
        raise UserError(f"--compare takes two rows, such as mnist/vae,mnist/vae-d, not {pair!r}.")
    if not file.exists():
        raise UserError(f"there are no results to compare at {file}: measure them first, or name their file by --out.")
    head = ("metric", "N", f"{one} and {other}, difference +- standard error")
    return _aligned([head, *((d.metric, d.N, d.words()) for d in differences(read(file), one, other))])


def summary_text(cells: Sequence[Summary]) -> str:
    """A table for people."""
    head = ("row", "N", "metric", "splits", "mean +- spread", "paper")
    rows = [(cell.row, cell.N, cell.metric, ",".join(map(str, cell.seeds)), cell.words(), cell.paper) for cell in cells]
    return _aligned([head, *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def numbers(text: str, what: str) -> tuple[int, ...]:
    """ "0,1,2" as whole numbers."""
    try:
        values = tuple(int(part) for part in text.split(","))
    except ValueError:
        values = ()
    if not values or min(values) < 0:
        raise UserError(f"{what} takes whole numbers separated by commas, such as 0,1,2, not {text!r}.")
    return values
