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
import re
import shutil
import sqlite3
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL

from semisight.data.feature_worker import (
    SHARD_BYTES,
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
from semisight.data.image_cache import default_cache
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.preprocessing import Backbone, WorkerJob
from semisight.data.processes import cores, run_jobs
from semisight.errors import UserError

LIMIT = 10_000_000_000  # bytes
_FORMAT = 1  # of the index
_HERE = 4  # so few images are done in this process: a worker takes as long to start
_COMMIT_SECONDS = 1.0
_DAY = 24 * 3600.0
_IN = 500  # keys of one query
_TABLES = """
CREATE TABLE IF NOT EXISTS space (id INTEGER PRIMARY KEY, fingerprint TEXT UNIQUE, name TEXT, row_bytes INTEGER);
CREATE TABLE IF NOT EXISTS shard (
    id INTEGER PRIMARY KEY, space INTEGER REFERENCES space ON DELETE CASCADE, file TEXT UNIQUE, used REAL);
CREATE TABLE IF NOT EXISTS feature (
    space INTEGER, image BLOB, view INTEGER, shard INTEGER REFERENCES shard ON DELETE CASCADE, number INTEGER,
    PRIMARY KEY (space, image, view)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS feature_of_shard ON feature (shard);
CREATE TABLE IF NOT EXISTS unreadable (
    image BLOB, pillow TEXT, reason TEXT, PRIMARY KEY (image, pillow)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class _Images:
    """What features are wanted of: `places` are paths, or row numbers of `array`; `keys` tell images apart.

    Processes that want the same features of the same `origin` take turns.
    """

    names: tuple[str, ...]
    places: Sequence[str | int]
    keys: list[bytes]
    skipped: tuple[Skipped, ...]
    source: str
    origin: str
    array: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Found:
    """Rows of the index: shard and number [n, views], -1 where there is none; why images cannot be read."""

    shards: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    reasons: dict[int, str]

    def missing(self) -> list[tuple[int, list[int]]]:
        rows = np.flatnonzero((self.shards < 0).any(1)).tolist()
        return [(i, np.flatnonzero(self.shards[i] < 0).tolist()) for i in rows if i not in self.reasons]


def cached_features(
    images: str | Path | Sequence[str | Path] | ImageSet,
    backbone: Backbone,
    *,
    views: int = 1,
    names: Sequence[str] | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Features:
    """The features of images by a backbone, from the cache; what is not there yet is worked out first.

    Args:
        images: a folder, a list of files, or a set in memory.
        backbone: what `semisight.backbones.resolve` gives; it also says whether features are pooled.
        views: how many views of each image: plain, mirrored, then random parts with other light and colour.
        names: only these files of the folder, as paths below it, in this order.
        cache: by default semisight's folder in the user's folder for caches.
        workers: processes; by default one per core, at most 8. 0: all in this process.
        progress: called with (done, in all), images, while features are worked out; not at all if all are there.

    Returns:
        Features of what could be read, in the order of the images; `skipped` says what could not.
    """
    if views < 1:
        raise UserError(f"features need at least 1 view of each image, not {views}")
    wanted = _look(images, names)
    with _Cache(cache) as index:
        space = index.space(backbone)
        for _ in range(3):  # another process may make room in the cache by what was just found in it
            found = index.find(space, wanted.keys, views)
            if missing := found.missing():
                with _turn(index, backbone, wanted, found, views, space, progress) as found:
                    if missing := found.missing():
                        index.make_room(space, backbone, wanted, found, views)
                        passing = _work_out(index, space, backbone, wanted, missing, workers, progress)
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


@dataclass(frozen=True)
class CachedBackbone:
    """What the cache holds of one backbone."""

    name: str
    fingerprint: str
    rows: int
    images: int
    n_bytes: int
    used: float  # seconds since 1970


@dataclass(frozen=True)
class CacheReport:
    """What lies in the cache of features, and how much may."""

    folder: Path
    limit: int
    n_bytes: int
    backbones: tuple[CachedBackbone, ...]


def cache_report(cache: str | Path | None = None) -> CacheReport:
    """What the cache of features holds, backbone by backbone, the last used first."""
    with _Cache(cache) as index:
        return index.report()


def clear(cache: str | Path | None = None) -> int:
    """Removes all features from the cache; gives the bytes that were freed. What another process maps stays its own."""
    with _Cache(cache) as index:
        freed = index.report().n_bytes
        index.remove_all()
        return freed


def set_limit(n_bytes: int, cache: str | Path | None = None) -> None:
    """From now on the cache takes at most so many bytes; what is over goes now, the longest unused first."""
    if n_bytes < 1:
        raise UserError(f"the limit of the cache is a number of bytes above 0, not {n_bytes}")
    with _Cache(cache) as index:
        index.set_limit(n_bytes)
        index.evict(n_bytes, set())


# ---- what is there ----


def _look(images: str | Path | Sequence[str | Path] | ImageSet, names: Sequence[str] | None) -> _Images:
    if isinstance(images, ImageSet):
        pixels = images.images
        array = pixels.numpy() if pixels.dtype.itemsize == 1 else (pixels * 255).round().byte().numpy()
        shape = np.array(array.shape[1:], "<u4").tobytes()  # tells images apart whose bytes are the same
        keys = [hashlib.blake2b(row.tobytes(), digest_size=16, person=shape).digest() for row in array]
        source = images.source or "the set"
        return _Images(images.names, range(len(array)), keys, images.skipped, source, keys[0].hex(), array)
    if not isinstance(images, str | Path):
        paths = [os.path.abspath(Path(path).expanduser()) for path in images]
        return _of_files(tuple(printable(str(path)) for path in images), paths, (), "the list of files", "")
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
    at = str(folder.resolve())
    paths = [os.path.join(at, name) for name in names]
    return _of_files(tuple(map(printable, names)), paths, skipped, str(folder), at)


def _of_files(
    names: tuple[str, ...], paths: list[str], skipped: tuple[Skipped, ...], source: str, origin: str
) -> _Images:
    if not names:
        raise UserError(f"there are no files to read in {source}")
    keys = []
    for path in paths:
        try:
            status = os.stat(path)
            state = f"{status.st_size} {status.st_mtime_ns} "
        except OSError as error:  # what is wrong with it is said when it is read
            state = f"{error.errno} "
        keys.append(hashlib.blake2b(state.encode() + os.fsencode(path), digest_size=16).digest())
    return _Images(names, paths, keys, skipped, source, origin or keys[0].hex())


@dataclass(frozen=True)
class _Shard:
    id: int
    space: int
    file: str
    used: float
    n_bytes: int


class _Shards:
    """Rows of several mapped files, as `Features` reads them."""

    def __init__(self, files: dict[int, npt.NDArray[np.float16]], found: _Found, shape: tuple[int, int, int]) -> None:
        self._files, self._shards, self._numbers, self._shape = files, found.shards, found.numbers, shape

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        n, views = self._shards.shape
        return (n, views, *self._shape)

    def take(self, rows: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.float32]:
        values = np.empty((len(rows), *self._shape), np.float32)
        shards, numbers = self._shards[rows, view], self._numbers[rows, view]
        for shard in np.unique(shards).tolist():
            here = shards == shard
            values[here] = self._files[shard][numbers[here]]
        return values


class _Cache:
    """The index and the folder of shards."""

    def __init__(self, cache: str | Path | None) -> None:
        self.folder = (Path(cache).expanduser() if cache is not None else default_cache()) / "features"

    def __enter__(self) -> "_Cache":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._db = self._connect()
        except (OSError, sqlite3.OperationalError) as error:
            raise UserError(
                f"cannot use the folder of the feature cache, {self.folder}: {error}. "
                "Choose another one, for instance by the variable XDG_CACHE_HOME."
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    def _connect(self) -> sqlite3.Connection:
        try:
            return self._opened_index()
        except sqlite3.OperationalError:  # locked, read-only, no room: nothing is wrong with the file
            raise
        except sqlite3.DatabaseError:  # garbled, or of another version: a cache can be made again
            for file in [*self.folder.glob("index.sqlite*"), *self.folder.glob("*.f16")]:
                file.unlink(missing_ok=True)
            return self._opened_index()

    def _opened_index(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.folder / "index.sqlite", timeout=60, check_same_thread=False)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _FORMAT):
                raise sqlite3.DatabaseError(f"format {version}")
            db.execute("PRAGMA foreign_keys = ON")
            if version == 0:
                db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_FORMAT}; COMMIT;")
        except BaseException:
            db.close()
            raise
        return db

    def space(self, backbone: Backbone) -> int:
        """The number of a backbone in the index."""
        row_bytes = 2 * int(np.prod(backbone.feature_shape))
        values = (backbone.fingerprint, backbone.name, row_bytes)
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO space (fingerprint, name, row_bytes) VALUES (?, ?, ?)", values)
        query = "SELECT id FROM space WHERE fingerprint = ?"
        return int(self._db.execute(query, (backbone.fingerprint,)).fetchone()[0])

    def find(self, space: int, keys: list[bytes], views: int) -> _Found:
        shards, numbers = (np.full((len(keys), views), -1, np.int64) for _ in range(2))
        places: dict[bytes, list[int]] = {}
        for i, key in enumerate(keys):  # one image may be asked for twice
            places.setdefault(key, []).append(i)
        reasons: dict[int, str] = {}
        different = list(places)
        for start in range(0, len(different), _IN):
            some = different[start : start + _IN]
            marks = ",".join("?" * len(some))
            query = (
                f"SELECT image, view, shard, number FROM feature WHERE space = ? AND image IN ({marks}) AND view < ?"
            )
            for key, view, shard, number in self._db.execute(query, (space, *some, views)):
                shards[places[key], view], numbers[places[key], view] = shard, number
            query = f"SELECT image, reason FROM unreadable WHERE image IN ({marks}) AND pillow = ?"
            for key, reason in self._db.execute(query, (*some, PIL.__version__)):
                reasons.update(dict.fromkeys(places[key], reason))
        return _Found(shards, numbers, reasons)

    def opened(self, found: _Found, shape: tuple[int, int, int]) -> _Shards | None:
        """The found rows, mapped, and marked as used; None if a shard is gone or short, which is then removed."""
        files: dict[int, npt.NDArray[np.float16]] = {}
        shards = {shard.id: shard for shard in self._shards()}
        wanted = np.unique(found.shards[found.shards >= 0]).tolist()
        for number in wanted:
            n_rows = int(found.numbers[found.shards == number].max()) + 1
            if number in shards and shards[number].n_bytes >= 2 * n_rows * int(np.prod(shape)):
                with contextlib.suppress(OSError):
                    file = self.folder / shards[number].file
                    files[number] = np.memmap(file, np.float16, "r", shape=(n_rows, *shape))
        with self._db:
            self._db.executemany("UPDATE shard SET used = ? WHERE id = ?", [(time.time(), number) for number in files])
            for number in wanted:
                if number in shards and number not in files:
                    self._remove(shards[number])
        return _Shards(files, found, shape) if len(files) == len(wanted) else None

    # ---- writing ----

    def new_shards(self, space: int, backbone: Backbone, n: int) -> list[list[str]]:
        """For each of n writers the names of files to try, the last of them its own and new."""
        old = [shard.file for shard in self._shards() if shard.space == space and 0 < shard.n_bytes < SHARD_BYTES]
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", backbone.name)[:40] or "features"
        new = [f"{stem}-{backbone.fingerprint[:8]}-{uuid.uuid4().hex[:12]}.f16" for _ in range(n)]
        with self._db:
            values = [(space, file, time.time()) for file in new]
            self._db.executemany("INSERT INTO shard (space, file, used) VALUES (?, ?, ?)", values)
        return [[*old[-8:], file] for file in new]

    def add(self, space: int, rows: list[tuple[bytes, int, str, int]], unreadable: list[tuple[bytes, str]]) -> None:
        """Features (image, view, file of the shard, number) and images that cannot be read, in one step."""
        with self._db:
            # From the table of shards: a row whose shard was removed meanwhile is not entered.
            self._db.executemany(
                "INSERT OR IGNORE INTO feature SELECT ?, ?, ?, id, ? FROM shard WHERE file = ?",
                [(space, key, view, number, file) for key, view, file, number in rows],
            )
            versioned = [(key, PIL.__version__, reason) for key, reason in unreadable]  # a newer Pillow may read more
            self._db.executemany("INSERT OR REPLACE INTO unreadable VALUES (?, ?, ?)", versioned)

    def forget_empty(self, files: Sequence[str]) -> None:
        """Forgets those of these shards that got no row, and any that a killed process left without one."""
        with self._db:
            for shard in self._shards():
                if shard.n_bytes == 0 and (shard.file in files or shard.used < time.time() - _DAY):
                    self._remove(shard)

    # ---- room ----

    def _shards(self) -> list[_Shard]:
        """Every shard, the longest unused first."""
        listed = []
        query = "SELECT id, space, file, used FROM shard ORDER BY used"
        for number, space, file, used in self._db.execute(query).fetchall():
            try:
                n_bytes = os.stat(self.folder / file).st_size
            except OSError:
                n_bytes = 0
            listed.append(_Shard(number, space, file, used, n_bytes))
        return listed

    @property
    def limit(self) -> int:
        row = self._db.execute("SELECT value FROM setting WHERE name = 'limit'").fetchone()
        return int(row[0]) if row else LIMIT

    def set_limit(self, n_bytes: int) -> None:
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO setting VALUES ('limit', ?)", (n_bytes,))

    def make_room(self, space: int, backbone: Backbone, wanted: _Images, found: _Found, views: int) -> None:
        """Room for what is missing, by leaving out what was not used for the longest time."""
        row_bytes = 2 * int(np.prod(backbone.feature_shape))
        whole = row_bytes * views * len(wanted.keys)
        C, h, w = backbone.feature_shape
        form = f"features {C} x {h} x {w} in {views} view{'s' * (views > 1)} of {len(wanted.keys):,} images"
        if whole > self.limit:
            raise UserError(
                f"{form} take {whole / 1e9:.1f} GB, more than the {self.limit / 1e9:.1f} GB that the cache may have: "
                f"`semisight cache limit {-(-whole // 10**9) + 1}GB` allows more; pooled or fewer views take less"
            )
        needed = row_bytes * int((found.shards < 0).sum())
        self.evict(self.limit - needed, set(np.unique(found.shards).tolist()))
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"{form} need {needed / 1e9:.1f} GB more in {self.folder}, and only {free / 1e9:.1f} GB of the disk "
                "are free. Make room, or choose another folder for caches by the variable XDG_CACHE_HOME."
            )

    def evict(self, allowed: int, kept: set[int]) -> None:
        """Removes shards, but none that is kept or being written to, until at most so many bytes are left."""
        shards = self._shards()
        total = sum(shard.n_bytes for shard in shards)
        for shard in shards:
            if total <= allowed:
                return
            if shard.id not in kept and shard.n_bytes:
                with contextlib.suppress(OSError), (self.folder / shard.file).open("rb") as opened, self._db:
                    if lock_file(opened.fileno()):
                        self._remove(shard)
                        total -= shard.n_bytes

    def _remove(self, shard: _Shard) -> None:
        self._db.execute("DELETE FROM shard WHERE id = ?", (shard.id,))
        with contextlib.suppress(OSError):  # where a file that is mapped cannot be removed, it stays
            (self.folder / shard.file).unlink()

    def remove_all(self) -> None:
        with self._db:
            for shard in self._shards():
                self._remove(shard)
            self._db.execute("DELETE FROM unreadable")
        for left in self.folder.glob("*.f16"):
            left.unlink(missing_ok=True)
        self._db.execute("VACUUM")

    def report(self) -> CacheReport:
        shards = self._shards()
        listed = []
        for space, fingerprint, name in self._db.execute("SELECT id, fingerprint, name FROM space").fetchall():
            own = [shard for shard in shards if shard.space == space]
            count = "SELECT count(*), count(DISTINCT image) FROM feature WHERE space = ?"
            rows, images = self._db.execute(count, (space,)).fetchone()
            n_bytes = sum(shard.n_bytes for shard in own)
            if n_bytes:
                used = max(shard.used for shard in own)
                listed.append(CachedBackbone(name, fingerprint, rows, images, n_bytes, used))
        listed.sort(key=lambda entry: -entry.used)
        return CacheReport(self.folder, self.limit, sum(shard.n_bytes for shard in shards), tuple(listed))


# ---- making it ----


@contextlib.contextmanager
def _turn(
    index: _Cache, backbone: Backbone, wanted: _Images, found: _Found, views: int, space: int, progress: Progress | None
) -> Iterator[_Found]:
    """One process at a time for one source and backbone: a second waits, and then finds what the first has made.

    A process that is killed loses its lock with its life. Yields what is there when it is this process's turn.
    """
    which = hashlib.sha256(f"{backbone.fingerprint} ".encode() + os.fsencode(wanted.origin)).hexdigest()[:16]
    with (index.folder / f"{which}.lock").open("w") as lock:
        total = len(found.missing())
        while not lock_file(lock.fileno()):
            time.sleep(0.3)
            found = index.find(space, wanted.keys, views)
            left = len(found.missing())
            if progress is not None and left < total:
                progress(total - left, total)
            if not left:
                break
        yield index.find(space, wanted.keys, views)


def _work_out(
    index: _Cache,
    space: int,
    backbone: Backbone,
    wanted: _Images,
    missing: list[tuple[int, list[int]]],
    workers: int | None,
    progress: Progress | None,
) -> dict[int, str]:
    """The missing views of these images to the cache; for those that cannot be read at the moment, why."""
    views_of = dict(missing)
    job = backbone.job
    n_workers = min(cores(), 8) if workers is None else workers
    here = job is None or n_workers == 0 or (workers is None and len(missing) <= _HERE)
    todo: list[Todo] = [(i, wanted.places[i], views) for i, views in missing]
    parts = [todo] if here else [part for start in range(n_workers) if (part := todo[start::n_workers])]
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

    candidates = index.new_shards(space, backbone, len(parts))
    row_bytes = 2 * int(np.prod(backbone.feature_shape))
    try:
        if job is None or here:
            read = from_files if wanted.array is None else from_array(wanted.array)
            shard = ShardWriter(index.folder, candidates[0], row_bytes)
            try:
                work_out(todo, read, backbone, shard, answer)
            finally:
                shard.close()
        else:
            _in_processes(job, index.folder, wanted, parts, candidates, row_bytes, answer)
    finally:
        save()  # also what was done before an interruption
        index.forget_empty([names[-1] for names in candidates])
    return passing


def _in_processes(
    job: WorkerJob,
    folder: Path,
    wanted: _Images,
    parts: list[list[Todo]],
    candidates: list[list[str]],
    row_bytes: int,
    answer: Callable[[Answer], None],
) -> None:
    def what(number: int, answered: int) -> str:
        part = parts[number]
        return f"{wanted.names[part[min(answered, len(part) - 1)][0]]} of {wanted.source}"

    with tempfile.TemporaryDirectory(prefix="semisight-") as temporary:
        array = None
        if wanted.array is not None:  # worker processes map it instead of being sent it
            array = os.path.join(temporary, "images.npy")
            np.save(array, wanted.array)
        same = {"network": job.network, "folder": str(folder), "row_bytes": row_bytes, "array": array}
        jobs = [{**same, "shards": names, "images": part} for names, part in zip(candidates, parts, strict=True)]
        run_jobs(job.module, jobs, [len(part) for part in parts], answer, what)
