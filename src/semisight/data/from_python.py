"""What scikit-learn's people hand in, to images and labels: arrays of any layout, lists of paths, sets; and back.

layout   rows [N, D], planes [N, H, W], last [N, H, W, C] or first [N, C, H, W]; results come in that of the training
range    decided by the training images, for all that follows: 0..255 for bytes and other whole numbers that suit it,
         0..1 for floats that lie in it, else their own least and greatest value
"""

import contextlib
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semisight.data import load
from semisight.data.arrays import channels_first, fit, to_tensor
from semisight.data.features import refuse_unmarked
from semisight.data.formats.folders import choose_size
from semisight.data.formats.pictures import Unreadable, read_header, read_pixels
from semisight.data.image_set import ImageSet
from semisight.errors import UserError

Layout = Literal["rows", "planes", "last", "first", "features"]
Array = npt.NDArray[Any]
SQUARE = "square"  # in the place of a shape: rows become squares
_LEAST_SIDE = 4  # of an image that a row of numbers becomes
_FEW_VALUES = 16  # whole numbers up to here are taken for a range of their own, such as 0..16


class InputError(UserError, ValueError):
    """A user's mistake in Python, where scikit-learn expects a ValueError."""


@contextlib.contextmanager
def value_errors() -> Iterator[None]:
    """Lets mistakes surface as ValueErrors."""
    try:
        yield
    except InputError:
        raise
    except UserError as error:
        raise InputError(str(error)) from error


