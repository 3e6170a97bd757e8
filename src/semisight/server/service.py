"""A run being served: the model that answers, the images it learned from, the table of labels, and the next training.

The model answers from the first moment. Its images are read and encoded in the background: until then nearest images
and suggestions are missing, and `Reading` says how far it is. After a training the new run takes over in the same way.
"""

import contextlib
import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch

from semisight.data.label_csv import Entry
from semisight.data.label_table import QUIET, Nothing, Table
from semisight.errors import UserError
from semisight.inference.acquisition import choose_next
from semisight.inference.neighbours import Neighbours
from semisight.inference.search import WordSearch
from semisight.runs.run import Run, Which, load_run
from semisight.server.answering import Answer, Answerer, Question
from semisight.server.batching import Batcher
from semisight.server.image_index import Encoded, ImageIndex, encode_index, read_index
from semisight.server.limits import Limits
from semisight.server.retraining import Retraining, Training, train_command, write_captions
from semisight.untrusted import recorded_file

_AHEAD = 50  # suggestions worked out at a time
_GUESSES = 9  # of a suggestion: those that have a key on the page
_TENDED = 0.5  # seconds between looks at the table
_TRIMMED = 10.0  # seconds between giving memory back


class NotReady(Exception):
    """The images are still being read."""


class Unknown(Exception):
    """There is no such image, or nothing to undo."""


@dataclass(frozen=True)
class Reading:
    """How far the images of the run are read and encoded."""

    state: Literal["reading", "encoding", "ready", "failed"] = "reading"
    done: int = 0
    total: int = 0
    message: str = ""


@dataclass(frozen=True)
class Known:
    """What the table says, by the names of the images; made anew when the table has changed under us."""

    entries: dict[str, Entry] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # as the table calls the image
    labels: Counter[str] = field(default_factory=Counter)
    captions: Counter[bool] = field(default_factory=Counter)
    generation: int = -1

    def set(self, name: str, entry: Entry) -> None:
        old = self.entries.get(name, Entry())
        self.labels.subtract([old.label])
        self.labels.update([entry.label])
        self.captions.subtract([bool(old.caption)])
        self.captions.update([bool(entry.caption)])
        self.entries[name] = entry

    def counts(self) -> dict[str, int]:
        return {label: n for label, n in list(self.labels.items()) if label and n > 0}


@dataclass(frozen=True)
class Suggestion:
    """An image to label, what the table says of it already, and the run's guesses, the most probable first."""

    file: str
    entry: Entry
    guesses: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Options:
    """What `semisight serve` was given."""

    images: str | None = None
    labels: Path | None = None
    checkpoint: Which = "auto"
    device: str = "cpu"
    limits: Limits = field(default_factory=Limits)
    session: int | None = None  # the journal's size when the server was started; None: now


