"""The images of a run and what they carry: where it comes from, what is learned from, what is hidden or held out.

source      in memory; a large folder of pictures, or one with a file of captions, is decoded once into the image cache
            and stays on the disk: images to learn from first, then those set aside, both stretches of one mapped file
columns     labels from a file, a class per folder, or carried by the set; tags and captions from a file or "builtin",
            those that the set carries. What is not asked for is left out
hidden      with --labels-per-class, --captioned-images or a share of known tags: never learned from, good for measuring
set aside   the last of labels, tags, captions says which images; what is held out chooses weights and calibrates
"""

import dataclasses
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semisight.backbones import resolve
from semisight.backbones.trusted import trust
from semisight.data import load
from semisight.data.caption_files import CaptionTable, read_captions
from semisight.data.columns import (
    CAPTIONS,
    LABELS,
    TAGS,
    CaptionColumn,
    Column,
    LabelColumn,
    choose_labelled,
    hide_labels,
)
from semisight.data.feature_cache import Share, cached_features
from semisight.data.features import is_feature_file, read_features
from semisight.data.formats.folders import choose_size, folder_labels, printable, walk
from semisight.data.formats.parquet import find_parquet
from semisight.data.formats.pictures import Header, Unreadable, read_header
from semisight.data.formats.webdataset import as_set, find_shards
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet, Skipped
from semisight.data.remote import is_url, local_copy
from semisight.data.sources import Kind, kind_of
from semisight.data.tables import read_labels, read_tags
from semisight.data.unpack import expected_bytes, unpacked
from semisight.errors import UserError
from semisight.random import Stream, random_order
from semisight.runs.settings import MOST_VIEWS, DataSettings

Progress = Callable[[int, int], None]  # images read, images in all

BUILTIN = "builtin"
TRAIN_SPLITS = ("train", "restval")  # Karpathy's COCO calls part of the training images "restval"
EVERY_SPLIT = "all"
MOST_IN_MEMORY = 200_000_000  # bytes of pixels
SIZE_WITH_CAPTIONS = 64  # of pictures from a folder, which come in all sizes
_LOOKED_AT = 500  # files whose headers decide about size and channels
_SHOWN = 5  # classes named in a message


