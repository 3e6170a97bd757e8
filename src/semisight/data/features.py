"""Feature maps in place of images: a backbone's from the cache, or the user's own from arrays and files.

    FILE.npy       float [N, D] or [N, C, h, w], mapped, not loaded
    FILE.npz       the array `features`, and maybe `files`: one name for each row
    FILE.parquet   a column `file`, and a column `features` of lists, or every other column that holds numbers

An array of shape [N, D] could be feature rows or flattened images: it is taken for features only if it is marked so.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semisight.data.arrays import memory_limit, refuse_beyond
from semisight.data.image_set import Skipped
from semisight.errors import UserError

Index = Tensor | npt.NDArray[np.int64] | Sequence[int] | slice | None
MARK = "features:"  # before the name of a file: its rows are features, whatever else they could be
_CHUNK = 64 << 20  # bytes looked at at a time when values are checked


class Stored(Protocol):
    """Where the values of features lie: [N, views, C, h, w] of any float type, read row by row."""

    @property
    def shape(self) -> tuple[int, int, int, int, int]: ...
    def take(self, rows: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.float32]:
        """A new float32 [B, C, h, w]."""
        ...


class Features:
    """N feature maps of one shape, one or several views of each, with the files that they are of.

    Args:
        values: numbers [N, D], [N, C, h, w] or, with several views of each image, [N, views, C, h, w]; numpy or torch.
        files: one name for each row; by default their numbers.

    Example:
        >>> import numpy as np, semisight as ss
        >>> features = ss.Features(np.random.default_rng(0).normal(size=(5, 1280)))
        >>> features.shape, features.views, features.values([0, 3]).shape
        ((1280, 1, 1), 1, torch.Size([2, 1280, 1, 1]))
    """

    def __init__(self, values: Any, files: Sequence[str] | None = None) -> None:
        array = _checked(values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asanyarray(values))
        names = tuple(f"{i:05d}" for i in range(len(array))) if files is None else tuple(str(name) for name in files)
        self._set(_InMemory(array), names, (), "features given as an array")

    @classmethod
    def stored(
        cls, values: Stored, names: Sequence[str], skipped: Sequence[Skipped] = (), source: str = ""
    ) -> "Features":
        """Features that lie where `values` says, for instance in the cache."""
        features = cls.__new__(cls)
        features._set(values, tuple(names), tuple(skipped), source)
        return features

    def _set(self, values: Stored, names: tuple[str, ...], skipped: tuple[Skipped, ...], source: str) -> None:
        if len(names) != values.shape[0]:
            raise UserError(f"{values.shape[0]} rows of features, but {len(names)} names of files: one for each row")
        self._values, self.names, self.skipped, self.source = values, names, skipped, source

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        views = f", {self.views} views" if self.views > 1 else ""
        return f"Features({len(self):,} of shape {list(self.shape)}{views})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one feature map; pooled features have (C, 1, 1)."""
        return self._values.shape[2:]

    @property
    def views(self) -> int:
        """How many views of each image there are; view 0 is the plain one."""
        return self._values.shape[1]

    def values(self, index: Index = None, view: int = 0) -> Tensor:
        """The feature maps at `index` (by default all) in one view, new float32 [B, C, h, w]."""
        if not 0 <= view < self.views:
            raise UserError(f"there is no view {view} of these features: they have {self.views}, numbered from 0")
        return torch.from_numpy(self._values.take(self._rows(index), view))

    def subset(self, index: Index) -> "Features":
        """The rows at `index`, in that order; nothing is copied."""
        rows = self._rows(index)
        return Features.stored(_Chosen(self._values, rows), [self.names[i] for i in rows], self.skipped, self.source)

    def _rows(self, index: Index) -> npt.NDArray[np.int64]:
        every = np.arange(len(self))
        if index is None:
            return every
        if not isinstance(index, slice):
            index = np.asarray(index)  # whole numbers, or a mask of N booleans
            index = index.astype(np.int64) if index.size == 0 else index
        return every[index]


