"""Samples one after another: what shards, Parquet files and folders hold, read from start to end and never as a whole.

A source is a list of **parts** that can be read on their own, by any process: a tar file, some row groups of a Parquet
file, some files of a folder, some rows of a set that is read as a whole. `parts_of` lists them, `read_part` reads one.
"""

import dataclasses
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from semisight.data import remote
from semisight.data.formats.pictures import Unreadable, read_bytes
from semisight.errors import UserError
from semisight.untrusted import printable

FILES_OF_PART = 1000  # of a folder; of Parquet at least so many rows
ENDINGS = (".tar", ".tar.gz", ".tgz")
PARQUET = (".parquet", ".pq")
IMAGES = frozenset(["jpg", "jpeg", "png", "webp", "ppm", "pgm", "bmp", "gif", "tif", "tiff", "jp2", "avif", "img"])
MOST_BYTES = 256_000_000  # of one image
MOST_TEXT = 1_000_000
TAR_ERRORS = (tarfile.TarError, EOFError, OSError, zlib.error, ValueError, OverflowError, RecursionError)
# what says something of the entry after it: a long name, or an extended header
_BEFORE = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)
_BESIDE = (".json", ".txt", ".md", ".yaml")  # small files that may lie beside shards

Form = Literal["shard", "parquet", "files", "rows"]


@dataclass(frozen=True)
class Part:
    """A part of a source: `path` with the `names` below it, or its rows start .. stop."""

    number: int
    form: Form
    path: str
    names: tuple[str, ...] = ()
    start: int = 0
    stop: int = 0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "Part":
        values = json.loads(text)
        return Part(**{**values, "names": tuple(values["names"])})


@dataclass
class Sample:
    """An image as the bytes of a file, or why there is none; what is said of it, if anything."""

    name: str
    image: bytes | None = None
    reason: str = ""
    label: str | None = None
    captions: list[str] = dataclasses.field(default_factory=list)


def parts_of(source: str, per_part: int = FILES_OF_PART) -> list[Part]:
    """The parts of a source, in its order. What is neither a folder of pictures nor shards nor Parquet, such as MNIST's
    files or a built-in set, is cut into rows, and read as a whole by whoever reads one of its parts."""
    if remote.is_url(source) and not source.startswith("file://"):
        names = tuple(remote.listed(source))
        return _numbered(_of_names(source, names, per_part, tuple(remote.join(source, name) for name in names)))
    path = Path(remote.local_copy(source) if remote.is_url(source) else source).expanduser()
    if path.is_file() and path.name.endswith(ENDINGS + PARQUET):
        return _numbered(_of_names(str(path.parent), (path.name,), per_part, (str(path),)))
    from semisight.data.sources import Kind, kind_of

    kind = kind_of(source)
    if kind in (Kind.SHARDS, Kind.PARQUET, Kind.PICTURES):
        from semisight.data.formats.folders import walk

        found = walk(path).names
        return _numbered(_of_names(str(path), found, per_part, tuple(str(path / name) for name in found)))
    from semisight.data.sources import load

    n = len(load(source))
    return _numbered([Part(0, "rows", source, (), at, min(at + per_part, n)) for at in range(0, n, per_part)])


def _of_names(root: str, names: Sequence[str], per_part: int, paths: Sequence[str]) -> list[Part]:
    """Shards, if there is nothing else but small files beside them; Parquet files likewise; else pictures."""
    for endings, form in ((ENDINGS, "shard"), (PARQUET, "parquet")):
        chosen = [path for name, path in zip(names, paths, strict=True) if name.endswith(endings)]
        others = [name for name in names if not name.endswith((*endings, *_BESIDE))]
        if chosen and not others:
            if form == "shard":
                return [Part(0, "shard", path) for path in chosen]
            return [part for path in chosen for part in _row_groups(path, per_part)]
    return [Part(0, "files", root, tuple(names[at : at + per_part])) for at in range(0, len(names), per_part)]


def _numbered(parts: Sequence[Part]) -> list[Part]:
    return [dataclasses.replace(part, number=number) for number, part in enumerate(parts)]


