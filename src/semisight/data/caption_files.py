"""Caption files, in the formats they are published in, to one table: names of images, their captions, their split.

    Karpathy's json      {"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}, ...]}, ...]}
    COCO annotations     {"images": [{"id", "file_name"}, ...], "annotations": [{"image_id", "caption"}, ...]}
    Flickr's token file  1000268201.jpg#0<TAB>A child in a pink dress ...
    CSV                  a header with the columns file, caption and perhaps split; one caption per row
    JSON lines           {"file": ..., "caption": one or a list, "split"?: ...} per line

The format is found by looking at the content, not at the name. Rows that cannot be used are counted in `warnings`; a
file from which nothing can be used is a `UserError`.
"""

import csv
import dataclasses
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from semisight.data.label_table import settle
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import MAX_WORDS
from semisight.errors import UserError

FILE_COLUMNS = ("file", "image", "filename", "file_name")
FORMATS = (
    "Karpathy's json, COCO caption annotations, a Flickr token file (name.jpg#0, a tab, the caption), "
    "CSV with the columns file,caption, or JSON lines with the keys file and caption"
)
_TOKEN_LINE = re.compile(r"(?P<file>[^\t]+)#\d+\t(?P<caption>.*)")


@dataclass(frozen=True)
class Row:
    """One caption as the file has it. `file` or `caption` is None where the file has nothing usable."""

    file: str | None
    caption: str | None
    split: str = ""


@dataclass(frozen=True)
class CaptionTable:
    """Captions per image, in the order of the file.

    names     one per image: its path as the file gives it, with forward slashes
    captions  per image, at least one; as written, not tokenised
    splits    per image: "train", "val", ... or "" where the file does not say
    warnings  what was left out, counted, in words for people
    """

    names: tuple[str, ...]
    captions: tuple[tuple[str, ...], ...]
    splits: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    source: str = ""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_captions(self) -> int:
        return sum(map(len, self.captions))

    def subset(self, *splits: str) -> "CaptionTable":
        """The images of these splits. Karpathy's COCO calls part of the training images "restval"."""
        kept = [i for i, split in enumerate(self.splits) if split in splits]
        if not kept:
            known = ", ".join(f"{name or '(none)'}: {n}" for name, n in Counter(self.splits).items())
            raise UserError(f"{self.source} has no image in the split {' or '.join(splits)}; its splits are {known}")
        return self._chosen(kept)

    def match(
        self, images: Sequence[str], where: str = "the images"
    ) -> tuple[tuple[tuple[str, ...], ...], "CaptionTable"]:
        """Captions for each of `images` (paths; () for one without), and the table of those found, under these paths.

        A name matches the same path; failing that, a path it ends with, or the one path that ends with it.
        """
        by_path = {path.replace("\\", "/"): i for i, path in enumerate(images)}
        ends: dict[str, int | None] = {}
        for path, i in by_path.items():
            for end in _ends(path):
                ends[end] = None if end in ends else i  # None: several images end so
        found: dict[int, list[int]] = {}
        missing = []
        for row, name in enumerate(self.names):
            place = next((by_path[end] for end in _ends(name) if end in by_path), ends.get(name))
            if place is None:
                missing.append(row)
            else:
                found.setdefault(place, []).append(row)
        if not found:
            raise UserError(
                f"none of the {len(self)} images named in {self.source or 'the caption file'} is among {where} "
                f"(it names for instance {self.names[0]!r}): check that both belong together"
            )
        captions = tuple(tuple(c for row in found.get(i, ()) for c in self.captions[row]) for i in range(len(images)))
        matched = dataclasses.replace(
            self,
            names=tuple(images[i] for i in found),
            captions=tuple(captions[i] for i in found),
            splits=tuple(self.splits[rows[0]] for rows in found.values()),
        )
        if missing:
            lost = sum(len(self.captions[row]) for row in missing)
            message = f"{_count(lost, 'caption')} of {_count(len(missing), 'image')} missing from {where}"
            matched = matched._warned(f"{message} (for instance {self.names[missing[0]]!r}): left out")
        return captions, matched

    def _chosen(self, rows: Sequence[int]) -> "CaptionTable":
        return dataclasses.replace(
            self,
            names=tuple(self.names[i] for i in rows),
            captions=tuple(self.captions[i] for i in rows),
            splits=tuple(self.splits[i] for i in rows),
        )

    def _warned(self, warning: str) -> "CaptionTable":
        return dataclasses.replace(self, warnings=(*self.warnings, warning))


