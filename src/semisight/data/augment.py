"""Augmentation: small turns, shifts, stretches and bends that leave what a picture shows the same.

    X' = light(X o warp),  warp = affine (turn, scale, aspect, shear, shift) + a smooth bend

What is assumed is that the label does not change under it. With `strength` 0 nothing changes. Photographs have
mirror images and are turned and bent less; drawings and writing have none: a mirrored 2 is not a 2. `crops` and
`strong` are for any set: the symmetries among them are those that the training labels allow (symmetries.py).
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.data.symmetries import Symmetries


@dataclass(frozen=True)
class Augment:
    """How far images are turned, shifted and so on, at most; lengths are shares of the image's half width.

    Example:
        >>> import semisight as ss, torch
        >>> images = ss.load("builtin:digits", limit=3).batch(torch.arange(3))
        >>> ss.Augment(mirror=True)(images, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 1, 8, 8])
    """

    turn: float = 0.26  # radians, 15 degrees
    scale: float = 0.15  # log of the factor
    aspect: float = 0.12  # log of the ratio
    shear: float = 0.2
    shift: float = 0.12
    bend: float = 0.05  # standard deviation of a 5 x 5 grid of displacements
    light: float = 0.3  # log of the factor
    mirror: bool = False
    flip: bool = False  # upside down
    quarters: bool = False  # turns by 0, 1, 2 or 3 quarters
    cutout: float = 0.0  # a square of at most this share of the width is grey
    whole_pixels: bool = False  # shifts by whole pixels, which do not blur; for an augmentation that only shifts

    def __call__(self, images: Tensor, generator: torch.Generator, strength: float = 1.0) -> Tensor:
        """Augments every image [B, C, H, W] of [0, 1] in its own way."""
        return warp(images, self.draw(images.shape[0], generator, strength))

    def of_rows(self, images: Tensor, generator: torch.Generator, strength: float, total: int, start: int) -> Tensor:
        """The same for images that are rows `start` .. of a batch of `total`, for all of which numbers are drawn."""
        return warp(images, self.draw(total, generator, strength).rows(slice(start, start + len(images))))

    def draw(self, n: int, generator: torch.Generator, strength: float = 1.0) -> "Warp":
        def spread(reach: float, *shape: int) -> Tensor:
            return (torch.rand(n, *shape, generator=generator) * 2 - 1) * reach * strength

        turn, scale, aspect, shear = (spread(r) for r in (self.turn, self.scale, self.aspect, self.shear))
        shift = spread(self.shift, 2)
        zoom, stretch = scale.exp(), aspect.exp()
        mirror = (torch.rand(n, generator=generator) < 0.5).float() * -2 + 1 if self.mirror else torch.ones(n)
        rows = [turn.cos() * zoom * stretch * mirror, shear - turn.sin() * zoom, shift[:, 0]]
        rows += [turn.sin() * zoom * mirror, turn.cos() * zoom / stretch, shift[:, 1]]
        bend = torch.randn(n, 2, 5, 5, generator=generator) * self.bend * strength
        drawn = Warp(torch.stack(rows, 1).view(n, 2, 3), bend, spread(self.light).exp(), whole=self.whole_pixels)
        return self._further(drawn, n, generator, strength)

    def _further(self, drawn: "Warp", n: int, generator: torch.Generator, strength: float) -> "Warp":
        """Random numbers for these come last, and only where they are asked for: the others stay what they were."""
        affine = drawn.affine
        if self.flip:
            up = (torch.rand(n, generator=generator) < 0.5).float() * -2 + 1
            affine = affine * torch.stack([torch.ones(n), up, torch.ones(n)], 1)[:, None]
        if self.quarters:
            turn = torch.randint(4, (n,), generator=generator) * (torch.pi / 2)
            cos, sin = turn.cos().round(), turn.sin().round()
            by = torch.stack([cos, -sin, sin, cos], 1).view(n, 2, 2)
            affine = torch.cat([affine[..., :2] @ by, affine[..., 2:]], 2)
        box = torch.rand(n, 3, generator=generator) if self.cutout > 0 else None
        if box is not None:
            box = box * torch.tensor([1.0, 1.0, self.cutout * min(1.0, strength)])
        return replace(drawn, affine=affine, box=box)


# Chosen on CIFAR-10 with 4,000 labels; a photograph is of things that stand upright (docs/experiments.md).
PHOTO_AUGMENT = Augment(turn=0.09, scale=0.09, aspect=0.07, shear=0.07, shift=0.15, bend=0.02, light=0.18, mirror=True)
AugmentName = Literal["auto", "drawings", "photos"]


def augment_for(channels: int, name: AugmentName = "auto") -> Augment:
    """The augmentation of that name; "auto" takes images in colour for photographs, all others for drawings."""
    photos = channels == 3 if name == "auto" else name == "photos"
    return PHOTO_AUGMENT if photos else Augment()


# Captions say where things are and what colour they have: far less may change.
CAPTION_AUGMENT = Augment(turn=0.1, scale=0.1, aspect=0.05, shear=0.05, shift=0.1, bend=0.0, light=0.1)


@dataclass(frozen=True)
class Warp:
    """One augmentation per image: affine [B, 2, 3], bend [B, 2, 5, 5], light [B], box [B, 3] (centre, side) or none."""

    affine: Tensor
    bend: Tensor
    light: Tensor
    box: Tensor | None = None
    whole: bool = False

    def rows(self, rows: slice) -> "Warp":
        box = None if self.box is None else self.box[rows]
        return replace(self, affine=self.affine[rows], bend=self.bend[rows], light=self.light[rows], box=box)


def warp(images: Tensor, drawn: Warp) -> Tensor:
    """Applies one drawn augmentation to each image; what comes in from outside repeats the border."""
    size = images.shape[-2:]
    if drawn.whole:
        half = images.new_tensor([size[1] / 2, size[0] / 2])
        shift = (drawn.affine[..., 2].to(images) * half).round() / half
        affine = torch.cat([drawn.affine[..., :2].to(images), shift[..., None]], 2)
        grid = F.affine_grid(affine, list(images.shape), align_corners=False)
        return _cut(F.grid_sample(images, grid, "nearest", "border", align_corners=False), drawn.box)
    grid = F.affine_grid(drawn.affine.to(images), list(images.shape), align_corners=False)
    bend = F.interpolate(drawn.bend.to(images), size=size, mode="bicubic", align_corners=True)
    grid = grid + bend.permute(0, 2, 3, 1)
    moved = F.grid_sample(images, grid, align_corners=False, padding_mode="border")
    return _cut((moved * drawn.light.to(images)[:, None, None, None]).clamp(0, 1), drawn.box)


def _cut(images: Tensor, box: Tensor | None) -> Tensor:
    """With a grey square in each image (DeVries and Taylor, 2017)."""
    if box is None:
        return images
    x, y, side = box.to(images).T[:, :, None]

    def within(n: int, centre: Tensor) -> Tensor:
        return ((torch.arange(n, device=images.device) + 0.5) / n - centre).abs() < side / 2

    cut = within(images.shape[2], y)[:, None, :, None] & within(images.shape[3], x)[:, None, None, :]
    return torch.where(cut, images.mean((1, 2, 3), keepdim=True), images)


def crops(symmetries: Symmetries, cutout: float = 0.0) -> Augment:
    """Shifts by whole pixels and what symmetries there are: the weak augmentation of any set."""
    return Augment(0, 0, 0, 0, 0.125, 0, 0, *_of(symmetries), cutout=cutout, whole_pixels=True)


def strong(symmetries: Symmetries) -> Augment:
    """The strong augmentation of any set; how far each image goes is drawn anew every time."""
    return Augment(0.26, 0.2, 0.12, 0.2, 0.16, 0.04, 0.4, *_of(symmetries), cutout=0.5)


def _of(symmetries: Symmetries) -> tuple[bool, bool, bool]:
    return symmetries.mirror, symmetries.flip, symmetries.turn
