"""Labels and tags from a table or an array, matched to the images of a set by name.

Labels are a table with the columns file,label, one row for each image, or an array [N]. Tags, several labels per image
or none, come in three forms:

    file,label          a row for every tag of an image: what is listed it has, all else it has not. A row without a
                        label says that it has none; ?NAME says that it is unknown whether it has NAME. Of images that
                        do not occur nothing is known
    file,cat,dog,...    a column for each tag: 1 has it, 0 has it not, empty (or -1) unknown
    .npy, .npz          an array [N, C] of 1, 0 and -1 (unknown); in .npz called `tags`, beside it maybe `tag_names`
"""

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

from semisight.data.arrays import check_tags
from semisight.data.columns import TagColumn
from semisight.data.formats.npz import read_npy, read_npz_arrays
from semisight.data.label_table import settle
from semisight.errors import UserError

_SHOWN = 5  # examples named in a message
_CELLS = {"1": 1, "0": 0, "": -1, "-1": -1}
_Row = dict[str, str]  # column, as written, and cell
_Pair = tuple[int, _Row]  # an image and a row about it


@dataclass(frozen=True, eq=False)
class LabelTable:
    """labels: int64 [N] in the order of the images, -1 where the table says nothing."""

    labels: Tensor
    class_names: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class TagTable:
    """Tags in the order of the images."""

    column: TagColumn
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


def read_tags(path: str | Path, names: Sequence[str], tag_names: Sequence[str] | None = None) -> TagTable:
    """Reads tags for the images called `names` from a CSV file or an array, in one of the three forms.

    With `tag_names` (those of a trained model, say) every tag must be one of them, and they keep their order; without,
    the tags are those found, sorted where they are not in columns.
    """
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a CSV file of tags, or a .npy or .npz array")
    if path.suffix.lower() in (".npy", ".npz"):
        return _told(path, _tags_from_array(path, len(names), tag_names), ())
    header, rows, warnings = _table(path)
    if "file" not in header or len(header) < 2:
        raise UserError(
            f"{path} needs the columns file,label (a row for every tag of an image) or file and a column for each tag; "
            f"found: {_examples(list(header.values()))}"
        )
    places, more = _matched(path, [row[header["file"]] for row in rows], names)
    pairs = [(i, row) for i, row in zip(places, rows, strict=True) if i is not None]
    read = _listed_tags if set(header) == {"file", "label"} else _tag_columns
    return _told(path, read(path, header, pairs, names, tag_names), warnings + more)


def _listed_tags(
    path: Path, header: dict[str, str], pairs: Sequence[_Pair], names: Sequence[str], tag_names: Sequence[str] | None
) -> TagColumn:
    """The form file,label: a row for every tag of an image."""
    listed = [(i, row[header["label"]].removeprefix("?").strip(), row[header["label"]]) for i, row in pairs]
    found = {name for _, name, _ in listed if name}
    if tag_names is not None:
        _refuse_unknown_classes(path, found, tag_names)
    elif not found:
        raise UserError(f"{path} gives no image a tag: every row is without a label")
    kept = _sorted_classes(found) if tag_names is None else tuple(tag_names)
    number = {name: c for c, name in enumerate(kept)}
    values = torch.full((len(names), len(kept)), -1, dtype=torch.int8)
    values[[i for i, _ in pairs]] = 0
    said: dict[tuple[int, str], str] = {}
    for i, name, cell in listed:
        if name and said.setdefault((i, name), cell) != cell:
            raise UserError(f"{path} says of {names[i]} both {name} and ?{name} (unknown): keep one of the rows")
        if name:
            values[i, number[name]] = -1 if cell.startswith("?") else 1
    return TagColumn(values, kept)


def _tag_columns(
    path: Path, header: dict[str, str], pairs: Sequence[_Pair], names: Sequence[str], tag_names: Sequence[str] | None
) -> TagColumn:
    """A column of 1, 0 or nothing for each tag."""
    found = {column.strip(): column for key, column in header.items() if key != "file"}
    if tag_names is not None:
        _refuse_unknown_classes(path, set(found), tag_names)
    kept = tuple(found) if tag_names is None else tuple(tag_names)
    values = torch.full((len(names), len(kept)), -1, dtype=torch.int8)
    for i, row in pairs:
        for c, name in enumerate(kept):
            cell = row[found[name]] if name in found else ""
            if cell not in _CELLS:
                raise UserError(
                    f"{path} says {cell[:40]!r} of {names[i]} in the column {name}: write 1 (has it) or 0 (has it "
                    "not), or leave it empty (unknown)"
                )
            value = _CELLS[cell]
            if value >= 0 and values[i, c] not in (-1, value):
                raise UserError(f"{path} says of {names[i]} both that it has {name} and that it has not: keep one row")
            values[i, c] = max(value, int(values[i, c]))
    return TagColumn(values, kept)


