"""The table of labels that people fill in by hand: file,label,caption, beside it a journal of every change.

    labels.csv            the table: rows, columns, separator and encoding that somebody chose stay as they are
    labels.csv.journal    one JSON line per change: when, who, which file, from what, to what; only ever appended to

A change is confirmed once its line is on disk: that costs the same for a table of ten rows and of ten million. Lines
are merged into the table in quiet moments (`merge`), by a rename; a last line that says so ends what is open. So
nothing that was confirmed is lost, whatever another program does to the table:

* it is halfway through saving the table in place when a label arrives: the table is not touched before it is quiet, and
  the file that was replaced stays under a second name, where what the program still writes to it is seen
* it saves a copy that it had read before labels arrived: an image whose value is one that we changed gets ours again;
  any other value is somebody's edit, and stays

Several processes may have a table open, such as the workers of one server: each takes in the others' lines. What was
changed or skipped in a session, from a place of the journal on, can be taken back by any of them.

This holds while a table is open. Once all is merged and the table is closed it is an ordinary file: take rows out, and
they are out.
"""

import contextlib
import json
import os
import stat
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semisight.data.label_csv import COLUMNS, Change, Content, Entry, as_text, name_key, read_content, with_changes
from semisight.errors import UserError
from semisight.files import acquire, make_folder, sync_folder, write_atomic

_WAIT = 10.0  # seconds for the lock of another process
QUIET = 2.0  # seconds since a table was last changed, before it is replaced
_BLOCK = 1 << 16
_MOST_LINE = 100_000
_MOST_OPEN = 64 << 20  # bytes of lines that are not merged, in a journal that somebody else may have written


class Locked(UserError):
    """Another program holds the journal's lock: nothing can be written for now."""


class ReadOnly(UserError):
    """The table can be read, but nothing can be added."""


class Nothing(UserError):
    """There is nothing to take back."""


