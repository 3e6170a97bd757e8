"""What a run writes down: RUN/log.csv, and RUN/tensorboard/ where TensorBoard is installed.

One row per (step, split), the split being train (means since the last row) or valid. A resumed run first cuts the log
back to its checkpoint, so no row stands twice. A log that cannot be written (a full disk) never stops the training:
its rows wait in memory, and the person is told once.
"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.objectives.step import sum_over_processes
from semisight.untrusted import printable, read_text

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FIXED = ("step", "epoch", "split", "seconds")
_MOST_LOG = 200_000_000  # bytes
Row = dict[str, Any]


class Meter:
    """Means of the terms since the last row; the numbers stay on the device until asked for."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._rows: dict[str, int] = {}

    def add(self, terms: Mapping[str, Tensor], rows: int) -> None:
        for name, value in terms.items():
            if name in self._sums:
                self._sums[name].add_(value, alpha=rows)
            else:
                self._sums[name] = value.detach() * float(rows)
            self._rows[name] = self._rows.get(name, 0) + rows

    def means(self) -> dict[str, float]:
        """Over all processes, which must all ask; then starts anew."""
        if not self._sums:
            return {}
        names = list(self._sums)
        sums = torch.stack([self._sums[name].float() for name in names])
        rows = torch.tensor([float(self._rows[name]) for name in names], device=sums.device)
        sums, rows = sum_over_processes(torch.stack([sums, rows]))
        self._sums, self._rows = {}, {}
        return dict(zip(names, (sums / rows).tolist(), strict=True))

    def tensors(self) -> dict[str, Tensor]:
        """Sums and counts for a checkpoint, so that the rows of a resumed run are those of an uninterrupted one."""
        counts = {f"rows/{name}": torch.tensor(rows) for name, rows in self._rows.items()}
        return {f"sum/{name}": value for name, value in self._sums.items()} | counts

    def load(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        sums = {key.removeprefix("sum/"): value for key, value in tensors.items() if key.startswith("sum/")}
        self._sums = {name: value.to(device) for name, value in sums.items()}
        self._rows = {name: int(tensors[f"rows/{name}"]) for name in sums}


class RunLog:
    """Appends rows to the CSV file and to TensorBoard."""

    def __init__(self, file: Path, tensorboard: Path | None, *, keep_up_to: int, tell: Callable[[str], None]) -> None:
        self._file, self._tell = file, tell
        self._told = False
        self._columns: list[str] = []
        self._waiting: list[Row] = []
        self._size = 0  # of the part of the file that is known to be whole
        rows = [row for row in read_log(file) if row["step"] <= keep_up_to] if file.exists() else []
        self._rewrite(rows)
        self._tensorboard = _open_tensorboard(tensorboard, keep_up_to, tell) if tensorboard is not None else None

    def write(self, row: Row) -> None:
        self._waiting.append(row)
        try:
            if any(name not in self._columns for row in self._waiting for name in row):
                self._rewrite([*read_log(self._file), *self._waiting])  # a new term: a new column
            else:
                self._append()
            self._waiting.clear()
        except (OSError, UserError) as error:
            if not self._told:
                self._tell(f"could not write {self._file} ({error}); its rows wait until it can be written again.")
            self._told = True
        if self._tensorboard is not None:
            self._to_tensorboard(row)

    def close(self) -> None:
        if self._tensorboard is not None:
            try:
                self._tensorboard.close()
            except OSError as error:
                self._tell(f"the TensorBoard log is not complete: {error}")

    def _append(self) -> None:
        text = _as_csv(self._columns, self._waiting, header=False).encode()
        with self._file.open("r+b") as stream:
            stream.truncate(self._size)  # half a row of a write that failed before
            stream.seek(self._size)
            stream.write(text)
        self._size += len(text)

    def _rewrite(self, rows: list[Row]) -> None:
        columns = list(_FIXED)
        for row in rows:
            columns += [name for name in row if name not in columns]
        text = _as_csv(columns, rows)
        write_atomic(self._file, text)
        self._columns, self._size = columns, len(text.encode())

    def _to_tensorboard(self, row: Row) -> None:
        assert self._tensorboard is not None
        try:
            for name, value in row.items():
                if name not in _FIXED:
                    self._tensorboard.add_scalar(f"{name}/{row['split']}", value, row["step"])
            self._tensorboard.flush()
        except OSError as error:
            self._tell(f"TensorBoard is off from here on: {error}")
            self._tensorboard = None


def read_log(file: str | Path) -> list[Row]:
    """The rows of a log.csv with numbers as numbers; empty cells are left out, as is a last row without its end."""
    text = read_text(file, _MOST_LOG)
    whole = text[: text.rfind("\n") + 1]
    rows: list[Row] = []
    try:
        for cells in csv.DictReader(io.StringIO(whole)):
            row: Row = {name: value for name, value in cells.items() if name is not None and value not in (None, "")}
            if "step" not in row or "split" not in row:
                raise UserError(f"{file} is not a log of semisight: it lacks the columns step and split.")
            rows.append({name: _number(name, value) for name, value in row.items()})
    except (ValueError, csv.Error) as error:
        raise UserError(f"{file} is damaged ({printable(str(error))[:200]}): delete it to go without.") from error
    return rows


def _number(name: str, value: str) -> Any:
    if name == "split":
        return value
    return int(value) if name == "step" else float(value)


def _as_csv(columns: Sequence[str], rows: Sequence[Row], header: bool = True) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _open_tensorboard(folder: Path, keep_up_to: int, tell: Callable[[str], None]) -> "SummaryWriter | None":
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        tell("TensorBoard is not installed, so only log.csv is written (pip install 'semisight[track]').")
        return None
    # TensorBoard hides what was logged from purge_step on: the steps that are about to be done again
    try:
        return SummaryWriter(str(folder), purge_step=keep_up_to + 1 if keep_up_to >= 0 else None)
    except OSError as error:
        tell(f"TensorBoard is off: {error}")
        return None
