"""The images of a folder that is too large to keep in memory: decoded once, into a cache, and read from there.

Images to learn from come first in the cache and those set aside after them, so that both are stretches of one mapped
file, of which memory holds only what was just looked at. Which images are where is decided by their names alone, before
any is decoded; those that cannot be read are left out of the stretch that they would have been in.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from semisight.data.formats.folders import choose_size, folder_labels, printable, walk
from semisight.data.formats.pictures import Header, Unreadable, read_header
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet
from semisight.data.sources import is_image_folder
from semisight.random import Stream, random_order
from semisight.runs.sets import (
    Progress,
    Sets,
    keep_per_class,
    part_labelled,
    refuse_one_class,
    with_labels,
)
from semisight.runs.settings import DataSettings

MOST_IN_MEMORY = 200_000_000  # bytes of pixels
_LOOKED_AT = 500  # files whose headers decide about size and channels


def streamed_sets(data: DataSettings, seed: int, progress: Progress | None = None) -> Sets | None:
    """The sets of a run from a large folder of pictures, parted by the seed; None where memory is enough for it."""
    path = Path(data.source).expanduser()
    if data.source.startswith("builtin:") or not is_image_folder(path):
        return None
    found = walk(path)
    names = found.names
    if data.limit is not None and data.limit < len(names):
        names = tuple(
            names[i] for i in random_order(len(names), seed, Stream.LIMIT)[: data.limit].sort().values.tolist()
        )
    form = _form(path, names, data, seed)
    if form is None:
        return None
    side, channels, notes = form
    images = ImageSet(torch.zeros(len(names), 1, 1, 1, dtype=torch.uint8), names, source=str(path), notes=notes)
    if data.class_per_folder:
        images = images.with_labels(*folder_labels(names, path))
    images = with_labels(images, data)
    truth = images.labels
    if data.labels_per_class is not None:
        images = keep_per_class(images, data.labels_per_class, seed)
    train, valid = _parted(images, data, seed)
    if images.labels is not None:
        refuse_one_class(images.labels[train])
    order = torch.cat([train, valid])
    cached = cached_folder(
        path, size=side, channels=channels, names=[names[i] for i in order.tolist()], progress=progress
    )
    kept = _places(cached.names, [printable(names[i]) for i in order.tolist()])
    n_train = int((kept < len(train)).sum())
    skipped = tuple(sorted([*found.skipped, *cached.skipped], key=lambda skip: skip.name))
    known = dataclasses.replace(images, notes=(*images.notes, *cached.notes), skipped=skipped)
    parts = [_stretch(known, cached, order[kept], piece) for piece in (slice(0, n_train), slice(n_train, None))]
    hidden = None
    if data.labels_per_class is not None and truth is not None:
        hidden = (truth[order[kept][:n_train]], truth[order[kept][n_train:]])
    return Sets(parts[0], parts[1] if len(parts[1]) else None, hidden)


def _form(path: Path, names: Sequence[str], data: DataSettings, seed: int) -> tuple[int, int, tuple[str, ...]] | None:
    """Side, channels and notes for a set that is large; None for a small one, or one of oblong images."""
    headers: list[Header] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in random_order(len(names), seed, Stream.HEADERS)[:_LOOKED_AT].tolist():
            try:
                headers.append(read_header(path / names[i]))
            except Unreadable:
                continue
    if not headers:
        return None
    height, width, notes = choose_size(headers, data.size)
    channels = data.channels or (1 if all(header.grey for header in headers) else 3)
    if height != width or len(names) * channels * height * width <= MOST_IN_MEMORY:
        return None
    if notes:
        notes = (*notes, f"decided by {len(headers)} of the images")
    return height, channels, notes


def _parted(images: ImageSet, data: DataSettings, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to learn from and to set aside."""
    if images.labels is not None:
        train, valid = part_labelled(images, data.valid_fraction, seed)
        return (train[images.labels[train] >= 0] if data.only_labelled else train), valid
    order = random_order(len(images), seed, Stream.STREAMED_ASIDE)
    n_valid = round(data.valid_fraction * len(images))
    return order[n_valid:].sort().values, order[:n_valid].sort().values


def _places(names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    place = {name: i for i, name in enumerate(wanted)}
    return torch.tensor([place[name] for name in names], dtype=torch.int64)


def _stretch(known: ImageSet, cached: ImageSet, places: Tensor, piece: slice) -> ImageSet:
    """A part of the cached images, without a copy of their pixels, with what is known of them."""
    return dataclasses.replace(
        known,
        images=cached.images[piece],
        names=cached.names[piece],
        columns={name: column.subset(places[piece]) for name, column in known.columns.items()},
    )
