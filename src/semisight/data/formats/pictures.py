"""One image file to pixels: what can be read, what is refused, and how every mode becomes grey or red-green-blue.

A file is judged by its contents, never by its name. Its header is read first, and an image with too many pixels (a
decompression bomb, or a mistake) is never decoded.
"""

import functools
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from semisight.data.duplicates import fingerprint

Source = str | os.PathLike[str] | io.BytesIO  # a file, or the bytes of one
Decoded = TypeVar("Decoded")

# Below Pillow's own limit, so that ours speaks first. A camera's 60 million pixels pass.
MAX_PIXELS = 80_000_000

# Only formats that Pillow decodes itself: its PostScript plugin, for one, would run another program on the file.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "JPEG2000", "AVIF")

_QUICK_JPEG = 1_000_000  # pixels: about three milliseconds
_ORIENTATION = 0x0112  # the EXIF tag
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_GREY_MODES = ("1", "L", "LA", "La", "I", "F")


class Unreadable(Exception):
    """Why one file is left out; becomes a counted skip. The part before a colon is the kind of reason."""


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image say: its size when held upright, and whether it is without colour."""

    height: int
    width: int
    grey: bool


def read_header(path: Source, max_pixels: int = MAX_PIXELS) -> Header:
    """Reads the header; raises Unreadable if the file is no image, or not one that should be decoded."""
    with _opened(path, max_pixels) as image:
        width, height = image.size
        if _orientation(image) >= 5:
            width, height = height, width
        return Header(height, width, _is_grey(image))


@dataclass(frozen=True)
class Look:
    """What can be said of an image without keeping it: its header, Pillow's names of its format and mode, the standard
    deviation of its grey values (0..255), None if it was not decoded, and its fingerprint (duplicates.py), if it has
    one."""

    header: Header
    format: str
    mode: str
    deviation: float | None
    fingerprint: bytes | None = None


def look_at(content: bytes, decode_up_to: int, max_pixels: int = MAX_PIXELS) -> Look:
    """Looks at the bytes of a file, and at the picture's pixels unless it has more than `decode_up_to`; raises
    Unreadable as the functions beside it do."""
    with _opened(io.BytesIO(content), max_pixels) as image:
        width, height = image.size
        kind, mode, is_grey, n_pixels = image.format or "", image.mode, _is_grey(image), width * height
        deviation, mark = None, None
        # a JPEG is decoded at an eighth of its size
        if n_pixels <= (max(decode_up_to, _QUICK_JPEG) if kind == "JPEG" else decode_up_to):
            side = min(64, height, width)
            grey = _decoded(image, side, side, 1)[0]
            deviation, mark = float(grey.std()), fingerprint(grey)
        if _orientation(image) >= 5:
            width, height = height, width
    return Look(Header(height, width, is_grey), kind, mode, deviation, mark)


def read_pixels(
    path: Source, height: int, width: int, channels: int, max_pixels: int = MAX_PIXELS
) -> npt.NDArray[np.uint8]:
    """The image upright, scaled and cropped in the middle to the wanted size, uint8 [channels,height,width].

    What is transparent shows white.
    """
    with _opened(path, max_pixels) as image:
        return _decoded(image, height, width, channels)


def read_upright(path: Source, least_side: int, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image upright, in red, green and blue, with neither side made smaller than `least_side` to decode it faster.

    What is transparent shows white.
    """
    with _opened(path, max_pixels) as image:
        return _unreadable_if_garbled(lambda: _upright(image, least_side, "RGB"))


def _decoded(image: Image.Image, height: int, width: int, channels: int) -> npt.NDArray[np.uint8]:
    def pixels() -> npt.NDArray[np.uint8]:
        # Twice the wanted size is kept so that the scaling still has the detail it averages.
        plain = _upright(image, 2 * max(height, width), "L" if channels == 1 else "RGB")
        if plain.size != (width, height):
            plain = ImageOps.fit(plain, (width, height), Image.Resampling.BICUBIC)
        values = np.asarray(plain)
        return values[None] if channels == 1 else values.transpose(2, 0, 1)

    return _unreadable_if_garbled(pixels)


