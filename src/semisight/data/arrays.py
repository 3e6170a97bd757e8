"""Raw arrays to image tensors: pixel range, axes, channels and size, checked once for every kind of file.

The model wants pixels in [0, 1]. uint8 counts as 0..255, floats must lie in [0, 1] already; nothing is guessed.
"""

import math
import os

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.data.columns import TagColumn
from semisight.errors import UserError

Array = npt.NDArray[np.generic]

_CHUNK = 2048  # images converted at a time: the float copies then stay small beside the set itself
_SLACK = 1e-4  # floats that a resize left just outside [0, 1] are clipped, not refused
_MAX_CLASSES = 100_000
_GREY = (0.299, 0.587, 0.114)  # luminance of ITU-R 601, as Pillow's own conversion has it


def memory_limit() -> int:
    """Bytes that one set may take: three quarters of the machine's memory, or 16 GiB where that is unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    except (AttributeError, ValueError, OSError):
        return 16 << 30


def refuse_beyond(limit: int, n_bytes: int, what: str) -> None:
    """Refuses a size before anything of it is allocated."""
    if n_bytes > limit:
        raise UserError(
            f"{what} would take {n_bytes:,} bytes, more than the {limit:,} allowed here: "
            f"read fewer images (limit=) or smaller ones (size=), or check that the file is what you think it is"
        )


def check_pixels(array: Array, where: str) -> Array:
    """uint8 in 0..255 or float32 in [0, 1], from booleans, whole numbers in 0..255, or floats in [0, 1]."""
    kind = array.dtype.kind
    if array.size == 0:
        raise UserError(f"{where}: the images have shape {list(array.shape)}: there is nothing in them")
    if array.dtype == np.uint8:
        return array
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if kind not in "iuf":
        raise UserError(f"{where}: pixels have type {array.dtype}; save them as uint8 (0..255) or float32 (0..1)")
    low, high = float(array.min()), float(array.max())
    if not math.isfinite(low) or not math.isfinite(high):
        raise UserError(f"{where}: some pixels are NaN or infinite; replace or leave out those images and save again")
    found = f"{where}: pixels go from {low:g} to {high:g}"
    if kind in "iu":
        if low >= 0 and high <= 255:
            return array.astype(np.uint8)
        raise UserError(f"{found}, but whole numbers must lie in 0..255; {_advice(low, high)}")
    if low >= -_SLACK and high <= 1 + _SLACK:
        return np.clip(array.astype(np.float32), 0.0, 1.0)
    raise UserError(f"{found}, but floats must lie in 0..1; {_advice(low, high)}")


def _advice(low: float, high: float) -> str:
    if low >= 0 and high <= 255:
        return "divide them by 255, or save them as uint8"
    if low >= 0 and high <= 65535:
        return "divide them by 65535 and save them as float32, or by 257 and save them as uint8"
    if low >= -1 - _SLACK and high <= 1 + _SLACK:
        return "save (x + 1) / 2 instead"
    return "rescale them, for instance (x - low) / (high - low) with one low and high for the whole set"


def channels_first(array: Array, where: str) -> Array:
    """[N,C,H,W] from [N,H,W], [N,H,W,C] or [N,C,H,W], C being 1, 3 or 4.

    Where both readings are possible the one with square images wins, then channels last, which is numpy's custom.
    """
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4:
        _, a, b, c = array.shape
        readings = []
        if c in (1, 3, 4):
            readings.append((a != b, 0))
        if a in (1, 3, 4):
            readings.append((b != c, 1))
        if readings:
            return array if min(readings)[1] else np.moveaxis(array, 3, 1)
    raise UserError(
        f"{where}: images have shape {list(array.shape)}; "
        "they must be [N,H,W], [N,H,W,C] or [N,C,H,W] with C = 1, 3 or 4"
    )


def check_labels(array: Array, n: int, where: str) -> tuple[Tensor, tuple[str, ...]]:
    """int64 [N] labels, -1 where unknown, and the class names "0", "1", ... up to the largest."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n,):
        raise UserError(
            f"{where}: labels have shape {list(array.shape)}, but there are {n} images: one label each, [{n}]"
        )
    if array.dtype.kind not in "iu":
        raise UserError(f"{where}: labels have type {array.dtype}; they must be whole numbers, -1 where unknown")
    low, high = (int(array.min()), int(array.max())) if n else (0, 0)
    if low < -1 or high >= _MAX_CLASSES:
        raise UserError(
            f"{where}: labels go from {low} to {high}; "
            "number the classes 0, 1, 2, ... and use -1 where the label is unknown"
        )
    return torch.from_numpy(array.astype(np.int64)), tuple(str(c) for c in range(high + 1))