class Service:
    """Everything behind the web server; its methods may be called from any thread."""

    def __init__(self, run: Run, options: Options, training: Callable[[Callable[[Path], None]], Training] = Retraining):
        """`training` makes what trains in the background, given what is to be called with a run that is done."""
        self.options, self.limits = options, options.limits
        self.answerer = Answerer(run)
        self.batcher: Batcher[Question, Answer] = Batcher(
            self._answer, batch=self.limits.batch, waiting=self.limits.waiting
        )
        self.training = training(self._take_over)
        self.reading = Reading()
        self._table_path = table_for(run, options)
        self._index: ImageIndex | None = None
        self._table: Table | None = None
        self._encoded: Encoded | None = None
        self._lock = threading.Lock()
        self._queue: list[str] = []
        self._returned = 0  # of what was taken back, so many have been put in the queue again
        self.known = Known()
        self._recent: list[tuple[str, Entry]] = []  # changes while `known` is made anew
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, name="semisight-images", daemon=True)
        self._keeper = threading.Thread(target=self._tend, name="semisight-table", daemon=True)

    @property
    def run(self) -> Run:
        return self.answerer.run

    def start(self) -> None:
        self._reader.start()
        self._keeper.start()

    def close(self) -> None:
        self._closing.set()
        self.training.close()
        self.batcher.close()
        if self._keeper.is_alive():
            self._keeper.join(5.0)
        if self._table is not None:
            with contextlib.suppress(UserError):  # what cannot be merged now is merged at the next start
                if not self._table.merge(wait=1.0) and not self._table.read_only:
                    time.sleep(QUIET)  # another program has just saved it
                    self._table.merge(wait=1.0)
            self._table.close()

    def _answer(self, questions: Sequence[Question]) -> list[Answer]:
        return self.answerer(questions)

    @property
    def is_ready(self) -> bool:
        return not self._closing.is_set() and self.batcher.waiting < self.limits.waiting

    @property
    def is_behind(self) -> bool:
        return self._table is not None and not self._table.is_merged

    # --- images of the run

    @property
    def index(self) -> ImageIndex:
        if self._index is None:
            raise NotReady
        return self._index

    @property
    def table(self) -> Table:
        if self._table is None:
            raise NotReady
        return self._table

    def _read(self) -> None:
        try:
            index = read_index(self.run, self.options.images, self._progress)
            # A new table begins with what the run knows, so that the next training knows it too.
            table = Table(self._table_path, index.known, self.options.session)
            self.known = _known(index, table)
            self._index, self._table = index, table
            self._encode(self.answerer)
        except Exception as error:  # the model answers all the same; the pages say what is missing
            if not self._closing.is_set():
                hint = "" if self.options.images else " Give --images if they have moved."
                self.reading = Reading("failed", message=f"the images cannot be shown: {error}{hint}")

    def _progress(self, done: int, total: int) -> None:
        if self._closing.is_set():
            raise NotReady  # ends the thread
        self.reading = replace(self.reading, done=done, total=total)

    def _encode(self, answerer: Answerer) -> None:
        self.reading = Reading("encoding", 0, len(self.index))
        encoded = encode_index(answerer.run, self.index, self._progress)
        mask = encoded.learned if bool(encoded.learned.any()) else ~encoded.learned
        names = [name for name, mine in zip(encoded.names, mask.tolist(), strict=True) if mine]
        answerer.neighbours = Neighbours(encoded.seen.codes[mask], names)
        if answerer.run.has("captions"):
            reader = answerer.run.captions
            answerer.search = WordSearch.of_codes(
                reader.head, reader.vocabulary, encoded.seen.codes.to(answerer.run.device), self._progress
            )
        with self._lock:
            self._encoded, self._queue = encoded, []
        self.reading = Reading("ready", len(encoded.names), len(encoded.names))

    def search(self, words: str, n: int) -> tuple[list[tuple[str, float]], tuple[str, ...]]:
        """Files with log p(words), the best first; and the words that are not known."""
        with self._lock:
            encoded, search = self._encoded, self.answerer.search
        if not self.run.has("captions"):
            raise UserError("this run learned no captions: it cannot be searched by words.")
        if encoded is None or search is None:
            raise NotReady
        query = search.query(words)
        return [(encoded.names[one.place], one.log_prob) for one in search(query, n)], query.unknown

    # --- labels

    def _tend(self) -> None:
        """Looks after the table beside all requests: others' changes come in, ours go out. Nobody waits for it."""
        trimmed = time.monotonic()
        while not self._closing.wait(_TENDED):
            table, index = self._table, self._index
            if table is not None and index is not None:
                with contextlib.suppress(UserError):  # tried again; `table.problem` says it on the page
                    table.tend()
                self._catch_up(index, table)
                if table.generation != self.known.generation:
                    self._look_up(index, table)
            if time.monotonic() - trimmed > _TRIMMED:
                _trim()
                trimmed = time.monotonic()

    def _look_up(self, index: ImageIndex, table: Table) -> None:
        with self._lock:
            self._recent = []
        known = _known(index, table)  # seconds, for a million rows: nobody waits meanwhile
        with self._lock:
            for name, entry in self._recent:
                known.set(name, entry)
            self.known = known

    def _catch_up(self, index: ImageIndex, table: Table) -> None:
        """What other processes have labelled, and what was taken back, which comes next again."""
        with self._lock:
            for file, entry in table.news():
                if (name := index.named(file)) is not None:
                    self.known.files.setdefault(name, file)
                    self._note(name, entry)
            returned = table.returned[self._returned :]
            self._returned += len(returned)
            names = [name for name in map(index.named, returned) if name is not None]
            self._queue = [*reversed(names), *(name for name in self._queue if name not in names)]

    def _note(self, name: str, entry: Entry) -> None:
        self.known.set(name, entry)
        self._recent = [*self._recent[-10_000:], (name, entry)]

    def entries(self) -> dict[str, Entry]:
        """What the table says, by the names of the images."""
        with self._lock:
            return dict(self.known.entries)

    def label_of(self, name: str) -> str:
        """From memory, for quick answers."""
        return self.known.entries.get(name, Entry()).label

    def classes(self) -> list[str]:
        """Those of the run, then those that only the table knows."""
        known = dict.fromkeys(self.run.labels.class_names if self.run.has("labels") else ())
        if self._table is not None:
            known |= dict.fromkeys(sorted(self._table.counts().keys() - known.keys()))
        return list(known)

    def suggestions(self, n: int) -> list[Suggestion]:
        """The next images to label. They stay the next ones until they are labelled or skipped."""
        index, table = self.index, self.table
        table.glance()
        self._catch_up(index, table)
        passed = {index.named(file) for file in list(table.passed)}
        with self._lock:
            encoded = self._encoded
            if encoded is None:
                raise NotReady
            entries = self.known.entries
            done = passed | {name for name in encoded.names if name in entries and entries[name].label}
            self._queue = [name for name in self._queue if name not in done]
            if len(self._queue) < n:
                open_ = torch.tensor([name not in done for name in encoded.names])
                waiting = set(self._queue)
                chosen = choose_next(encoded.seen.codes, encoded.seen.doubt, open_, max(n, _AHEAD))
                self._queue += [name for name in (encoded.names[i] for i in chosen) if name not in waiting]
            wanted = self._queue[:n]
        place = {name: i for i, name in enumerate(encoded.names)}
        return [Suggestion(name, entries.get(name, Entry()), self._guesses(encoded, place[name])) for name in wanted]

    def _guesses(self, encoded: Encoded, place: int) -> tuple[tuple[str, float], ...]:
        if not self.run.has("labels"):
            return ()
        row = encoded.seen.probabilities[place]
        best = row.topk(min(_GUESSES, len(row)))
        names = self.run.labels.class_names
        return tuple((names[c], round(p, 4)) for p, c in zip(best.values.tolist(), best.indices.tolist(), strict=True))

    def put(self, name: str, label: str | None, caption: str | None, who: str = "") -> Entry:
        """Returns once the change is on disk."""
        file = self._file_in_table(name)
        before = self.table.put(file, label, caption, who)
        after = Entry(before.label if label is None else label, before.caption if caption is None else caption)
        with self._lock:
            self._note(name, after)
        return after

    def skip(self, name: str, who: str = "") -> None:
        self.table.skip(self._file_in_table(name), who)

    def undo(self, name: str, who: str = "") -> Entry:
        """Takes back the last change of an image in this session; it comes next again."""
        try:
            entry = self.table.undo(self._file_in_table(name), who)
        except Nothing:
            raise Unknown from None
        with self._lock:
            self._note(name, entry)
        self._catch_up(self.index, self.table)
        return entry

    def _file_in_table(self, name: str) -> str:
        """As the table calls the image already, if it does."""
        if name not in self.index:
            raise Unknown
        return self.known.files.get(name, name)

    # --- training

    def retrain(self, minutes: float | None) -> None:
        run, index, table = self.run, self.index, self.table
        if not table.read_only and not table.merge(quiet=0.0):
            raise UserError(f"the labels cannot be brought into {table.path}: {table.problem or 'try again'}")
        entries = self.entries()
        classes = {entry.label for entry in entries.values() if entry.label}
        said = bool(index.captions) or any(entry.caption for entry in entries.values())
        has_captions = run.has("captions") and said  # images of another folder may have none
        if len(classes) < 2 and not has_captions:
            or_captions = ", or write captions" if run.has("captions") else ""
            raise UserError(f"there is nothing to learn yet: label images of at least two classes{or_captions}.")
        labels = table.path if len(classes) > 1 else None

        def command(out: Path) -> list[str]:
            captions = write_captions(out, index.captions, entries) if has_captions else None
            return train_command(run, index.source, labels, captions, out, minutes)

        self.training.start(command, run.folder.path.absolute())

    def _take_over(self, folder: Path) -> None:
        """The new run answers from now on; its images are the same, their codes are not."""
        run = load_run(folder, self.options.checkpoint, self.options.device)
        answerer = Answerer(run)
        self.answerer = answerer
        with self._lock:
            self._encoded = None
        self._encode(answerer)


