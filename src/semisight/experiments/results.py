"""Results are data: one CSV row per measured number, with all that is needed to measure it again."""

import csv
import dataclasses
import io
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from semisight import __version__
from semisight.errors import UserError
from semisight.files import write_atomic


@dataclass(frozen=True)
class Row:
    """A number: which table and row of it, with how many labels per class (N), which metric and seed."""

    table: str
    row: str
    N: str
    metric: str
    seed: int
    value: float
    paper: str  # what the paper prints there, or ""
    minutes: float
    commit: str
    hardware: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return (self.table, self.row, self.N, self.metric, self.seed)


# Rows that had another name when some files were written.
RENAMED = {"pull": "consistency", "pull-no-bound": "consistency-no-bound"}
COLUMNS = tuple(field.name for field in dataclasses.fields(Row))


def read(path: str | Path) -> list[Row]:
    """The rows of a results file; none if there is no file yet."""
    path = Path(path)
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise UserError(f"{path} is not a results file: its first line should be {','.join(COLUMNS)}")
        return [_parse(values) for values in reader]


def _parse(values: dict[str, str]) -> Row:
    *of_set, name = values["row"].split("/")
    return Row(
        **{
            **values,
            "row": "/".join([*of_set, RENAMED.get(name, name)]),
            "seed": int(values["seed"]),
            "value": float(values["value"]),
            "minutes": float(values["minutes"]),
        }  # type: ignore[arg-type]
    )


def add(path: str | Path, rows: Iterable[Row]) -> None:
    """Adds rows; one with the same table, row, N, metric and seed takes the place of the old."""
    new = {row.key: row for row in rows}
    kept = [new.pop(old.key, old) for old in read(path)]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in [*kept, *new.values()]:
        writer.writerow({**dataclasses.asdict(row), "value": f"{row.value:.6g}", "minutes": f"{row.minutes:.2f}"})
    write_atomic(path, text.getvalue())


def has(path: str | Path, table: str, row: str, N: str, metrics: Sequence[str], seed: int) -> bool:
    """Whether all these metrics of a row are there already."""
    keys = {old.key for old in read(path)}
    return all((table, row, N, metric, seed) in keys for metric in metrics)


@dataclass(frozen=True)
class Summary:
    """One cell of a table over its seeds: the mean, and the standard deviation between them where there are several."""

    row: str
    N: str
    metric: str
    seeds: tuple[int, ...]
    mean: float
    spread: float | None
    paper: str

    def words(self) -> str:
        return f"{self.mean:.4g}" if self.spread is None else f"{self.mean:.4g} +- {self.spread:.2g}"


def summaries(rows: Iterable[Row]) -> list[Summary]:
    """In the order in which cells first come."""
    cells: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.row, row.N, row.metric), []).append(row)
    return [
        Summary(
            *key,
            tuple(row.seed for row in of),
            statistics.mean(row.value for row in of),
            statistics.stdev(row.value for row in of) if len(of) > 1 else None,
            of[0].paper,
        )
        for key, of in cells.items()
    ]


def commit() -> str:
    """The commit that runs, with a + if the package differs from it; the version where there is no repository."""

    def git(*command: str) -> str:
        package = Path(__file__).parents[1]
        return subprocess.run(["git", *command], cwd=package, check=True, capture_output=True, text=True).stdout.strip()

    try:  # results that a table adds to are no change of what runs
        return git("describe", "--always", "--abbrev=10") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return __version__


def hardware(threads: int) -> str:
    """Processor, cores of the machine, threads used."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}; {os.cpu_count()} cores; {threads} thread{'s' if threads > 1 else ''}"
