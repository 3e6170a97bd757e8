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

This holds while a table is open. Once all is merged and the table is closed it is an ordinary file: take rows out, and
they are out.
"""

import codecs
import contextlib
import csv
import functools
import io
import itertools
import json
import os
import stat
import sys
import threading
import time
import unicodedata
import zlib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from semisight.errors import UserError
from semisight.files import acquire, make_folder, sync_folder, write_atomic
from semisight.untrusted import MOST_TABLE, read_bytes

_COLUMNS = ("file", "label", "caption")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_WAIT = 10.0  # seconds for the lock of another process
QUIET = 2.0  # seconds since a table was last changed, before it is replaced
_BLOCK = 1 << 16
_MOST_LINE = 100_000


class Entry(NamedTuple):
    """What is known of one image; empty where nothing is."""

    label: str = ""
    caption: str = ""


class Locked(UserError):
    """Another program holds the journal's lock: nothing can be written for now."""


class ReadOnly(UserError):
    """The table can be read, but nothing can be added."""


@dataclass
class _Change:
    """What became of an image since the table was opened: every value it had, and the newest."""

    file: str
    after: Entry
    labels: set[str] = field(default_factory=set)
    captions: set[str] = field(default_factory=set)

    def over(self, theirs: Entry) -> Entry:
        """The newest value over a former one of ours; another program's edit over both."""
        label = self.after.label if theirs.label in self.labels else theirs.label
        return Entry(label, self.after.caption if theirs.caption in self.captions else theirs.caption)


@dataclass(frozen=True)
class _Content:
    """A table as it lies on disk: its bytes, and what they mean. Rows are read as they are needed, for there may be
    millions."""

    raw: bytes
    text: str = ""
    encoding: str = "utf-8"
    separator: str = ","
    line_end: str = "\n"

    def rows(self) -> Iterator[list[str]]:
        """The first names the columns."""
        lines = io.StringIO(self.text, newline="")
        return (row for row in csv.reader(lines, delimiter=self.separator, strict=True) if row)

    @functools.cached_property
    def header(self) -> list[str]:
        return next(self.rows(), [])

    def column(self, name: str) -> int | None:
        names = [cell.strip().casefold() for cell in self.header]
        return names.index(name) if name in names else None

    def entries(self, wanted: Collection[str] | None = None) -> dict[str, tuple[str, Entry]]:
        """By key: the file as the table calls it, and the first label and caption among its rows."""
        file, label, caption = (self.column(name) for name in _COLUMNS)
        assert file is not None
        found: dict[str, tuple[str, Entry]] = {}
        same: dict[Entry, Entry] = {}  # one for all images of a class
        for row in itertools.islice(self.rows(), 1, None):
            key = name_key(row[file]) if len(row) > file else ""
            if not key or (wanted is not None and key not in wanted):
                continue
            mine = Entry(_cell(row, label), _cell(row, caption))
            if key in found:
                name, first = found[key]
                found[key] = name, Entry(first.label or mine.label, first.caption or mine.caption)
            else:
                found[key] = (key if key == row[file] else row[file]), same.setdefault(mine, mine)
        return found


class Table:
    """A CSV file with its journal; `put` and `restore` return when the change is on disk. For any thread.

    `get`, `labels` and `entries` answer from memory; `refresh` looks at the disk.
    """

    def __init__(self, path: Path, entries: Mapping[str, Entry] | None = None) -> None:
        """Opens a table, or begins one with `entries` if there is none."""
        self.path = path.resolve()  # a link stays a link: what it points to is replaced
        self.journal = journal_of(self.path)
        self.read_only = ""  # why, if it is
        self.problem = ""  # with the table as another program has left it
        self.generation = 0  # grows when more has changed than what `put` was told
        self.labels: Counter[str] = Counter()
        self._memory = threading.RLock()
        self._writing = threading.Lock()
        self._entries: dict[str, tuple[str, Entry]] = {}
        self._changes: dict[str, _Change] = {}
        self._source = self.path  # what was read last: the table, or the file that it replaced
        self._stamp = self._table = self._before = ()  # type: tuple[int, ...]
        self._seen = 0.0  # since when the source has had its stamp
        self._offset = 0
        self._handle = -1
        self._since = self._last = 0.0  # the first and the newest change that is not merged; 0: all are
        self._took = 0.0
        try:
            if self.path.exists():
                _read(self.path)  # nothing is made beside a file that is no table
            with self._locked(_WAIT):
                if not self.path.exists():
                    rows = [list(_COLUMNS), *([file, e.label, e.caption] for file, e in (entries or {}).items())]
                    write_atomic(self.path, _as_text(rows, _Content(b"")).encode())
                    self._load(self.path)
                    self._seen = -1e9  # by ourselves, so it is whole
                else:
                    self._load(self.path)
                self._offset = _open_lines(self._handle)
                self._tail()
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
            self._offset = _open_lines(self._handle)
            self._tail()
        except UserError:
            self.close()
            raise

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

    def restore(self, file: str, entry: Entry, who: str = "") -> None:
        with self._locked(_WAIT):
            self._tail()
            self._append(file, self.get(file), entry, who)

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
            content = _read(self._source)
            if _stamp_of(self._source) != self._stamp:
                return False
            raw = _with(content, self._changes)
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
        self._forget()
        self._handle, self._offset = handle, 0

    def _append(self, file: str, before: Entry, after: Entry, who: str) -> None:
        if before == after:
            return
        try:
            "".join([file, after.label, after.caption, who]).encode()
        except UnicodeEncodeError:
            raise UserError(f"{file!r}: this text has no place in a table.") from None
        pairs = {"file": file, "from": [before.label, before.caption], "to": [after.label, after.caption]}
        self._write_line({"at": _now(), "who": who, **pairs})
        self._apply(pairs)

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
            for line in block[:end].splitlines():
                values = _verified(line)
                if values is not None and "merged" in values:
                    self._since = 0.0
                elif values is not None:
                    self._apply(values)
                    self.generation += 1
            self._offset += end

    def _apply(self, values: Mapping[str, Any]) -> None:
        file, before, after = values["file"], Entry(*values["from"]), Entry(*values["to"])
        key = name_key(file)
        with self._memory:
            change = self._changes.setdefault(key, _Change(file, after))
            change.after = after
            change.labels |= {before.label, after.label}
            change.captions |= {before.caption, after.caption}
            self._set(key, self._entries.get(key, (file, after))[0], after)
        self._last = time.monotonic()
        self._since = self._since or self._last

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
        found = _read(source).entries()
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
        file.seek(_open_lines(handle))
        found = (_verified(line) for line in file.read().splitlines())
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


