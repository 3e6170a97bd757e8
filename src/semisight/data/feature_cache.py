"""Features of images, worked out once by worker processes and kept as float16 that is mapped, not loaded.

    CACHE/features/index.sqlite     which row of which shard holds which view of which image by which backbone
    CACHE/features/NAME.f16         a shard: rows of float16 [C, h, w], only ever appended to

A row is known by the image (a file's path, size and time of change; of arrays, the content), the backbone's fingerprint
and the view. It enters the index after it is safe in its shard, so that what a killed process had half done is never
read and all else is there when it is started again. Two processes may use one cache: a shard has one writer, the index
is SQLite's, and who wants what another process is at waits for it. Above the limit the shards that were not used for
the longest time go first; who still has one mapped keeps it.
"""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semisight.data.feature_index import CacheReport, FeatureIndex, Found
from semisight.data.feature_worker import (
    LOCKS,
    Answer,
    ShardWriter,
    Todo,
    from_array,
    from_files,
    lock_file,
    work_out,
)
from semisight.data.features import Features
from semisight.data.formats.folders import Progress, printable, walk
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.preprocessing import Backbone
from semisight.data.workers import cores, share_out
from semisight.errors import UserError

_HERE = 4  # so few images are done in this process: a worker takes as long to start
_COMMIT_SECONDS = 1.0

# Has features of images worked out elsewhere (engines/features.py): a job, the images, and what is to be told of some
# of them: their answers, whose rows count from 0, and those rows.
Share = Callable[[Mapping[str, Any], Sequence[Todo], Callable[[Sequence[Answer], bytes], None]], None]


@dataclass(frozen=True)
class _Images:
    """What features are wanted of: files below `folder`, or rows of `array`; `keys` tell images apart.

    Processes that want the same features of the same `origin` take turns.
    """

    names: tuple[str, ...]
    folder: Path
    files: Sequence[str]
    keys: list[bytes]
    skipped: tuple[Skipped, ...]
    source: str
    origin: str
    array: npt.NDArray[np.uint8] | None = None


def cached_features(
    images: str | Path | Sequence[str | Path] | ImageSet,
    backbone: Backbone,
    *,
    views: int = 1,
    names: Sequence[str] | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    share: Share | None = None,
) -> Features:
    """The features of images by a backbone, from the cache; what is not there yet is worked out first.

    Args:
        images: a folder, a list of files, or a set in memory.
        backbone: what `semisight.backbones.resolve` gives; it also says whether features are pooled.
        views: how many views of each image: plain, a random part in other light, mirrored, then more random parts.
        names: only these files of the folder, as paths below it, in this order.
        cache: by default semisight's folder in the user's folder for caches.
        workers: processes; by default one per core, at most 8. 0: all in this process.
        progress: called with (done, in all), images, while features are worked out; not at all if all are there.
        share: an engine that works features out in place of worker processes (`semisight.engines.features`).

    Returns:
        Features of what could be read, in the order of the images; `skipped` says what could not.
    """
    if views < 1:
        raise UserError(f"features need at least 1 view of each image, not {views}")
    wanted = _look(images, names)
    with FeatureIndex(cache) as index:
        space = index.space(backbone)
        for _ in range(3):  # another process may make room in the cache by what was just found in it
            found = index.find(space, wanted.keys, views)
            if missing := found.missing():
                with _turn(index, backbone, wanted, found, views, space, progress) as found:
                    if missing := found.missing():
                        index.make_room(backbone.feature_shape, found)
                        passing = _work_out(index, space, backbone, wanted, missing, workers, progress, share)
                        found = index.find(space, wanted.keys, views)
                        found.reasons.update(passing)
            if not found.missing() and (store := index.opened(found, backbone.feature_shape)) is not None:
                break
        else:
            raise UserError(
                f"features written to the cache in {index.folder} were gone at once: is another process clearing it?"
            )
    kept = [i for i in range(len(wanted.names)) if i not in found.reasons]
    late = [Skipped(wanted.names[i], reason) for i, reason in sorted(found.reasons.items())]
    skipped = sorted([*wanted.skipped, *late], key=lambda skip: skip.name)
    if not kept:
        raise UserError(f"no image of {wanted.source} could be read. {skipped_summary(skipped)}")
    whole = Features.stored(store, wanted.names, skipped, wanted.source)
    return whole if len(kept) == len(whole) else whole.subset(kept)


