"""The images of a run that learns captions: where the captions come from, which are learned from, which are held out.

captions    a file in one of five formats (data/caption_files.py), or "builtin": those that the set itself carries
split       a file that parts its images (train, val, test): those to train on are learned from, the others left out
hidden      with --captioned-images N all but those of N images: never learned from, and so good for measuring
held out    of a share of the captioned images, where there are enough: these choose the weights

A folder of pictures is decoded once, into a cache, and streams from there: images to learn from first, then those set
aside, so that both are parts of one file that stays on the disk.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semisight.data import load
from semisight.data.caption_files import CaptionTable, read_captions
from semisight.data.columns import CaptionColumn
from semisight.data.formats.cifar import is_cifar_folder
from semisight.data.formats.folders import printable, walk
from semisight.data.formats.idx import find_idx_images
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet, Skipped
from semisight.errors import UserError
from semisight.random import Stream, random_order
from semisight.runs.sets import (
    ENOUGH_TO_HOLD_OUT,
    Captions,
    Progress,
    Sets,
    keep_per_class,
    load_sets,
    noted,
    with_labels,
)
from semisight.runs.settings import DataSettings
from semisight.runs.streamed_sets import streamed_sets

BUILTIN = "builtin"
TRAIN_SPLITS = ("train", "restval")  # Karpathy's COCO calls part of the training images "restval"
EVERY_SPLIT = "all"
ENOUGH_CAPTIONED = 100  # images: with fewer, learning needs them more than choosing does
DEFAULT_SIZE = 64  # of pictures from a folder, which come in all sizes


@dataclass(frozen=True)
class Found:
    """Images by name with what is known of them; `images` has pixels of its own only where they are in memory."""

    images: ImageSet
    folder: Path | None = None  # where the pixels are read from, if not in memory yet
    skipped: tuple[Skipped, ...] = ()


def sets_of(data: DataSettings, seed: int, progress: Progress | None = None) -> Sets:
    """The images of a run, with labels, captions or both, parted by the seed."""
    if data.captions is None:
        return streamed_sets(data, seed, progress) or load_sets(data, seed, progress)
    found = _found(data, seed, progress)
    images = with_labels(found.images, data)
    truth = None
    if data.labels_per_class is not None:
        truth, images = images.labels, keep_per_class(images, data.labels_per_class, seed)
    every = images.captions
    assert every is not None
    images = images.with_column(CaptionColumn(_kept(every, data.captioned_images, seed)))
    train, valid = _part(images, data.valid_fraction, seed)
    if data.only_captioned:
        train = _only(train, images.captions)
    if data.only_labelled and images.labels is not None:
        train = train[images.labels[train] >= 0]
    _check(images, train)
    order = torch.cat([train, valid])
    kept, images = _with_pixels(found, images, order, data, progress)
    n_train = int((kept < len(train)).sum())
    if n_train == 0:
        raise UserError(f"none of the images to learn from could be read from {data.source}.")
    every = tuple(every[i] for i in order[kept].tolist())
    return Sets(
        _stretch(images, 0, n_train),
        _stretch(images, n_train, len(images)) if n_train < len(images) else None,
        None if truth is None else _halves(truth[order[kept]], n_train),
        None if data.captioned_images is None else (every[:n_train], every[n_train:]),
    )


def parted_captioned(images: ImageSet, fraction: float, seed: int) -> Sets:
    """Images in memory, with their captions and perhaps labels, parted by the seed."""
    train, valid = _part(images, fraction, seed)
    _check(images, train)
    return Sets(images.subset(train), images.subset(valid) if len(valid) else None)


# ---- what is there ----


def _found(data: DataSettings, seed: int, progress: Progress | None) -> Found:
    """The images with all captions that they have, before any are hidden or set aside."""
    if data.captions == BUILTIN:
        images = load(
            data.source, size=data.size, channels=data.channels, limit=data.limit, seed=seed, progress=progress,
            class_per_folder=data.class_per_folder,
        )  # fmt: skip
        if images.captions is None:
            raise UserError(
                f"{images.source or data.source} carries no captions: give a file of them, --captions captions.csv "
                "(columns file,caption)."
            )
        if data.split is not None:
            raise UserError("--split parts the images of a caption file; captions that a set carries have no splits.")
        return Found(images)
    assert data.captions is not None
    table = read_captions(Path(data.captions).expanduser())
    folder = picture_folder(data.source)
    if folder is None:
        images = load(
            data.source, size=data.size, channels=data.channels, seed=seed, progress=progress,
            class_per_folder=data.class_per_folder,
        )  # fmt: skip
        return Found(_captioned(images, table, data, seed))
    walked = walk(folder)
    images = _names_only(walked.names, folder, data.class_per_folder)
    return Found(_captioned(images, table, data, seed), folder, walked.skipped)


def picture_folder(source: str) -> Path | None:
    """The folder, if the source is one of pictures (not of MNIST's or CIFAR's files)."""
    if source.startswith("builtin:"):
        return None
    path = Path(source).expanduser()
    try:
        published = not path.is_dir() or find_idx_images(path, "train") is not None or is_cifar_folder(path)
    except OSError as error:
        raise UserError(f"cannot read the folder {path}: {error.strerror or error}") from error
    return None if published else path


def _names_only(names: Sequence[str], folder: Path, class_per_folder: bool) -> ImageSet:
    """Stands for the pictures until it is decided which of them are read."""
    if not names:
        raise UserError(f"{folder} is empty: no file in it or in the folders below it.")
    nothing = torch.zeros(len(names), 1, 1, 1, dtype=torch.uint8)
    images = ImageSet(nothing, tuple(names), source=str(folder))
    if not class_per_folder:
        return images
    tops = [name.split("/")[0] if "/" in name else "" for name in names]
    classes = sorted({top for top in tops if top not in ("", "unlabelled")})
    number = {name: c for c, name in enumerate(classes)}
    return images.with_labels(torch.tensor([number.get(top, -1) for top in tops]), classes)


def _captioned(images: ImageSet, table: CaptionTable, data: DataSettings, seed: int) -> ImageSet:
    """Images with their captions, without those of other splits; what was odd is in the notes."""
    captions, matched = table.match([printable(name) for name in images.names], f"the images of {data.source}")
    images = noted(images.with_column(CaptionColumn(captions)), matched.warnings)
    split_of = dict(zip(matched.names, matched.splits, strict=True))
    splits = [split_of.get(printable(name)) for name in images.names]  # None: without a caption
    wanted = _wanted_splits([split for split in splits if split is not None], data)
    kept = [i for i, split in enumerate(splits) if split is None or wanted is None or split in wanted]
    if len(kept) < len(images):
        left = Counter(split for split in splits if split is not None and wanted is not None and split not in wanted)
        words = ", ".join(f"{count:,} {name or 'without a split'}" for name, count in left.items())
        note = f"images of other splits of {data.captions} are left out ({words}); --split all takes every image"
        images = noted(images.subset(kept), [note])
    if data.limit is not None and data.limit < len(images):
        images = images.subset(random_order(len(images), seed, Stream.CAPTIONS_LIMIT)[: data.limit].sort().values)
    return images


def _wanted_splits(splits: Sequence[str], data: DataSettings) -> tuple[str, ...] | None:
    """Which splits are learned from; None for all. By default those for training, if the file has any."""
    known = set(splits)
    if data.split == EVERY_SPLIT:
        return None
    if data.split is None:
        default = tuple(name for name in TRAIN_SPLITS if name in known)
        return default or None
    wanted = tuple(name.strip() for name in data.split.split(","))
    for name in wanted:
        if name not in known:
            there = ", ".join(sorted(filter(None, known))) or "none: it does not part its images"
            raise UserError(f"--split {name}: {data.captions} has no such split among these images; it has {there}.")
    return wanted


# ---- which are used how ----


def _kept(captions: Captions, n: int | None, seed: int) -> Captions:
    """The captions of n images, drawn by the seed; the others are hidden."""
    if n is None:
        return captions
    has = [i for i, of_image in enumerate(captions) if of_image]
    if n > len(has):
        raise UserError(f"--captioned-images {n}: only {len(has):,} images have a caption.")
    kept = {has[i] for i in random_order(len(has), seed, Stream.CAPTIONS_KEPT)[:n].tolist()}
    return tuple(of_image if i in kept else () for i, of_image in enumerate(captions))


def _part(images: ImageSet, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to learn from and to set aside: a share of the captioned images, if there are enough, and of the
    others; but no image with one of the few labels of a class."""
    assert images.captions is not None
    present = torch.tensor([bool(of_image) for of_image in images.captions])
    rare = torch.zeros(len(images), dtype=torch.bool)
    if images.labels is not None:
        known = images.labels >= 0
        counts = torch.bincount(images.labels[known], minlength=len(images.class_names))
        rare[known] = counts[images.labels[known]] < ENOUGH_TO_HOLD_OUT
    aside = [torch.zeros(0, dtype=torch.int64)]
    for number, group in enumerate((present, ~present)):
        if fraction > 0 and (number == 1 or int(group.sum()) >= ENOUGH_CAPTIONED):
            free = (group & ~rare).nonzero().squeeze(1)
            n = min(len(free), round(fraction * int(group.sum())))
            aside.append(free[random_order(len(free), seed, Stream.CAPTIONS_ASIDE, number + 1)[:n]])
    valid = torch.cat(aside).sort().values
    rest = torch.ones(len(images), dtype=torch.bool)
    rest[valid] = False
    return rest.nonzero().squeeze(1), valid


