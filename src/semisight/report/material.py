"""What the sections of the page draw from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semisight.report import page
from semisight.report.observe import Seen, some
from semisight.runs.images import Sets
from semisight.runs.pictures import picture, to_pixels
from semisight.runs.run import DataRecord, Run

_LARGEST_TILE = 128  # larger pictures are scaled down: a page of photographs must still open


@dataclass(frozen=True)
class Material:
    """All that a section may draw from."""

    run: Run
    sets: Sets
    record: DataRecord
    seen: Seen
    log: Sequence[Mapping[str, Any]]
    same_images: bool  # whether the images are those of the training
    found: Mapping[str, Any] = field(default_factory=dict)  # of each target, what its part of the page shows

    @property
    def seed(self) -> int:
        return self.run.config.seed

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)

    def examples(self, n: int) -> tuple[Tensor, tuple[str, ...]]:
        """Images [n, C, H, W] to show, with names: not trained on, where there are such."""
        images = some(self.sets.train if self.sets.valid is None else self.sets.valid, n, self.seed)
        return images.batch(torch.arange(len(images))), images.names


def tile(image: Tensor, text: str) -> str:
    """One image [C, H, W] as it is shown on the page."""
    drawn = picture(to_pixels(image[None])[0])
    if max(drawn.size) > _LARGEST_TILE:
        drawn.thumbnail((_LARGEST_TILE, _LARGEST_TILE))
    return page.img(drawn, text)


def tile_width(m: Material) -> str:
    return "4.6rem" if max(m.run.architecture.image_shape[1:]) <= 64 else "7rem"