def read_captions(path: str | Path, image_folder: str | Path | None = None) -> CaptionTable:
    """Reads a caption file; with a folder, only the captions of images that are there, named by their path below it."""
    path = Path(path)
    settle(path)  # what people have said in the browser may not be in it yet
    table = table_of(_rows(path, _read_text(path)), str(path))
    if image_folder is None:
        return table
    folder = Path(image_folder)
    if not folder.is_dir():
        raise UserError(f"the image folder {folder} does not exist or is not a folder")
    files = [
        PurePosixPath(Path(root).relative_to(folder).as_posix(), name).as_posix()
        for root, _, names in os.walk(folder)
        for name in names
    ]
    return table.match(sorted(files), f"the files of {folder}")[1]


def table_of(rows: Iterable[Row], source: str) -> CaptionTable:
    """Gathers rows by image, drops and counts what cannot be used."""
    captions: dict[str, list[str]] = {}
    splits: dict[str, str] = {}
    unusable = empty = long = longest = total = 0
    for row in rows:
        total += 1
        if not row.file or row.caption is None:
            unusable += 1
            continue
        # A lone half of a surrogate pair, legal in json, cannot be written to any file.
        text = " ".join(row.caption.encode("utf-8", "replace").decode().split())
        words = tokenize(text)
        if not words:
            empty += 1
            continue
        if len(words) > MAX_WORDS:
            long, longest = long + 1, max(longest, len(words))
        name = row.file.replace("\\", "/").removeprefix("./")
        captions.setdefault(name, []).append(text)
        splits.setdefault(name, row.split)
    if not captions:
        reason = f"none of its {total:,} rows has an image's name and words" if total else "it is empty"
        raise UserError(f"there is no caption in {source}: {reason}")
    warnings = []
    if unusable:
        warnings.append(f"{_count(unusable, 'row')} without an image's name or without text as caption: left out")
    if empty:
        warnings.append(f"{_count(empty, 'caption')} empty or without a word: left out")
    if long:
        warnings.append(
            f"{_count(long, 'caption')} longer than {MAX_WORDS} words (the longest {longest}): "
            f"only the first {MAX_WORDS} words are learned"
        )
    return CaptionTable(
        tuple(captions),
        tuple(map(tuple, captions.values())),
        tuple(splits[n] for n in captions),
        tuple(warnings),
        source,
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not text in UTF-8 (byte {error.start}). A caption file is one of: {FORMATS}. "
            "If it is one of these in another encoding, convert it to UTF-8 first."
        ) from error
    except OSError as error:
        raise UserError(f"could not read the caption file {path}: {error.strerror or error}") from error


def _rows(path: Path, text: str) -> Iterable[Row]:
    start = text.lstrip()
    if not start:
        raise UserError(f"the caption file {path} is empty")
    first_line = start.split("\n", 1)[0].rstrip("\r")
    if start[0] in "{[":
        try:
            content = json.loads(text)
        except ValueError as error:
            if _is_json_object(first_line):
                return _json_lines(path, text)
            raise UserError(f"{path} starts like json but is not: {error}. Is it cut off?") from error
        return _json_rows(path, content)
    if _TOKEN_LINE.fullmatch(first_line):
        return _token_rows(text)
    return _csv_rows(path, text)


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _json_rows(path: Path, content: Any) -> Iterable[Row]:
    if isinstance(content, dict):
        images, annotations = content.get("images"), content.get("annotations")
        if isinstance(images, list) and isinstance(annotations, list):
            return _coco_rows(path, images, annotations)
        if isinstance(images, list) and any(isinstance(i, dict) and "sentences" in i for i in images):
            return _karpathy_rows(images)
        if any(column in content for column in FILE_COLUMNS) and "caption" in content:
            return _object_rows(content)  # JSON lines, of which there is one
    keys = (
        f"the keys {', '.join(map(repr, content))[:200]}"
        if isinstance(content, dict)
        else f"a {type(content).__name__}"
    )
    raise UserError(f"{path} is json, but with {keys}, not a caption file. A caption file is one of: {FORMATS}")


