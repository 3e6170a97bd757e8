"""`semisight shard`: any source to WebDataset shards or Parquet, with labels and captions, an image at a time.

    SOURCE-000000.tar, ...        000012.jpg, 000012.cls, 000012.json {"file": ..., "captions": [...]}
    SOURCE-000000.parquet, ...    columns file, image, label, captions

Images keep their bytes: nothing is decoded or compressed again. A file is whole or not there, and the last written is
`shards.json`: names, numbers of samples and bytes.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from semisight.data.samples import IMAGES, Sample, parts_of, pyarrow_parquet, read_part
from semisight.errors import UserError
from semisight.files import atomic_path, write_json

Format = Literal["webdataset", "parquet"]
INDEX = "shards.json"


@dataclass(frozen=True)
class Sharded:
    """What was written, and what could not be read."""

    files: tuple[str, ...]
    samples: int
    left_out: tuple[tuple[str, str], ...]


def write_shards(
    source: str,
    out: Path,
    *,
    format: Format = "webdataset",
    per_shard: int = 1000,
    labels: Mapping[str, str] | None = None,
    captions: Mapping[str, Sequence[str]] | None = None,
    class_per_folder: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sharded:
    """Shards of all images of a source; `labels` and `captions` by the name of the image."""
    if per_shard < 1:
        raise UserError(f"a shard holds at least 1 image, not {per_shard}")
    _make_room(out, overwrite)
    parts = parts_of(source)
    left_out: list[tuple[str, str]] = []

    def samples() -> Iterator[Sample]:
        for done, part in enumerate(parts):
            for sample in read_part(part):
                if sample.image is None:
                    left_out.append((sample.name, sample.reason))
                    continue
                if class_per_folder and "/" in sample.name:
                    sample.label = sample.name.split("/")[0]
                if labels is not None:
                    sample.label = labels.get(sample.name, sample.label)
                if captions is not None:
                    sample.captions = list(captions.get(sample.name, sample.captions))
                yield sample
            if progress is not None:
                progress(done + 1, len(parts))

    ending = ".tar" if format == "webdataset" else ".parquet"
    files: list[dict[str, Any]] = []
    total, held = 0, list[Sample]()
    for sample in samples():
        held.append(sample)
        if len(held) == per_shard:
            files.append(_write(out / f"images-{len(files):06d}{ending}", held, total, format))
            total, held = total + len(held), []
    if held:
        files.append(_write(out / f"images-{len(files):06d}{ending}", held, total, format))
        total += len(held)
    if not total:
        raise UserError(f"no image of {source} could be read; the first: {left_out[0] if left_out else 'none'}")
    write_json(out / INDEX, {"source": source, "samples": total, "files": files})
    return Sharded(tuple(file["name"] for file in files), total, tuple(left_out))


def _make_room(out: Path, overwrite: bool) -> None:
    """Nobody's shards are mixed with others."""
    there = sorted(out.glob("images-*.*")) if out.is_dir() else []
    if there and not overwrite:
        raise UserError(f"{out} holds shards already: choose another folder, or give --overwrite to replace them.")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: shards need a folder.")
    out.mkdir(parents=True, exist_ok=True)
    for file in (out / INDEX, *there):
        file.unlink(missing_ok=True)


def _write(path: Path, samples: Sequence[Sample], first: int, format: Format) -> dict[str, Any]:
    with atomic_path(path) as temporary:
        if format == "webdataset":
            with tarfile.open(temporary, "w") as archive:
                for number, sample in enumerate(samples, first):
                    _add(archive, f"{number:09d}", sample)
        else:
            _write_parquet(temporary, samples)
    return {"name": path.name, "samples": len(samples), "bytes": path.stat().st_size}


def _add(archive: tarfile.TarFile, key: str, sample: Sample) -> None:
    assert sample.image is not None
    ending = sample.name.rsplit(".", 1)[-1].casefold()
    about: dict[str, Any] = {"file": sample.name}
    if sample.captions:
        about["captions"] = sample.captions
    entries = {
        ending if ending in IMAGES else "img": sample.image,
        "json": json.dumps(about, ensure_ascii=False).encode(),
    }
    if sample.label is not None:
        entries["cls"] = sample.label.encode()
    for name, content in entries.items():
        info = tarfile.TarInfo(f"{key}.{name}")  # without owner or time: the same images give the same bytes
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))


def _write_parquet(path: Path, samples: Sequence[Sample]) -> None:
    parquet = pyarrow_parquet()
    import pyarrow as pa

    schema = pa.schema(
        [("file", pa.string()), ("image", pa.binary()), ("label", pa.string()), ("captions", pa.list_(pa.string()))]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, len(samples), 250):
            some = samples[start : start + 250]
            columns = {
                "file": [sample.name for sample in some],
                "image": [sample.image for sample in some],
                "label": [sample.label for sample in some],
                "captions": [sample.captions for sample in some],
            }
            writer.write_table(pa.table(columns, schema=schema))