@dataclass(frozen=True)
class Form:
    """How images come in, decided by the training images.

    shape        of an image as the model takes it, (C, H, W)
    n_features   of a row, for layout "rows"
    pixel_range  the values that are black and white; None after learning from files: bytes 0..255, floats 0..1
    given        (C, H, W) of the arrays before they are scaled; None after learning from files: any is scaled
    """

    layout: Layout
    shape: tuple[int, int, int]
    n_features: int | None = None
    pixel_range: tuple[float, float] | None = None
    given: tuple[int, int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Form":
        limits = values["pixel_range"]
        return Form(
            values["layout"],
            tuple(values["shape"]),
            values["n_features"],
            None if limits is None else (float(limits[0]), float(limits[1])),
            None if values["given"] is None else tuple(values["given"]),
        )


# ---- in ----


def is_set(images: Any) -> bool:
    """Whether images are something other than numbers: a set, a source, a list of paths."""
    if isinstance(images, ImageSet | str | Path):
        return True
    return isinstance(images, list | tuple) and len(images) > 0 and isinstance(images[0], str | Path)


def read_set(images: Any, size: int | None, shape: tuple[int, int, int] | None = None) -> ImageSet:
    """A set from itself, from a source that `load` knows, or from paths; brought to `shape` if it is given."""
    if shape is not None and shape[1] == shape[2]:
        size = shape[1]
    channels = None if shape is None else shape[0]
    if isinstance(images, ImageSet):
        found = images
    elif isinstance(images, str | Path):
        found = load(images, size=size, channels=channels)
    else:
        found = _read_paths(images, size, shape)
    pixels = fit(found.images, size, channels)
    if shape is not None and tuple(pixels.shape[1:]) != tuple(shape):
        raise InputError(
            f"images are {list(pixels.shape[1:])} (channels, height, width), the model takes {list(shape)}"
        )
    return ImageSet(pixels, found.names, found.columns, source=found.source or "images")


def _read_paths(paths: Sequence[str | Path], size: int | None, shape: tuple[int, int, int] | None) -> ImageSet:
    where: str | Path = ""
    try:
        headers = []
        for where in paths:
            headers.append(read_header(where))
        if shape is not None:
            channels, height, width = shape
        else:
            height, width, _ = choose_size(headers, size)
            channels = 1 if all(header.grey for header in headers) else 3
        pixels = np.empty((len(paths), channels, height, width), np.uint8)
        for i, where in enumerate(paths):
            pixels[i] = read_pixels(where, height, width, channels)
    except Unreadable as error:
        raise InputError(f"{where} cannot be used: {error}; leave it out") from error
    return ImageSet(torch.from_numpy(pixels), tuple(str(path) for path in paths), source="a list of paths")


def form_of(array: Array, image_shape: Sequence[int] | str | None, size: int | None, wanted: Any) -> Form:
    """How the arrays of a training come; `wanted` is the range that was asked for, or None."""
    limits = _range(array, wanted)
    if array.ndim == 2:
        if image_shape is None:
            refuse_unmarked(array.shape)
        shaped = _rows_to_images(array, image_shape)
        return Form("rows", _shape(shaped, size), array.shape[1], limits, shaped.shape[1:])
    if array.ndim == 3:
        return Form("planes", _shape(array[:, None], size), None, limits, (1, *array.shape[1:]))
    first = channels_first(array, "images")
    return Form("first" if first is array else "last", _shape(first, size), None, limits, first.shape[1:])


def _shape(images: Array, size: int | None) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return (3 if channels == 4 else channels, size or height, size or width)


def to_images(array: Array, form: Form, image_shape: Sequence[int] | str | None) -> Tensor:
    """float32 [N, C, H, W] in [0, 1]; NaN stays."""
    if array.ndim == 2 and form.layout == "rows":
        shaped = _rows_to_images(array, image_shape)
    elif array.ndim == 3 and form.layout == "planes":
        shaped = array[:, None]
    elif array.ndim == 4 and form.layout in ("first", "last"):
        shaped = array if form.layout == "first" else np.moveaxis(array, 3, 1)
    elif array.ndim in (3, 4):  # another layout than in training, but pictures
        shaped = channels_first(array, "images")
    else:
        raise InputError(f"images have shape {list(array.shape)}, but the model learned from {form.layout}")
    if form.given is not None and shaped.shape[1:] not in (form.given, form.shape):
        raise InputError(
            f"images are {list(shaped.shape[1:])} (channels, height, width), the model takes {list(form.given)}"
        )
    pixels = to_tensor(_scaled(shaped, form.pixel_range).astype(np.float32))
    square = form.shape[1] if form.shape[1] == form.shape[2] else None
    if tuple(pixels.shape[1:]) != form.shape:
        pixels = fit(pixels, square, form.shape[0])
    if tuple(pixels.shape[1:]) != form.shape:
        raise InputError(
            f"images are {list(pixels.shape[1:])} (channels, height, width), the model takes {list(form.shape)}"
        )
    return pixels


def _rows_to_images(array: Array, image_shape: Sequence[int] | str | None) -> Array:
    """[N, C, H, W]. Of the shape "square", each number fills a stretch where they are not as many as pixels."""
    n, width = array.shape
    if image_shape not in (None, SQUARE):
        assert image_shape is not None and not isinstance(image_shape, str)
        if len(image_shape) not in (2, 3) or int(np.prod(image_shape)) != width:
            raise InputError(f"image_shape {tuple(image_shape)} does not suit rows of {width} numbers")
        return channels_first(array.reshape(n, *image_shape), "images of image_shape")
    return array[:, _stretches(width)].reshape(n, 1, _side(width), _side(width))


def _side(width: int) -> int:
    return max(_LEAST_SIDE, int(np.ceil(np.sqrt(width))))


def _stretches(width: int) -> npt.NDArray[np.int64]:
    """Which of `width` numbers each pixel of the square shows."""
    return np.arange(_side(width) ** 2) * width // _side(width) ** 2


def _range(array: Array, wanted: Any) -> tuple[float, float]:
    if wanted is not None:
        low, high = (float(value) for value in wanted)
        if not low < high:
            raise InputError(f"pixel_range must be (least, greatest), not {wanted!r}")
        return low, high
    low, high = float(np.nanmin(array)), float(np.nanmax(array))
    if array.dtype == np.uint8 or (array.dtype.kind in "iu" and low >= 0 and _FEW_VALUES < high <= 255):
        return 0.0, 255.0
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (low, high) if low < high else (low, low + 1)


def _scaled(array: Array, limits: tuple[float, float] | None) -> Array:
    if limits is not None:
        low, high = limits
        return np.clip((array.astype(np.float64) - low) / (high - low), 0, 1)
    if array.dtype.kind in "iub":
        return np.clip(array / 255.0, 0, 1)
    return np.clip(array, 0, 1)


# ---- out ----


def from_images(pixels: Tensor, form: Form, image_shape: Sequence[int] | str | None) -> Array:
    """Images [N, C, H, W] in [0, 1] in the layout and the range of the training images, as floats."""
    images = pixels.clamp(0, 1).double().numpy()
    if form.pixel_range is not None:
        low, high = form.pixel_range
        images = low + images * (high - low)
    if form.layout == "first":
        return images
    if form.layout == "last":
        return np.moveaxis(images, 1, 3)
    if form.layout == "planes":
        return images[:, 0]
    return _images_to_rows(images, form, image_shape)


def _images_to_rows(images: Array, form: Form, image_shape: Sequence[int] | str | None) -> Array:
    n, width = len(images), form.n_features
    if image_shape not in (None, SQUARE):
        assert image_shape is not None and not isinstance(image_shape, str)
        was_last = len(image_shape) == 3 and tuple(image_shape) != images.shape[1:]
        images = np.moveaxis(images, 1, 3) if was_last else images
        rows = images.reshape(n, -1)
        if rows.shape[1] != width:
            raise InputError("the images were scaled (size=...): they do not go back to rows")
        return rows
    assert width is not None
    which = _stretches(width)
    sums: Array = np.add.reduceat(images.reshape(n, -1), np.searchsorted(which, np.arange(width)), axis=1)
    return sums / np.bincount(which, minlength=width)


# ---- labels ----


@dataclass(frozen=True, eq=False)
class Labels:
    """classes, sorted; int64 [N] places among them, -1 where unknown."""

    classes: Array
    numbers: Tensor

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(name) for name in self.classes.tolist())


