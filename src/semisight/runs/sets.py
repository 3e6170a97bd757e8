"""The images of a run and their labels: where the labels come from, which are learned from, which are held out.

labels      a file (--labels), a class per folder, or those that the set itself carries; none with --no-labels
hidden      with --labels-per-class N all but N per class: never learned from, and so good for measuring
held out    a share of the labels of every class that has enough: these choose the weights and calibrate
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semisight.data import load
from semisight.data.columns import CAPTIONS, LABELS, CaptionColumn, choose_labelled, hide_labels
from semisight.data.image_set import ImageSet, split
from semisight.data.tables import read_labels
from semisight.errors import UserError
from semisight.random import Stream, random_order
from semisight.runs.settings import DataSettings

Progress = Callable[[int, int], None]  # images read, images in all
Captions = tuple[tuple[str, ...], ...]  # of each image, possibly none

ENOUGH_TO_HOLD_OUT = 20  # labels of a class: with fewer, learning needs them more
LEAST_HELD_OUT = 3  # of a class that has enough
_SHOWN = 5  # classes named in a message


@dataclass(frozen=True)
class Sets:
    """Images to learn from, with the labels and captions to learn; and images that learning does not see.

    valid            their labels and captions, if any, are the held-out ones
    hidden           true labels of `train` and of `valid` that --labels-per-class has hidden, -1 where unknown
    hidden_captions  likewise all captions, also those that --captioned-images has hidden
    """

    train: ImageSet
    valid: ImageSet | None
    hidden: tuple[Tensor, Tensor] | None = None
    hidden_captions: tuple[Captions, Captions] | None = None

    @property
    def has_labels(self) -> bool:
        return self.train.labels is not None

    @property
    def n_labelled(self) -> int:
        return _count_known(self.train)

    @property
    def n_held_out(self) -> int:
        return 0 if self.valid is None else _count_known(self.valid)

    @property
    def measured(self) -> ImageSet | None:
        """Images with labels that were not learned from: the hidden ones, else the held-out ones."""
        if self.valid is None or not self.has_labels:
            return None
        images = self.valid
        if self.hidden is not None:
            assert images.labels is not None
            unused = torch.where(images.labels < 0, self.hidden[1], -1)  # held-out labels have chosen the weights
            images = images.with_labels(unused, images.class_names)
        if not _count_known(images):
            return None
        assert images.labels is not None
        return images.subset(images.labels >= 0)

    @property
    def has_captions(self) -> bool:
        return self.train.captions is not None

    @property
    def n_captioned(self) -> int:
        """Images with a caption to learn from."""
        return sum(map(bool, self.train.captions or ()))

    @property
    def n_captions(self) -> int:
        return sum(map(len, self.train.captions or ()))

    @property
    def n_captioned_held_out(self) -> int:
        return 0 if self.valid is None else sum(map(bool, self.valid.captions or ()))

    @property
    def measured_captions(self) -> ImageSet | None:
        """Images with captions that were not learned from: the hidden ones, else the held-out ones."""
        if self.valid is None or self.valid.captions is None:
            return None
        images = self.valid
        if self.hidden_captions is not None:  # held-out captions have chosen the weights
            unused = tuple(
                () if held_out else every
                for held_out, every in zip(self.valid.captions, self.hidden_captions[1], strict=True)
            )
            images = images.with_column(CaptionColumn(unused))
        assert images.captions is not None
        places = [i for i, of_image in enumerate(images.captions) if of_image]
        return images.subset(places) if places else None


def _count_known(images: ImageSet) -> int:
    return 0 if images.labels is None else int((images.labels >= 0).sum())


def load_sets(data: DataSettings, seed: int, progress: Progress | None = None) -> Sets:
    """The images with their labels, parted by the seed. A set too small to spare one image is not parted."""
    images = with_labels(
        load(
            data.source,
            size=data.size,
            channels=data.channels,
            class_per_folder=data.class_per_folder,
            limit=data.limit,
            seed=seed,
            progress=progress,
        ),
        data,
    )
    return parted(images.without_column(CAPTIONS), data, seed)  # captions: only where asked for


def parted(images: ImageSet, data: DataSettings, seed: int) -> Sets:
    """Images that have been read, with all their labels, parted as `data` says."""
    if images.labels is None:
        return Sets(*part_images(images, data.valid_fraction, seed))
    truth = images.labels
    if data.labels_per_class is not None:
        images = keep_per_class(images, data.labels_per_class, seed)
    train, valid = part_labelled(images, data.valid_fraction, seed)
    assert images.labels is not None
    if data.only_labelled:
        train = train[images.labels[train] >= 0]
    refuse_one_class(images.labels[train])
    hidden = None if data.labels_per_class is None else (truth[train], truth[valid])
    return Sets(images.subset(train), images.subset(valid) if len(valid) else None, hidden)


def refuse_one_class(labels: Tensor) -> None:
    if len(labels[labels >= 0].unique()) < 2:
        raise UserError(
            "the images to learn from have labels of one class only, or none: label images of at least two classes, "
            "or give --no-labels to learn from the images alone."
        )


def with_labels(images: ImageSet, data: DataSettings, class_names: Sequence[str] | None = None) -> ImageSet:
    """The images with the labels that were asked for, or without any; what was odd about them is in the notes."""
    if not data.use_labels:
        return images.without_column(LABELS)
    if data.labels is not None:
        table = read_labels(Path(data.labels).expanduser(), images.names, class_names)
        images = images.with_labels(table.labels, table.class_names)
        return noted(images, table.warnings)
    if images.labels is None:
        if data.needs_labels:
            raise UserError(
                f"{images.source or data.source} carries no labels: give --labels labels.csv (columns file,label), or "
                "--class-per-folder for a folder with one folder for each class."
            )
        return images
    return _known_classes(images)


def _known_classes(images: ImageSet) -> ImageSet:
    """Without classes that no image belongs to: there is nothing to learn about them."""
    assert images.labels is not None
    counts = torch.bincount(images.labels[images.labels >= 0], minlength=len(images.class_names))
    kept = counts.nonzero().squeeze(1)
    names = [images.class_names[c] for c in kept.tolist()]
    if len(names) == 0:
        return images.without_column(LABELS)
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
    return noted(images.with_labels(number[images.labels], names), notes)  # -1 stays -1: the last entry


def keep_per_class(images: ImageSet, per_class: int, seed: int) -> ImageSet:
    assert images.labels is not None
    counts = torch.bincount(images.labels[images.labels >= 0], minlength=len(images.class_names)).tolist()
    short = [f"{name} ({count})" for name, count in zip(images.class_names, counts, strict=True) if count < per_class]
    if short:
        raise UserError(
            f"--labels-per-class {per_class}: {_classes(short, 'has', 'have')} fewer labels: {_examples(short)}."
        )
    labels = hide_labels(images.labels, choose_labelled(images.labels, per_class, seed))
    return images.with_labels(labels, images.class_names)


def part_images(images: ImageSet, fraction: float, seed: int) -> tuple[ImageSet, ImageSet | None]:
    n_valid = max(1, round(fraction * len(images))) if fraction > 0 else 0
    if n_valid == 0 or len(images) < 2:
        return images, None
    return split(images, n_valid, seed)


def part_labelled(images: ImageSet, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions to learn from and to set aside. Of labels, a share of each class that has enough, if most have."""
    labels = images.labels
    assert labels is not None
    everything = torch.arange(len(labels))
    if fraction == 0:
        return everything, everything[:0]
    enough = torch.bincount(labels[labels >= 0], minlength=len(images.class_names)) >= ENOUGH_TO_HOLD_OUT
    if enough.sum() < max(2, len(enough) / 2):
        enough[:] = False
    aside = []
    for c in range(-1, len(enough)):
        members = (labels == c).nonzero().squeeze(1)
        count = round(fraction * len(members))
        if c >= 0:
            count = max(LEAST_HELD_OUT, count) if enough[c] else 0
        # classes are numbered from 2: a stream of random_order starts and ends above 0
        aside.append(members[random_order(len(members), seed, Stream.LABELS_ASIDE, c + 2)[:count]])
    valid = torch.cat(aside).sort().values
    rest = torch.ones(len(labels), dtype=torch.bool)
    rest[valid] = False
    return everything[rest], valid


def noted(images: ImageSet, notes: Sequence[str]) -> ImageSet:
    return dataclasses.replace(images, notes=(*images.notes, *notes))


def _classes(names: Sequence[str], one: str, many: str) -> str:
    return f"{len(names)} {f'class {one}' if len(names) == 1 else f'classes {many}'}"


def _examples(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
