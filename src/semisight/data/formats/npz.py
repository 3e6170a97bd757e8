"""Images from .npz and .npy files, read without pickle and without trusting what the file says of its own size.

An .npz holds `images` ([N,H,W], [N,H,W,C] or [N,C,H,W]) and maybe `labels` ([N], -1 where unknown) with `class_names`,
and `tags` ([N, C] of 1, 0 and -1 where unknown) with `tag_names`.
"""

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from semisight.data.arrays import (
    Array,
    channels_first,
    check_labels,
    check_pixels,
    check_tags,
    memory_limit,
    refuse_beyond,
    texts,
    to_tensor,
)
from semisight.data.features import refuse_unmarked
from semisight.data.image_set import ImageSet
from semisight.errors import UserError

_CHUNK = 16 << 20


def read_npz(path: Path, max_bytes: int | None = None) -> ImageSet:
    """The images of one .npz file, with their labels and tags if it has any."""
    arrays = read_npz_arrays(path, ("images", "labels", "class_names", "tags", "tag_names"), max_bytes)
    if "images" not in arrays:
        raise UserError(f"{path} has no array `images`; save it with np.savez(path, images=...)")
    images = check_pixels(channels_first(arrays["images"], str(path)), str(path))
    found = ImageSet(to_tensor(images), _names(path, len(images)), source=str(path), notes=_notes(images))
    if "labels" in arrays:
        labels, class_names = check_labels(arrays["labels"], len(images), str(path))
        if "class_names" in arrays:
            class_names = _class_names(arrays["class_names"], len(class_names), path)
        found = found.with_labels(labels, class_names)
    if "tags" in arrays:
        found = found.with_column(check_tags(arrays["tags"], arrays.get("tag_names"), len(images), str(path)))
    return found


def read_npz_arrays(path: Path, keys: Sequence[str], max_bytes: int | None = None) -> dict[str, Array]:
    """Those arrays of an .npz file that are among `keys`."""
    limit = memory_limit() if max_bytes is None else max_bytes
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if not members.keys() & set(keys):
                listed = ", ".join(sorted(members)[:10]) or "nothing"
                raise UserError(
                    f"{path} has no array `{keys[0]}`; it holds {listed}. Save it with np.savez(path, {keys[0]}=...)"
                )
            arrays = {}
            for key in keys:
                if key in members:
                    with archive.open(members[key]) as file:
                        arrays[key] = _read_array(file, members[key].file_size, limit, f"{path}, array `{key}`")
            return arrays
    except UserError:
        raise
    except Exception as error:  # zipfile, its decompressors and numpy's parser raise nearly anything on garbled bytes
        raise _garbled(path, error) from error


def read_npy_images(path: Path, max_bytes: int | None = None) -> ImageSet:
    """The images of one .npy file."""
    array = read_npy(path, max_bytes)
    refuse_unmarked(array.shape, str(path), path)
    images = check_pixels(channels_first(array, str(path)), str(path))
    return ImageSet(to_tensor(images), _names(path, len(images)), source=str(path), notes=_notes(images))


def read_npy(path: Path, max_bytes: int | None = None) -> Array:
    """The array of one .npy file."""
    limit = memory_limit() if max_bytes is None else max_bytes
    try:
        with path.open("rb") as file:
            return _read_array(file, path.stat().st_size, limit, str(path))
    except UserError:
        raise
    except Exception as error:  # zipfile, its decompressors and numpy's parser raise nearly anything on garbled bytes
        raise _garbled(path, error) from error


def _read_array(file: IO[bytes], n_bytes: int, limit: int, where: str) -> Array:
    """One array in numpy's format, its size checked from the header before anything is read.

    A compressed member can claim any size: its header must agree with the archive's own entry, and both with the limit.
    """
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    else:
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise UserError(f"{where} holds Python objects, which would need pickle: save plain numbers instead")
    if any(length < 0 for length in shape):
        raise UserError(f"{where} has the impossible shape {list(shape)}")
    expected = math.prod(shape) * dtype.itemsize
    if expected == 0:
        raise UserError(f"{where} is empty: it has the shape {list(shape)}")
    refuse_beyond(limit, expected, where)
    needs = f"its shape {list(shape)} needs {expected:,} bytes"
    if n_bytes < expected:
        raise UserError(f"{where} is truncated: {needs}, the whole file has {n_bytes:,}")
    raw = np.empty(expected, np.uint8)  # read in place: torch can then use this memory as it is
    found = 0
    while chunk := file.read(min(_CHUNK, expected - found)):
        raw[found : found + len(chunk)] = np.frombuffer(chunk, np.uint8)
        found += len(chunk)
    if found < expected:
        raise UserError(f"{where} is truncated: {needs}, found {found:,}")
    if file.read(1):
        raise UserError(f"{where} is garbled: {needs}, and more follow")
    return raw.view(dtype).reshape(shape, order="F" if fortran else "C")


def _garbled(path: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return UserError(f"cannot read {path}: {error.strerror}")
    return UserError(f"{path} is damaged or not a numpy file ({type(error).__name__}: {error}); save it again")


def _class_names(array: Array, n_classes: int, path: Path) -> tuple[str, ...]:
    names = texts(array)
    if len(names) < n_classes:
        raise UserError(f"{path}: `class_names` must be a list of at least {n_classes} names, one per class")
    return names


def _names(path: Path, n: int) -> tuple[str, ...]:
    return tuple(f"{path.stem}/{i:05d}" for i in range(n))


def _notes(images: Array) -> tuple[str, ...]:
    if images.dtype == np.uint8 and int(images.max()) <= 1:
        return ("no pixel is above 1 of 255, so the images are as good as black; save floats if 1 was meant as white",)
    return ()
