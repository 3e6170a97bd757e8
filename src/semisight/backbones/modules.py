"""A `torch.nn.Module` of the user's own as a backbone: any network that takes images, timm's included.

What its output is follows from its shape, as for ONNX files. A module with timm's `forward_features` gives that (and
`forward_head(..., pre_logits=True)` as pooled), with the preprocessing of its `pretrained_cfg` unless another is given.
"""

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from semisight.backbones.converting import as_backbone
from semisight.data.preprocessing import Backbone, Preprocessing
from semisight.errors import UserError


class PooledAndMap(nn.Module):
    """A module's output as (pooled [B, C],) or (pooled, map [B, C, h, w])."""

    def __init__(self, module: nn.Module, layout: str) -> None:
        super().__init__()
        self.module, self.layout = module, layout
        own = getattr(module, "forward_features", None)
        self.of_timm = callable(own)
        self.body: Any = own if self.of_timm else module
        self.head = getattr(module, "forward_head", None) if self.of_timm else None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        found = self.body(images)
        if not isinstance(found, Tensor):
            raise UserError(
                f"a module that is a backbone must give one tensor, not {type(found).__name__}: "
                "wrap it in a module whose forward returns the features"
            )
        parts = split(found, self.layout)
        if callable(self.head):
            parts = (self.head(found, pre_logits=True), *parts[1:])
        return parts


def split(found: Tensor, layout: str = "nchw") -> tuple[Tensor, ...]:
    """[B, C], [B, C, h, w] (nhwc: [B, h, w, C]) or tokens [B, T, C] as (pooled,) or (pooled, map)."""
    if found.ndim == 2:
        return (found,)
    if found.ndim == 4:
        maps = found.permute(0, 3, 1, 2) if layout == "nhwc" else found
        return maps.mean((2, 3)), maps
    if found.ndim == 3:
        side = int(found.shape[1] ** 0.5)
        first = found.shape[1] - side * side  # class token and registers come before the places
        maps = found[:, first:].transpose(1, 2).unflatten(2, (side, side))
        return (found[:, 0] if first else maps.mean((2, 3))), maps
    raise UserError(f"features are [B, C], [B, C, h, w] or [B, T, C]; this network gives {list(found.shape)}")


def open_module(
    module: nn.Module, *, pooled: bool = True, preprocessing: Preprocessing | Mapping[str, Any] | None = None
) -> Backbone:
    """A module as a backbone, as it is now, used as in evaluation; the module itself is left alone."""
    name = type(module).__name__
    if not isinstance(preprocessing, Preprocessing):
        known = _of_timm(getattr(module, "pretrained_cfg", None))
        given = {**known, **(preprocessing or {})}
        if "size" not in given:
            raise UserError(
                f"how {name} wants its images is not known: give "
                "preprocessing=dict(size=224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)) or what it was "
                "trained with; pixels are taken as (x * scale - mean) / std, x from 0 to 255, scale 1/255 unless given"
            )
        preprocessing = Preprocessing.from_mapping(given, name)
    layout = preprocessing.layout

    def network() -> nn.Module:
        # A copy: whoever goes on training the module must not change what the fingerprint stands for.
        return PooledAndMap(copy.deepcopy(module).cpu().float(), layout).eval()

    return as_backbone(network, state_hash(module), preprocessing, pooled=pooled, name=name, licence="not stated")


def state_hash(module: nn.Module) -> str:
    """Of a module's structure and of every number in it."""
    digest = hashlib.sha256(f"{type(module).__module__}.{type(module).__qualname__}\n{module}".encode())
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().tobytes())
    return digest.hexdigest()


def _of_timm(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    values = config if isinstance(config, Mapping) else vars(config)
    known: dict[str, Any] = {}
    if shape := values.get("input_size"):
        known["size"] = int(shape[-1])
    for theirs, ours in (("crop_pct", "crop"), ("mean", "mean"), ("std", "std"), ("interpolation", "interpolation")):
        if values.get(theirs) is not None:
            known[ours] = values[theirs]
    return known