class Table:
    """A CSV file with its journal; `put` and `undo` return when the change is on disk. For any thread.

    `get`, `labels` and `entries` answer from memory; `refresh` looks at the disk.
    """

    def __init__(self, path: Path, entries: Mapping[str, Entry] | None = None, since: int | None = None) -> None:
        """Opens a table, or begins one with `entries` if there is none.

        Args:
            path: of the table.
            entries: by file.
            since: the size that the journal had when the session began; by default it begins now.
        """
        self.path = path.resolve()  # a link stays a link: what it points to is replaced
        self.journal = journal_of(self.path)
        self.read_only = ""  # why, if it is
        self.problem = ""  # with the table as another program has left it
        self.generation = 0  # grows when the table itself was read again
        self.passed: dict[str, None] = {}  # files that were changed or skipped in this session, and not taken back
        self.returned: list[str] = []  # those that were taken back, in their order
        self.labels: Counter[str] = Counter()
        self._memory = threading.RLock()
        self._writing = threading.Lock()
        self._entries: dict[str, tuple[str, Entry]] = {}
        self._changes: dict[str, Change] = {}
        self._source = self.path  # what was read last: the table, or the file that it replaced
        self._stamp = self._table = self._before = ()  # type: tuple[int, ...]
        self._seen = 0.0  # since when the source has had its stamp
        self._offset = 0
        self._session = since  # where it begins
        self._before_step: dict[str, list[Entry]] = {}  # to be taken back, by key
        self._news: list[tuple[str, Entry]] = []
        self._handle = -1
        self._since = self._last = 0.0  # the first and the newest change that is not merged; 0: all are
        self._took = 0.0
        try:
            if self.path.exists():
                read_content(self.path)  # nothing is made beside a file that is no table
            with self._locked(_WAIT):
                if not self.path.exists():
                    rows = [list(COLUMNS), *([file, e.label, e.caption] for file, e in (entries or {}).items())]
                    write_atomic(self.path, as_text(rows, Content(b"")).encode())
                    self._load(self.path)
                    self._seen = -1e9  # by ourselves, so it is whole
                else:
                    self._load(self.path)
                self._begin()
        except ReadOnly as error:
            self.read_only = str(error)
            if self.path.exists():
                self._load(self.path)
                for line in unmerged(self.path):
                    self._apply(line)
            else:
                self._replace_memory({name_key(file): (file, entry) for file, entry in (entries or {}).items()})
        except Locked:
            if not self.path.exists():
                self.close()
                raise
            self._load(self.path)
            self._begin()
        except UserError:
            self.close()
            raise
        self._news.clear()

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """What is not merged stays in the journal."""
        if self._before and self.is_merged and _stamp_of(_before_of(self.path)) == self._before:
            with contextlib.suppress(OSError):
                _before_of(self.path).unlink()
        self._forget()

    def _forget(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    # --- from memory

    def get(self, file: str) -> Entry:
        found = self._entries.get(name_key(file))
        return Entry() if found is None else found[1]

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> dict[str, Entry]:
        """By file, as the table names it; the disk is looked at first."""
        self.refresh()
        return self.snapshot()

    def snapshot(self) -> dict[str, Entry]:
        """As `entries`, of what is in memory."""
        with self._memory:
            return dict(self._entries.values())

    def counts(self) -> dict[str, int]:
        """Images of each label."""
        with self._memory:
            return dict(self.labels)

    @property
    def is_merged(self) -> bool:
        return not self._since

    # --- changes

    def put(self, file: str, label: str | None = None, caption: str | None = None, who: str = "") -> Entry:
        """Sets what is given and keeps the rest; the entry as it was before, to be put back by `restore`."""
        with self._locked(_WAIT):
            self._tail()
            before = self.get(file)
            after = Entry(before.label if label is None else label, before.caption if caption is None else caption)
            self._append(file, before, after, who)
            return before

    def skip(self, file: str, who: str = "") -> None:
        """Notes that nobody wants to be asked about this file again in this session."""
        if self.read_only:
            with self._memory:
                self.passed[file] = None
            return
        with self._locked(_WAIT):
            self._tail()
            entry = self.get(file)
            self._append(file, entry, entry, who, skip=True)

    def undo(self, file: str, who: str = "") -> Entry:
        """Takes back the last change or skip of a file in this session, whoever made it; the entry as it is then."""
        if self.read_only:
            with self._memory:
                if self.passed.pop(file, self) is self:
                    raise Nothing(f"{file}: there is nothing to take back.")
                self.returned.append(file)
                return self.get(file)
        with self._locked(_WAIT):
            self._tail()
            steps = self._before_step.get(name_key(file))
            if not steps:
                raise Nothing(f"{file}: there is nothing to take back.")
            former = steps[-1]
            self._append(file, self.get(file), former, who, undo=True)
            return former

    def glance(self) -> None:
        """Takes in what others have added to the journal, if that can be done at once."""
        if self._writing.acquire(blocking=False):
            try:
                if self._handle >= 0:
                    self._tail()
            finally:
                self._writing.release()

    def news(self) -> list[tuple[str, Entry]]:
        """What others have changed by the journal since this was asked last: (file, entry), in their order."""
        with self._memory:
            found, self._news = self._news, []
            return found

    def refresh(self) -> None:
        """Reads what others have changed, in the table or in the journal."""
        with self._writing:
            if self._handle >= 0:
                self._tail()
            self._look()

    def merge(self, quiet: float = QUIET, wait: float = _WAIT) -> bool:
        """Brings the table up to the journal, unless it was changed in the last `quiet` seconds; whether it is now."""
        if self.read_only:
            return False
        started = time.monotonic()
        with self._locked(wait):
            self._tail()
            self._look()
            if self.is_merged:
                return True
            age = time.time() - self._stamp[2] / 1e9 if self._stamp else 0.0
            is_quiet = time.monotonic() - self._seen >= quiet or age >= quiet
            if self.problem or not is_quiet:
                return False
            content = read_content(self._source)
            if _stamp_of(self._source) != self._stamp:
                return False
            raw = with_changes(content, self._changes)
            if raw != content.raw or self._source != self.path:
                if self._source == self.path:
                    self._keep_before()
                write_atomic(self.path, raw)
                self._source, self._seen = self.path, -1e9  # by ourselves, so it is whole
                self._stamp = self._table = _stamp_of(self.path)
            self._write_line({"merged": f"{zlib.crc32(raw):08x}", "at": _now()})
            self._since = 0.0
        self._took = time.monotonic() - started
        return True

    def tend(self) -> None:
        """To be called now and then: reads others' changes, and merges ours once nobody writes for a moment.

        A large table, which takes long to write, is merged more rarely: it takes a twentieth of the time at most.
        """
        self.refresh()
        now = time.monotonic()
        rest = max(1.0, 20 * self._took)
        if self._since and (now - self._last > rest or now - self._since > 10 * rest):
            self.merge()

    # --- inside: only with the lock held

    @contextlib.contextmanager
    def _locked(self, wait: float) -> Iterator[None]:
        if self.read_only:
            raise ReadOnly(self.read_only)
        with self._writing:
            self._open()
            handle = os.dup(self._handle)  # closing the table meanwhile must not unlock another file
            try:
                if not acquire(handle, wait):
                    raise Locked(
                        f"{self.journal} has been locked by another program for {wait:.0f} seconds: try again."
                    )
                yield
            finally:
                with contextlib.suppress(OSError):
                    _unlock(handle)
                os.close(handle)

    def _open(self) -> None:
        """The journal, made anew if somebody has taken it away."""
        with contextlib.suppress(OSError):
            if self._handle >= 0 and os.stat(self.journal).st_ino == os.fstat(self._handle).st_ino:
                return
        try:
            make_folder(self.path.parent)
            is_new = not self.journal.exists()
            mode = stat.S_IMODE(self.path.stat().st_mode) if self.path.exists() else 0o666
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            handle = os.open(self.journal, flags, mode & 0o666)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise OSError(0, "it is not a regular file")
            if is_new:
                sync_folder(self.path.parent)
        except OSError as error:
            raise ReadOnly(
                f"labels cannot be written beside {self.path} ({error.strerror or error}): "
                "give a table elsewhere with --labels TABLE.csv."
            ) from error
        self._session = self._session if self._handle < 0 else 0  # another journal: all of it is of this session
        self._forget()
        self._handle, self._offset = handle, 0

    def _begin(self) -> None:
        """Takes in what the table does not have yet, and what can be taken back."""
        size = os.fstat(self._handle).st_size
        self._offset = _open_lines(self._handle)
        self._session = size if self._session is None else min(self._session, size)
        if self._session < self._offset:  # merged since: nothing to apply
            for line in os.pread(self._handle, self._offset - self._session, self._session).splitlines():
                values = _verified(line)
                if values is not None and "merged" not in values:
                    self._remember(values)
        self._tail()

    def _append(self, file: str, before: Entry, after: Entry, who: str, **kind: bool) -> None:
        if before == after and not kind:
            return
        try:
            "".join([file, after.label, after.caption, who]).encode()
        except UnicodeEncodeError:
            raise UserError(f"{file!r}: this text has no place in a table.") from None
        pairs = {"file": file, "from": [before.label, before.caption], "to": [after.label, after.caption]}
        self._write_line({"at": _now(), "who": who, **pairs, **kind})
        self._apply({**pairs, **kind})
        self._remember({**pairs, **kind})

    def _write_line(self, values: dict[str, Any]) -> None:
        """Whole and on disk, or not at all."""
        raw = _signed(values)
        size = os.fstat(self._handle).st_size
        try:
            if size and os.pread(self._handle, 1, size - 1) != b"\n":
                raw = b"\n" + raw  # a writer was killed in the middle of its line, which was never confirmed
            done = 0
            while done < len(raw):
                done += os.write(self._handle, raw[done:])
            os.fsync(self._handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._handle, size)
            raise UserError(
                f"could not write {self.journal}: {error.strerror or error}. What was there before is unchanged."
            ) from error
        self._offset = size + len(raw)

    def _tail(self) -> None:
        """Takes in the lines that others have written."""
        size = os.fstat(self._handle).st_size
        self._offset = min(self._offset, size)
        while self._offset < size:
            block = os.pread(self._handle, min(size - self._offset, 1 << 24), self._offset)
            end = block.rfind(b"\n") + 1
            if not end:
                return  # being written
            for line in block[:end].splitlines(keepends=True):
                values = _verified(line.rstrip(b"\n"))
                if values is not None and "merged" in values:
                    self._since = 0.0
                elif values is not None:
                    self._apply(values)
                    if self._session is not None and self._offset >= self._session:
                        self._remember(values)
                    with self._memory:
                        self._news.append((values["file"], Entry(*values["to"])))
                self._offset += len(line)

    def _apply(self, values: Mapping[str, Any]) -> None:
        file, before, after = values["file"], Entry(*values["from"]), Entry(*values["to"])
        if before == after:  # a skip
            return
        key = name_key(file)
        with self._memory:
            change = self._changes.setdefault(key, Change(file, after))
            change.after = after
            change.labels |= {before.label, after.label}
            change.captions |= {before.caption, after.caption}
            self._set(key, self._entries.get(key, (file, after))[0], after)
        self._last = time.monotonic()
        self._since = self._since or self._last

    def _remember(self, values: Mapping[str, Any]) -> None:
        """A step of this session, which can be taken back; or the taking back of one."""
        file = values["file"]
        with self._memory:
            steps = self._before_step.setdefault(name_key(file), [])
            if values.get("undo") is True:
                del steps[-1:]
                self.passed.pop(file, None)
                self.returned.append(file)
            else:
                steps.append(Entry(*values["from"]))
                self.passed[file] = None

    def _set(self, key: str, file: str, entry: Entry) -> None:
        old = self._entries.get(key)
        if old is not None and old[1].label:
            self.labels[old[1].label] -= 1
            self.labels += Counter()  # forgets classes without an image
        if entry.label:
            self.labels[entry.label] += 1
        if entry == Entry():
            self._entries.pop(key, None)
        else:
            self._entries[key] = file, entry

    def _look(self) -> None:
        """The table again, if another program has saved it, or is still writing to the file that we replaced."""
        kept = _before_of(self.path)
        before, found = _stamp_of(kept), _stamp_of(self.path)
        if before[:1] != self._before[:1]:  # another process has replaced the table since: it looks after that file
            self._before = ()
        try:
            if self._before and before and before != self._before:
                self._load(kept)
                self._since = self._since or time.monotonic()
            elif found != self._table:
                self._load(self.path)
            self._before, self._table, self.problem = before if self._before else (), found, ""
        except UserError as error:  # half of it, perhaps: what is in memory holds until the rest is there
            self.problem = str(error)

    def _load(self, source: Path) -> None:
        stamp = _stamp_of(source)
        found = read_content(source).entries()
        overruled = False
        for key, change in list(self._changes.items()):
            file, theirs = found.get(key, (change.file, Entry()))
            wanted = change.over(theirs)
            if wanted != change.after:  # an edit by somebody else, which is newer than ours
                del self._changes[key]
            overruled |= wanted != theirs
            found[key] = file, wanted
            if wanted == Entry():
                del found[key]
        self._replace_memory(found)
        self._source, self._stamp, self._seen = source, stamp, time.monotonic()
        self._table = _stamp_of(self.path) if source != self.path else stamp
        self.generation += 1
        if overruled:
            self._last = time.monotonic()
            self._since = self._since or self._last

    def _replace_memory(self, found: dict[str, tuple[str, Entry]]) -> None:
        labels = Counter(entry.label for _, entry in found.values() if entry.label)
        with self._memory:
            self._entries, self.labels = found, labels

    def _keep_before(self) -> None:
        """The file about to be replaced, under a second name: a program that has it open goes on writing there."""
        kept = _before_of(self.path)
        with contextlib.suppress(OSError):
            kept.unlink(missing_ok=True)
            os.link(self.path, kept)
        self._before = _stamp_of(kept)


def journal_of(table: Path) -> Path:
    return table.with_name(table.name + ".journal")


def _before_of(table: Path) -> Path:
    return table.with_name(f".{table.name}.before")


def settle(path: str | Path) -> None:
    """Before a table is read as a plain file: merges what a server that was killed had confirmed."""
    path = Path(path)
    if not journal_of(path.resolve()).exists() or not unmerged(path):
        return
    with Table(path) as table:
        if not table.merge(quiet=0.0):
            raise UserError(
                f"{table.journal} holds labels that are not in {path} yet, and they cannot be added: "
                f"{table.read_only or table.problem or 'it is being written'}"
            )


def unmerged(path: str | Path) -> list[dict[str, Any]]:
    """The changes in the journal of a table that it does not have yet, the oldest first."""
    try:
        handle = os.open(journal_of(Path(path).resolve()), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with open(handle, "rb") as file:
        start, size = _open_lines(handle), os.fstat(handle).st_size
        if size - start > _MOST_OPEN:
            raise UserError(
                f"{journal_of(Path(path))} holds {size - start:,} bytes of labels that were never merged: too many."
            )
        file.seek(start)
        found = (
            _verified(line.rstrip(b"\n")) for line in iter(lambda: file.readline(_MOST_LINE), b"") if line != b"\n"
        )
        return [values for values in found if values is not None and "merged" not in values]


def _open_lines(handle: int) -> int:
    """Where the lines after the last "merged" begin; looked for from the end, because a journal grows for years."""
    end = os.fstat(handle).st_size
    rest = b""
    start = end
    while start > 0:
        size = min(_BLOCK, start)
        start -= size
        text = os.pread(handle, size, start) + rest
        lines = text.split(b"\n")
        first = 1 if start else 0  # the first may be the end of a line
        place = len(text)
        for number in range(len(lines) - 1, first - 1, -1):
            place -= len(lines[number])
            values = _verified(lines[number]) if b'"merged"' in lines[number] else None
            if values is not None and "merged" in values:
                return start + place + len(lines[number]) + 1
            place -= 1
        rest = lines[0]
        if len(rest) > _MOST_LINE:
            return 0
    return 0


def _signed(values: dict[str, Any]) -> bytes:
    """One line of JSON that tells its own damage."""
    text = json.dumps(values, ensure_ascii=False)
    check = f"{zlib.crc32(text.encode()):08x}"
    return f'{text[:-1]}, "check": "{check}"}}\n'.encode()


def _verified(line: bytes) -> dict[str, Any] | None:
    """The values of a line that is as we write them, else None: half of one, or somebody else's."""
    try:
        text = line.decode("utf-8")
        values = json.loads(text) if len(line) <= _MOST_LINE else None
        if not isinstance(values, dict) or _signed({k: v for k, v in values.items() if k != "check"}).strip() != line:
            return None
        if "merged" in values:
            return values
        right = isinstance(values["file"], str) and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)
            for pair in (values["from"], values["to"])
        )
        return values if right else None
    except (ValueError, KeyError, RecursionError):
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _unlock(handle: int) -> None:
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_UN)


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _stamp_of(path: Path) -> tuple[int, ...]:
    try:
        return _stamp(os.stat(path))
    except OSError:
        return ()
