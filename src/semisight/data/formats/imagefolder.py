"""Hugging Face's `imagefolder` layout: images in folders, with parts and with a table of what is known about them.

    FOLDER/train/cat/1.jpg, FOLDER/test/dog/2.jpg       parts, and a class per folder below them
    FOLDER/train/metadata.csv or metadata.jsonl         file_name, and label or text (caption) of each image
    FOLDER/metadata.jsonl                               the same without parts

A part is chosen by `part` ("train" by default). Where a table says nothing of labels, folders are classes if there are
at least two of them, as in Hugging Face's own reading; where the table has labels, folders are folders.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semisight.data.columns import CaptionColumn
from semisight.data.formats.folders import Progress, class_of, read_folder
from semisight.data.image_set import ImageSet
from semisight.errors import UserError

PARTS: Mapping[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "test": ("test", "testing", "eval", "evaluation"),
    "validation": ("validation", "valid", "val", "dev"),
}
TABLES = ("metadata.csv", "metadata.jsonl")
_LABELS, _CAPTIONS = ("label", "labels", "class"), ("text", "caption", "captions")
_MOST_BYTES = 500_000_000  # of a table


@dataclass(frozen=True)
class Entry:
    label: str | None
    captions: tuple[str, ...]


def is_imagefolder(path: Path) -> bool:
    """Whether a folder is laid out so: it has a table with file_name, or is made of parts and nothing else."""
    if any(_names_files(path / table) for table in TABLES):
        return True
    parts = part_folders(path)
    if not parts:
        return False
    known = {folder.name for folder in parts.values()}
    return "train" in parts and all(entry.name in known or entry.name.startswith(".") for entry in _below(path))


def part_folders(path: Path) -> dict[str, Path]:
    """The folders of the parts, by the part's usual name."""
    names = {folder.name.casefold(): folder for folder in _below(path)}
    return {part: names[word] for part, words in PARTS.items() for word in words if word in names}


def read_imagefolder(
    path: Path,
    part: str | None = None,
    *,
    size: int | None = None,
    channels: int | None = None,
    choose: Callable[[int], Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The images of one part with their labels and captions."""
    parts = part_folders(path)
    folder = path
    if parts and not any(_names_files(path / table) for table in TABLES):
        wanted = part or "train"
        if wanted not in parts:
            raise UserError(f"{path} has no part {wanted!r}; it has {', '.join(parts)}")
        folder = parts[wanted]
    elif part is not None:
        raise UserError(f"{path} has no parts: give the folder of the {part} images instead")
    entries = read_table(folder)
    labelled = any(entry.label is not None for entry in entries.values())
    classes = [sub for sub in _below(folder) if class_of(f"{sub.name}/") is not None]
    images = read_folder(
        folder,
        size=size,
        channels=channels,
        class_per_folder=not labelled and len(classes) > 1,
        choose=choose,
        progress=progress,
    )
    images = dataclasses.replace(
        images, skipped=tuple(skip for skip in images.skipped if Path(skip.name).name not in TABLES)
    )
    return _with_entries(images, entries, labelled)


def read_table(folder: Path) -> dict[str, Entry]:
    """What the tables of a folder and of those below it say, by the images' paths below the folder."""
    entries: dict[str, Entry] = {}
    for table in sorted(file for name in TABLES for file in folder.rglob(name)):
        inside = table.parent.relative_to(folder).as_posix()
        for row in _rows(table):
            name = row.get("file_name")
            if not isinstance(name, str) or not name:
                continue
            key = name.replace("\\", "/").removeprefix("./")
            entries[key if inside == "." else f"{inside}/{key}"] = _entry(row)
    return entries


def _with_entries(images: ImageSet, entries: Mapping[str, Entry], labelled: bool) -> ImageSet:
    if not entries:
        return images
    found = [entries.get(name, Entry(None, ())) for name in images.names]
    notes = list(images.notes)
    missing = len(entries.keys() - set(images.names))
    if missing:
        notes.append(f"{missing:,} row{'s' * (missing != 1)} of the table name files that are not among the images")
    if labelled:
        names = class_order({entry.label for entry in found if entry.label is not None})
        number = {name: c for c, name in enumerate(names)}
        numbers = [-1 if entry.label is None else number[entry.label] for entry in found]
        images = images.with_labels(torch.tensor(numbers, dtype=torch.int64), names)
    captions = tuple(entry.captions for entry in found)
    images = dataclasses.replace(images, notes=tuple(notes))
    return images.with_column(CaptionColumn(captions)) if any(captions) else images


def class_order(names: set[str]) -> tuple[str, ...]:
    """Sorted, as numbers if they all are."""
    if names and all(name.lstrip("-").isdigit() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


def _entry(row: Mapping[str, Any]) -> Entry:
    label = next((row[key] for key in _LABELS if row.get(key) not in (None, "")), None)
    text = next((row[key] for key in _CAPTIONS if row.get(key)), ())
    captions = (text,) if isinstance(text, str) else tuple(text) if isinstance(text, list) else ()
    plain = isinstance(label, str | int) and not isinstance(label, bool)
    label_text = str(label).strip() if plain else None
    return Entry(label_text or None, tuple(str(caption) for caption in captions))


def _rows(table: Path) -> list[dict[str, Any]]:
    try:
        if table.stat().st_size > _MOST_BYTES:
            raise UserError(f"{table} is larger than {_MOST_BYTES:,} bytes")
        text = table.read_text(encoding="utf-8-sig")
        if table.suffix == ".csv":
            return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror or error}") from error
    except (ValueError, csv.Error, RecursionError) as error:
        raise UserError(f"{table} is not a readable table: {error}") from error
    return [row for row in rows if isinstance(row, dict)]


def _names_files(table: Path) -> bool:
    """Whether a file is a table with a column file_name, by its first line."""
    try:
        with table.open(encoding="utf-8-sig") as file:
            return "file_name" in file.readline(100_000)
    except (OSError, ValueError):
        return False


def _below(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if entry.is_dir())
    except OSError:
        return []
