"""The inner loop of the feature cache: decode, preprocess, run the network, append to a shard.

Runs in worker processes (backbones/worker.py) and, for a few images, in the process that asks. A row counts once its
answer is given, and that is after the row is safe on the disk: a process killed in between leaves no half row behind.
Nothing here imports torch.
"""

import hashlib
import io
import os
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from semisight.data.formats.pictures import Unreadable, read_bytes, read_upright
from semisight.data.preprocessing import Backbone

try:
    import fcntl
except ImportError:  # not on this system: every process then writes to files of its own
    LOCKS = False
else:
    LOCKS = True

SHARD_BYTES = 256 << 20  # a shard that has grown so large gets no more rows
# Pixels through the network at a time. On a CPU large pictures go one by one: EfficientNet was no faster with 2 or 4
# pictures of 260 x 260 at a time, and with 16 a sixth slower. Small ones share the cost of a call.
_BATCH_PIXELS = 1 << 16
_SYNC_SECONDS = 0.5
_LARGEST = 65504.0  # of float16

Todo = tuple[int, str, Sequence[int]]  # number of the image, its name, the views wanted
Read = Callable[[str, int], tuple[Image.Image, str]]  # name and least side to the image and what its views are drawn by
Answer = list[Any]  # [number, shard, first row], or [number, None, reason, whether the reason lies in the content]


class Appended(Protocol):
    """Where rows go: a shard, or what a worker elsewhere sends back."""

    name: str
    n_rows: int

    def append(self, rows: npt.NDArray[np.float16]) -> None: ...
    def sync(self) -> None: ...


class ShardWriter:
    """Rows of float16 appended to one file that no other process appends to at the same time."""

    def __init__(self, folder: Path, old: Sequence[str], new: Sequence[str], row_bytes: int) -> None:
        """Takes the first old file that has room and is not in use, else makes the first new one that is not there."""
        for name in (*old, *new):
            made = 0 if name in old else os.O_CREAT | os.O_EXCL
            try:
                descriptor = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW | made, 0o666)
            except OSError:  # gone, or somebody else's
                if name == new[-1]:
                    raise
                continue
            locked, status = lock_file(descriptor), os.fstat(descriptor)
            # An old one may have been removed between opening and locking it.
            if name in new or (locked and status.st_nlink and status.st_size < SHARD_BYTES):
                break
            os.close(descriptor)
        self.name, self._descriptor = name, descriptor
        # A killed process may have left a part of a row behind its last whole one.
        self.n_rows = os.fstat(descriptor).st_size // row_bytes
        os.ftruncate(descriptor, self.n_rows * row_bytes)
        os.lseek(descriptor, 0, os.SEEK_END)

    def append(self, rows: npt.NDArray[np.float16]) -> None:
        content = memoryview(rows.tobytes())
        while content:
            content = content[os.write(self._descriptor, content) :]
        self.n_rows += len(rows)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


def lock_file(descriptor: int) -> bool:
    """Locks an open file for this process, until it is closed or the process ends; False if that cannot be."""
    if not LOCKS:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def from_files(folder: str | Path) -> Read:
    """Images, each with a hash of its content, from files below a folder."""

    def read(name: str, least_side: int) -> tuple[Image.Image, str]:
        content = read_bytes(os.path.join(folder, name))
        return read_upright(io.BytesIO(content), least_side), content_seed(content)

    return read


def content_seed(content: bytes) -> str:
    """What the views of a file are drawn from: its bytes."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def from_array(array: npt.NDArray[np.uint8]) -> Read:
    """Likewise from rows of uint8 [N, 1 or 3, H, W]; their names are their numbers."""

    def read(name: str, least_side: int) -> tuple[Image.Image, str]:
        pixels = np.broadcast_to(array[int(name)], (3, *array.shape[2:]))
        content = np.ascontiguousarray(pixels.transpose(1, 2, 0))
        return Image.fromarray(content), hashlib.blake2b(content.tobytes(), digest_size=16).hexdigest()

    return read


def work_out(
    todo: Iterable[Todo],
    read: Read,
    backbone: Backbone,
    shard: Appended,
    answer: Callable[[Answer], None],
) -> None:
    """Features of all these images to the shard; an answer for each, in order within what was read."""
    preprocessing, pictures = backbone.preprocessing, list[npt.NDArray[np.uint8]]()
    batch = max(1, _BATCH_PIXELS // preprocessing.size**2)
    waiting: list[tuple[int, int]] = []  # number of an image, how many views of it are in `pictures`
    written: list[Answer] = []
    synced = time.monotonic()

    def run() -> None:
        nonlocal synced
        if pictures:
            stacked = np.stack(pictures)
            values = np.concatenate([backbone.features(stacked[i : i + batch]) for i in range(0, len(stacked), batch)])
            finite = [bool(np.isfinite(row).all()) for row in values]
            rows = np.clip(values, -_LARGEST, _LARGEST).astype(np.float16)
            start = 0
            for number, n_views in waiting:
                end = start + n_views
                if all(finite[start:end]):
                    written.append([number, shard.name, shard.n_rows])
                    shard.append(rows[start:end])
                else:
                    written.append([number, None, "no features: the network gave NaN or infinity for it", False])
                start = end
            pictures.clear()
            waiting.clear()
        if time.monotonic() - synced >= _SYNC_SECONDS:
            give()
            synced = time.monotonic()

    def give() -> None:
        if written:
            shard.sync()
        for line in written:
            answer(line)
        written.clear()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a folder may warn of large images thousands of times; our own limit decides
        for number, name, views in todo:
            try:
                image, seed = read(name, 2 * preprocessing.size)
                new = [preprocessing.picture(image, view, seed) for view in views]
            except Unreadable as error:
                # A file that may not be read, or is gone, may be back without having changed.
                lasting = not isinstance(error.__cause__, PermissionError | FileNotFoundError)
                written.append([number, None, str(error), lasting])
                continue
            pictures += new
            waiting.append((number, len(new)))
            if len(pictures) >= batch:
                run()
        run()
        give()