def _karpathy_rows(images: list[Any]) -> Iterator[Row]:
    for image in images:
        if not isinstance(image, dict):
            yield Row(None, None)
            continue
        folder, name = _text(image.get("filepath")), _text(image.get("filename"))
        file = f"{folder}/{name}" if folder and name else name
        sentences = image.get("sentences")
        for sentence in sentences if isinstance(sentences, list) else [None]:
            raw = sentence.get("raw") if isinstance(sentence, dict) else None
            if raw is None and isinstance(sentence, dict) and isinstance(sentence.get("tokens"), list):
                raw = " ".join(map(str, sentence["tokens"]))
            yield Row(file, _text(raw), _text(image.get("split")) or "")


def _coco_rows(path: Path, images: list[Any], annotations: list[Any]) -> Iterator[Row]:
    files = {
        i["id"]: _text(i.get("file_name")) for i in images if isinstance(i, dict) and isinstance(i.get("id"), int | str)
    }
    entries = [a for a in annotations if isinstance(a, dict)]
    if entries and not any("caption" in a for a in entries):
        raise UserError(
            f"{path} is a COCO annotation file without captions (its annotations have the keys "
            f"{', '.join(map(repr, entries[0]))[:200]}): take the one whose name starts with captions_"
        )
    yield from (Row(None, None) for a in annotations if not isinstance(a, dict))
    for entry in entries:
        key = entry.get("image_id")
        yield Row(files.get(key) if isinstance(key, int | str) else None, _text(entry.get("caption")))


def _json_lines(path: Path, text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            content = json.loads(line)
        except ValueError as error:
            raise UserError(f"line {number} of {path} is not json, unlike its first line: {error}") from error
        if number == 1 and isinstance(content, dict) and not any(column in content for column in FILE_COLUMNS):
            raise UserError(
                f"the first line of {path} has the keys {', '.join(map(repr, content))[:200]}: "
                "JSON lines with captions need the keys file and caption"
            )
        yield from _object_rows(content) if isinstance(content, dict) else [Row(None, None)]


def _object_rows(content: dict[str, Any]) -> Iterator[Row]:
    file = next((_text(content[column]) for column in FILE_COLUMNS if column in content), None)
    caption = content.get("caption", content.get("captions"))
    for one in caption if isinstance(caption, list) else [caption]:
        yield Row(file, _text(one), _text(content.get("split")) or "")


def _token_rows(text: str) -> Iterator[Row]:
    for line in text.split("\n"):
        if line.strip():
            match = _TOKEN_LINE.fullmatch(line.rstrip("\r"))
            yield Row(match["file"].strip(), match["caption"]) if match else Row(None, None)


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [column.strip().lower() for column in next(reader)]
        file_column = next((header.index(column) for column in FILE_COLUMNS if column in header), None)
        if file_column is None or "caption" not in header:
            raise UserError(
                f"{path} is no caption file: read as CSV, its first line has the columns "
                f"{', '.join(map(repr, header))[:200]}. A caption file is one of: {FORMATS}"
            )
        caption_column = header.index("caption")
        split_column = header.index("split") if "split" in header else None
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                yield Row(None, None)  # for instance a caption with commas and no quotes round it
                continue
            split = "" if split_column is None else cells[split_column].strip()
            yield Row(cells[file_column].strip(), cells[caption_column], split)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: not CSV that can be read: {error}") from error


def _ends(path: str) -> Iterator[str]:
    """a/b/c.jpg, b/c.jpg, c.jpg"""
    parts = path.split("/")
    return ("/".join(parts[i:]) for i in range(len(parts)))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
