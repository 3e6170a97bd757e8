"""The index of the feature cache: which row of which shard holds which view of which image; room, and who goes first.

It is SQLite's: whole or unchanged after a kill, and safe for several processes at once.
"""

import contextlib
import os
import re
import shutil
import sqlite3
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import PIL

from semisight.data.feature_worker import LOCKS, SHARD_BYTES, lock_file
from semisight.data.image_cache import default_cache
from semisight.data.preprocessing import Backbone
from semisight.errors import UserError

LIMIT = 10_000_000_000  # bytes
_FORMAT = 2  # of the index, and of what is in it: to be raised when a view becomes another one (preprocessing.py)
_DAY = 24 * 3600.0
_IN = 500  # keys of one query
_SHARD = re.compile(r"[A-Za-z0-9_-]+\.f16")
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
class Found:
    """Rows of the index: shard and number [n, views], -1 where there is none; why images cannot be read."""

    shards: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    reasons: dict[int, str]

    def missing(self) -> list[tuple[int, list[int]]]:
        rows = np.flatnonzero((self.shards < 0).any(1)).tolist()
        return [(i, np.flatnonzero(self.shards[i] < 0).tolist()) for i in rows if i not in self.reasons]


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


@dataclass(frozen=True)
class _Shard:
    id: int
    space: int
    file: str
    used: float
    n_bytes: int


class ShardedRows:
    """Rows of several mapped files, as `Features` reads them."""

    def __init__(self, files: dict[int, npt.NDArray[np.float16]], found: Found, shape: tuple[int, int, int]) -> None:
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


class FeatureIndex:
    """The index and the folder of shards."""

    def __init__(self, cache: str | Path | None) -> None:
        self.folder = (Path(cache).expanduser() if cache is not None else default_cache()) / "features"

    def __enter__(self) -> "FeatureIndex":
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._db = self._connect()
        except (OSError, sqlite3.OperationalError) as error:
            raise UserError(
                f"cannot use the folder of the feature cache, {self.folder}: {error}. "
                "Choose another one, for instance by the variable XDG_CACHE_HOME."
            ) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._db.close()
        if isinstance(error, sqlite3.Error):
            raise UserError(
                f"the index of the feature cache in {self.folder} cannot be used ({error}): delete that folder, it is "
                "made again, or choose another one by the variable XDG_CACHE_HOME."
            ) from error
        if isinstance(error, OSError):  # a shard on a disk that is full, say; what is in the index is whole
            raise UserError(
                f"could not write to the feature cache in {self.folder}: {error.strerror or error}. Make room, or "
                "choose another folder by the variable XDG_CACHE_HOME; what is done so far is kept."
            ) from error

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

    def find(self, space: int, keys: list[bytes], views: int) -> Found:
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
        return Found(shards, numbers, reasons)

    def opened(self, found: Found, shape: tuple[int, int, int]) -> ShardedRows | None:
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
                elif number not in shards:  # no shard of ours, or none at all
                    self._db.execute("DELETE FROM feature WHERE shard = ?", (number,))
                    self._db.execute("DELETE FROM shard WHERE id = ?", (number,))
        return ShardedRows(files, found, shape) if len(files) == len(wanted) else None

    # ---- writing ----

    def shards_to_write(self, space: int, backbone: Backbone, n: int) -> tuple[list[str], list[str]]:
        """Names of shards that have room, and names of n new ones, for n writers."""
        old = [shard.file for shard in self._shards() if shard.space == space and 0 < shard.n_bytes < SHARD_BYTES]
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", backbone.name)[:40] or "features"
        new = [f"{stem}-{backbone.fingerprint[:8]}-{uuid.uuid4().hex[:12]}.f16" for _ in range(n)]
        with self._db:
            values = [(space, file, time.time()) for file in new]
            self._db.executemany("INSERT INTO shard (space, file, used) VALUES (?, ?, ?)", values)
        return old[-8:], new

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
            if not isinstance(file, str) or not _SHARD.fullmatch(file):  # none of ours: no name leads out of the folder
                continue
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

    def make_room(self, shape: tuple[int, int, int], found: Found) -> None:
        """Room for what is missing, by leaving out what was not used for the longest time."""
        n_images, views = found.shards.shape
        row_bytes = 2 * int(np.prod(shape))
        whole = row_bytes * views * n_images
        C, h, w = shape
        form = f"features {C} x {h} x {w} in {views} view{'s' * (views > 1)} of {n_images:,} images"
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
                    if not LOCKS or lock_file(opened.fileno()):
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
