"""`load`: whatever people have, by what it is. Nothing heavy is imported before something is loaded."""

import difflib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from semisight.errors import UserError

if TYPE_CHECKING:
    from semisight.data.image_set import ImageSet

ACCEPTED = """\
  builtin:digits                          1,797 handwritten digits, 8 x 8 pixels
  builtin:scenes?n=2000&size=32&seed=1    generated pictures of coloured shapes, with labels, tags and captions
  FOLDER                                  images in any common format, in folders as deep as you like
  IMAGE                                   a single image
  FILE.npz, FILE.npy                      array `images`, and maybe `labels` and `tags`
  MNIST's idx files                       a folder of them, or one file of images, plain or .gz
  CIFAR-10, CIFAR-100                     a folder of batches, or one batch, binary or Python
  SHARD.tar                               WebDataset: one tar file, or a folder of them
  FILE.parquet                            column `image`, and maybe `label`, `caption`: one file, or a folder of them
  Hugging Face's imagefolder              train/ and test/, metadata.csv or metadata.jsonl, or both
  s3://..., gs://..., hf://..., file://   any of these files and folders elsewhere (fsspec)"""

_BUILTIN = ("builtin:digits", "builtin:scenes")
_SCENE_OPTIONS = ("n", "size", "seed", "captions")
_PARTS = ("train", "test")


