"""What the sections of the page draw from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from markupsafe import Markup
from torch import Tensor

from semisight.data.formats.pictures import Unreadable, read_upright
from semisight.data.image_set import ImageSet
from semisight.model.pixel_decoder import PixelDecoder
from semisight.report import page
from semisight.report.observe import Seen, some
from semisight.runs.images import Sets
from semisight.runs.pictures import picture, to_pixels
from semisight.runs.run import DataRecord, Run

if TYPE_CHECKING:
    from semisight.report.codes import CodesSeen

_LARGEST_TILE = 128  # larger pictures are scaled down: a page of photographs must still open


@dataclass(frozen=True)
class Material:
    """All that a section may draw from."""

    run: Run
    sets: Sets
    record: DataRecord
    seen: Seen | None  # None for a model of features, whose dictionary is no picture
    codes: "CodesSeen"
    log: Sequence[Mapping[str, Any]]
    same_images: bool  # whether the images are those of the training
    found: Mapping[str, Any] = field(default_factory=dict)  # of each target, what its part of the page shows
    decoder: PixelDecoder | None = None  # of a model of features: what draws its codes

    @property
    def pixels(self) -> Seen:
        """What the model does with pixels."""
        assert self.seen is not None
        return self.seen

    @property
    def seed(self) -> int:
        return self.run.config.seed

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def examples(self, n: int) -> tuple[Tensor, tuple[str, ...]]:
        """Images [n, C, H, W] to show, with names: not trained on, where there are such."""
        images = some(self.sets.train if self.sets.valid is None else self.sets.valid, n, self.seed)
        return images.batch(torch.arange(len(images))), images.names


def shown(images: ImageSet, i: int, side: int = _LARGEST_TILE) -> Tensor:
    """Image i as people see it, [C, H, W]; of a set of features, its file, at most `side` wide and high."""
    if not images.are_features:
        return images.batch(torch.tensor([i]))[0]
    try:
        whole = read_upright(Path(images.source) / images.names[i], side)
        whole.thumbnail((side, side))
        pixels = np.asarray(whole).transpose(2, 0, 1)
        return torch.from_numpy(pixels.copy()).float() / 255
    except (Unreadable, OSError):  # images that were given in memory, or have moved
        return torch.full((3, 32, 32), 0.8)


def tile(image: Tensor, text: str) -> Markup:
    """One image [C, H, W] as it is shown on the page."""
    drawn = picture(to_pixels(image[None])[0])
    if max(drawn.size) > _LARGEST_TILE:
        drawn.thumbnail((_LARGEST_TILE, _LARGEST_TILE))
    return page.img(drawn, text)


def tile_width(m: Material) -> str:
    return "4.6rem" if 1 < max(m.run.architecture.image_shape[1:]) <= 64 else "7rem"
