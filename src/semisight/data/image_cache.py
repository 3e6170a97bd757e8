"""A big folder of images, decoded and resized once by worker processes, and kept as bytes that are mapped, not loaded.

    CACHE/NAME.json                names, skipped files, and the fingerprints of source and pixels
    CACHE/NAME.FINGERPRINT.npy     uint8 [N,C,size,size]

The fingerprint is a hash of the names, sizes and times of change of all files and of what was asked of them. A cache is
used only if it is that of its source as it is now and its pixels have the checksum they were written with; else it is
made again. Neither file ever exists half: the pixels come first, under a name of their own, then the JSON that makes
them the cache. There is no pickle in them.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semisight.data.formats.folders import Progress, printable, walk
from semisight.data.formats.pictures import MAX_PIXELS
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.workers import cores, decode_all, share_out
from semisight.errors import UserError
from semisight.files import atomic_path, write_atomic

FORMAT = "semisight image cache 1"
_READ = 1 << 23  # bytes at a time for checksums
_FEW = 100  # files that are decoded sooner than a further process starts


@dataclass(frozen=True)
class _Wanted:
    """What the cache should hold: these files of this folder, in this form."""

    folder: Path
    names: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    shape: tuple[int, int, int]  # channels, height, width
    fingerprint: str


def cached_folder(
    folder: str | Path,
    *,
    size: int,
    channels: int = 3,
    names: Sequence[str] | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """The images below a folder, `size` x `size`, in the order of their names, mapped from the cache.

    channels  1 (grey) or 3 (colour)
    names     only these files, as paths below the folder, in this order
    cache     the folder of the cache; by default semisight's in the user's folder for caches (XDG_CACHE_HOME)
    workers   processes that decode; by default one per core, at most 8. 0, the default for few: all in this process
    progress  called with (done, in all) while images are decoded; not at all if the cache is good
    """
    folder = Path(folder).expanduser()
    if size < 1 or channels not in (1, 3):
        raise UserError(f"images need a size of at least 1 and 1 or 3 channels, not {size} and {channels}")
    wanted = _look(folder, names, (channels, size, size), max_pixels)
    stem = _stem(folder, names, wanted.shape, max_pixels)
    place = Path(cache).expanduser() if cache is not None else default_cache()
    found = _open(place, stem, wanted)
    if isinstance(found, ImageSet):
        return found
    with one_at_a_time(place, stem):
        found = _open(place, stem, wanted)  # another process may have made it meanwhile
        if isinstance(found, ImageSet):
            return found
        if workers is None:
            workers = min(8, cores()) if len(wanted.names) > _FEW else 0
        _build(place, stem, wanted, workers, max_pixels, progress)
        made = _open(place, stem, wanted)
    if isinstance(made, str):
        raise UserError(f"the image cache in {place} could not be used right after it was written: {made}")
    notes = (f"the image cache in {place} was made again: {found}",) if found else ()
    return dataclasses.replace(made, notes=notes)


def default_cache() -> Path:
    """$XDG_CACHE_HOME/semisight, by default ~/.cache/semisight."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "semisight"


# ---- what is there ----


def _look(folder: Path, names: Sequence[str] | None, shape: tuple[int, int, int], max_pixels: int) -> _Wanted:
    if not folder.is_dir():
        raise UserError(f"the image folder {folder} does not exist or is not a folder")
    skipped: tuple[Skipped, ...] = ()
    if names is None:
        found = walk(folder)
        names, skipped = found.names, found.skipped
    if not names:
        raise UserError(f"there are no files to read in {folder}")
    outside = [name for name in names if os.path.isabs(name) or ".." in Path(name).parts]
    if outside:
        raise UserError(f"{printable(outside[0])} does not lie in the image folder {folder}")
    digest = hashlib.sha256(json.dumps([FORMAT, shape, max_pixels]).encode())
    for name in names:
        try:
            status = os.stat(folder / name)
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError as error:  # what is wrong with it is said when it is read
            state = str(error.errno)
        digest.update(f"{state} {len(name)} ".encode() + os.fsencode(name))
    return _Wanted(folder, tuple(names), skipped, shape, digest.hexdigest())


def _stem(folder: Path, names: Sequence[str] | None, shape: tuple[int, int, int], max_pixels: int) -> str:
    """One cache for each folder, form and choice of files; when files change, it is the same cache made again."""
    digest = hashlib.sha256(json.dumps([str(folder.resolve()), shape, max_pixels]).encode())
    for name in names or ():
        digest.update(os.fsencode(name) + b"\0")
    readable = re.sub(r"[^A-Za-z0-9_-]+", "-", folder.resolve().name)[:40] or "images"
    return f"{readable}-{shape[1]}-{digest.hexdigest()[:12]}"


def _pixels_file(place: Path, stem: str, wanted: _Wanted) -> Path:
    return place / f"{stem}.{wanted.fingerprint[:12]}.npy"


