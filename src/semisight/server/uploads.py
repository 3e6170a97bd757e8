"""Bytes that somebody sent to pixels as the model takes them, or a reason why not."""

import io
import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from semisight.data.formats.pictures import Unreadable, read_pixels, read_upright
from semisight.data.preprocessing import Preprocessing
from semisight.server.limits import Limits

_JPEG, _SCAN = b"\xff\xd8", b"\xff\xda"
_PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
_SMALL_BYTES, _SMALL_SIDE = 10_000, 128
_LARGE_BYTES = 5_000_000
_JPEG2000 = (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51")


class Refused(Exception):
    """What somebody sent is not used; `status` is HTTP's number for the reason."""

    def __init__(self, message: str, status: int = 422) -> None:
        super().__init__(message)
        self.message, self.status = message, status


@dataclass(frozen=True)
class Decoder:
    """Images of any format and size to uint8 [C, H, W] of one shape; with a backbone's preprocessing, as that wants
    them."""

    shape: tuple[int, int, int]
    limits: Limits
    preprocessing: Preprocessing | None = None

    @staticmethod
    def is_quick(content: bytes) -> bool:
        """Whether unpacking it takes less than handing it to another thread: a PNG that says it is small."""
        if len(content) > _SMALL_BYTES or not content.startswith(_PNG) or len(content) < len(_PNG) + 8:
            return False
        return max(struct.unpack_from(">II", content, len(_PNG))) <= _SMALL_SIDE

    @staticmethod
    def is_slow(content: bytes) -> bool:
        """Whether unpacking it may take a second: many bytes, or a format that takes ten times as long as JPEG."""
        return len(content) > _LARGE_BYTES or (len(content) > _SMALL_BYTES and _is_slow_format(content))

    def __call__(self, content: bytes, name: str) -> npt.NDArray[np.uint8]:
        if content.startswith(_JPEG) and content.count(_SCAN) > self.limits.scans:
            raise Refused(f"{name}: a JPEG of more than {self.limits.scans} scans")
        channels, height, width = self.shape
        most = self.limits.slow_pixels if _is_slow_format(content) else self.limits.pixels
        try:
            if self.preprocessing is not None:
                return self.preprocessing.picture(read_upright(io.BytesIO(content), 2 * self.preprocessing.size, most))
            return read_pixels(io.BytesIO(content), height, width, channels, most)
        except Unreadable as error:
            status = 413 if str(error).startswith("too many pixels") else 422
            raise Refused(f"{name}: {error}", status) from error


def _is_slow_format(content: bytes) -> bool:
    """JPEG 2000 and AVIF, whichever way they begin."""
    return content.startswith(_JPEG2000) or content[4:12] in (b"ftypavif", b"ftypavis", b"ftypmif1")
