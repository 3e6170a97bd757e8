"""A set of images in memory (or mapped from disk) with what is known about each, and ways to part it."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semisight.errors import UserError

_CHUNK = 1024  # images summed at a time when the whole set is read
_SPLIT, _CHOICE = 1, 2  # streams of random_order; batches.py uses 3 to 5, sources.py 6


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and why. The part of the reason before a colon is its kind."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images of one shape.

    images       uint8 [N,C,H,W] in 0..255, or float32 [N,C,H,W] in [0,1]; may be memory-mapped
    names        one per image: its path below the folder, or for instance "digits/00012"
    labels       int64 [N], -1 where unknown; or None
    class_names  one per class, in the order of the labels
    captions     per image, possibly none; or None
    skipped      the files that were left out
    source       where the images came from, for messages
    notes        choices made while reading that people should know of
    """

    images: Tensor
    names: tuple[str, ...]
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    captions: tuple[tuple[str, ...], ...] | None = None
    skipped: tuple[Skipped, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float32):
            raise ValueError(
                f"images must be uint8 or float32 [N,C,H,W], not {self.images.dtype} {list(self.images.shape)}"
            )
        n = len(self.images)
        if len(self.names) != n:
            raise ValueError(f"{n} images but {len(self.names)} names")
        if self.captions is not None and len(self.captions) != n:
            raise ValueError(f"{n} images but captions for {len(self.captions)}")
        if self.labels is None:
            return
        if self.labels.dtype != torch.int64 or self.labels.shape != (n,):
            raise ValueError(f"labels must be int64 [{n}], not {self.labels.dtype} {list(self.labels.shape)}")
        low, high = (int(self.labels.min()), int(self.labels.max())) if n else (-1, -1)
        if low < -1 or high >= len(self.class_names):
            raise ValueError(f"labels from {low} to {high}, but {len(self.class_names)} class names")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        C, H, W = self.images.shape[1:]
        return (C, H, W)

    def batch(self, index: Tensor) -> Tensor:
        """The images at `index` as new float32 [B,C,H,W] in [0,1]."""
        chosen = self.images[index]
        if chosen.dtype == torch.uint8:
            return chosen.to(torch.float32).div_(255.0)
        return chosen.clone()

    def mean_image(self) -> Tensor:
        """The mean over the set, float32 [C,H,W] in [0,1], a chunk at a time so that a mapped file stays on disk."""
        total = torch.zeros(self.shape, dtype=torch.float64)
        for chunk in self.images.split(_CHUNK):
            total += chunk.sum(0, dtype=torch.float64)
        scale = 255.0 if self.images.dtype == torch.uint8 else 1.0
        return (total / (scale * max(len(self), 1))).to(torch.float32)

    def subset(self, index: Tensor | Sequence[int]) -> "ImageSet":
        """The images at `index` (positions, or a mask of N booleans), in that order, with all that is known of them."""
        chosen = torch.as_tensor(index, dtype=torch.bool if _is_mask(index) else torch.int64)
        if chosen.dtype == torch.bool:
            if len(chosen) != len(self):
                raise ValueError(f"a mask of {len(chosen)} for {len(self)} images")
            chosen = chosen.nonzero().squeeze(1)
        places = chosen.tolist()
        return dataclasses.replace(
            self,
            images=self.images[chosen],
            names=tuple(self.names[i] for i in places),
            labels=None if self.labels is None else self.labels[chosen],
            captions=None if self.captions is None else tuple(self.captions[i] for i in places),
        )

    def with_labels(self, labels: Tensor, class_names: Sequence[str]) -> "ImageSet":
        """The same images with other labels."""
        return dataclasses.replace(self, labels=labels, class_names=tuple(class_names))


def _is_mask(index: Tensor | Sequence[int]) -> bool:
    if isinstance(index, Tensor):
        return index.dtype == torch.bool
    return len(index) > 0 and isinstance(index[0], bool)


def random_order(n: int, seed: int, *stream: int) -> Tensor:
    """A permutation of n that depends on nothing but its arguments; `stream` tells several uses of one seed apart.

    A stream starts with a number above 0: numpy pads what it hashes with zeros, so (seed,) and (seed, 0) are one.
    """
    return torch.from_numpy(np.random.default_rng((seed, *stream)).permutation(n))


def split(image_set: ImageSet, valid: int | float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Parts a set at random into (train, valid). `valid` is a number of images, or a share if it is a float below 1."""
    n = len(image_set)
    n_valid = round(valid * n) if isinstance(valid, float) and 0 < valid < 1 else int(valid)
    if not 0 < n_valid < n:
        raise UserError(
            f"cannot set {valid} of the {n} images of {image_set.source or 'this set'} aside for validation: "
            f"give a share between 0 and 1, or a number from 1 to {n - 1}, that leaves images on both sides"
        )
    order = random_order(n, seed, _SPLIT)
    return image_set.subset(order[n_valid:].sort().values), image_set.subset(order[:n_valid].sort().values)


def choose_labelled(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """Positions of `per_class` images of every class, drawn at random; sorted int64. Labels of -1 are never chosen."""
    chosen = []
    for c in labels.unique().tolist():
        if c < 0:
            continue
        members = (labels == c).nonzero().squeeze(1)
        if len(members) < per_class:
            raise UserError(f"class {c} has {len(members)} labelled images, fewer than the {per_class} asked for")
        chosen.append(members[random_order(len(members), seed, _CHOICE, c)[:per_class]])
    if not chosen:
        raise UserError("no image has a label: there is nothing to choose labelled images from")
    return torch.cat(chosen).sort().values


def hide_labels(labels: Tensor, keep: Tensor) -> Tensor:
    """The labels at the positions `keep`, -1 everywhere else: how a semi-supervised set is made from a labelled one."""
    hidden = torch.full_like(labels, -1)
    hidden[keep] = labels[keep]
    return hidden


def skipped_summary(skipped: Sequence[Skipped], examples: int = 3) -> str:
    """One line that counts what was left out, by kind: "3 files skipped: 2 not an image (a.txt, b.txt), ..."; or ""."""
    if not skipped:
        return ""
    kinds = Counter(entry.reason.split(":")[0] for entry in skipped)
    parts = []
    for kind, count in kinds.most_common():
        names = [entry.name for entry in skipped if entry.reason.split(":")[0] == kind]
        more = ", ..." if count > examples else ""
        parts.append(f"{count} {kind} ({', '.join(names[:examples])}{more})")
    return f"{len(skipped)} file{'s' if len(skipped) > 1 else ''} skipped: {', '.join(parts)}"
