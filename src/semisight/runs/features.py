"""The model on the features of a pretrained network: X is the feature map, all else is as with pixels.

Captions and tags, and labels beside them, are learned by gradient, with a small network as encoder
(model/encoders/feature_network.py) and the paper's decoder with 1 x 1 filters. Labels alone have a closed form
(on_features.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.model.decoder import Decoder
from semisight.model.encoders.feature_network import FeatureNetwork, grid_architecture, place_architecture
from semisight.model.image_model import ImageModel
from semisight.objectives.step import Plan
from semisight.random import Stream, reseed
from semisight.runs.settings import Settings

CODE_SIZE, HIDDEN, DROPOUT = 256, 512, 0.2
PLACE_MAPS = 512  # of a code that keeps the places of a grid
MOST_HIDDEN = 100_000  # units of a network that a stranger describes
# Those of an earlier prototype on Flickr8k; nothing has been searched with this code yet.
DEFAULTS: dict[str, Any] = {
    "nonlinearity": "none",
    "consistency": False,  # augmented pixels; features have their views
    "learning_rate": 1e-3,
    "weight_decay": 0.01,
    "warmup_steps": 100,
    "average_decay": 0.995,
}


def architecture_of(settings: Settings, shape: tuple[int, int, int]) -> Architecture:
    if settings.model.preset is not None:
        raise UserError("a preset has layers for pixels: leave it out with --backbone.")
    if settings.model.layers:
        return settings.model.architecture(shape)
    keeps_places = settings.captions.attention and shape[1:] != (1, 1)
    return place_architecture(shape, PLACE_MAPS) if keeps_places else grid_architecture(shape, CODE_SIZE)


def build(architecture: Architecture, hidden_size: int = HIDDEN, dropout: float = DROPOUT, seed: int = 0) -> ImageModel:
    """Untrained."""
    if hidden_size > MOST_HIDDEN:
        raise UserError(f"it describes a network of {hidden_size:,} units, which is beyond reason")
    generator = torch.Generator().manual_seed(seed)
    encoder = FeatureNetwork(architecture, hidden_size, dropout, generator)
    return ImageModel(encoder, Decoder(architecture, generator))


def about(settings: Settings, architecture: Architecture) -> dict[str, Any]:
    """What a checkpoint says of it beside the architecture."""
    return {
        "n_features": architecture.image_shape[0],
        "code_size": architecture.code_size,
        "backbone": settings.data.backbone,
        "views": settings.data.views,
        "grid": settings.data.grid,
        "network": {"hidden_size": HIDDEN, "dropout": DROPOUT},
    }


def build_described(described: Mapping[str, Any], seed: int = 0) -> ImageModel:
    """From what a checkpoint says."""
    network = described["features"]["network"]
    architecture = Architecture.from_dict(described["architecture"])
    return build(architecture, int(network["hidden_size"]), float(network["dropout"]), seed)


# ---- views ----


@dataclass(frozen=True)
class EveryView:
    """A set with several views of each image: row i + v N is view v of image i."""

    images: ImageSet

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: Tensor) -> Tensor:
        n = len(self.images)
        found = self.images.batch(index % n)
        for number, view in enumerate(self.images.views, start=1):
            chosen = (index // n == number).nonzero().squeeze(1)
            found[chosen] = view[index[chosen] % n].to(found)
        return found


@dataclass(frozen=True)
class DrawnViews:
    """A plan that takes a view of each image at random."""

    plan: Plan
    n_images: int
    n_views: int

    @property
    def steps_per_epoch(self) -> int:
        return self.plan.steps_per_epoch

    def indices(self, step: int, seed: int) -> Tensor:
        index = self.plan.indices(step, seed)
        generator = reseed(torch.Generator(), seed, Stream.VIEWS, step)
        return index + self.n_images * torch.randint(self.n_views, index.shape, generator=generator)