def table_for(run: Run, options: Options) -> Path:
    """The table that labels are written to."""
    return _table_of(run) if options.labels is None else options.labels.expanduser()


def _table_of(run: Run) -> Path:
    """The table that the run learned from, or one in its folder.

    A run may come from a stranger: it never decides that a file is made outside its folder. A table elsewhere counts
    only if it is there, and is one (`Table` reads it before anything is written); else --labels is asked for.
    """
    labels, folder = run.data().settings.labels, run.folder.path
    if labels is not None and Path(labels).suffix.lower() != ".npy":
        return recorded_file(labels, folder, what="its table of labels", option="--labels TABLE.csv")
    own = folder / "labels.csv"
    if not own.exists() and not own.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{own} is a link to a place where nothing is: give --labels TABLE.csv.")
    return own


def _known(index: ImageIndex, table: Table) -> Known:
    generation = table.generation
    named = ((index.named(file), file, entry) for file, entry in table.snapshot().items())
    found = [(name, file, entry) for name, file, entry in named if name is not None]
    entries = {name: entry for name, _, entry in found}
    return Known(
        entries,
        {name: file for name, file, _ in found},
        Counter(entry.label for entry in entries.values()),
        Counter(bool(entry.caption) for entry in entries.values()),
        generation,
    )


def _trim() -> None:
    """Gives memory that nobody uses back to the system, which glibc alone does only for large pieces."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
