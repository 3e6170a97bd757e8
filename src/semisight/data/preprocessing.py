"""From an image file to what a pretrained network takes, and the augmented views of it that are worth caching.

    view 0   plain: the centre square of `crop` x the short side, scaled to `size` x `size` in one step
    view 2   its mirror image
    view 1, 3.. a random part (0.6 to 1 of the area, 3:4 to 4:3), mirrored or not, other brightness, contrast, colour

A view is drawn from the content of its file and its number: the same on every machine, in every run.
Nothing here imports torch: the processes that work out features start with this file.
"""

import difflib
import functools
import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import exp, log, sqrt
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

from semisight.errors import UserError

Pictures = npt.NDArray[np.uint8]  # [B, 3, size, size], red, green, blue in 0..255

_AREA, _RATIO, _JITTER = (0.6, 1.0), (3 / 4, 4 / 3), 0.4
_INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Preprocessing:
    """What a network wants done to an image before it sees it: x of 0..255 becomes (x * scale - mean) / std.

    Args:
        size: side of the square input.
        crop: share of the short side that the centre square keeps.
        squash: scale the whole image to the square instead, whatever its shape.
        interpolation: nearest, bilinear, bicubic or lanczos.
        scale: factor of the pixels, before mean and std.
        mean: one number, or one for each of red, green and blue.
        std: likewise.
        channels: order in which the network takes the colours.
        layout: nchw (channels first) or nhwc.

    Example:
        >>> lite = Preprocessing(224, scale=1.0, mean=127.0, std=128.0)
        >>> lite.normalised(np.full((1, 3, 224, 224), 255, np.uint8)).max()
        np.float32(1.0)
    """

    size: int
    crop: float = 0.875
    squash: bool = False
    interpolation: str = "bicubic"
    scale: float = 1 / 255
    mean: float | tuple[float, ...] = (0.485, 0.456, 0.406)
    std: float | tuple[float, ...] = (0.229, 0.224, 0.225)
    channels: Literal["rgb", "bgr"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 4096:
            raise UserError(f"the input size of a network must be a whole number of pixels, not {self.size!r}")
        if self.interpolation not in _INTERPOLATIONS:
            raise UserError(f"interpolation is one of {', '.join(_INTERPOLATIONS)}, not {self.interpolation!r}")
        if self.channels not in ("rgb", "bgr") or self.layout not in ("nchw", "nhwc"):
            raise UserError(f"channels are rgb or bgr, layout nchw or nhwc; not {self.channels!r}, {self.layout!r}")
        for name in ("crop", "scale", "mean", "std"):
            value = getattr(self, name)
            for number in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
                if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e12:
                    raise UserError(f"the preprocessing is not as it should be: {name} holds {number!r}, no number")
        for name in ("mean", "std"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and len(value) not in (1, 3):
                raise UserError(f"{name} is one number, or three (red, green, blue), not {len(value)}")
        if not 0 < self.crop <= 1:
            raise UserError(f"crop is a share of the short side, above 0 and at most 1, not {self.crop}")
        if np.any(np.asarray(self.std) == 0):
            raise UserError("std of the preprocessing has a 0 in it: pixels would be divided by it")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str) -> "Preprocessing":
        """From the YAML file or the options of a user."""
        known = [entry.name for entry in fields(cls)]
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise UserError(f"{where}: there is no setting {key!r} of the preprocessing{hint} ({', '.join(known)})")
        lists: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        try:
            return cls(**lists)
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: the preprocessing is not as it should be: {error}") from error

    def describe(self) -> dict[str, Any]:
        """As JSON can hold it; `from_mapping` reads it again."""
        return asdict(self)

    def picture(self, image: Image.Image, view: int = 0, seed: str = "") -> npt.NDArray[np.uint8]:
        """One view of an image in red, green and blue, uint8 [3, size, size]; `seed` names the image."""
        how, target = _INTERPOLATIONS[self.interpolation], (self.size, self.size)
        if view in (0, 2):  # of one further view, a random part is worth more than the mirror image
            scaled = image.resize(target, how, box=self._centre(*image.size))
            if view == 2:
                scaled = scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            rng = random.Random(f"{seed}-{view}")
            scaled = image.resize(target, how, box=_random_box(rng, *image.size))
            if rng.random() < 0.5:
                scaled = scaled.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            for enhance in rng.sample((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color), 3):
                scaled = enhance(scaled).enhance(rng.uniform(1 - _JITTER, 1 + _JITTER))
        return np.asarray(scaled).transpose(2, 0, 1)

    def _centre(self, width: int, height: int) -> tuple[float, float, float, float]:
        if self.squash:
            return (0, 0, width, height)
        side = self.crop * min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def normalised(self, pictures: Pictures | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Pictures uint8 [B, 3, size, size] as the network takes them; float32 is taken to be that already."""
        if pictures.dtype == np.float32:
            return np.ascontiguousarray(pictures, np.float32)
        if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[1:] != (3, self.size, self.size):
            wanted = f"uint8 [B, 3, {self.size}, {self.size}]"
            raise UserError(f"the network takes pictures as {wanted}, not {pictures.dtype} {list(pictures.shape)}")
        factor, offset = _affine(self)
        values = pictures.astype(np.float32)
        values *= factor
        values += offset
        if self.channels == "bgr":
            values = values[:, ::-1]
        if self.layout == "nhwc":
            values = values.transpose(0, 2, 3, 1)
        return np.ascontiguousarray(values)


@functools.cache
def _affine(preprocessing: Preprocessing) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """(x * scale - mean) / std as x * factor + offset, float32 [3, 1, 1]: one pass over the pixels less."""
    mean = np.broadcast_to(np.asarray(preprocessing.mean, np.float64), 3)
    std = np.broadcast_to(np.asarray(preprocessing.std, np.float64), 3)
    shaped = [value.astype(np.float32).reshape(3, 1, 1) for value in (preprocessing.scale / std, -mean / std)]
    return shaped[0], shaped[1]


def _random_box(rng: random.Random, width: int, height: int) -> tuple[float, float, float, float]:
    """The part of an image that a random view shows."""
    for _ in range(10):
        area = rng.uniform(*_AREA) * width * height
        ratio = exp(rng.uniform(log(_RATIO[0]), log(_RATIO[1])))
        w, h = sqrt(area * ratio), sqrt(area / ratio)
        if w <= width and h <= height:
            break
    else:  # a panorama: its largest part of an allowed shape
        w, h = min(width, height * _RATIO[1]), min(height, width / _RATIO[0])
    left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
    return (left, top, left + w, top + h)


@dataclass(frozen=True)
class WorkerJob:
    """How a process of its own makes the same network again: a module with a `main`, and what it reads as JSON."""

    module: str
    network: Mapping[str, Any] = field(default_factory=dict)


class Backbone(Protocol):
    """A fixed map from image to feature map.

    name, licence    for people
    fingerprint      of weights, preprocessing and output: two backbones that share it give the same features
    input_size       side of the square input
    feature_shape    (C, h, w); pooled features have (C, 1, 1)
    job              how worker processes make it again; None if it only runs in this process
    """

    @property
    def name(self) -> str: ...
    @property
    def licence(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def input_size(self) -> int: ...
    @property
    def feature_shape(self) -> tuple[int, int, int]: ...
    @property
    def preprocessing(self) -> Preprocessing: ...
    @property
    def job(self) -> WorkerJob | None: ...
    def features(self, pictures: Pictures | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """uint8 [B, 3, input_size, input_size], or float32 as the network takes it, to float32 [B, C, h, w]."""
        ...


def fingerprint_of(weights: str, preprocessing: Preprocessing, output: str) -> str:
    """One name for what a network makes of an image; `weights` is a hash of them."""
    text = json.dumps([weights, preprocessing.describe(), output], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
