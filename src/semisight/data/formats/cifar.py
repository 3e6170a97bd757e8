"""CIFAR-10 and CIFAR-100, as binary files and as Python's pickled batches.

The pickled batches are read by an unpickler that can build nothing but numbers, text, bytes, lists, tuples and
dictionaries, and arrays of bytes: no class or function of Python or numpy is ever given to the file.
"""

import io
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from semisight.data.arrays import Array, memory_limit, refuse_beyond, to_tensor
from semisight.data.image_set import ImageSet
from semisight.errors import UserError

_PIXELS = 3 * 32 * 32
_CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_BATCH = re.compile(r"^(data_batch_\d+|test_batch|train|test)(\.bin)?$")
_OF_PART = {
    "train": re.compile(r"^(data_batch_\d+|train)(\.bin)?$"),
    "test": re.compile(r"^(test_batch|test)(\.bin)?$"),
}
_NAME_FILES = ("batches.meta", "meta", "batches.meta.txt", "fine_label_names.txt")


@dataclass(frozen=True)
class _Batch:
    images: Array  # uint8 [N,3,32,32]
    labels: Array  # int64 [N]
    n_classes: int


def is_cifar_folder(folder: Path) -> bool:
    """Whether a folder holds CIFAR's batches, under the names they are published with."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    batches = [name for name in names if _BATCH.match(name)]
    # `train` and `test` alone are too common as names: pickled CIFAR-100 comes with its `meta`.
    return any(name.startswith(("data_batch_", "test_batch")) or name.endswith(".bin") for name in batches) or (
        bool(batches) and "meta" in names
    )


def read_cifar_folder(folder: Path, part: str = "train") -> ImageSet:
    """The batches of one part (train or test) of a folder, in order."""
    files = sorted((path for path in folder.iterdir() if _OF_PART[part].match(path.name)), key=_batch_number)
    if not files:
        raise UserError(f"{folder} holds CIFAR batches, but none of the {part} part")
    return _join(files, folder, str(folder))


def read_cifar_file(path: Path) -> ImageSet:
    """The images of one batch, binary or pickled."""
    return _join([path], path.parent, str(path))


def _batch_number(path: Path) -> tuple[int, str]:
    digits = re.findall(r"\d+", path.name)
    return (int(digits[0]) if digits else 0, path.name)


def _join(files: list[Path], folder: Path, source: str) -> ImageSet:
    try:
        refuse_beyond(memory_limit(), sum(path.stat().st_size for path in files), source)
        batches = [_read_batch(path) for path in files]
        class_names = _class_names(folder, batches[0].n_classes)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or source}: {error.strerror or error}") from error
    n_classes = batches[0].n_classes
    if any(batch.n_classes != n_classes for batch in batches):
        raise UserError(f"{source} mixes batches of CIFAR-10 and CIFAR-100: keep each in its own folder")
    names = tuple(
        f"{path.stem}/{i:05d}" for path, batch in zip(files, batches, strict=True) for i in range(len(batch.images))
    )
    images = np.concatenate([batch.images for batch in batches])
    labels = torch.from_numpy(np.concatenate([batch.labels for batch in batches]))
    notes: tuple[str, ...] = ()
    missing = 5 - len(files)
    if source == str(folder) and n_classes == 10 and files[0].name.startswith("data_batch_") and missing > 0:
        notes = (f"{len(files)} of the 5 training batches of CIFAR-10 are there; {missing} missing",)
    return ImageSet.of(to_tensor(images), names, labels, class_names, source=source, notes=notes)


def _class_names(folder: Path, n_classes: int) -> tuple[str, ...]:
    for name in _NAME_FILES:
        path = folder / name
        if not path.is_file():
            continue
        if name.endswith(".txt"):
            listed = path.read_text("utf-8", "replace").split()
        else:
            meta = _unpickle(path)
            entries = meta.get("label_names" if n_classes == 10 else "fine_label_names")
            listed = [_text(entry) for entry in entries] if isinstance(entries, list) else []
        if len(listed) == n_classes and len(set(listed)) == n_classes:
            return tuple(listed)
    return _CIFAR10_NAMES if n_classes == 10 else tuple(str(c) for c in range(n_classes))


def _read_batch(path: Path) -> _Batch:
    with path.open("rb") as file:
        pickled = file.read(1) == b"\x80"
    # 0x80 is 128: no label of a binary file, and the first byte of every pickle of protocol 2 and above.
    return _read_pickled(path) if pickled else _read_binary(path)


def _read_binary(path: Path) -> _Batch:
    """Records of one label (CIFAR-10) or a coarse and a fine label (CIFAR-100), then 3072 bytes of pixels."""
    raw = np.frombuffer(path.read_bytes(), np.uint8)
    reasons = []
    for n_labels, limits in ((1, (10,)), (2, (20, 100))):
        record = n_labels + _PIXELS
        if len(raw) == 0 or len(raw) % record:
            reasons.append(f"CIFAR-{limits[-1]} needs a multiple of {record:,} bytes")
            continue
        records = raw.reshape(-1, record)
        if (records[:, :n_labels] >= np.array(limits)).any():
            reasons.append(f"as CIFAR-{limits[-1]} it would have labels up to {records[:, :n_labels].max()}")
            continue
        images = records[:, n_labels:].reshape(-1, 3, 32, 32)
        return _Batch(images, records[:, n_labels - 1].astype(np.int64), limits[-1])
    raise UserError(
        f"{path} is no whole CIFAR binary batch: found {len(raw):,} bytes; {'; '.join(reasons)}. Fetch it again"
    )


def _read_pickled(path: Path) -> _Batch:
    content = _unpickle(path)
    data = content.get("data")
    if not isinstance(data, _PickledArray) or data.values is None:
        raise UserError(f"{path} is a pickle without an array `data`: not a CIFAR batch")
    images = data.values
    if images.ndim != 2 or images.shape[1] != _PIXELS or not len(images):
        raise UserError(f"{path}: `data` has shape {list(images.shape)}; a CIFAR batch has [N, {_PIXELS}]")
    fine = "fine_labels" in content
    n_classes = 100 if fine else 10
    listed = content.get("fine_labels" if fine else "labels")
    if not isinstance(listed, list) or not all(type(label) is int and 0 <= label < n_classes for label in listed):
        raise UserError(
            f"{path}: `{'fine_labels' if fine else 'labels'}` must be a list of numbers from 0 to {n_classes - 1}"
        )
    if len(listed) != len(images):
        raise UserError(f"{path} has {len(images)} images and {len(listed)} labels")
    return _Batch(images.reshape(-1, 3, 32, 32), np.array(listed, np.int64), n_classes)


def _text(entry: object) -> str:
    return (
        entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry) if isinstance(entry, str) else ""
    )


def _unpickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickled batch, its keys as text."""
    raw = io.BytesIO(path.read_bytes())
    try:
        content = _BatchUnpickler(raw, encoding="bytes").load()
    except UserError as error:
        raise UserError(f"{path} is refused: {error}") from error
    # An unpickler on garbled bytes can fail in any way Python can; none of it is our own mistake.
    except Exception as error:
        raise UserError(
            f"{path} is no CIFAR batch, or it is damaged ({type(error).__name__}); fetch it again"
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is a pickle of a {type(content).__name__}; a CIFAR batch is a dictionary")
    return {_text(key): value for key, value in content.items()}


class _PickledArray:
    """Stands in for numpy.ndarray while unpickling: takes bytes only, and only as many as its shape says."""

    def __init__(self) -> None:
        self.values: Array | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _PickledDtype) or dtype.code not in ("u1", "|u1", "B"):
            raise UserError("it holds an array of something else than bytes")
        if (
            not isinstance(raw, bytes)
            or not isinstance(shape, tuple)
            or not all(type(length) is int for length in shape)
        ):
            raise UserError("it holds a malformed array")
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran else "C")