@dataclass(frozen=True)
class Sets:
    """Images to learn from, with what is to be learned; and images that learning does not see.

    valid  what these carry, if anything, is held out
    truth  of the columns of which some was hidden, all that is known of `train` and of `valid`
    """

    train: ImageSet
    valid: ImageSet | None
    truth: Mapping[str, tuple[Column, Column]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Whether there is such a column to learn."""
        return name in self.train.columns

    def n_present(self, name: str) -> int:
        """Images to learn from that carry it."""
        return _count(self.train, name)

    def n_held_out(self, name: str) -> int:
        """Images set aside whose values choose the weights and calibrate."""
        return 0 if self.valid is None else _count(self.valid, name)

    def measured(self, name: str) -> ImageSet | None:
        """Images with values that were not learned from: the hidden ones, else the held-out ones."""
        if self.valid is None or name not in self.valid.columns:
            return None
        images = self.valid
        if name in self.truth:  # held-out values have chosen the weights
            images = images.with_column(self.truth[name][1].minus(images.columns[name]))
        return images.subset(images.columns[name].present) if _count(images, name) else None


def _count(images: ImageSet, name: str) -> int:
    return int(images.columns[name].present.sum()) if name in images.columns else 0


def sets_of(data: DataSettings, seed: int, progress: Progress | None = None) -> Sets:
    """The images of a run with what was asked for, parted by the seed."""
    data = all_at_hand(data)
    found = _found(data, seed, progress)
    if data.backbone is not None and data.captions is None and data.unlabelled is None:
        # Before images are parted: files that cannot be read leave the parts as they are when pixels are learned from.
        # Where only some unlabelled images are learned from, features of the others are not needed.
        found = _Found(_features(found, found.images, data, progress)[0], ready=True)
    images = with_tags(with_labels(found.images, data), data)
    if data.captions is None:
        images = images.without_column(CAPTIONS)
    return _parted(dataclasses.replace(found, images=images), data, seed, progress)


def all_at_hand(data: DataSettings) -> DataSettings:
    """With copies on this machine of what lies elsewhere (s3:// and the like)."""
    paths = {name: getattr(data, name) for name in ("source", "labels", "tags", "captions")}
    here: dict[str, Any] = {name: str(local_copy(path)) for name, path in paths.items() if path and is_url(path)}
    return dataclasses.replace(data, **here)


def parted(images: ImageSet, data: DataSettings, seed: int) -> Sets:
    """Images in memory with all that they carry, parted as `data` says; a network that it names is not asked."""
    return _parted(_Found(images, ready=True), data, seed, None)


def part(images: ImageSet, share: float, seed: int, alone: Stream = Stream.SPLIT) -> tuple[Tensor, Tensor]:
    """Positions to learn from and to set aside; `alone` draws from images that carry nothing.

    The last column says which images are set aside, of those with none of the few values of another column.
    """
    n = len(images)
    aside = torch.zeros(0, dtype=torch.int64)
    columns = list(images.columns.values())
    if share > 0 and columns:
        free = torch.ones(n, dtype=torch.bool)
        for column in columns[:-1]:
            free &= ~column.few()
        aside = columns[-1].aside(share, seed, free)
    elif share > 0 and n > 1:
        aside = random_order(n, seed, alone)[: max(1, round(share * n))].sort().values
    rest = torch.ones(n, dtype=torch.bool)
    rest[aside] = False
    return rest.nonzero().squeeze(1), aside


def _parted(found: "_Found", data: DataSettings, seed: int, progress: Progress | None) -> Sets:
    images = _hidden(found.images, data, seed)
    alone = Stream.SPLIT if found.form is None else Stream.STREAMED_ASIDE
    train, valid = part(images, data.valid_fraction, seed, alone)
    for name, only in ((LABELS, data.only_labelled), (CAPTIONS, data.only_captioned)):
        if only and name in images.columns:
            train = train[images.columns[name].present[train]]
    if data.unlabelled is not None and LABELS in images.columns:
        train = _with_fewer_others(train, images.columns[LABELS].present[train], data.unlabelled, seed)
    _check(images, train)
    read, places = _read(found, images, torch.cat([train, valid]), data, progress)
    n_train = int((places < len(train)).sum())
    if n_train == 0:
        raise UserError(f"none of the images to learn from could be read from {data.source}.")
    rows = torch.cat([train, valid])[places]
    truth = {
        name: (whole.subset(rows[:n_train]), whole.subset(rows[n_train:]))
        for name, whole in found.images.columns.items()
        if whole is not images.columns[name]
    }
    rest = _stretch(read, n_train, len(read)) if n_train < len(read) else None
    return Sets(_stretch(read, 0, n_train), rest, truth)


def _with_fewer_others(positions: Tensor, has: Tensor, most: int, seed: int) -> Tensor:
    """Of these positions all that `has` marks, and at most so many others; in their order."""
    others = (~has).nonzero().squeeze(1)
    kept = has.clone()
    kept[others[random_order(len(others), seed, Stream.UNLABELLED)[:most]]] = True
    return positions[kept]


def _stretch(images: ImageSet, start: int, stop: int) -> ImageSet:
    """Images start .. stop, without a copy of their pixels, which may be mapped."""
    return dataclasses.replace(
        images,
        images=images.images[start:stop],
        names=images.names[start:stop],
        columns={name: column.subset(torch.arange(start, stop)) for name, column in images.columns.items()},
        views=tuple(view[start:stop] for view in images.views),
    )


def _check(images: ImageSet, train: Tensor) -> None:
    for name, column in images.columns.items():
        present = column.present[train]
        if isinstance(column, LabelColumn) and len(column.values[train][present].unique()) < 2:
            raise UserError(
                "the images to learn from have labels of one class only, or none: label images of at least two "
                "classes, or give --no-labels to learn without labels."
            )
        if not present.any():
            raise UserError(f"no image to learn from has {name}: check that {name} and images belong together.")


# ---- the source, in memory or on the disk ----


@dataclass(frozen=True)
class _Form:
    """How the pictures of a folder are read once it is decided which; `files` by name, where images have other ones."""

    folder: Path
    side: int
    channels: int
    files: Mapping[str, str] | None = None

    def paths(self, names: Sequence[str]) -> tuple[str, ...]:
        """Of the files below the folder."""
        return tuple(names) if self.files is None else tuple(self.files[name] for name in names)


@dataclass(frozen=True)
class _Found:
    """Images with what they carry. Where `form` says how to read their pixels, they have none yet; `ready` if they have
    features already."""

    images: ImageSet
    form: _Form | None = None
    skipped: tuple[Skipped, ...] = ()
    ready: bool = False


def _found(data: DataSettings, seed: int, progress: Progress | None) -> _Found:
    """The images with all that they carry, before any of it is hidden."""
    table = None if data.captions in (None, BUILTIN) else read_captions(Path(str(data.captions)).expanduser())
    found = _own_features(data, seed) if is_feature_file(data.source) else None
    if found is None and kind_of(data.source) is Kind.PICTURES:
        found = _on_disk(data, seed, table is not None)
    elif found is None:
        found = _of_shards(data, seed, table is not None, progress)
    if found is None:
        images = load(
            data.source,
            size=data.size,
            channels=data.channels,
            class_per_folder=data.class_per_folder,
            limit=data.limit if table is None else None,  # else of the images that the table leaves
            seed=seed,
            progress=progress,
        )
        found = _Found(images)
    if table is not None:
        return dataclasses.replace(found, images=captioned(found.images, table, data, seed))
    if data.captions == BUILTIN:
        if found.images.captions is None:
            raise UserError(
                f"{found.images.source or data.source} carries no captions: give a file of them, --captions "
                "captions.csv (columns file,caption)."
            )
        if data.split is not None:
            raise UserError("--split parts the images of a caption file; captions that a set carries have no splits.")
    return found


def _own_features(data: DataSettings, seed: int) -> _Found:
    """Features of the user's own, from a file, in the pixels' place."""
    images = own_features(data.source)
    if data.limit is not None and data.limit < len(images):
        images = images.subset(random_order(len(images), seed, Stream.LIMIT)[: data.limit].sort().values)
    return _Found(images, ready=True)


def own_features(source: str) -> ImageSet:
    """Features of the user's own as a set: a file marked as such."""
    features = read_features(source)
    views = [features.values(None, view) for view in range(features.views)]
    return ImageSet(views[0], features.names, source=source, views=tuple(views[1:]))


def _on_disk(data: DataSettings, seed: int, captioned: bool) -> _Found | None:
    """A folder of pictures by their names alone; None where memory is enough for it."""
    folder = Path(data.source).expanduser()
    found = walk(folder)
    names = found.names
    notes: tuple[str, ...] = ()
    if data.backbone is not None:
        form = _Form(folder, 0, 3)  # a backbone has a size of its own
        if data.limit is not None and data.limit < len(names) and not captioned:
            drawn = random_order(len(names), seed, Stream.LIMIT)[: data.limit].sort().values
            names = tuple(names[i] for i in drawn.tolist())
    elif captioned:
        form = _Form(folder, data.size or SIZE_WITH_CAPTIONS, data.channels or 3)
        if data.size is None:
            notes = (f"pictures are scaled to {form.side} x {form.side}; --size chooses another size",)
    else:
        if data.limit is not None and data.limit < len(names):
            drawn = random_order(len(names), seed, Stream.LIMIT)[: data.limit].sort().values
            names = tuple(names[i] for i in drawn.tolist())
        headers = _some_headers(folder, names, seed)
        if not headers:
            return None
        height, width, notes = choose_size(headers, data.size)
        form = _Form(folder, height, data.channels or (1 if all(header.grey for header in headers) else 3))
        if height != width or len(names) * form.channels * height * width <= MOST_IN_MEMORY:
            return None
        notes = (*notes, f"decided by {len(headers)} of the images") if notes else ()
    if not names:
        raise UserError(f"{folder} is empty: no file in it or in the folders below it.")
    no_pixels = torch.zeros(len(names), 1, 1, 1, dtype=torch.uint8)
    images = ImageSet(no_pixels, names, source=str(folder), notes=notes)
    if data.class_per_folder:
        images = images.with_labels(*folder_labels(names, folder))
    return _Found(images, form, found.skipped)


def in_shards(source: str) -> list[Path]:
    """The shards, or the Parquet files, of a source that is such."""
    path = Path(source).expanduser()
    return find_shards(path) or find_parquet(path)


def _of_shards(data: DataSettings, seed: int, captioned: bool, progress: Progress | None) -> _Found | None:
    """Shards and Parquet by what they say of their images; None where they are none, or memory is enough for them.

    A pretrained network has a size of its own: it must see the pictures as they are, as it will in `predict`.
    """
    shards = in_shards(data.source)
    side = data.size or (SIZE_WITH_CAPTIONS if captioned else None)
    if not shards or (data.backbone is None and expected_bytes(shards, side) <= MOST_IN_MEMORY):
        return None
    pile = unpacked(shards, progress)
    names = [sample.name for sample in pile.samples]
    notes: tuple[str, ...] = ()
    if not names or len(set(names)) < len(names):
        return None  # what is wrong, or how names that come twice are read, is said by who reads them into memory
    drawn = torch.arange(len(names))
    if data.limit is not None and data.limit < len(names) and not captioned:
        drawn = random_order(len(names), seed, Stream.LIMIT)[: data.limit].sort().values
    headers = [pile.headers[i] for i in drawn.tolist()]
    height, width, channels = 0, 0, data.channels or (1 if all(header.grey for header in headers) else 3)
    if data.backbone is None:
        height, width, notes = choose_size(headers, side)
        if height != width:  # the image cache has squares
            return None
    files = {name: pile.files[i] for i, name in enumerate(names)}
    no_pixels = np.zeros((len(names), 1, 1, 1), np.uint8)
    images = as_set(no_pixels, pile.samples, (), data.source, notes).subset(drawn)
    return _Found(images, _Form(pile.folder, height, channels, files), pile.skipped)


def shape_on_disk(data: DataSettings, seed: int) -> tuple[tuple[int, int, int], tuple[str, ...]] | None:
    """How a folder of pictures is read, if not into memory: channels, height and width, and notes on the choice."""
    found = _on_disk(data, seed, data.captions not in (None, BUILTIN))
    if found is None or found.form is None:
        return None
    return (found.form.channels, found.form.side, found.form.side), found.images.notes


def shape_as_is(data: DataSettings, seed: int) -> tuple[int, int, int] | None:
    """Channels, height and width that the pictures of a folder would have unscaled; None if none can be read."""
    folder = Path(data.source).expanduser()
    headers = _some_headers(folder, walk(folder).names, seed)
    if not headers:
        return None
    height, width, _ = choose_size(headers, data.size)
    return (data.channels or (1 if all(header.grey for header in headers) else 3), height, width)


def _some_headers(folder: Path, names: Sequence[str], seed: int) -> list[Header]:
    headers = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i in random_order(len(names), seed, Stream.HEADERS)[:_LOOKED_AT].tolist():
            try:
                headers.append(read_header(folder / names[i]))
            except Unreadable:
                continue
    return headers


def _read(
    found: _Found, images: ImageSet, order: Tensor, data: DataSettings, progress: Progress | None
) -> tuple[ImageSet, Tensor]:
    """The images in this order with their pixels, and the places of the order that they fill: a picture that cannot
    be read is left out."""
    everything = torch.arange(len(order))
    if data.backbone is not None and not found.ready:
        return _features(found, images.subset(order), data, progress)
    if found.form is None:
        unchanged = len(order) == len(images) and torch.equal(order, everything)
        return images if unchanged else images.subset(order), everything
    wanted, form = images.subset(order), found.form
    paths = form.paths(wanted.names)
    cached = cached_folder(form.folder, size=form.side, channels=form.channels, names=paths, progress=progress)
    place = {printable(path): i for i, path in enumerate(paths)}
    places = torch.tensor([place[name] for name in cached.names])
    known = wanted.subset(places).noted(*cached.notes)
    skipped = [Skipped(printable(wanted.names[place[skip.name]]), skip.reason) for skip in cached.skipped]
    skipped = sorted([*found.skipped, *skipped], key=lambda skip: skip.name)
    names = tuple(map(printable, known.names))
    return dataclasses.replace(known, images=cached.images, names=names, skipped=tuple(skipped)), places


def _features(
    found: _Found, wanted: ImageSet, data: DataSettings, progress: Progress | None
) -> tuple[ImageSet, Tensor]:
    """The same with the features of a backbone in the pixels' place, from the cache of features."""
    read = with_features(
        wanted, found.form, data.backbone or "", data.views, progress, grid=data.grid, share=share_of(data)
    )
    place = {printable(name): i for i, name in enumerate(wanted.names)}
    places = torch.tensor([place[name] for name in read.names], dtype=torch.int64)
    skipped = tuple(sorted({*found.skipped, *read.skipped}, key=lambda skip: skip.name))
    return dataclasses.replace(read, skipped=skipped), places


def share_of(data: DataSettings) -> Share | None:
    """Who works out features, if not worker processes of this machine."""
    if data.engine == "local":
        return None
    from semisight.engines.features import share_by

    return share_by(data.engine, address=data.address)


def with_features(
    images: ImageSet,
    form: _Form | None,
    backbone: str,
    views: int,
    progress: Progress | None = None,
    *,
    grid: bool = False,
    share: Share | None = None,
) -> ImageSet:
    """The images with features in the pixels' place: of the files of a folder, by their names, or of those in memory.
    Those that cannot be read are left out."""
    if not 1 <= views <= MOST_VIEWS:
        raise UserError(f"features are taken of 1 to {MOST_VIEWS} views of each image, not {views}.")
    network = resolve(backbone, pooled=not grid)
    trust(backbone)  # runs that name it may use it from now on
    own = images.names if form is None else form.paths(images.names)  # what the cache calls them
    if form is not None:
        features = cached_features(form.folder, network, views=views, names=own, progress=progress, share=share)
    else:
        features = cached_features(images, network, views=views, progress=progress, share=share)
    place = {printable(name): i for i, name in enumerate(own)}
    known = images.subset([place[printable(name)] for name in features.names])
    skipped = [Skipped(images.names[place[s.name]] if s.name in place else s.name, s.reason) for s in features.skipped]
    # a grid has half a million bytes for each image: half of them will do
    parts = torch.arange(len(features)).split(500)
    every = [
        torch.cat([features.values(part, view).to(torch.float16 if grid else torch.float32) for part in parts])
        for view in range(features.views)
    ]
    names = tuple(printable(name) for name in known.names)
    return dataclasses.replace(
        known, images=every[0], views=tuple(every[1:]), names=names, skipped=(*known.skipped, *skipped)
    )


# ---- labels ----


def with_labels(images: ImageSet, data: DataSettings, class_names: Sequence[str] | None = None) -> ImageSet:
    """The images with the labels that were asked for, or without any; what was odd about them is in the notes."""
    if not data.use_labels:
        return images.without_column(LABELS)
    if data.labels is not None:
        table = read_labels(Path(data.labels).expanduser(), images.names, class_names)
        if not bool((table.labels >= 0).any()):
            return _unknown(images.noted(*table.warnings), data.labels)
        return images.with_labels(table.labels, table.class_names).noted(*table.warnings)
    if images.labels is None:
        if data.needs_labels:
            raise UserError(
                f"{images.source or data.source} carries no labels: give --labels labels.csv (columns file,label), or "
                "--class-per-folder for a folder with one folder for each class."
            )
        return images
    return _known_classes(images, images.labels)


def _known_classes(images: ImageSet, labels: Tensor) -> ImageSet:
    """Without classes that no image belongs to: there is nothing to learn about them."""
    counts = torch.bincount(labels[labels >= 0], minlength=len(images.class_names))
    kept = counts.nonzero().squeeze(1)
    names = [images.class_names[c] for c in kept.tolist()]
    if len(names) == 0:
        return _unknown(images, images.source or "the set")
    if len(names) == 1:
        raise UserError(
            f"all labelled images of {images.source} are {names[0]!r}: there is nothing to tell apart. Label images of "
            "at least two classes, or give --no-labels to learn from the images alone."
        )
    number = torch.full((len(counts) + 1,), -1)
    number[kept] = torch.arange(len(kept))
    notes = []
    absent = [name for c, name in enumerate(images.class_names) if not counts[c]]
    if absent:
        notes.append(f"{_classes(absent, 'has', 'have')} no image and cannot be learned: {_examples(absent)}")
    single = [name for name, count in zip(names, counts[kept].tolist(), strict=True) if count == 1]
    if single:
        notes.append(f"{_classes(single, 'has', 'have')} a single labelled image: {_examples(single)}")
    return images.with_labels(number[labels], names).noted(*notes)  # -1 stays -1: the last entry


def _unknown(images: ImageSet, origin: str) -> ImageSet:
    return images.without_column(LABELS).noted(
        f"all labels of {origin} are unknown: nothing is learned from them, only from the images"
    )


def _classes(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names)} {f'class {one}' if len(names) == 1 else f'classes {many}'}"


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


# ---- tags and captions ----


def with_tags(images: ImageSet, data: DataSettings, tag_names: Sequence[str] | None = None) -> ImageSet:
    """The images with the tags that were asked for, or without any."""
    if data.tags is None:
        return images.without_column(TAGS)
    if data.tags == BUILTIN:
        if images.tags is None:
            raise UserError(
                f"{images.source or data.source} carries no tags: give a file of them, --tags tags.csv (a row "
                "file,label for every tag of an image, or a column of 1 and 0 for each tag)."
            )
        return images
    table = read_tags(Path(data.tags).expanduser(), images.names, tag_names)
    return images.with_column(table.column).noted(*table.warnings)


def captioned(images: ImageSet, table: CaptionTable, data: DataSettings, seed: int) -> ImageSet:
    """Images with their captions, without those of other splits; what was odd is in the notes."""
    captions, matched = table.match([printable(name) for name in images.names], f"the images of {data.source}")
    images = images.with_column(CaptionColumn(captions)).noted(*matched.warnings)
    split_of = dict(zip(matched.names, matched.splits, strict=True))
    splits = [split_of.get(printable(name)) for name in images.names]  # None: without a caption
    wanted = _wanted_splits([split for split in splits if split is not None], data)
    kept = [i for i, split in enumerate(splits) if split is None or wanted is None or split in wanted]
    if len(kept) < len(images):
        left = Counter(split for split in splits if split is not None and wanted is not None and split not in wanted)
        words = ", ".join(f"{count:,} {name or 'without a split'}" for name, count in left.items())
        note = f"images of other splits of {data.captions} are left out ({words}); --split all takes every image"
        images = images.subset(kept).noted(note)
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


# ---- what is hidden ----


def _hidden(images: ImageSet, data: DataSettings, seed: int) -> ImageSet:
    """Without the values that were asked to be hidden: a column of which nothing was stays the same object."""
    if data.labels_per_class is not None and LABELS in images.columns:
        images = keep_per_class(images, data.labels_per_class, seed)
    if data.tags_known is not None and images.tags is not None:
        images = images.with_column(images.tags.hide(1 - data.tags_known, seed))
    if data.captioned_images is not None and CAPTIONS in images.columns:
        column, n = images.columns[CAPTIONS], data.captioned_images
        has = column.present.nonzero().squeeze(1)
        if n > len(has):
            raise UserError(f"--captioned-images {n}: only {len(has):,} images have a caption.")
        kept = torch.zeros(len(images), dtype=torch.bool)
        kept[has[random_order(len(has), seed, Stream.CAPTIONS_KEPT)[:n]]] = True
        images = images.with_column(column.keep(kept))
    return images


def keep_per_class(images: ImageSet, per_class: int, seed: int) -> ImageSet:
    """With the labels of so many images of every class, drawn by the seed; the others are hidden."""
    column = images.columns[LABELS]
    assert isinstance(column, LabelColumn)
    counts = zip(column.class_names, column.counts.tolist(), strict=True)
    short = [f"{name} ({count})" for name, count in counts if count < per_class]
    if short:
        raise UserError(
            f"--labels-per-class {per_class}: {_classes(short, 'has', 'have')} fewer labels: {_examples(short)}."
        )
    kept = hide_labels(column.values, choose_labelled(column.values, per_class, seed))
    return images.with_labels(kept, column.class_names)