def n_missing(
    images: Path | ImageSet,
    backbone: Backbone,
    views: int,
    names: Sequence[str] | None = None,
    cache: str | Path | None = None,
) -> int:
    """How many images of a set, or of these files of a folder, have no features in the cache yet."""
    with FeatureIndex(cache) as index:
        return len(index.find(index.space(backbone), _look(images, names).keys, views).missing())


def cache_report(cache: str | Path | None = None) -> CacheReport:
    """What the cache of features holds, backbone by backbone, the last used first."""
    with FeatureIndex(cache) as index:
        return index.report()


def clear(cache: str | Path | None = None) -> int:
    """Removes all features from the cache; gives the bytes that were freed. What another process maps stays its own."""
    with FeatureIndex(cache) as index:
        freed = index.report().n_bytes
        index.remove_all()
        return freed


def set_limit(n_bytes: int, cache: str | Path | None = None) -> None:
    """From now on the cache takes at most so many bytes; what is over goes now, the longest unused first."""
    if n_bytes < 1:
        raise UserError(f"the limit of the cache is a number of bytes above 0, not {n_bytes}")
    with FeatureIndex(cache) as index:
        index.set_limit(n_bytes)
        index.evict(n_bytes, set())


# ---- what is there ----


def _look(images: str | Path | Sequence[str | Path] | ImageSet, names: Sequence[str] | None) -> _Images:
    if isinstance(images, ImageSet):
        pixels = images.images
        array = pixels.numpy() if pixels.dtype.itemsize == 1 else (pixels * 255).round().byte().numpy()
        shape = np.array(array.shape[1:], "<u4").tobytes()  # tells images apart whose bytes are the same
        keys = [hashlib.blake2b(row.tobytes(), digest_size=16, person=shape).digest() for row in array]
        source, rows = images.source or "the set", [str(i) for i in range(len(array))]
        return _Images(images.names, Path(), rows, keys, images.skipped, source, keys[0].hex(), array)
    if not isinstance(images, str | Path):
        files = [os.path.abspath(Path(path).expanduser()) for path in images]
        return _of_files(tuple(printable(str(path)) for path in images), Path(), files, (), "the list of files")
    folder = Path(images).expanduser()
    if not folder.is_dir():
        raise UserError(f"the image folder {folder} does not exist or is not a folder")
    skipped: tuple[Skipped, ...] = ()
    if names is None:
        below = walk(folder)
        names, skipped = below.names, below.skipped
    outside = [name for name in names if os.path.isabs(name) or ".." in Path(name).parts]
    if outside:
        raise UserError(f"{printable(outside[0])} does not lie in the image folder {folder}")
    return _of_files(tuple(map(printable, names)), folder.resolve(), list(names), skipped, str(folder))


def _of_files(
    names: tuple[str, ...], folder: Path, files: list[str], skipped: tuple[Skipped, ...], source: str
) -> _Images:
    if not names:
        raise UserError(f"there are no files to read in {source}")
    keys = []
    for file in files:
        path = os.path.join(folder, file)
        try:
            status = os.stat(path)
            state = f"{status.st_size} {status.st_mtime_ns} "
        except OSError as error:  # what is wrong with it is said when it is read
            state = f"{error.errno} "
        keys.append(hashlib.blake2b(state.encode() + os.fsencode(path), digest_size=16).digest())
    return _Images(names, folder, files, keys, skipped, source, keys[0].hex() if folder == Path() else str(folder))


# ---- making it ----


@contextlib.contextmanager
def _turn(
    index: FeatureIndex,
    backbone: Backbone,
    wanted: _Images,
    found: Found,
    views: int,
    space: int,
    progress: Progress | None,
) -> Iterator[Found]:
    """One process at a time for one source and backbone: a second waits, and then finds what the first has made.

    A process that is killed loses its lock with its life. Yields what is there when it is this process's turn.
    """
    which = hashlib.sha256(f"{backbone.fingerprint} ".encode() + os.fsencode(wanted.origin)).hexdigest()[:16]
    with (index.folder / f"{which}.lock").open("w") as lock:
        total = len(found.missing())
        while LOCKS and not lock_file(lock.fileno()):
            time.sleep(0.3)
            found = index.find(space, wanted.keys, views)
            left = len(found.missing())
            if progress is not None and left < total:
                progress(total - left, total)
            if not left:
                break
        yield index.find(space, wanted.keys, views)