class _PickledDtype:
    """Stands in for numpy.dtype while unpickling."""

    def __init__(self, code: object, align: object = None, copy: object = None) -> None:
        self.code = _text(code)

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: of no importance for single bytes."""


class _Name:
    """Stands in for the class numpy.ndarray itself, which pickles only mention."""

    __slots__ = ()


def _forbidden(_: Any) -> None:
    raise UserError("it uses a part of pickle that no CIFAR batch needs")


def _set_items(unpickler: Any) -> None:
    items = unpickler.pop_mark()
    _fill(unpickler.stack[-1], items[::2], items[1::2])


def _set_item(unpickler: Any) -> None:
    value, key = unpickler.stack.pop(), unpickler.stack.pop()
    _fill(unpickler.stack[-1], [key], [value])


def _fill(target: Any, keys: list[Any], values: list[Any]) -> None:
    # Keys of nested tuples can take for ever to hash.
    if type(target) is not dict or not all(type(key) in (bytes, str) for key in keys):
        raise UserError("it has a dictionary whose keys are not text")
    target.update(zip(keys, values, strict=True))


def _build(unpickler: Any) -> None:
    state, target = unpickler.stack.pop(), unpickler.stack[-1]
    # Python's own version would set attributes on anything, on our functions too.
    if not isinstance(target, _PickledArray | _PickledDtype):
        raise UserError("it changes an object that is not an array")
    target.__setstate__(state)


def _byte_array(unpickler: Any) -> None:
    # Python's own version allocates the length announced before it looks whether so many bytes are there.
    (length,) = struct.unpack("<Q", unpickler.read(8))
    unpickler.append(unpickler.read(length))


_NEEDED = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.NONE),
    *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    *(pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.NEWTRUE, pickle.NEWFALSE),
    *(
        pickle.STRING,
        pickle.BINSTRING,
        pickle.SHORT_BINSTRING,
        pickle.BINBYTES,
        pickle.SHORT_BINBYTES,
        pickle.BINBYTES8,
    ),
    *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.EMPTY_DICT, pickle.EMPTY_LIST, pickle.LIST, pickle.APPEND),
    *(pickle.APPENDS, pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    *(pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE),
)


class _BatchUnpickler(pickle._Unpickler):
    """Python's own unpickler in Python (a subclass is how the library lets it be restricted).

    The one in C would do for the classes, but it allocates what a file merely announces, and its opcodes are fixed.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **dict.fromkeys(pickle._Unpickler.dispatch, _forbidden),
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _NEEDED},
        pickle.BUILD[0]: _build,
        pickle.BYTEARRAY8[0]: _byte_array,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: _set_items,
    }

    def find_class(self, module: str, name: str) -> Callable[..., object] | _Name:
        match (module, name):
            case ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct"):
                return _new_array
            case ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer"):
                return _from_buffer
            case ("numpy", "ndarray"):
                return _Name()
            case ("numpy", "dtype"):
                return _PickledDtype
            case ("_codecs", "encode"):
                return _encode
        raise UserError(f"it asks for {module}.{name}, which no CIFAR batch needs; do not trust where it came from")


def _new_array(*_: object) -> _PickledArray:
    """How pickles up to protocol 4 announce an array whose contents follow."""
    return _PickledArray()


def _from_buffer(raw: object, dtype: object, shape: object, order: object) -> _PickledArray:
    """How pickles of protocol 5 hold an array."""
    array = _PickledArray()
    array.__setstate__((1, shape, dtype, order == "F", raw))
    return array


def _encode(text: object, encoding: object) -> bytes:
    """How Python 3 writes bytes under protocol 2."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise UserError("it has malformed bytes")
    return text.encode("latin1")
