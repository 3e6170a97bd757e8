"""The table of labels that people fill in by hand: file,label,caption, kept safe against everything but its deletion.

A change is confirmed only when the whole new table is on disk under its name (written beside it, flushed, renamed, the
folder flushed too): a crash leaves the table before or after the change. Rows, columns, separator and encoding that
somebody else chose stay as they are. The file is read again when another program has changed it, and a lock on its
folder keeps two servers from writing at a time.
"""

import codecs
import contextlib
import csv
import fcntl
import io
import os
import threading
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from semisight.errors import UserError
from semisight.files import write_atomic

_COLUMNS = ("file", "label", "caption")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Entry:
    """What is known of one image; empty where nothing is."""

    label: str = ""
    caption: str = ""


@dataclass(frozen=True)
class _Content:
    """A table as it lies on disk: its bytes, and what they mean."""

    raw: bytes
    rows: tuple[tuple[str, ...], ...]  # the first names the columns
    encoding: str
    separator: str
    line_end: str

    def column(self, name: str) -> int | None:
        names = [cell.strip().casefold() for cell in self.rows[0]]
        return names.index(name) if name in names else None


class Table:
    """A CSV file; `put` and `restore` return when the change is on disk."""

    def __init__(self, path: Path, entries: Mapping[str, Entry] | None = None) -> None:
        """Opens a table, or begins one with `entries` if there is none."""
        self.path = path.expanduser().resolve()  # a link stays a link: what it points to is replaced
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._content = _Content(b"", (), "utf-8", ",", "\n")
        self._places: dict[str, list[int]] = {}
        with self._alone():
            if not self.path.exists():
                rows = [_COLUMNS, *((file, e.label, e.caption) for file, e in (entries or {}).items())]
                self._write(_Content(b"", tuple(rows), "utf-8", ",", "\n"))
            self._refresh()

    def entries(self) -> dict[str, Entry]:
        """By file, as the table names it."""
        with self._alone():
            return {self._content.rows[places[0]][self._file]: self._entry(key) for key, places in self._places.items()}

    def put(self, file: str, label: str | None = None, caption: str | None = None) -> Entry:
        """Sets what is given and keeps the rest; the entry as it was before, to be put back by `restore`."""
        with self._alone():
            before = self._entry(name_key(file))
            after = Entry(before.label if label is None else label, before.caption if caption is None else caption)
            self._set(file, after)
            return before

    def restore(self, file: str, entry: Entry) -> None:
        with self._alone():
            self._set(file, entry)

    # --- inside: only with the lock held

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                if self._stamp:
                    self._refresh()
                yield
            finally:
                os.close(folder)  # which also unlocks

    @property
    def _file(self) -> int:
        place = self._content.column("file")
        assert place is not None
        return place

    def _refresh(self) -> None:
        try:
            found = os.stat(self.path)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp == self._stamp:
                return
            content = _read(self.path, self.path.read_bytes())
        except OSError as error:
            raise UserError(f"could not read {self.path}: {error.strerror or error}.") from error
        self._content, self._stamp, self._places = content, stamp, {}
        for number, row in enumerate(content.rows[1:], start=1):
            if len(row) > self._file and row[self._file].strip():
                self._places.setdefault(name_key(row[self._file]), []).append(number)

    def _entry(self, key: str) -> Entry:
        """The first of the image's rows that says something, for each column."""
        values = {"label": "", "caption": ""}
        for name in values:
            column = self._content.column(name)
            for place in self._places.get(key, ()):
                row = self._content.rows[place]
                if column is not None and len(row) > column and row[column].strip():
                    values[name] = row[column].strip()
                    break
        return Entry(**values)

    def _set(self, file: str, entry: Entry) -> None:
        key, content = name_key(file), self._content
        if entry == self._entry(key):
            return
        places = self._places.get(key, ())
        has_caption = content.column("caption") is not None
        if not places and content.encoding != "utf-16" and (has_caption or not entry.caption):
            line = _as_text([self._new_row(content.rows[0], file, entry)], content)
            gap = "" if content.raw.endswith((b"\n", b"\r")) else content.line_end
            self._replace(content.raw + (gap + line).encode())
            return
        rows = [list(row) for row in content.rows]
        if entry.caption and not has_caption:
            rows = [row + [""] * (len(rows[0]) - len(row)) + ["caption" * (not n)] for n, row in enumerate(rows)]
        if not places:
            rows.append(self._new_row(rows[0], file, entry))
        elif entry == Entry():
            rows = [row for number, row in enumerate(rows) if number not in places]
        else:
            self._fill(rows, places, entry)
        self._write(_Content(b"", tuple(map(tuple, rows)), content.encoding, content.separator, content.line_end))

    def _fill(self, rows: list[list[str]], places: list[int] | tuple[int, ...], entry: Entry) -> None:
        """One label for an image, in each of its rows that has one; its first caption in its first row."""
        header = [cell.strip().casefold() for cell in rows[0]]
        label, caption = header.index("label"), header.index("caption") if "caption" in header else None
        for number, place in enumerate(places):
            row = rows[place]
            row += [""] * (len(header) - len(row))
            row[label] = entry.label if number == 0 or row[label].strip() else row[label]
            if number == 0 and caption is not None:
                row[caption] = entry.caption

    @staticmethod
    def _new_row(header: list[str] | tuple[str, ...], file: str, entry: Entry) -> list[str]:
        values = {"file": file, "label": entry.label, "caption": entry.caption}
        return [values.get(cell.strip().casefold(), "") for cell in header]

    def _write(self, content: _Content) -> None:
        self._replace(_as_text([list(row) for row in content.rows], content).encode(content.encoding))

    def _replace(self, raw: bytes) -> None:
        mode = self.path.stat().st_mode & 0o777 if self.path.exists() else None
        write_atomic(self.path, raw)
        if mode is not None:
            self.path.chmod(mode)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name is on disk too
        finally:
            os.close(folder)
        self._stamp = ()
        self._refresh()


def _read(path: Path, raw: bytes) -> _Content:
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
    first = text.lstrip().splitlines()[0] if text.strip() else ""
    separator = max(",;\t", key=first.count)
    try:
        rows = [
            tuple(row) for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True) if row
        ]
    except csv.Error as error:
        raise UserError(f"{path} is not a readable table ({error}); save it as plain CSV.") from error
    content = _Content(raw, tuple(rows) or ((),), encoding, separator, "\r\n" if "\r\n" in text else "\n")
    missing = [name for name in ("file", "label") if content.column(name) is None]
    if missing:
        raise UserError(
            f"{path} has no column {' and no column '.join(missing)}: its first line must name the columns, "
            "such as file,label,caption."
        )
    return content


def _as_text(rows: list[list[str]], content: _Content) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=content.separator, lineterminator=content.line_end).writerows(rows)
    return stream.getvalue()


def name_key(name: str) -> str:
    """A file name as it is compared: either slash, no leading ./, accents composed one way."""
    return unicodedata.normalize("NFC", name.strip().replace("\\", "/")).removeprefix("./")