def fingerprint(parts: Sequence[Part]) -> str:
    """Of the names of all that a source holds, and of the sizes of its files: tells whether it is still the same."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.to_json().encode())
        if part.form in ("shard", "parquet"):
            digest.update(str(_size(part.path)).encode())
    return digest.hexdigest()[:32]


def _size(path: str) -> int:
    if not remote.is_url(path):
        return Path(path).stat().st_size
    system, inside = remote.filesystem(path)
    with remote.told(path):
        return int(system.info(inside)["size"])


def read_part(part: Part) -> Iterator[Sample]:
    """Its samples, in order. Damage is a sample with a reason; what came before it is there."""
    if part.form == "shard":
        yield from _read_shard(part.path)
    elif part.form == "parquet":
        yield from _read_parquet(part)
    elif part.form == "files":
        yield from _read_files(part)
    else:
        yield from _read_rows(part)


# ---- WebDataset ----


def _read_shard(path: str) -> Iterator[Sample]:
    """Entries that follow each other and share a name up to the first dot make a sample."""
    shard, sample, key = path.rsplit("/", 1)[-1], None, None
    for name, content in tar_entries(path):
        if content is None:  # where the archive is damaged
            if sample is not None:
                yield sample
            yield Sample(printable(shard), None, name)
            return
        new, ending = split_name(name)
        if new != key:
            if sample is not None:
                yield sample
            sample, key = None, new
        if ending in IMAGES:
            if sample is None or sample.image is not None:
                if sample is not None:
                    yield sample
                sample = Sample(f"{printable(shard)}/{printable(name)}")
            sample.name = f"{printable(shard)}/{printable(name)}"
            sample.image = content if len(content) <= MOST_BYTES else None
            sample.reason = "" if sample.image is not None else f"too large: more than {MOST_BYTES:,} bytes"
        elif ending in ("cls", "txt", "caption", "json") and len(content) <= MOST_TEXT:
            sample = sample or Sample(
                f"{printable(shard)}/{printable(name)}", None, "no image: a sample of words alone"
            )
            add_text(sample, ending, content)
    if sample is not None:
        yield sample


def tar_entries(path: str) -> Iterator[tuple[str, bytes | None]]:
    """Names and contents of plain files, as they come; a last one without content says what is wrong with the archive.

    Links and devices are passed over; of an entry that claims too much, only a little more than may be is read.
    """
    try:
        with remote.opened(path) as file, tarfile.open(None, "r|*", file, tarinfo=Member) as archive:
            for member in archive:
                if member.isreg() and (entry := archive.extractfile(member)) is not None:
                    content = entry.read(MOST_BYTES + 1)
                    if len(content) < min(member.size, MOST_BYTES + 1):
                        raise EOFError("unexpected end of data")
                    yield member.name.removeprefix("./"), content
                cast(Any, archive).members = []  # tarfile remembers every entry; a shard may have millions
    except TAR_ERRORS as error:
        yield f"truncated or corrupt: {printable(str(error))}", None


class Member(tarfile.TarInfo):
    """An entry of an archive. A long name or an extended header is read whole before there is an entry to look at, and
    may claim gigabytes: it is refused by what its own header says."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "Member":
        found = super().frombuf(buf, encoding, errors)
        if found.type in _BEFORE and not 0 <= found.size <= MOST_TEXT:
            raise tarfile.ReadError(f"a header of {found.size:,} bytes before an entry")
        return found

    def _proc_gnusparse_10(self, *_: object) -> None:
        """tarfile would read on until the list of its holes ends; no set of images has such entries."""
        raise tarfile.ReadError("an entry with holes")


def split_name(name: str) -> tuple[str, str]:
    """ "a/b.c/0012.seg.jpg" is sample "a/b.c/0012" and ending "seg.jpg"."""
    folder, slash, last = name.rpartition("/")
    stem, _, ending = last.partition(".")
    return folder + slash + stem, ending.casefold()


def add_text(sample: Any, ending: str, content: bytes) -> None:
    """What a file of words says to a sample's label and captions."""
    text = content.decode("utf-8", "replace").strip()
    if ending == "cls":
        sample.label = text or None
    elif ending == "json":
        try:
            known = json.loads(text)
        except (ValueError, RecursionError):
            return
        if isinstance(known, dict):
            add_known(sample, known)
    elif text:
        sample.captions.append(text)