def check_tags(array: Array, names: Array | None, n: int, where: str) -> TagColumn:
    """int8 [N, C] tags of 1 (has it), 0 (has it not) and -1 (unknown); without names they are "0", "1", ..."""
    if array.ndim != 2 or len(array) != n:
        raise UserError(f"{where}: tags have shape {list(array.shape)}; they must be [{n}, C], a column for each tag")
    if array.dtype.kind not in "biuf" or not np.isin(array, (-1, 0, 1)).all():
        raise UserError(f"{where}: tags must be 1 (has it), 0 (has it not) or -1 (unknown), and nothing else")
    listed = tuple(str(c) for c in range(array.shape[1])) if names is None else texts(names)
    if len(listed) != array.shape[1] or len(set(listed)) != len(listed):
        raise UserError(f"{where}: `tag_names` must be a list of {array.shape[1]} different names, one per column")
    return TagColumn(torch.from_numpy(array.astype(np.int8)), listed)


def texts(array: Array) -> tuple[str, ...]:
    """The texts of a list of them; none of anything else."""
    if array.ndim != 1 or array.dtype.kind not in "US":
        return ()
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in array.tolist())


def to_tensor(array: Array) -> Tensor:
    """A tensor on the same memory where torch can write to it, else on a copy."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def fit(images: Tensor, size: int | None = None, channels: int | None = None) -> Tensor:
    """Images of the wanted channels (1 or 3) and square size: shorter side scaled, longer side cropped in the middle.

    Four channels are red, green, blue and opacity, laid on white.
    """
    C, H, W = images.shape[1:]
    wanted = channels if channels is not None else (3 if C == 4 else C)
    if wanted == C and size in (None, H) and (size is None or size == W):
        return images
    height, width = (H, W) if size is None else (size, size)
    out = torch.empty((len(images), wanted, height, width), dtype=images.dtype)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK]
        scale = 255.0 if chunk.dtype == torch.uint8 else 1.0
        x = _to_channels(chunk.to(torch.float32) / scale, wanted)
        if size is not None and (size, size) != (H, W):
            x = _scale_and_crop(x, size)
        x = x.clamp(0, 1) * scale
        out[start : start + _CHUNK] = x.round() if chunk.dtype == torch.uint8 else x
    return out


def _to_channels(x: Tensor, wanted: int) -> Tensor:
    if x.shape[1] == 4:
        x = x[:, :3] * x[:, 3:] + (1 - x[:, 3:])
    if x.shape[1] == 3 and wanted == 1:
        return (x * x.new_tensor(_GREY)[:, None, None]).sum(1, keepdim=True)
    return x.expand(-1, wanted, -1, -1)


def _scale_and_crop(x: Tensor, size: int) -> Tensor:
    H, W = x.shape[2:]
    short = min(H, W)
    height, width = max(size, round(H * size / short)), max(size, round(W * size / short))
    x = F.interpolate(x.contiguous(), (height, width), mode="bilinear", antialias=True, align_corners=False)
    top, left = (height - size) // 2, (width - size) // 2
    return x[:, :, top : top + size, left : left + size]