class _InMemory:
    """An array in memory, or mapped from a file."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        n, views, C, h, w = self._array.shape
        return (n, views, C, h, w)

    def take(self, rows: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.float32]:
        return self._array[rows, view].astype(np.float32)


class _Chosen:
    """Some rows of another store."""

    def __init__(self, whole: Stored, rows: npt.NDArray[np.int64]) -> None:
        self._whole, self._rows = whole, rows

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        return (len(self._rows), *self._whole.shape[1:])

    def take(self, rows: npt.NDArray[np.int64], view: int) -> npt.NDArray[np.float32]:
        return self._whole.take(self._rows[rows], view)


def refuse_unmarked(shape: Sequence[int], where: str = "the array", file: str | Path | None = None) -> None:
    """Raises for an array [N, D] that nobody has said to be features: it has two possible meanings."""
    if len(shape) == 2:
        n, d = shape
        mark = "semisight.Features(array)" if file is None else f"{MARK}{file}"
        raise UserError(
            f"{where} has shape [{n}, {d}], which could mean two things. If its rows are features or codes, mark them: "
            f"{mark}. If they are flattened images, give the images their shape: array.reshape({n}, height, width)"
            f"{'' if file is not None else ', or SemiSight(image_shape=(height, width))'}."
        )


# ---- files ----


def is_feature_file(source: str | Path) -> bool:
    """Whether a source is marked as features: `features:` before it, Parquet, or an .npz with an array `features`."""
    if str(source).startswith(MARK):
        return True
    path = Path(source).expanduser()
    try:
        if path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                return "features.npy" in archive.namelist()
        return path.suffix in (".parquet", ".pq") and path.is_file()
    except (OSError, ValueError, zipfile.BadZipFile):  # what is wrong is said when it is read
        return False


def read_features(source: str | Path, *, file_column: str | None = None) -> Features:
    """Features of the user's own from a .npy, .npz or Parquet file, `features:` before its name or not.

    file_column  the column of a Parquet file with the names of files; by default `file`, `files`, `filename` or `path`
    """
    path = Path(str(source).removeprefix(MARK)).expanduser()
    if not path.is_file():
        raise UserError(f"there is no file {path} to read features from")
    readers = {".npy": _read_npy, ".npz": _read_npz, ".parquet": _read_parquet, ".pq": _read_parquet}
    if path.suffix not in readers:
        raise UserError(f"features are read from .npy, .npz and .parquet files, not from {path.name}")
    try:
        array, files = readers[path.suffix](path, file_column)
    except UserError:
        raise
    except Exception as error:  # zipfile, numpy's and arrow's parsers raise nearly anything on garbled bytes
        raise UserError(f"{path} is damaged or not what its name says ({type(error).__name__}: {error})") from error
    try:
        features = Features(array, files)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    features.source = str(path)
    return features


def _read_npy(path: Path, _: str | None) -> tuple[npt.NDArray[Any], None]:
    return np.load(path, mmap_mode="r", allow_pickle=False), None


def _read_npz(path: Path, _: str | None) -> tuple[npt.NDArray[Any], list[str] | None]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if "features" not in members:
            listed = ", ".join(sorted(members)[:10]) or "nothing"
            raise UserError(
                f"{path} has no array `features`; it holds {listed}. Save it with np.savez(path, features=...)"
            )
        arrays = {}
        for key in ("features", "files"):
            if key in members:
                refuse_beyond(memory_limit(), members[key].file_size, f"{path}, array `{key}`")
                with archive.open(members[key]) as file:
                    arrays[key] = np.lib.format.read_array(file, allow_pickle=False)
    files = arrays.get("files")
    if files is not None and (files.ndim != 1 or files.dtype.kind not in "US"):
        raise UserError(f"{path}: `files` must be a list of names, one for each row of `features`")
    return arrays["features"], None if files is None else files.astype(str).tolist()


def _read_parquet(path: Path, file_column: str | None) -> tuple[npt.NDArray[Any], list[str] | None]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(f"to read {path.name}, pyarrow is needed: pip install 'semisight[parquet]'") from None
    about = pq.read_metadata(path)
    n_bytes = sum(about.row_group(i).total_byte_size for i in range(about.num_row_groups))
    refuse_beyond(memory_limit(), n_bytes, str(path))
    table = pq.read_table(path)
    known = (file_column,) if file_column else ("file", "files", "filename", "path")
    of_files = next((name for name in known if name in table.column_names), None)
    if of_files is None:
        raise UserError(
            f"{path} has no column {' or '.join(known)} with the names of files; it has {table.column_names}"
        )
    files = [str(name) for name in table.column(of_files).to_pylist()]
    if "features" in table.column_names:
        column = table.column("features").combine_chunks()
        if not (
            pa.types.is_list(column.type)
            or pa.types.is_large_list(column.type)
            or pa.types.is_fixed_size_list(column.type)
        ):
            raise UserError(f"{path}: the column `features` holds {column.type}; it must hold lists of numbers")
        lengths = set(column.value_lengths().to_pylist())
        if len(lengths) != 1 or None in lengths:
            raise UserError(f"{path}: the lists in the column `features` have different lengths, or some are missing")
        flat = column.flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(files), -1), files
    numbers = [name for name in table.column_names if _is_number(table.schema.field(name).type)]
    if not numbers:
        raise UserError(f"{path} has neither a column `features` of lists nor columns of numbers beside {of_files!r}")
    return np.stack([table.column(name).to_numpy() for name in numbers], 1), files


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _checked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[N, views, C, h, w] of finite numbers."""
    shape = array.shape
    if array.dtype.kind not in "iuf":
        raise UserError(f"features have type {array.dtype}; they must be numbers")
    if array.ndim not in (2, 4, 5) or 0 in shape:
        raise UserError(
            f"features have shape {list(shape)}; they must be rows [N, D], maps [N, C, h, w], "
            "or maps in several views [N, views, C, h, w]"
        )
    step = max(1, _CHUNK // max(1, array[0].nbytes))
    for start in range(0, len(array), step):
        finite = np.isfinite(array[start : start + step]).reshape(len(array[start : start + step]), -1).all(1)
        if not finite.all():
            raise UserError(f"row {start + int(np.argmin(finite))} of the features holds NaN or infinite numbers")
    if array.ndim == 2:
        return array.reshape(shape[0], 1, shape[1], 1, 1)
    return array[:, None] if array.ndim == 4 else array