def read_labels(labels: Any, unknown: Any) -> Labels:
    """Labels of any kind; None, NaN and `unknown` (also as text) stand for a label that is not known."""
    values = np.asarray(labels, dtype=object) if isinstance(labels, list | tuple) else np.asarray(labels)
    known = np.array([not _is_unknown(value, unknown) for value in values.tolist()], dtype=bool)
    given = values[known]
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise InputError("labels contain infinity; an unknown label is None, NaN or -1")
    if given.dtype == object:
        given = np.array([value for value in given.tolist()])
    if given.dtype.kind == "f" and len(given) and bool((given == np.floor(given)).all()) and not known.all():
        given = given.astype(np.int64)  # a column with gaps is read as floats by many tools
    classes, places = np.unique(given, return_inverse=True)
    result = torch.full((len(values),), -1, dtype=torch.int64)
    result[torch.from_numpy(known)] = torch.from_numpy(places.astype(np.int64)).reshape(-1)
    return Labels(classes, result)


def _is_unknown(value: Any, unknown: Any) -> bool:
    if value is None:
        return True
    if isinstance(value, numbers.Real):
        return bool(np.isnan(float(value))) or (unknown is not None and value == unknown)
    return unknown is not None and value == str(unknown)


def read_captions(captions: Sequence[Any], n: int) -> tuple[tuple[str, ...], ...]:
    """Per image: a text, a sequence of texts, or None."""
    if len(captions) != n:
        raise InputError(f"{n} images but captions for {len(captions)}: give one entry for each, None where unknown")
    found: list[tuple[str, ...]] = []
    for entry in captions:
        if entry is None or (isinstance(entry, float) and np.isnan(entry)):
            found.append(())
        elif isinstance(entry, str):
            found.append((entry,) if entry.strip() else ())
        else:
            found.append(tuple(str(text) for text in entry))
    return tuple(found)
