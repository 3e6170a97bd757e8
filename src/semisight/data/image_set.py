"""A set of images in memory (or mapped from disk) with what is known about each, and ways to part it."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from semisight.data.columns import (
    CAPTIONS,
    LABELS,
    TAGS,
    CaptionColumn,
    Column,
    LabelColumn,
    TagColumn,
    in_order,
)
from semisight.errors import UserError
from semisight.random import Stream, random_order

_CHUNK = 1024  # images summed at a time when the whole set is read


@dataclass(frozen=True)
class Skipped:
    """A file that was left out, and why. The part of the reason before a colon is its kind."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class ImageSet:
    """N images of one shape, and what some of them carry.

    Args:
        images: uint8 [N,C,H,W] in 0..255, or float32 [N,C,H,W] in [0,1]; may be memory-mapped. Features: any numbers,
            float32 or (grids) float16.
        names: one per image: its path below the folder, or for instance "digits/00012".
        columns: labels, tags, captions, by name (columns.py).
        skipped: the files that were left out.
        source: where the images came from, for messages.
        views: further augmented views of the same images, each as `images`; of features only.
        notes: choices made while reading that people should know of.

    Example:
        >>> import semisight as ss, torch
        >>> ss.ImageSet.of(torch.rand(2, 1, 8, 8), names=["a", "b"]).shape
        (1, 8, 8)
    """

    images: Tensor
    names: tuple[str, ...]
    columns: Mapping[str, Column] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    views: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        if self.images.dim() != 4 or self.images.dtype not in (torch.uint8, torch.float16, torch.float32):
            raise ValueError(
                f"images must be uint8 or float32 [N,C,H,W], not {self.images.dtype} {list(self.images.shape)}"
            )
        n = len(self.images)
        if len(self.names) != n:
            raise ValueError(f"{n} images but {len(self.names)} names")
        for name, column in self.columns.items():
            if name != column.name or len(column) != n:
                raise ValueError(f"{n} images but {column.name} for {len(column)}, kept as {name}")

    @classmethod
    def of(
        cls,
        images: Tensor,
        names: Sequence[str],
        labels: Tensor | None = None,
        class_names: Sequence[str] = (),
        captions: Sequence[Sequence[str]] | None = None,
        tags: TagColumn | None = None,
        *,
        skipped: Sequence[Skipped] = (),
        source: str = "",
        notes: Sequence[str] = (),
    ) -> Self:
        """A set from its parts; None for what no image carries."""
        found = [
            None if labels is None else LabelColumn(labels, tuple(class_names)),
            tags,
            None if captions is None else CaptionColumn(tuple(map(tuple, captions))),
        ]
        columns = {column.name: column for column in found if column is not None}
        return cls(images, tuple(names), columns, tuple(skipped), source, tuple(notes))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        C, H, W = self.images.shape[1:]
        return (C, H, W)

    @property
    def are_features(self) -> bool:
        """Whether these are feature maps in the pixels' place: a vector each, or more channels than a picture has."""
        return self.images.is_floating_point() and (self.shape[0] > 4 or self.shape[1:] == (1, 1))

    def batch(self, index: Tensor) -> Tensor:
        """The images at `index` as new float32 [B,C,H,W] in [0,1]."""
        chosen = self.images[index]
        if chosen.dtype == torch.uint8:
            return chosen.to(torch.float32).div_(255.0)
        return chosen.clone() if chosen.dtype == torch.float32 else chosen.float()

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
        return dataclasses.replace(
            self,
            images=self.images[chosen],
            names=tuple(self.names[i] for i in chosen.tolist()),
            columns={name: column.subset(chosen) for name, column in self.columns.items()},
            views=tuple(view[chosen] for view in self.views),
        )

    # ---- what the images carry ----

    @property
    def labels(self) -> Tensor | None:
        """int64 [N], -1 where unknown."""
        column = self.columns.get(LABELS)
        return column.values if isinstance(column, LabelColumn) else None

    @property
    def class_names(self) -> tuple[str, ...]:
        """One per class, in the order of the labels."""
        column = self.columns.get(LABELS)
        return column.class_names if isinstance(column, LabelColumn) else ()

    @property
    def tags(self) -> TagColumn | None:
        column = self.columns.get(TAGS)
        return column if isinstance(column, TagColumn) else None

    @property
    def captions(self) -> tuple[tuple[str, ...], ...] | None:
        """Of each image, possibly none."""
        column = self.columns.get(CAPTIONS)
        return column.texts if isinstance(column, CaptionColumn) else None

    def with_column(self, column: Column) -> "ImageSet":
        """The same images with this column, in place of the one of its name if there is one."""
        columns = in_order([*(other for other in self.columns.values() if other.name != column.name), column])
        return dataclasses.replace(self, columns={one.name: one for one in columns})

    def without_column(self, *names: str) -> "ImageSet":
        """The same images without the columns of these names."""
        return dataclasses.replace(self, columns={k: column for k, column in self.columns.items() if k not in names})

    def with_labels(self, labels: Tensor, class_names: Sequence[str]) -> "ImageSet":
        """The same images with other labels."""
        return self.with_column(LabelColumn(labels, tuple(class_names)))

    def noted(self, *notes: str) -> "ImageSet":
        """The same with something more that people should know."""
        return dataclasses.replace(self, notes=(*self.notes, *notes))


def _is_mask(index: Tensor | Sequence[int]) -> bool:
    if isinstance(index, Tensor):
        return index.dtype == torch.bool
    return len(index) > 0 and isinstance(index[0], bool)


def split(image_set: ImageSet, valid: int | float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Parts a set at random into (train, valid). `valid` is a number of images, or a share if it is a float below 1."""
    n = len(image_set)
    n_valid = round(valid * n) if isinstance(valid, float) and 0 < valid < 1 else int(valid)
    if not 0 < n_valid < n:
        raise UserError(
            f"cannot set {valid} of the {n} images of {image_set.source or 'this set'} aside for validation: "
            f"give a share between 0 and 1, or a number from 1 to {n - 1}, that leaves images on both sides"
        )
    order = random_order(n, seed, Stream.SPLIT)
    return image_set.subset(order[n_valid:].sort().values), image_set.subset(order[:n_valid].sort().values)


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
