"""A training in the background: a child process `semisight train ...` into a new folder, and how far it has come.

The child writes what it says to RUN/output.txt. It ends when the server does, even by SIGKILL (train_child.py): the run
then holds what was learned so far, says that it is unfinished, and can be resumed.
"""

import contextlib
import csv
import io
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from semisight.data.label_csv import Entry
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.runs.run import Run, check_urls
from semisight.training.config import read_settings
from semisight.training.logs import read_log

State = Literal["none", "running", "loading", "done", "failed", "stopped"]
_LINES = 12  # of what it says, shown
_POLL = 0.3  # seconds
_PATIENCE = 20.0  # seconds that a stopped training may take to save


@dataclass(frozen=True)
class Progress:
    """How far a training is; fraction is None as long as nobody knows."""

    state: State = "none"
    run: str = ""
    epoch: float = 0.0
    step: int = 0
    seconds: float = 0.0
    fraction: float | None = None
    seconds_left: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    lines: tuple[str, ...] = ()
    message: str = ""


class Busy(Exception):
    """A training is under way already."""


class Training(Protocol):
    """What a service asks of the training in the background."""

    def start(self, command: Callable[[Path], list[str]], beside: Path) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def progress(self) -> Progress: ...


class Retraining:
    """At most one training at a time; `finished` is called with the folder of one that came to its end."""

    def __init__(self, finished: Callable[[Path], None]) -> None:
        self._finished = finished
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._state: State = "none"
        self._message = ""
        self._started = self._ended = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self, command: Callable[[Path], list[str]], beside: Path) -> None:
        """`command` gives the child's words for the folder that it is to fill, a new one named after `beside`."""
        folder = self.reserve(beside)
        try:
            words = command(folder)
        except BaseException as error:
            self.abandon(str(error))
            raise
        self.launch(words)

    def reserve(self, beside: Path) -> Path:
        """A new folder for a training that is launched, or abandoned, next; until then there is no other."""
        with self._lock:
            if self._state in ("running", "loading"):
                raise Busy
            self._folder = _new_folder(beside)
            self._state, self._message, self._stopping = "running", "", False
            self._started = self._ended = time.monotonic()
            return self._folder

    def abandon(self, message: str) -> None:
        self._state, self._message = "failed", message

    def launch(self, words: list[str]) -> None:
        with self._lock:
            assert self._folder is not None
            try:
                with (self._folder / "output.txt").open("wb") as output:
                    self._child = subprocess.Popen(
                        words,
                        stdin=subprocess.PIPE,  # by its end the child learns of ours
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, "PYTHONUNBUFFERED": "1"},  # lines as they are said, and in their order
                        start_new_session=True,  # Ctrl-C is for the server, which then stops the child its own way
                    )
            except OSError as error:
                self._state, self._message = "failed", f"could not start: {error.strerror or error}"
                return
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._child.pid, 10)  # answers come first
            self._thread = threading.Thread(target=self._wait, args=(self._child, self._folder), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Asks the child to save and to end; returns at once."""
        with self._lock:
            if self._child is not None and self._state == "running":
                self._stopping = True
                self._child.terminate()

    def close(self) -> None:
        """At the end of the server: no training is left behind."""
        self.stop()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        if self._child is not None and self._child.poll() is None:
            self._child.kill()
            self._child.wait()

    def _wait(self, child: subprocess.Popen[bytes], folder: Path) -> None:
        code = child.wait()
        if child.stdin is not None:
            child.stdin.close()
        self._ended = time.monotonic()
        if self._stopping:
            self._state, self._message = "stopped", f"To go on: semisight train --out {folder} --resume"
        elif code != 0:
            said = _tail(folder)
            self._state, self._message = "failed", said[-1] if said else f"it ended with code {code}"
        else:
            self._state = "loading"
            try:
                self._finished(folder)
                self._state = "done"
            except Exception as error:  # whatever it is, the page must say it
                self._state, self._message = "failed", str(error)

    def progress(self) -> Progress:
        folder, state = self._folder, self._state
        if folder is None or state == "none":
            return Progress()
        seconds = (time.monotonic() if state == "running" else self._ended) - self._started
        rows = _rows(folder)
        last = rows[-1] if rows else {}
        terms = {
            name: round(value, 5)
            for name, value in next((row for row in reversed(rows) if row["split"] == "valid"), last).items()
            if name not in ("step", "epoch", "split", "seconds") and isinstance(value, float)
        }
        fraction = 1.0 if state in ("loading", "done") else _fraction(folder, last)
        left = None
        if state == "running" and fraction:
            left = round(float(last["seconds"]) * (1 - fraction) / fraction, 1)
        return Progress(
            state=state,
            run=str(folder),
            epoch=round(float(last.get("epoch", 0.0)), 2),
            step=int(last.get("step", 0)),
            seconds=round(max(0.0, seconds), 1),
            fraction=None if fraction is None else round(fraction, 4),
            seconds_left=left,
            terms=terms,
            lines=tuple(_tail(folder)),
            message=self._message,
        )


def train_command(
    run: Run, source: str, labels: Path | None, captions: Path | None, out: Path, minutes: float | None
) -> list[str]:
    """The words of a training like that of `run`, from these labels and captions."""
    data, (channels, height, width) = run.data().settings, run.architecture.image_shape
    words = [sys.executable, "-m", "semisight.server.train_child", "train", source, "--out", str(out)]
    words += ["--no-labels"] if labels is None else ["--labels", str(labels)]
    words += [] if captions is None else ["--captions", str(captions)]
    words += ["--valid-fraction", str(data.valid_fraction)]
    if data.backbone is not None:
        words += ["--backbone", data.backbone, *(["--grid"] if data.grid else [])]
    else:
        words += ["--channels", str(channels), *(["--size", str(height)] if height == width else [])]
    if data.limit is not None:
        words += ["--limit", str(data.limit)]
    # with labels other settings are right than without; on features the defaults are
    if (labels is None) != run.has("labels") and data.backbone is None:
        words += ["--config", str(run.folder.config)]
    if data.only_labelled and labels is not None:
        words += ["--only-labelled"]
    if captions is not None and data.only_captioned:
        words += ["--only-captioned"]
    if captions is not None and data.images_from is not None:
        check_urls(data, run.folder.path, source="--images", names=("images_from",))
        words += ["--two-step", data.images_from]
    if minutes is not None:
        words += ["--minutes", str(minutes)]
    return [*words, "--threads", str(max(1, (os.cpu_count() or 1) - 1))]  # one is left for the answers


def write_captions(out: Path, known: Mapping[str, tuple[str, ...]], entries: Mapping[str, Entry]) -> Path:
    """All captions, those that the run was told and those of the table, as a file of the new run."""
    captions = {name: list(said) for name, said in known.items()}
    for name, entry in entries.items():
        if entry.caption and entry.caption not in captions.get(name, ()):
            captions.setdefault(name, []).append(entry.caption)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["file", "caption"])
    writer.writerows((name, one) for name, said in captions.items() for one in said)
    write_atomic(out / "captions.csv", text.getvalue())
    return out / "captions.csv"


def _new_folder(beside: Path) -> Path:
    """photos-2 beside photos, photos-3 beside photos-2: the first that is not there."""
    stem, _, number = beside.name.rpartition("-")
    start = int(number) if stem and number.isdecimal() else 1
    name = stem if stem and number.isdecimal() else beside.name
    for count in range(start + 1, start + 10_000):
        folder = beside.with_name(f"{name}-{count}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"could not make the folder {folder}: {error.strerror or error}.") from error
    raise UserError(f"there are too many runs beside {beside}: delete old ones.")


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_log(folder / "log.csv")
    except UserError:  # not there yet
        return []


def _fraction(folder: Path, last: Mapping[str, Any]) -> float | None:
    """By the limit that comes first."""
    if not last:
        return None
    try:
        config = read_settings(folder / "config.json")["config"]
        limits = (
            (last["epoch"], config.get("max_epochs")),
            (last["step"], config.get("max_steps")),
            (last["seconds"] / 60, config.get("max_minutes")),
        )
        return max((min(1.0, done / limit) for done, limit in limits if limit), default=None)
    except (UserError, KeyError, TypeError):
        return None


def _tail(folder: Path) -> list[str]:
    lines: deque[str] = deque(maxlen=_LINES)
    with contextlib.suppress(OSError), (folder / "output.txt").open(encoding="utf-8", errors="replace") as file:
        lines.extend(line.rstrip() for line in file if line.strip())
    return list(lines)