def add_known(sample: Any, known: Mapping[str, Any]) -> None:
    """What JSON, or the row of a table, says to a sample's label and captions."""
    label = next((known[key] for key in ("label", "cls", "class") if known.get(key) is not None), None)
    if isinstance(label, str | int) and not isinstance(label, bool) and sample.label is None:
        sample.label = str(label).strip() or None
    for key in ("caption", "captions", "text"):
        value = known.get(key)
        texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        sample.captions += [text for text in texts if isinstance(text, str) and text.strip()]


# ---- Parquet ----


def pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet needs pyarrow: pip install 'semisight[parquet]'.") from None
    return pyarrow.parquet


def _row_groups(path: str, per_part: int) -> list[Part]:
    """Row groups in stretches of at least `per_part` rows."""
    with open_parquet(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    parts, start, rows = [], 0, 0
    for group, size in enumerate(sizes):
        rows += size
        if rows >= per_part or group == len(sizes) - 1:
            parts.append(Part(0, "parquet", path, (), start, group + 1))
            start, rows = group + 1, 0
    return parts


def open_parquet(path: str) -> Any:
    """pyarrow's ParquetFile, of this machine or of a URL."""
    parquet = pyarrow_parquet()
    try:
        if not remote.is_url(path):
            return parquet.ParquetFile(path)
        system, inside = remote.filesystem(path)
        with remote.told(path):
            return parquet.ParquetFile(system.open(inside, "rb"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a whole Parquet file: {printable(str(error))}.") from error


def _read_parquet(part: Part) -> Iterator[Sample]:
    """A column of images (bytes, or Hugging Face's {bytes, path}), and maybe label, caption or captions, and file."""
    short = part.path.rsplit("/", 1)[-1]
    with open_parquet(part.path) as file:
        names = file.schema_arrow.names
        column = image_column(names, part.path)
        wanted = [
            name for name in (column, "file", "label", "cls", "class", "caption", "captions", "text") if name in names
        ]
        before = sum(file.metadata.row_group(group).num_rows for group in range(part.start))
        try:
            batches = file.iter_batches(batch_size=64, row_groups=list(range(part.start, part.stop)), columns=wanted)
            for batch in batches:
                for row in batch.to_pylist():
                    yield _of_row(row, column, f"{short}/{before}")
                    before += 1
        except (OSError, ValueError) as error:
            yield Sample(printable(short), None, f"truncated or corrupt: {printable(str(error))}")


def image_column(names: Sequence[str], path: str) -> str:
    found = next((name for name in ("image", "img", "bytes", "jpg", "png") if name in names), None)
    if found is None:
        raise UserError(
            f"{path} has no column of images: name it image (bytes of a picture file); it has {', '.join(names[:10])}."
        )
    return found


def _of_row(row: Mapping[str, Any], column: str, place: str) -> Sample:
    image: Any = row[column]
    path: Any = None
    if isinstance(image, dict):
        image, path = image.get("bytes"), image.get("path")
    name = row.get("file") or path or place
    sample = Sample(printable(str(name)))
    if not isinstance(image, bytes) or not image:
        sample.reason = "no image: the column holds no bytes"
    elif len(image) > MOST_BYTES:
        sample.reason = f"too large: {len(image):,} bytes"
    else:
        sample.image = image
    add_known(sample, row)
    return sample


# ---- folders, and the rest ----


def _read_files(part: Part) -> Iterator[Sample]:
    for name in part.names:
        sample = Sample(printable(name))
        try:
            if remote.is_url(part.path):
                with remote.opened(remote.join(part.path, name)) as file:
                    sample.image = file.read(MOST_BYTES)
            else:
                sample.image = read_bytes(Path(part.path) / name)
        except (Unreadable, UserError, OSError) as error:
            sample.reason = str(error)
        yield sample


def _read_rows(part: Part) -> Iterator[Sample]:
    """As PNG, so that whoever reads them need not know that they were never files."""
    import numpy as np
    from PIL import Image

    from semisight.data.sources import load

    images = load(part.path)
    for row in range(part.start, part.stop):
        pixels = images.images[row]
        values = np.asarray(pixels if pixels.dtype.itemsize == 1 else (pixels * 255).round().byte())
        held = io.BytesIO()
        Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0)).save(held, "PNG")
        sample = Sample(images.names[row], held.getvalue())
        if images.labels is not None and int(images.labels[row]) >= 0:
            sample.label = images.class_names[int(images.labels[row])]
        sample.captions = list(images.captions[row]) if images.captions is not None else []
        yield sample
