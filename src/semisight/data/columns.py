"""What some images of a set carry: one label, several labels (tags), captions. A column has one row for every image.

    LabelColumn    values[i]     the class of image i, -1 where unknown
    TagColumn      values[i, c]  1 where image i has tag c, 0 where it has not, -1 where unknown
    CaptionColumn  texts[i]      the sentences about image i, perhaps none

A set may carry several. The last of them in the order LABELS, TAGS, CAPTIONS decides which images are set aside; the
others only keep images back (`few`) that carry one of their few values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.random import Stream, random_order

LABELS, TAGS, CAPTIONS = "labels", "tags", "captions"
ORDER = (LABELS, TAGS, CAPTIONS)

ENOUGH_TO_HOLD_OUT = 20  # labels of a class, images with a tag: with fewer, learning needs them more
LEAST_HELD_OUT = 3  # of a class that has enough
ENOUGH_IMAGES = 100  # with tags or captions: with fewer, learning needs them more than choosing weights does


class Column(Protocol):
    """What a set asks of a column, whatever it holds."""

    @property
    def name(self) -> str: ...

    @property
    def present(self) -> Tensor:
        """bool [N]: which images carry it."""
        ...

    def __len__(self) -> int: ...

    def subset(self, index: Tensor) -> Self:
        """The rows at these positions, in this order."""
        ...

    def keep(self, mask: Tensor) -> Self:
        """Only what these images carry, bool [N]; the others' is hidden."""
        ...

    def minus(self, other: Self) -> Self:
        """What is known here and not in `other`."""
        ...

    def few(self) -> Tensor:
        """bool [N]: images that carry one of so few values that none should be set aside."""
        ...

    def aside(self, share: float, seed: int, free: Tensor) -> Tensor:
        """Positions of images to set aside, sorted, drawn by the seed from those that are `free`, bool [N]."""
        ...


@dataclass(frozen=True, eq=False)
class LabelColumn:
    """A class for each image: values int64 [N], -1 where unknown; class_names in the order of the numbers."""

    values: Tensor
    class_names: tuple[str, ...]
    name: str = LABELS

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int64 or self.values.dim() != 1:
            raise ValueError(f"labels must be int64 [N], not {self.values.dtype} {list(self.values.shape)}")
        low, high = (int(self.values.min()), int(self.values.max())) if len(self) else (-1, -1)
        if low < -1 or high >= len(self.class_names):
            raise ValueError(f"labels from {low} to {high}, but {len(self.class_names)} class names")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def present(self) -> Tensor:
        return self.values >= 0

    @property
    def counts(self) -> Tensor:
        """Images of each class, int64 [C]."""
        return torch.bincount(self.values[self.present], minlength=len(self.class_names))

    def subset(self, index: Tensor) -> Self:
        return replace(self, values=self.values[index])

    def keep(self, mask: Tensor) -> Self:
        return replace(self, values=torch.where(mask, self.values, -1))

    def minus(self, other: Self) -> Self:
        return self.keep(~other.present)

    def few(self) -> Tensor:
        few, present = torch.zeros(len(self), dtype=torch.bool), self.present
        few[present] = (self.counts < ENOUGH_TO_HOLD_OUT)[self.values[present]]
        return few

    def aside(self, share: float, seed: int, free: Tensor) -> Tensor:
        """A share of the images without a label, and of every class that has enough, if most have."""
        enough = self.counts >= ENOUGH_TO_HOLD_OUT
        if enough.sum() < max(2, len(enough) / 2):
            enough[:] = False
        drawn = []
        for c in range(-1, len(enough)):
            members = (self.values == c).nonzero().squeeze(1)
            count = round(share * len(members))
            if c >= 0:
                count = max(LEAST_HELD_OUT, count) if enough[c] else 0
            members = members[free[members]]
            # numbered from 1: random_order takes no 0 for its last number
            drawn.append(members[random_order(len(members), seed, Stream.LABELS_ASIDE, c + 2)[:count]])
        return torch.cat(drawn).sort().values


