"""Labels from a table (columns file,label) or from an array, matched to the images of a set by name."""

import codecs
import csv
import difflib
import io
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semisight.data.formats.npz import read_npy
from semisight.data.label_table import settle
from semisight.errors import UserError

_SHOWN = 5  # examples named in a message


@dataclass(frozen=True, eq=False)
class LabelTable:
    """labels: int64 [N] in the order of the images, -1 where the table says nothing."""

    labels: Tensor
    class_names: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def read_labels(path: str | Path, names: Sequence[str], class_names: Sequence[str] | None = None) -> LabelTable:
    """Reads labels for the images called `names` from a CSV file or a .npy array.

    With `class_names` (those of a trained model, say) every label must be one of them, and they keep their order;
    without, the classes are the labels found, sorted, as numbers if they all are.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a CSV file with the columns file,label, or a .npy array")
    found, warnings = _from_array(path, names) if path.suffix.lower() == ".npy" else _from_csv(path, names)
    if class_names is None:
        kept = _sorted_classes(set(found.values()))
        if len(kept) == 1:
            raise UserError(
                f"{path} labels every image {kept[0]!r}: there is nothing to tell apart; "
                "label images of at least two classes"
            )
    else:
        kept = tuple(class_names)
        _refuse_unknown_classes(path, set(found.values()), kept)
    number = {name: c for c, name in enumerate(kept)}
    labels = torch.full((len(names),), -1, dtype=torch.int64)
    for i, label in found.items():
        labels[i] = number[label]
    counts = Counter(found.values())
    single = [name for name in kept if counts[name] == 1]
    if single:
        warnings += (f"{_count(single, 'class has', 'classes have')} a single labelled image: {_examples(single)}",)
    return LabelTable(labels, kept, warnings)


def _from_csv(path: Path, names: Sequence[str]) -> tuple[dict[int, str], tuple[str, ...]]:
    settle(path)  # what people have said in the browser may not be in it yet
    text, warnings = _decode(path)
    rows = _rows(path, text)
    place_of, ambiguous = _places(names)
    found: dict[int, str] = {}
    conflicts: dict[int, set[str]] = defaultdict(set)
    unknown, repeated, unlabelled, unclear = [], [], [], []
    for file, label in rows:
        key = _key(file)
        if key in ambiguous:
            unclear.append(file)
        elif key not in place_of:
            unknown.append(file)
        elif not label:
            unlabelled.append(file)
        else:
            i = place_of[key]
            if i not in found:
                found[i] = label
            elif found[i] == label:
                repeated.append(file)
            else:
                conflicts[i] |= {found[i], label}
    if conflicts:
        listed = [f"{names[i]} ({' and '.join(sorted(labels))})" for i, labels in conflicts.items()]
        raise UserError(
            f"{path} gives {_count(listed, 'image', 'images')} more than one label: {_examples(listed)}; "
            "keep one row for each"
        )
    if not found:
        raise UserError(
            f"{path} labels none of the {len(names)} images. Its files: {_examples([file for file, _ in rows])}; "
            f"the images: {_examples(names)}. The file column must hold the path below the folder of images"
        )
    for files, one, many in (
        (unknown, "row names a file that is not among the images", "rows name files that are not among the images"),
        (unclear, "row names a file that several folders have", "rows name files that several folders have"),
        (repeated, "row repeats another", "rows repeat others"),
        (unlabelled, "row has no label", "rows have no label"),
    ):
        if files:
            warnings += (f"{_count(files, one, many)}: {_examples(files)}",)
    return found, warnings


def _decode(path: Path) -> tuple[str, tuple[str, ...]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return raw.decode("utf-16"), ()
        return raw.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        # Every byte means something in Latin-1, so this cannot fail; it may be wrong, so it is said.
        return raw.decode("latin-1"), (
            f"{path.name} is not in UTF-8; it was read as Latin-1, check names with accents",
        )


def _rows(path: Path, text: str) -> list[tuple[str, str]]:
    """The pairs (file, label) of a table separated by commas, semicolons or tabs."""
    if not text.strip():
        raise UserError(
            f"{path} is empty; it should have a first line `file,label` and then a row for each labelled image"
        )
    header = text.lstrip().splitlines()[0]
    separator = max(",;\t", key=header.count)
    try:
        reader = csv.DictReader(io.StringIO(text.lstrip(), newline=""), delimiter=separator, skipinitialspace=True)
        columns = {(column or "").strip().casefold(): column for column in reader.fieldnames or ()}
        missing = [column for column in ("file", "label") if column not in columns]
        if missing:
            raise UserError(
                f"{path} has no column {' and no column '.join(missing)}; its first line names the columns, found: "
                f"{_examples(list(reader.fieldnames or ()))}"
            )
        file, label = columns["file"], columns["label"]
        rows = [((row[file] or "").strip(), (row[label] or "").strip()) for row in reader]
    except csv.Error as error:
        raise UserError(f"{path} is not a readable table ({error}); save it as plain CSV") from error
    rows = [row for row in rows if row[0]]
    if not rows:
        raise UserError(f"{path} has columns but no rows")
    return rows


def _key(name: str) -> str:
    """A file name as it is compared: either slash, no leading ./, accents composed one way."""
    return unicodedata.normalize("NFC", name.replace("\\", "/")).removeprefix("./")


def _places(names: Sequence[str]) -> tuple[dict[str, int], frozenset[str]]:
    """The image of every name, also by its last part alone where only one image has it; and last parts several have."""
    full = {_key(name): i for i, name in enumerate(names)}
    short: dict[str, list[int]] = defaultdict(list)
    for key, i in full.items():
        short[key.rsplit("/", 1)[-1]].append(i)
    unique = {last: places[0] for last, places in short.items() if len(places) == 1}
    ambiguous = frozenset(last for last, places in short.items() if len(places) > 1 and last not in full)
    return {**unique, **full}, ambiguous


def _from_array(path: Path, names: Sequence[str]) -> tuple[dict[int, str], tuple[str, ...]]:
    array = read_npy(path)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (len(names),):
        raise UserError(f"{path} has shape {list(array.shape)}, but there are {len(names)} images: one label each")
    if array.dtype.kind in "US":
        texts = [
            value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in array.tolist()
        ]
        found = {i: text.strip() for i, text in enumerate(texts) if text.strip()}
    elif array.dtype.kind in "iu":
        low = int(array.min())
        if low < -1:
            raise UserError(f"{path} has the label {low}; labels are 0, 1, 2, ..., and -1 where unknown")
        found = {i: str(value) for i, value in enumerate(array.tolist()) if value >= 0}
    else:
        raise UserError(
            f"{path} has type {array.dtype}; labels are whole numbers (-1 where unknown) or text (empty where unknown)"
        )
    if not found:
        raise UserError(f"{path} gives no image a label")
    return found, ()


def _sorted_classes(labels: set[str]) -> tuple[str, ...]:
    if all(label.isascii() and label.isdigit() for label in labels):
        return tuple(sorted(labels, key=lambda label: (len(label.lstrip("0")), label.lstrip("0"), label)))
    return tuple(sorted(labels))


def _refuse_unknown_classes(path: Path, labels: set[str], class_names: Sequence[str]) -> None:
    strange = sorted(labels - set(class_names))
    if strange:
        near = difflib.get_close_matches(strange[0], class_names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(
            f"{path} has labels that are no known class: {_examples(strange)}; known: {_examples(class_names)}.{hint}"
        )


def _count(things: Sequence[str], one: str, many: str) -> str:
    return f"{len(things)} {one if len(things) == 1 else many}"


def _examples(things: Sequence[str]) -> str:
    listed = ", ".join(str(thing)[:80] for thing in things[:_SHOWN])
    return listed + (", ..." if len(things) > _SHOWN else "")