def _only(train: Tensor, captions: Captions | None) -> Tensor:
    assert captions is not None
    return torch.tensor([i for i in train.tolist() if captions[i]], dtype=torch.int64)


def _check(images: ImageSet, train: Tensor) -> None:
    assert images.captions is not None
    if not any(images.captions[i] for i in train.tolist()):
        raise UserError("no image to learn from has a caption: check that captions and images belong together.")
    if images.labels is not None:
        labels = images.labels[train]
        if len(labels[labels >= 0].unique()) < 2:
            raise UserError(
                "the images to learn from have labels of one class only, or none: label images of at least two "
                "classes, or give --no-labels to learn captions alone."
            )


# ---- pixels ----


def _with_pixels(
    found: Found, images: ImageSet, order: Tensor, data: DataSettings, progress: Progress | None
) -> tuple[Tensor, ImageSet]:
    """The images in this order, and which places of the order they fill: a picture that cannot be read is left out."""
    wanted = images.subset(order)
    if found.folder is None:
        return torch.arange(len(order)), wanted
    size = data.size or DEFAULT_SIZE
    cached = cached_folder(found.folder, size=size, channels=data.channels or 3, names=wanted.names, progress=progress)
    place = {printable(name): i for i, name in enumerate(wanted.names)}
    kept = torch.tensor([place[name] for name in cached.names])
    notes = (*wanted.notes, *cached.notes)
    if data.size is None:
        notes = (*notes, f"pictures are scaled to {size} x {size}; --size chooses another size")
    known = wanted.subset(kept) if len(kept) < len(wanted) else wanted
    skipped = tuple(sorted([*found.skipped, *cached.skipped], key=lambda skip: skip.name))
    return kept, dataclasses.replace(known, images=cached.images, names=cached.names, skipped=skipped, notes=notes)


def _stretch(images: ImageSet, start: int, stop: int) -> ImageSet:
    """Images start .. stop, without a copy of their pixels, which may be mapped."""
    assert images.captions is not None
    return dataclasses.replace(
        images,
        images=images.images[start:stop],
        names=images.names[start:stop],
        columns={name: column.subset(torch.arange(start, stop)) for name, column in images.columns.items()},
    )


def _halves(values: Tensor, n: int) -> tuple[Tensor, Tensor]:
    return values[:n], values[n:]