def _upright(image: Image.Image, least_side: int, mode: str) -> Image.Image:
    turn = _orientation(image)
    # A JPEG can be decoded at a half, a quarter or an eighth of its size at a fraction of the time.
    if image.format in ("JPEG", "MPO"):
        image.draft(None, (least_side, least_side))
    image.load()
    plain = _to_mode(image, mode)
    return plain.transpose(_TURNS[turn]) if turn in _TURNS else plain


def _unreadable_if_garbled(decode: Callable[[], Decoded]) -> Decoded:
    try:
        return decode()
    except Unreadable:
        raise
    # Pillow's decoders raise nearly anything on garbled bytes: OSError, SyntaxError, ValueError, struct.error, ...
    except Exception as error:
        raise Unreadable(f"truncated or corrupt: {_first_line(error)}") from error


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All of a file, if it is one."""
    try:
        _check_file(path)
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Unreadable(_why_not_opened(path, error)) from error


def _check_file(path: str | os.PathLike[str]) -> None:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):  # reading a pipe would wait for ever
        raise Unreadable("not a regular file")
    if status.st_size == 0:
        raise Unreadable("empty file")


def _why_not_opened(path: str | os.PathLike[str], error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, FileNotFoundError):
        return "link to nothing" if os.path.islink(path) else "vanished while reading"
    return f"truncated or corrupt: {_first_line(error)}"


def _opened(path: Source, max_pixels: int) -> Image.Image:
    try:
        if isinstance(path, io.BytesIO):
            if not path.getbuffer().nbytes:
                raise Unreadable("empty file")
        else:
            _check_file(path)
        image = Image.open(path, formats=_formats())
    except Unreadable:
        raise
    except UnidentifiedImageError as error:
        raise Unreadable("not an image") from error
    except Image.DecompressionBombError as error:
        raise Unreadable(f"too many pixels: more than {max_pixels:,}") from error
    except (PermissionError, FileNotFoundError) as error:
        raise Unreadable(
            "vanished while reading" if isinstance(path, io.BytesIO) else _why_not_opened(path, error)
        ) from error
    except Exception as error:  # as above
        raise Unreadable(f"truncated or corrupt: {_first_line(error)}") from error
    width, height = image.size
    if width * height > max_pixels:
        image.close()
        raise Unreadable(f"too many pixels: {width} x {height} is more than {max_pixels:,}")
    return image


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)  # an older Pillow knows fewer


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120] or type(error).__name__


def _orientation(image: Image.Image) -> int:
    try:
        turn = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # a garbled EXIF block is no reason to lose the picture
        return 1
    return turn if isinstance(turn, int) else 1


def _is_grey(image: Image.Image) -> bool:
    return image.mode in _GREY_MODES or image.mode.startswith("I;16")


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Any of Pillow's modes as 8-bit grey ("L") or "RGB"."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = Image.fromarray(_eight_bits(image))
    has_opacity = image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info
    if has_opacity:
        layer = image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(layer, mask=layer.getchannel("A"))
    return image if image.mode == mode else image.convert(mode)


def _eight_bits(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Grey of 16 or 32 bits or floats in 0..255. Only 16 bits have a range of their own; the others show theirs."""
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    if image.mode.startswith("I;16") or (image.mode == "I" and 255 < high <= 65535 and low >= 0):
        return np.rint(values.astype(np.float32) / 257).astype(np.uint8)
    if image.mode == "F" and low >= 0 and high <= 1:
        return np.rint(values * 255).astype(np.uint8)
    if low >= 0 and high <= 255:  # NaN fails every comparison
        return np.rint(values).astype(np.uint8)
    raise Unreadable(f"pixel range unknown: values from {low:g} to {high:g}")
