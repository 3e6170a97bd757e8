"""MNIST's idx files, plain or gzipped: one file of images, or a folder with train and t10k pairs.

An idx file is four bytes (0, 0, type, number of axes), the length of each axis as a big-endian uint32, then the values.
"""

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np

from semisight.data.arrays import Array, check_labels, check_pixels, memory_limit, refuse_beyond, to_tensor
from semisight.data.image_set import ImageSet
from semisight.errors import UserError

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_CHUNK = 16 << 20
_IMAGES = re.compile(r"^(?P<part>.+?)[-_.]images?(?P<dot>[-_.])idx3([-_.]ubyte)?(?P<gz>\.gz)?$", re.IGNORECASE)


def is_idx_name(name: str) -> bool:
    """Whether a file is named as MNIST names its images, such as train-images-idx3-ubyte.gz."""
    return _IMAGES.match(name) is not None


def looks_like_idx(start: bytes) -> bool:
    """Whether a file that starts with these bytes is an idx file (its contents may still be damaged)."""
    return len(start) >= 4 and start[:2] == b"\0\0" and start[2] in _TYPES and 1 <= start[3] <= 4


def read_idx(path: Path, max_bytes: int | None = None) -> Array:
    """The array of one idx file, in the machine's own byte order."""
    limit = memory_limit() if max_bytes is None else max_bytes
    try:
        with path.open("rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            if not zipped:
                return _read(plain, path, limit)
            with gzip.open(plain) as unzipped:
                return _read(cast(IO[bytes], unzipped), path, limit)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is damaged: it does not unzip ({error}); fetch it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _read(file: IO[bytes], path: Path, limit: int) -> Array:
    head = file.read(4)
    if not looks_like_idx(head):
        raise UserError(
            f"{path} is not an idx file: it should start with 0, 0, a type ({', '.join(map(str, _TYPES))}) "
            f"and a number of axes (1 to 4), found {list(head)}"
        )
    axes = file.read(4 * head[3])
    if len(axes) < 4 * head[3]:
        raise UserError(f"{path} is truncated: expected {4 + 4 * head[3]} bytes of header, found {4 + len(axes)}")
    shape = [int(length) for length in np.frombuffer(axes, ">u4")]
    dtype = np.dtype(_TYPES[head[2]])
    expected = math.prod(shape) * dtype.itemsize
    refuse_beyond(limit, expected, str(path))
    # Grown as it is read: a header may promise far more than the file holds.
    values = bytearray()
    while len(values) < expected and (chunk := file.read(min(_CHUNK, expected - len(values)))):
        values += chunk
    if len(values) < expected:
        raise UserError(
            f"{path} is truncated: its header announces {shape}, so expected {expected:,} bytes of values, "
            f"found {len(values):,}; fetch it again"
        )
    if more := len(file.read(_CHUNK)):
        raise UserError(
            f"{path} is garbled: its header announces {shape}, so expected {expected:,} bytes of values, "
            f"found at least {expected + more:,}; fetch it again"
        )
    return np.frombuffer(values, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def read_idx_images(path: Path, max_bytes: int | None = None) -> ImageSet:
    """The images of one idx file, with the labels that lie beside it under the matching name, if any."""
    images = read_idx(path, max_bytes)
    if images.ndim not in (3, 4):
        hint = "; these look like labels: give the file of images, the labels beside it are found by name"
        raise UserError(
            f"{path} holds values of shape {list(images.shape)}, not images [N,H,W] or [N,C,H,W]"
            + (hint if images.ndim == 1 else "")
        )
    if images.ndim == 4 and images.shape[1] not in (1, 3, 4):
        raise UserError(f"{path} holds images of {images.shape[1]} channels; 1, 3 or 4 can be read")
    images = check_pixels(images[:, None] if images.ndim == 3 else images, str(path))
    match = _IMAGES.match(path.name)
    part = match["part"] if match else path.name.removesuffix(".gz")
    names = tuple(f"{part}/{i:05d}" for i in range(len(images)))
    beside = _labels_beside(path)
    if beside is None:
        note = "no labels were found beside the images"
        return ImageSet(to_tensor(images), names, source=str(path), notes=(note,) if match else ())
    labels, class_names = check_labels(read_idx(beside, max_bytes), len(images), f"{beside} (labels of {path.name})")
    return ImageSet.of(to_tensor(images), names, labels, class_names, source=str(path))


def _labels_beside(path: Path) -> Path | None:
    match = _IMAGES.match(path.name)
    if match is None:
        return None
    # Both spellings are about: train-labels-idx1-ubyte, and train-labels.idx1-ubyte; either may be gzipped.
    wanted = re.compile(rf"^{re.escape(match['part'])}[-_.]labels?[-_.]idx1([-_.]ubyte)?(\.gz)?$", re.IGNORECASE)
    found = sorted((p for p in path.parent.iterdir() if wanted.match(p.name)), key=lambda p: p.suffix == ".gz")
    return found[0] if found else None


def find_idx_images(folder: Path, part: str) -> Path | None:
    """The file of images in a folder that belongs to `part` (train or test); None if the folder has no idx images."""
    found = {}
    for path in sorted(folder.iterdir(), reverse=True):  # a plain file is preferred to the same file gzipped
        if match := _IMAGES.match(path.name):
            found[match["part"]] = path
    if not found:
        return None
    wanted = ("train",) if part == "train" else ("t10k", "test")
    for name in wanted:
        if name in found:
            return found[name]
    if len(found) == 1 and part == "train":
        return next(iter(found.values()))
    raise UserError(
        f"{folder} has idx images of {', '.join(sorted(found))}, none for {part}: give one of those files itself"
    )