def _work_out(
    index: FeatureIndex,
    space: int,
    backbone: Backbone,
    wanted: _Images,
    missing: list[tuple[int, list[int]]],
    workers: int | None,
    progress: Progress | None,
    share: Share | None = None,
) -> dict[int, str]:
    """The missing views of these images to the cache; for those that cannot be read at the moment, why."""
    views_of, job = dict(missing), backbone.job
    if share is not None and job is None:
        raise UserError(f"{backbone.name} runs in this process only, no engine can make it again: leave --engine out.")
    n_workers = min(len(missing), min(cores(), 8) if workers is None else workers)
    here = job is None or share is not None or n_workers == 0 or (workers is None and len(missing) <= _HERE)
    todo: list[Todo] = [(i, wanted.files[i], views) for i, views in missing]
    rows: list[tuple[bytes, int, str, int]] = []
    unreadable: list[tuple[bytes, str]] = []
    passing: dict[int, str] = {}
    done, saved = 0, time.monotonic()

    def save() -> None:
        nonlocal saved
        index.add(space, rows, unreadable)
        rows.clear()
        unreadable.clear()
        saved = time.monotonic()

    def answer(line: Answer) -> None:
        nonlocal done
        number, shard = line[:2]
        key = wanted.keys[number]
        if shard is not None:
            rows.extend((key, view, shard, line[2] + k) for k, view in enumerate(views_of[number]))
        elif line[3]:
            unreadable.append((key, line[2]))
        else:
            passing[number] = line[2]
        done += 1
        if time.monotonic() - saved >= _COMMIT_SECONDS:
            save()
        if progress is not None:
            progress(done, len(missing))

    old, new = index.shards_to_write(space, backbone, 1 if here else n_workers)
    row_bytes = 2 * int(np.prod(backbone.feature_shape))
    try:
        if job is not None and share is not None:
            with (
                contextlib.closing(ShardWriter(index.folder, old, new, row_bytes)) as shard,
                _array_on_disk(wanted.array, index.folder) as array,
            ):
                needs = {"network": dict(job.network), "folder": str(wanted.folder), "array": array}
                share(needs, todo, lambda lines, rows: _keep(shard, lines, rows, backbone.feature_shape, answer))
        elif job is None or here:
            read = from_files(wanted.folder) if wanted.array is None else from_array(wanted.array)
            with contextlib.closing(ShardWriter(index.folder, old, new, row_bytes)) as shard:
                work_out(todo, read, backbone, shard, answer)
        else:
            with _array_on_disk(wanted.array) as array:
                share_out(
                    "features",
                    wanted.folder,
                    todo,
                    n_workers,
                    answer,
                    module=job.module,
                    network=job.network,
                    cache=str(index.folder),
                    old=old,
                    new=new,
                    row_bytes=row_bytes,
                    array=array,
                )
    finally:
        save()  # also what was done before an interruption
        index.forget_empty(new)
    return passing


def _keep(
    shard: ShardWriter,
    lines: Sequence[Answer],
    rows: bytes,
    shape: tuple[int, int, int],
    answer: Callable[[Answer], None],
) -> None:
    """Rows that came from elsewhere to the shard; the answers once they are safe."""
    first = shard.n_rows
    shard.append(np.frombuffer(rows, np.float16).reshape(-1, *shape))
    shard.sync()
    for line in lines:
        answer(line if line[1] is None else [line[0], shard.name, first + line[2]])


@contextlib.contextmanager
def _array_on_disk(array: npt.NDArray[np.uint8] | None, place: Path | None = None) -> Iterator[str | None]:
    """A set in memory as a file that worker processes map instead of being sent it."""
    if array is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="semisight-", dir=place) as folder:
        file = os.path.join(folder, "images.npy")
        np.save(file, array)
        yield file