def _open(place: Path, stem: str, wanted: _Wanted) -> ImageSet | str:
    """The cache, or why it cannot be used; "" if there is none."""
    try:
        text = (place / f"{stem}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        return f"its description cannot be read ({error})"
    try:
        about = json.loads(text)
        if about["format"] != FORMAT:
            return "it is of another version"
        if about["source"] != wanted.fingerprint:
            return "its source has changed"
        names = tuple(_text(name) for name in about["names"])
        skipped = tuple(Skipped(_text(name), _text(reason)) for name, reason in about["skipped"])
        checksum = int(about["checksum"])
    except (ValueError, KeyError, TypeError) as error:
        return f"its description is damaged ({error})"
    file = _pixels_file(place, stem, wanted)
    try:
        if _checksum(file) != checksum:
            return "its pixels are damaged"
        # Copy on write: the tensor counts as writable, as torch wants it, and nothing ever reaches the file.
        pixels: npt.NDArray[np.uint8] = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        return f"its pixels cannot be read ({error})"
    if pixels.dtype != np.uint8 or pixels.shape != (len(names), *wanted.shape) or not names:
        return "its pixels are damaged"
    return ImageSet(torch.from_numpy(pixels), names, skipped=skipped, source=str(wanted.folder))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _checksum(file: Path) -> int:
    value = 0
    with file.open("rb") as stream:
        while part := stream.read(_READ):
            value = zlib.crc32(part, value)
    return value


# ---- making it ----


def _build(place: Path, stem: str, wanted: _Wanted, workers: int, max_pixels: int, progress: Progress | None) -> None:
    file = _pixels_file(place, stem, wanted)
    with atomic_path(file) as temporary:
        _reserve(temporary, (len(wanted.names), *wanted.shape))
        reasons = _decode(temporary, wanted, workers, max_pixels, progress)
        late = [Skipped(printable(wanted.names[row]), reason) for row, reason in reasons.items()]
        skipped = sorted([*wanted.skipped, *late], key=lambda skip: skip.name)
        if len(reasons) == len(wanted.names):
            raise UserError(f"no image in {wanted.folder} could be read. {skipped_summary(skipped)}")
        if reasons:
            _leave_out(temporary, reasons)
        checksum = _checksum(temporary)
    about = {
        "format": FORMAT,
        "source": wanted.fingerprint,
        "checksum": checksum,
        "names": [printable(name) for row, name in enumerate(wanted.names) if row not in reasons],
        "skipped": [[skip.name, skip.reason] for skip in skipped],
    }
    write_atomic(place / f"{stem}.json", json.dumps(about))
    for old in place.glob(f"{stem}.*.npy"):
        if old != file:
            old.unlink(missing_ok=True)  # who still has it mapped keeps it


def _reserve(file: Path, shape: tuple[int, ...]) -> None:
    """An empty file of pixels, its room on the disk taken: a mapped file on a full disk would kill who writes to it."""
    pixels = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    del pixels
    if sys.platform == "linux":
        with file.open("r+b") as stream:
            os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)


def _decode(file: Path, wanted: _Wanted, workers: int, max_pixels: int, progress: Progress | None) -> dict[int, str]:
    """Every image to its row of the file; for the rows that stay empty, why."""
    images = list(enumerate(wanted.names))
    reasons: dict[int, str] = {}
    done = 0

    def answer(line: tuple[int, str | None]) -> None:
        nonlocal done
        row, reason = line
        if reason is not None:
            reasons[row] = reason
        done += 1
        if progress is not None:
            progress(done, len(images))

    if workers:
        share_out("decode", wanted.folder, images, workers, answer, file=str(file), max_pixels=max_pixels)
    else:
        decode_all(file, wanted.folder, images, max_pixels, answer)
    return dict(sorted(reasons.items()))


def _leave_out(file: Path, rows: Collection[int]) -> None:
    """The same file without some rows."""
    pixels = np.lib.format.open_memmap(file, mode="r")
    kept = [row for row in range(len(pixels)) if row not in rows]
    shorter = file.with_suffix(".shorter.tmp")
    try:
        _reserve(shorter, (len(kept), *pixels.shape[1:]))
        to = np.lib.format.open_memmap(shorter, mode="r+")
        for new, row in enumerate(kept):
            to[new] = pixels[row]
        to.flush()
        os.replace(shorter, file)
    finally:
        shorter.unlink(missing_ok=True)


@contextlib.contextmanager
def one_at_a_time(place: Path, stem: str) -> Iterator[None]:
    """One process at a time: a second that wants the same cache waits, and then finds it made.

    A process that is killed loses its lock with its life. What it left is removed by the next that has the lock.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = (place / f"{stem}.lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to the folder of the image cache, {place}: {error.strerror or error}. "
            "Choose another one, for instance by the variable XDG_CACHE_HOME."
        ) from error
    with lock:
        try:
            import fcntl
        except ImportError:  # not on this system: files are still never half, only perhaps made twice
            yield
            return
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in place.glob(f".{stem}.*.tmp"):
            left.unlink(missing_ok=True)
        yield