def _tags_from_array(path: Path, n: int, tag_names: Sequence[str] | None) -> TagColumn:
    arrays = read_npz_arrays(path, ("tags", "tag_names")) if path.suffix.lower() == ".npz" else {"tags": read_npy(path)}
    if "tags" not in arrays:
        raise UserError(f"{path} has no array `tags`; save it with np.savez(path, tags=..., tag_names=[...])")
    column = check_tags(arrays["tags"], arrays.get("tag_names"), n, str(path))
    if tag_names is None:
        return column
    if "tag_names" not in arrays:
        if len(column.names) != len(tag_names):
            raise UserError(
                f"{path} has {len(column.names)} columns, but there are {len(tag_names)} tags: one for each"
            )
        return TagColumn(column.values, tuple(tag_names))
    _refuse_unknown_classes(path, set(column.names), tag_names)
    values = torch.full((n, len(tag_names)), -1, dtype=torch.int8)
    values[:, [list(tag_names).index(name) for name in column.names]] = column.values
    return TagColumn(values, tuple(tag_names))


def _told(path: Path, column: TagColumn, warnings: tuple[str, ...]) -> TagTable:
    """The tags with what is odd about them: nothing can be learned of a tag that all images have, or none."""
    if not column.present.any():
        raise UserError(f"{path} says nothing about any image: every entry is unknown")
    for value, words in ((1, "no image is known to have"), (0, "no image is known to be without")):
        never = [name for c, name in enumerate(column.names) if not (column.values[:, c] == value).any()]
        if never:
            warnings += (f"{words} {_count(never, 'tag', 'tags')}: {_examples(never)}",)
    return TagTable(column, warnings)


def _from_csv(path: Path, names: Sequence[str]) -> tuple[dict[int, str], tuple[str, ...]]:
    header, rows, warnings = _table(path)
    missing = [column for column in ("file", "label") if column not in header]
    if missing:
        raise UserError(
            f"{path} has no column {' and no column '.join(missing)}; its first line names the columns, found: "
            f"{_examples(list(header.values()))}"
        )
    files = [row[header["file"]] for row in rows]
    places, more = _matched(path, files, names)
    found: dict[int, str] = {}
    conflicts: dict[int, set[str]] = defaultdict(set)
    repeated, unlabelled = [], []
    for i, file, row in zip(places, files, rows, strict=True):
        label = row[header["label"]]
        if i is None:
            continue
        if not label:
            unlabelled.append(file)
        elif i not in found:
            found[i] = label
        elif found[i] == label:
            repeated.append(file)
        else:
            conflicts[i] |= {found[i], label}
    if conflicts:
        listed = [f"{names[i]} ({' and '.join(sorted(labels))})" for i, labels in conflicts.items()]
        raise UserError(
            f"{path} gives {_count(listed, 'image', 'images')} more than one label: {_examples(listed)}; "
            "keep one row for each, or give the file as --tags if images may have several"
        )
    more += _warned(repeated, "row repeats another", "rows repeat others")
    return found, warnings + more + _warned(unlabelled, "row has no label", "rows have no label")


def _matched(path: Path, files: Sequence[str], names: Sequence[str]) -> tuple[list[int | None], tuple[str, ...]]:
    """The image that each row means, None where there is none or several; and a warning of these."""
    place_of, ambiguous = _places(names)
    keys = [_key(file) for file in files]
    places = [None if key in ambiguous else place_of.get(key) for key in keys]
    if not any(place is not None for place in places):
        raise _no_image(path, files, names)
    unclear = [file for file, key in zip(files, keys, strict=True) if key in ambiguous]
    unknown = [file for file, key in zip(files, keys, strict=True) if key not in ambiguous and key not in place_of]
    return places, (
        *_warned(
            unknown, "row names a file that is not among the images", "rows name files that are not among the images"
        ),
        *_warned(unclear, "row names a file that several folders have", "rows name files that several folders have"),
    )


def _warned(files: Sequence[str], one: str, many: str) -> tuple[str, ...]:
    return (f"{_count(files, one, many)}: {_examples(files)}",) if files else ()


def _no_image(path: Path, files: Sequence[str], names: Sequence[str]) -> UserError:
    return UserError(
        f"{path} labels none of the {len(names)} images. Its files: {_examples(files)}; "
        f"the images: {_examples(names)}. The file column must hold the path below the folder of images"
    )


def _decode(path: Path) -> tuple[str, tuple[str, ...]]:
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing: there is no file of that name") from error
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


def _table(path: Path) -> tuple[dict[str, str], list[_Row], tuple[str, ...]]:
    """A table separated by commas, semicolons or tabs: its columns, in lower case and as written, its rows that name a
    file, stripped, and warnings."""
    settle(path)  # what people have said in the browser may not be in it yet
    text, warnings = _decode(path)
    if not text.strip():
        raise UserError(
            f"{path} is empty; it should have a first line `file,label` and then a row for each labelled image"
        )
    header = text.lstrip().splitlines()[0]
    separator = max(",;\t", key=header.count)
    try:
        reader = csv.DictReader(io.StringIO(text.lstrip(), newline=""), delimiter=separator, skipinitialspace=True)
        columns = {(column or "").strip().casefold(): column for column in reader.fieldnames or ()}
        rows = [{column: (row[column] or "").strip() for column in columns.values()} for row in reader]
    except csv.Error as error:
        raise UserError(f"{path} is not a readable table ({error}); save it as plain CSV") from error
    if "file" in columns:
        rows = [row for row in rows if row[columns["file"]]]
        if not rows:
            raise UserError(f"{path} has columns but no rows")
    return columns, rows, warnings


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
