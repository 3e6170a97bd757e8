"""A folder of images, nested as it may be, to one set of equal images; what cannot be read is counted, not fatal."""

import os
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from semisight.data.arrays import memory_limit, refuse_beyond
from semisight.data.formats.pictures import MAX_PIXELS, Header, Unreadable, read_header, read_pixels
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.errors import UserError
from semisight.untrusted import printable

Progress = Callable[[int, int], None]  # images done, images in all
Result = TypeVar("Result")

_UNLABELLED = ("unlabelled", "unlabeled")  # folders that are no class, in upper or lower case
_SPLITS = frozenset(["train", "training", "val", "valid", "validation", "test", "testing"])
_KEPT_SIDE = 256  # images all of one size are kept as they are up to this
_CHOSEN_SIDES = (8, 128)  # least and greatest size that is chosen for images of different sizes


@dataclass(frozen=True)
class Found:
    """The files below a folder, in order, and what the walk had to leave out."""

    names: tuple[str, ...]
    skipped: tuple[Skipped, ...]


def read_folder(
    folder: Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    class_per_folder: bool = False,
    choose: Callable[[int], Sequence[int]] | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """All images below a folder, in the order of their names.

    size              side of the square images; by default their own size if they all share one (up to 256), else the
                      median of their shorter sides, rounded down to a multiple of 8, at most 128
    channels          1 or 3; by default 1 if every image is grey, else 3
    class_per_folder  the folders directly below are the classes; images beside them, and in a folder named
                      "unlabelled" or "unlabeled", have no label
    choose            which of the n files to read, as positions; by default all
    progress          called with (done, in all) as images are decoded
    """
    found = walk(folder)
    names = found.names if choose is None else tuple(found.names[i] for i in choose(len(found.names)))
    if not names and not found.skipped:
        raise UserError(f"{folder} is empty: no file in it or in the folders below it")
    classes = _classes(names, folder) if class_per_folder else None
    # A folder may warn of large images thousands of times; our own limit decides about them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        warnings.simplefilter("ignore", UserWarning)
        with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
            headers = list(_each(pool, names, lambda name: read_header(folder / name, max_pixels)))
            good = [(name, header) for name, header in zip(names, headers, strict=True) if isinstance(header, Header)]
            if not good:
                raise _nothing_left(folder, _skips(names, headers) + found.skipped)
            height, width, size_note = choose_size([header for _, header in good], size)
            chosen_channels = channels or (1 if all(header.grey for _, header in good) else 3)
            what = f"{len(good)} images of {height} x {width} pixels from {folder}"
            refuse_beyond(memory_limit(), len(good) * chosen_channels * height * width, what)
            images = np.empty((len(good), chosen_channels, height, width), np.uint8)
            good_names = tuple(name for name, _ in good)
            results = _each(
                pool, good_names, lambda name: read_pixels(folder / name, height, width, chosen_channels, max_pixels)
            )
            kept, late = _fill(images, good_names, results, progress)
    skipped = tuple(sorted(_skips(names, headers) + late + found.skipped, key=lambda skip: skip.name))
    if not kept:
        raise _nothing_left(folder, skipped)
    if len(kept) < len(good):
        images = images[kept]
    kept_names = tuple(good_names[i] for i in kept)
    notes = (*size_note, *_channel_note([header for _, header in good], channels))
    labels, class_names = (None, ()) if classes is None else folder_labels(kept_names, folder)
    shown = tuple(printable(name) for name in kept_names)
    return ImageSet.of(
        torch.from_numpy(images), shown, labels, class_names, skipped=skipped, source=str(folder), notes=notes
    )


def read_picture(path: Path, size: int | None = None, channels: int | None = None) -> ImageSet:
    """A single image file as a set of one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            header = read_header(path)
            height, width, note = choose_size([header], size)
            pixels = read_pixels(path, height, width, channels or (1 if header.grey else 3))
        except Unreadable as error:
            raise UserError(f"{path} cannot be used: {error}") from error
    return ImageSet(torch.from_numpy(pixels[None].copy()), (printable(path.name),), source=str(path), notes=note)


def walk(folder: Path) -> Found:
    """Every file below a folder. Links are followed, but no folder is entered twice: loops end."""
    names: list[str] = []
    skipped: list[Skipped] = []
    seen: set[tuple[int, int]] = set()
    # Links to folders come last: a folder that is also linked to is read under its real name.
    real, linked = [""], list[str]()
    while real or linked:
        inside = real.pop() if real else linked.pop(0)
        try:
            status = os.stat(folder / inside)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            entries = sorted(os.listdir(folder / inside))
        except OSError as error:
            if inside == "":
                raise UserError(f"cannot read the folder {folder}: {error.strerror or error}") from error
            skipped.append(Skipped(printable(inside), f"folder that cannot be read: {error.strerror or error}"))
            continue
        for entry in entries:
            if entry.startswith("."):  # .DS_Store, .git, thumbnails: not meant as pictures
                continue
            name = f"{inside}/{entry}" if inside else entry
            try:
                is_folder = stat.S_ISDIR(os.stat(folder / name).st_mode)
            except OSError:
                is_folder = False  # what is wrong with it is said when it is opened as a file
            if not is_folder:
                names.append(name)
            elif os.path.islink(folder / name):
                linked.append(name)
            else:
                real.append(name)
    return Found(tuple(sorted(names)), tuple(skipped))


def _each(
    pool: ThreadPoolExecutor, names: Sequence[str], read: Callable[[str], Result]
) -> Iterator[Result | Unreadable]:
    """`read` of every name in order, by several threads (Pillow's decoders run outside Python's lock)."""

    def safely(name: str) -> Result | Unreadable:
        try:
            return read(name)
        except Unreadable as error:
            return error

    # A bounded stretch at a time: otherwise every decoded image would wait in memory for its turn.
    for start in range(0, len(names), 256):
        yield from pool.map(safely, names[start : start + 256])


def _fill(
    images: npt.NDArray[np.uint8],
    names: Sequence[str],
    results: Iterator[npt.NDArray[np.uint8] | Unreadable],
    progress: Progress | None,
) -> tuple[list[int], tuple[Skipped, ...]]:
    kept, late = [], []
    for i, result in enumerate(results):
        if isinstance(result, Unreadable):
            late.append(Skipped(printable(names[i]), str(result)))
        else:
            images[i] = result
            kept.append(i)
        if progress is not None:
            progress(i + 1, len(names))
    return kept, tuple(late)


def _skips(names: Sequence[str], headers: Sequence[Header | Unreadable]) -> tuple[Skipped, ...]:
    pairs = zip(names, headers, strict=True)
    return tuple(Skipped(printable(name), str(header)) for name, header in pairs if isinstance(header, Unreadable))


def choose_size(headers: Sequence[Header], size: int | None) -> tuple[int, int, tuple[str, ...]]:
    """Height and width that images of a folder are brought to, and a note for people where that was a choice."""
    if size is not None:
        return size, size, ()
    sizes = Counter((header.height, header.width) for header in headers)
    (height, width), _ = sizes.most_common(1)[0]
    if len(sizes) == 1 and max(height, width) <= _KEPT_SIDE:
        return height, width, ()
    least, greatest = _CHOSEN_SIDES
    middle = int(median(min(header.height, header.width) for header in headers))
    side = min(greatest, max(least, middle // 8 * 8))
    if len(sizes) == 1:
        why = f"the images are {height} x {width}"
    else:
        low, high = min(sizes, key=lambda hw: hw[0] * hw[1]), max(sizes, key=lambda hw: hw[0] * hw[1])
        why = f"the images have {len(sizes)} sizes, from {low[0]} x {low[1]} to {high[0]} x {high[1]}"
    return side, side, (f"{why} (height x width): scaled and cropped to {side} x {side}; give size to choose another",)


def _channel_note(headers: Sequence[Header], channels: int | None) -> tuple[str, ...]:
    n_grey = sum(header.grey for header in headers)
    if channels is not None or n_grey in (0, len(headers)):
        return ()
    return (f"{n_grey} of {len(headers)} images are grey, the others in colour: all were read in colour",)


def class_of(name: str) -> str | None:
    """The folder directly below the whole that an image lies in, if that is a class: not beside the folders, and not in
    one that says that its images are without a label."""
    top, slash, _ = name.partition("/")
    return top if slash and top.casefold() not in _UNLABELLED else None


def _classes(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    """The folders directly below that are classes, in the order of their names."""
    classes = {name for file in names if (name := class_of(file)) is not None}
    if len(classes) < 2:
        found = f"only {printable(classes.pop())!r}" if classes else "none"
        raise UserError(
            f"{folder} has a class per folder only if images lie in at least two folders below it, one for each class; "
            f"found {found}"
        )
    if {name.casefold() for name in classes} <= _SPLITS:
        listed = ", ".join(sorted(classes))
        raise UserError(
            f"the folders below {folder} ({listed}) are named as parts, not as classes: give one of them instead"
        )
    return tuple(sorted(classes))


def folder_labels(names: Sequence[str], folder: Path) -> tuple[torch.Tensor, tuple[str, ...]]:
    """A label for each image by the folder directly below `folder` that it lies in, and the classes' names."""
    # Again, from the images that could be read: a class of broken files is no class.
    classes = _classes(names, folder)
    number = {name: c for c, name in enumerate(classes)}
    labels = [-1 if (top := class_of(name)) is None else number[top] for name in names]
    return torch.tensor(labels, dtype=torch.int64), tuple(printable(name) for name in classes)


def _nothing_left(folder: Path, skipped: Sequence[Skipped]) -> UserError:
    reasons = "; ".join(f"{skip.name}: {skip.reason}" for skip in skipped[:5])
    more = "; ..." if len(skipped) > 5 else ""
    return UserError(f"no image in {folder} could be read. {skipped_summary(skipped)}. In detail: {reasons}{more}")