def _cell(row: list[str], column: int | None) -> str:
    return sys.intern(row[column].strip()) if column is not None and len(row) > column else ""


def _with(content: _Content, changes: Mapping[str, _Change]) -> bytes:
    """The table's bytes with the changes that it does not have yet; rows are only added where that is enough."""
    known = content.entries(changes)
    wanted: dict[str, tuple[str, Entry]] = {}
    for key, change in changes.items():
        theirs = known.get(key, ("", Entry()))[1]
        after = change.over(theirs)
        if after != theirs:
            wanted[key] = change.file, after
    if not wanted:
        return content.raw
    header = list(content.header)
    needs_column = content.column("caption") is None and any(entry.caption for _, entry in wanted.values())
    if content.encoding != "utf-16" and not needs_column and not wanted.keys() & known.keys():
        text = _as_text([_new_row(header, file, entry) for file, entry in wanted.values()], content)
        gap = "" if content.raw.endswith((b"\n", b"\r")) else content.line_end
        return content.raw + (gap + text).encode()
    return _as_text(_changed(content, wanted, known, needs_column), content).encode(content.encoding)


def _changed(
    content: _Content, wanted: Mapping[str, tuple[str, Entry]], known: Collection[str], needs_column: bool
) -> Iterator[list[str]]:
    """All rows. One label for an image, in each of its rows that has one; its first caption in its first row."""
    rows = content.rows()
    header = next(rows) + ["caption"] * needs_column
    names = [cell.strip().casefold() for cell in header]
    file, label = names.index("file"), names.index("label")
    caption = names.index("caption") if "caption" in names else None
    yield header
    seen: set[str] = set()
    for row in rows:
        key = name_key(row[file]) if len(row) > file else ""
        if key in wanted:
            entry = wanted[key][1]
            if entry == Entry():
                continue
            row += [""] * (len(header) - len(row))
            row[label] = entry.label if key not in seen or row[label].strip() else row[label]
            if key not in seen and caption is not None:
                row[caption] = entry.caption
            seen.add(key)
        elif needs_column:
            row += [""] * (len(header) - len(row))
        yield row
    yield from (_new_row(header, name, entry) for key, (name, entry) in wanted.items() if key not in known)


def _new_row(header: list[str], file: str, entry: Entry) -> list[str]:
    values = {"file": file, "label": entry.label, "caption": entry.caption}
    return [values.get(cell.strip().casefold(), "") for cell in header]


def _read(path: Path) -> _Content:
    raw = read_bytes(path, MOST_TABLE)
    if raw.startswith(_UTF16):
        encoding = "utf-16"
    elif raw.startswith(codecs.BOM_UTF8):
        encoding = "utf-8-sig"
    else:
        encoding = "utf-8"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not in UTF-8 (byte {error.start}): save it as UTF-8 first, so that no name is garbled."
        ) from error
    first = text.lstrip()[:10_000].splitlines()[0] if text.strip() else ""
    separator = max(",;\t", key=first.count)
    content = _Content(raw, text, encoding, separator, "\r\n" if "\r\n" in text else "\n")
    try:
        deque(content.rows(), maxlen=0)
    except csv.Error as error:
        raise UserError(f"{path} is not a readable table ({error}); save it as plain CSV.") from error
    missing = [name for name in ("file", "label") if content.column(name) is None]
    if missing:
        raise UserError(
            f"{path} has no column {' and no column '.join(missing)}: its first line must name the columns, "
            "such as file,label,caption."
        )
    return content


def _as_text(rows: Iterable[list[str]], content: _Content) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=content.separator, lineterminator=content.line_end).writerows(rows)
    return stream.getvalue()


def name_key(name: str) -> str:
    """A file name as it is compared: either slash, no leading ./, accents composed one way."""
    name = name.strip().replace("\\", "/").removeprefix("./")
    return name if name.isascii() else unicodedata.normalize("NFC", name)