@dataclass(frozen=True, eq=False)
class TagColumn:
    """Several labels for each image, or none: values int8 [N, C] are 1 (has it), 0 (has it not) or -1 (unknown)."""

    values: Tensor
    names: tuple[str, ...]
    name: str = TAGS

    def __post_init__(self) -> None:
        if self.values.dtype != torch.int8 or self.values.dim() != 2 or self.values.shape[1] != len(self.names):
            raise ValueError(
                f"tags must be int8 [N, {len(self.names)}], a column for each name, not {self.values.dtype} "
                f"{list(self.values.shape)}"
            )
        if ((self.values < -1) | (self.values > 1)).any():
            raise ValueError("tags must be 1 (has it), 0 (has it not) or -1 (unknown)")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def present(self) -> Tensor:
        """Images of which at least one entry is known."""
        return (self.values >= 0).any(1)

    def subset(self, index: Tensor) -> Self:
        return replace(self, values=self.values[index])

    def keep(self, mask: Tensor) -> Self:
        return replace(self, values=self.values.where(mask[:, None], -1))

    def minus(self, other: Self) -> Self:
        return replace(self, values=self.values.where(other.values < 0, -1))

    def hide(self, share: float, seed: int) -> Self:
        """Without a share of the known entries, drawn one by one by the seed: of most images something stays known."""
        known = (self.values >= 0).flatten().nonzero().squeeze(1)
        hidden = known[random_order(len(known), seed, Stream.TAGS_HIDDEN)[: round(share * len(known))]]
        values = self.values.flatten().clone()
        values[hidden] = -1
        return replace(self, values=values.view_as(self.values))

    def few(self) -> Tensor:
        present = self.present
        if int(present.sum()) < ENOUGH_IMAGES:
            return present
        has = self.values == 1
        return (has & (has.sum(0) < ENOUGH_TO_HOLD_OUT)).any(1)

    def aside(self, share: float, seed: int, free: Tensor) -> Tensor:
        return _aside(self.present, share, seed, free & ~self.few(), Stream.TAGS_ASIDE)


@dataclass(frozen=True, eq=False)
class CaptionColumn:
    """Sentences about each image, as written, perhaps none."""

    texts: tuple[tuple[str, ...], ...]
    name: str = CAPTIONS

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def present(self) -> Tensor:
        return torch.tensor([bool(of_image) for of_image in self.texts], dtype=torch.bool)

    @property
    def n_captions(self) -> int:
        return sum(map(len, self.texts))

    def subset(self, index: Tensor) -> Self:
        return replace(self, texts=tuple(self.texts[i] for i in index.tolist()))

    def keep(self, mask: Tensor) -> Self:
        kept = zip(self.texts, mask.tolist(), strict=True)
        return replace(self, texts=tuple(of_image if shown else () for of_image, shown in kept))

    def minus(self, other: Self) -> Self:
        return self.keep(~other.present)

    def few(self) -> Tensor:
        present = self.present
        return present if int(present.sum()) < ENOUGH_IMAGES else torch.zeros_like(present)

    def aside(self, share: float, seed: int, free: Tensor) -> Tensor:
        return _aside(self.present, share, seed, free, Stream.CAPTIONS_ASIDE)


def _aside(present: Tensor, share: float, seed: int, free: Tensor, stream: Stream) -> Tensor:
    """A share of the images that carry something, if there are enough of them, and of the others."""
    drawn = [torch.zeros(0, dtype=torch.int64)]
    for number, group in enumerate((present, ~present), start=1):
        if number == 2 or int(group.sum()) >= ENOUGH_IMAGES:
            members = (group & free).nonzero().squeeze(1)
            count = min(len(members), round(share * int(group.sum())))
            drawn.append(members[random_order(len(members), seed, stream, number)[:count]])
    return torch.cat(drawn).sort().values


def choose_labelled(labels: Tensor, per_class: int, seed: int = 0) -> Tensor:
    """Positions of `per_class` images of every class, drawn at random; sorted int64. Labels of -1 are never chosen."""
    chosen = []
    for c in labels.unique().tolist():
        if c < 0:
            continue
        members = (labels == c).nonzero().squeeze(1)
        if len(members) < per_class:
            raise UserError(f"class {c} has {len(members)} labelled images, fewer than the {per_class} asked for")
        chosen.append(members[random_order(len(members), seed, Stream.CHOICE, c)[:per_class]])
    if not chosen:
        raise UserError("no image has a label: there is nothing to choose labelled images from")
    return torch.cat(chosen).sort().values


def choose_labelled_share(labels: Tensor, percent: float, seed: int = 0) -> Tensor:
    """Positions of `percent` of every class's images, at least one; a larger share holds what a smaller one has."""
    chosen = []
    for c in labels[labels >= 0].unique().tolist():
        members = (labels == c).nonzero().squeeze(1)
        order = random_order(len(members), seed, Stream.CHOICE, c)
        chosen.append(members[order[: max(1, round(percent / 100 * len(members)))]])
    return torch.cat(chosen).sort().values


def hide_labels(labels: Tensor, keep: Tensor) -> Tensor:
    """The labels at the positions `keep`, -1 everywhere else: how a semi-supervised set is made from a labelled one."""
    hidden = torch.full_like(labels, -1)
    hidden[keep] = labels[keep]
    return hidden


def in_order(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Labels, tags, captions, and then any others as they come."""
    return tuple(sorted(columns, key=lambda c: ORDER.index(c.name) if c.name in ORDER else len(ORDER)))