def load(
    source: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    class_per_folder: bool = False,
    limit: int | None = None,
    seed: int = 0,
    part: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "ImageSet":
    """Reads images from any accepted source.

    Args:
        source: a path, or the name of a built-in set; see ACCEPTED.
        size: side of the images in pixels, scaled and cropped to a square; by default as they are, or for a folder of
            different sizes a size that suits them.
        channels: 1 (grey) or 3 (colour); by default as they are.
        class_per_folder: the folders directly below a folder of images are its classes.
        limit: read at most so many images, drawn by `seed` (of scenes, the first).
        seed: of that draw.
        part: "train" (default) or "test", for MNIST and CIFAR folders, which come in these parts.
        progress: called with (images done, images in all) while a folder is read.

    Returns:
        The images, with the labels, tags and captions that the source carries.

    Example:
        >>> import semisight as ss
        >>> ss.load("builtin:digits", limit=20).shape
        (1, 8, 8)
    """
    _check("size", size, 1)
    _check("limit", limit, 1)
    _check("seed", seed, 0)
    if channels not in (None, 1, 3):
        raise UserError(f"channels must be 1 (grey) or 3 (colour), not {channels}")
    if part not in (None, *_PARTS):
        raise UserError(f"part must be train or test, not {part!r}")
    source = at_hand(source)
    kind = kind_of(source)
    if kind is Kind.BUILTIN:
        if part is not None:
            raise UserError(f"{source} has no {part} part; split it, or give scenes another seed")
        return _load_builtin(str(source), size, channels, limit, seed)
    path = Path(source).expanduser()
    if kind is not Kind.FILE:
        return _load_folder(path, kind, size, channels, class_per_folder, limit, seed, part, progress)
    if class_per_folder:
        raise UserError(f"{path} is a file: only a folder of images can have a class per folder")
    if part is not None:
        raise UserError(f"{path} is a single file, with no {part} part: give the file of that part instead")
    return _load_file(path, size, channels, limit, seed)


def _load_builtin(text: str, size: int | None, channels: int | None, limit: int | None, seed: int) -> "ImageSet":
    name, _, query = text.partition("?")
    if name not in _BUILTIN:
        near = difflib.get_close_matches(name, _BUILTIN, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no built-in set {name!r}. {hint}Accepted:\n{ACCEPTED}")
    options = _options(text, query, _SCENE_OPTIONS if name == "builtin:scenes" else ())
    if name == "builtin:digits":
        from semisight.data.builtin.digits import read_digits

        return _finish(read_digits(), size, channels, limit, seed)
    from semisight.data.builtin.scenes import read_scenes

    n = options.get("n", 2000)
    image_set = read_scenes(
        n=n if limit is None else min(n, limit),
        size=size or options.get("size", 32),
        seed=options.get("seed", seed),
        n_captions=options.get("captions", 1),
    )
    return _finish(image_set, None, channels, None, seed)


def _options(text: str, query: str, known: tuple[str, ...]) -> dict[str, int]:
    options = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(
                f"{text}: there is no option {key!r} ({'options: ' + ', '.join(known) if known else 'none'}){hint}"
            )
        if not (value.isascii() and value.isdigit() and len(value) < 16):
            raise UserError(f"{text}: {key} must be a whole number, not {value[:40]!r}")
        options[key] = int(value)
    return options


class Kind(Enum):
    """What a source is."""

    BUILTIN = "a built-in set"
    FILE = "a single file"
    IDX = "a folder of MNIST's files"
    CIFAR = "a folder of CIFAR's batches"
    SHARDS = "a folder of WebDataset's shards"
    PARQUET = "a folder of Parquet files"
    IMAGEFOLDER = "a folder in Hugging Face's layout"
    PICTURES = "a folder of image files"


def at_hand(source: str | Path) -> str | Path:
    """The source on this machine: of one that lies elsewhere (s3:// and the like) a copy in the user's cache."""
    from semisight.data.remote import is_url, local_copy

    return local_copy(str(source)) if is_url(source) else source


def kind_of(source: str | Path) -> Kind:
    """What a source is, by its name and by what lies in it."""
    from semisight.data.formats.cifar import is_cifar_folder
    from semisight.data.formats.idx import is_idx_name
    from semisight.data.formats.imagefolder import is_imagefolder
    from semisight.data.formats.parquet import find_parquet
    from semisight.data.formats.webdataset import find_shards

    text = str(at_hand(source))
    if text.startswith("builtin:"):
        return Kind.BUILTIN
    path = Path(text).expanduser()
    try:
        if not path.exists():
            raise _unknown(text, path)
        if not path.is_dir():
            return Kind.FILE
        if any(is_idx_name(file.name) for file in path.iterdir()):
            return Kind.IDX
        if is_cifar_folder(path):
            return Kind.CIFAR
    except (OSError, ValueError) as error:  # a name too long, a byte 0 in it, no permission on the way
        raise UserError(f"cannot read {text[:200]}: {getattr(error, 'strerror', None) or error}") from error
    if find_parquet(path):
        return Kind.PARQUET
    return Kind.SHARDS if find_shards(path) else Kind.IMAGEFOLDER if is_imagefolder(path) else Kind.PICTURES


def _load_folder(
    path: Path,
    kind: Kind,
    size: int | None,
    channels: int | None,
    class_per_folder: bool,
    limit: int | None,
    seed: int,
    part: str | None,
    progress: Callable[[int, int], None] | None,
) -> "ImageSet":
    from semisight.data.formats.cifar import read_cifar_folder
    from semisight.data.formats.folders import read_folder
    from semisight.data.formats.idx import find_idx_images, read_idx_images
    from semisight.data.formats.imagefolder import read_imagefolder
    from semisight.data.formats.parquet import find_parquet, read_parquet
    from semisight.data.formats.webdataset import find_shards, read_shards

    if kind is Kind.IDX and (images := find_idx_images(path, part or "train")) is not None:
        return _finish(read_idx_images(images), size, channels, limit, seed)
    if kind is Kind.CIFAR:
        return _finish(read_cifar_folder(path, part or "train"), size, channels, limit, seed)
    choose = None if limit is None else lambda n: _drawn(n, limit, seed)
    if kind is Kind.SHARDS and part is None:
        return read_shards(find_shards(path), size=size, channels=channels, choose=choose, progress=progress)
    if kind is Kind.PARQUET and part is None:
        return read_parquet(find_parquet(path), size=size, channels=channels, choose=choose, progress=progress)
    if kind is Kind.IMAGEFOLDER and not class_per_folder:
        return read_imagefolder(path, part, size=size, channels=channels, choose=choose, progress=progress)
    if part is not None:
        raise UserError(f"{path} is {kind.value}, with no {part} part of its own: give the folder of that part")
    try:
        return read_folder(
            path,
            size=size,
            channels=channels,
            class_per_folder=class_per_folder,
            choose=choose,
            progress=progress,
        )
    except UserError as error:
        raise UserError(f"{error}{_published_below(path)}") from error


def _published_below(path: Path) -> str:
    """A hint where a folder without images holds MNIST or CIFAR one or two folders further down."""
    from semisight.data.formats.cifar import is_cifar_folder
    from semisight.data.formats.idx import is_idx_name

    for below in sorted([*path.glob("*/"), *path.glob("*/*/")]):
        try:
            if is_cifar_folder(below) or any(is_idx_name(file.name) for file in below.iterdir()):
                return f" Did you mean {below}?"
        except OSError:
            continue
    return ""


def _load_file(path: Path, size: int | None, channels: int | None, limit: int | None, seed: int) -> "ImageSet":
    from semisight.data.formats.cifar import read_cifar_file
    from semisight.data.formats.folders import read_picture
    from semisight.data.formats.idx import looks_like_idx, read_idx_images
    from semisight.data.formats.npz import read_npy_images, read_npz
    from semisight.data.formats.parquet import read_parquet
    from semisight.data.formats.webdataset import find_shards, read_shards

    if not path.is_file():
        raise UserError(f"{path} is neither a file nor a folder. Accepted:\n{ACCEPTED}")
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    if not start:
        raise UserError(f"{path} is empty")
    if start.startswith(b"PK") or path.suffix == ".npz":
        return _finish(read_npz(path), size, channels, limit, seed)
    if start.startswith(b"\x93NUMPY") or path.suffix == ".npy":
        return _finish(read_npy_images(path), size, channels, limit, seed)
    if start.startswith(b"PAR1") or path.suffix == ".parquet":
        chosen = None if limit is None else lambda n: _drawn(n, limit, seed)
        return read_parquet([path], size=size, channels=channels, choose=chosen)
    if find_shards(path) and not looks_like_idx(start):
        choose = None if limit is None else lambda n: _drawn(n, limit, seed)
        return read_shards([path], size=size, channels=channels, choose=choose)
    if start.startswith(b"\x1f\x8b") or looks_like_idx(start):
        return _finish(read_idx_images(path), size, channels, limit, seed)
    if path.suffix == ".bin" or start[0] == 0x80:
        return _finish(read_cifar_file(path), size, channels, limit, seed)
    try:
        return read_picture(path, size, channels)
    except UserError as error:
        raise UserError(f"{error}. Accepted:\n{ACCEPTED}") from error


def _finish(image_set: "ImageSet", size: int | None, channels: int | None, limit: int | None, seed: int) -> "ImageSet":
    from dataclasses import replace

    from semisight.data.arrays import fit

    if limit is not None and limit < len(image_set):
        image_set = image_set.subset(_drawn(len(image_set), limit, seed))
    return replace(image_set, images=fit(image_set.images, size, channels))


def _drawn(n: int, limit: int, seed: int) -> list[int]:
    from semisight.random import Stream, random_order

    return sorted(random_order(n, seed, Stream.LIMIT)[:limit].tolist())


def _check(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UserError(f"{name} must be at least {least}, not {value}")


def _unknown(text: str, path: Path) -> UserError:
    near = difflib.get_close_matches(f"builtin:{text}", _BUILTIN, 1, cutoff=0.7)
    try:
        beside = sorted(str(entry) for entry in path.parent.iterdir())
    except OSError:
        beside = []
    near = near or difflib.get_close_matches(str(path), beside, 1, cutoff=0.7)
    hint = f"Did you mean {near[0]}? " if near else ""
    return UserError(f"{text} is missing: there is no file or folder of that name. {hint}Accepted:\n{ACCEPTED}")
