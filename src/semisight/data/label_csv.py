"""A table of labels as somebody keeps it, CSV of any separator and encoding: what it says, and the same with changes.

Rows, columns, separator, line ends and encoding stay as they are: a change touches the cells that it is about.
"""

import codecs
import csv
import functools
import io
import itertools
import sys
import unicodedata
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from semisight.errors import UserError
from semisight.untrusted import MOST_TABLE, read_bytes

COLUMNS = ("file", "label", "caption")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Entry(NamedTuple):
    """What is known of one image; empty where nothing is."""

    label: str = ""
    caption: str = ""


@dataclass
class Change:
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
class Content:
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
        file, label, caption = (self.column(name) for name in COLUMNS)
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


def _cell(row: list[str], column: int | None) -> str:
    return sys.intern(row[column].strip()) if column is not None and len(row) > column else ""


def with_changes(content: Content, changes: Mapping[str, Change]) -> bytes:
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
        text = as_text([_new_row(header, file, entry) for file, entry in wanted.values()], content)
        gap = "" if content.raw.endswith((b"\n", b"\r")) else content.line_end
        return content.raw + (gap + text).encode()
    return as_text(_changed(content, wanted, known, needs_column), content).encode(content.encoding)


def _changed(
    content: Content, wanted: Mapping[str, tuple[str, Entry]], known: Collection[str], needs_column: bool
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


def read_content(path: Path) -> Content:
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
    content = Content(raw, text, encoding, separator, "\r\n" if "\r\n" in text else "\n")
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


def as_text(rows: Iterable[list[str]], content: Content) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=content.separator, lineterminator=content.line_end).writerows(rows)
    return stream.getvalue()


def name_key(name: str) -> str:
    """A file name as it is compared: either slash, no leading ./, accents composed one way."""
    name = name.strip().replace("\\", "/").removeprefix("./")
    return name if name.isascii() else unicodedata.normalize("NFC", name)
