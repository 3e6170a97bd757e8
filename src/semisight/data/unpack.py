"""Shards and Parquet files as a folder of picture files, to learn from more images than memory holds.

    CACHE/unpacked/NAME/000012/000345.jpg     the bytes of an image, as they were in part 12
    CACHE/unpacked/NAME/000012.json           written last: what each of its files is, and what was left out

NAME is a hash of the names, sizes and times of change of the shards: other shards are other folders. A part is there
as a whole or not at all, so what was interrupted goes on, and processes of one machine unpack once. From there on they
are pictures like others: decoded by worker processes into the image cache, or turned to features, in any order.
"""

import hashlib
import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisight.data.formats.folders import Progress
from semisight.data.formats.pictures import Header, Unreadable, read_header
from semisight.data.image_cache import default_cache, one_at_a_time
from semisight.data.image_set import Skipped
from semisight.data.samples import IMAGES, Part, Sample, parts_of, read_part
from semisight.errors import UserError
from semisight.files import write_atomic

_LOOKED_AT = 200  # images whose headers say how large the whole will be


@dataclass(frozen=True)
class Unpacked:
    """Images without their pixels: `files` below `folder`, and what is known of each."""

    folder: Path
    files: tuple[str, ...]
    samples: tuple[Sample, ...]
    headers: tuple[Header, ...]
    skipped: tuple[Skipped, ...]


def expected_bytes(paths: Sequence[Path], side: int | None) -> float:
    """Bytes of all pixels, at this side or as they are, by what the first images are like."""
    seen = pixels = held = 0
    for part in parts_of(str(paths[0])):
        for sample in read_part(part):
            if sample.image is None:
                continue
            try:
                header = read_header(io.BytesIO(sample.image))
            except Unreadable:
                continue
            seen, held = seen + 1, held + len(sample.image)
            pixels += 3 * (header.height * header.width if side is None else side**2)
            if seen == _LOOKED_AT:
                break
        if seen == _LOOKED_AT:
            break
    whole = sum(path.stat().st_size for path in paths)
    return whole * pixels / held if held else 0.0


def unpacked(paths: Sequence[Path], progress: Progress | None = None) -> Unpacked:
    """The images of shards or Parquet files of this machine, from the cache; what is not there yet is unpacked."""
    paths = [path.resolve() for path in paths]
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        digest.update(f"{status.st_size} {status.st_mtime_ns} {path}\0".encode("utf-8", "surrogateescape"))
    place, name = default_cache() / "unpacked", digest.hexdigest()[:20]
    folder, parts = place / name, [part for path in paths for part in parts_of(str(path))]
    with one_at_a_time(place, name):
        todo = [number for number in range(len(parts)) if not (folder / f"{number:06d}.json").is_file()]
        if todo and (needed := sum(path.stat().st_size for path in paths)) > (free := shutil.disk_usage(place).free):
            raise UserError(
                f"unpacking {paths[0].parent} takes {needed:,} bytes, and the disk of {place} has {free:,}: set "
                "XDG_CACHE_HOME to a folder with more room."
            )
        for done, number in enumerate(todo, 1):
            _unpack(parts[number], folder, f"{number:06d}", len(paths) > 1)
            if progress is not None:
                progress(done, len(todo))
    files: list[str] = []
    samples: list[Sample] = []
    headers: list[Header] = []
    skipped: list[Skipped] = []
    for number in range(len(parts)):
        about = json.loads((folder / f"{number:06d}.json").read_text(encoding="utf-8"))
        skipped += [Skipped(*one) for one in about["skipped"]]
        for file, own, label, captions, header in about["images"]:
            files.append(f"{number:06d}/{file}")
            samples.append(Sample(own, label=label, captions=captions))
            headers.append(Header(*header))
    return Unpacked(folder, tuple(files), tuple(samples), tuple(headers), tuple(skipped))


def _unpack(part: Part, folder: Path, name: str, several: bool) -> None:
    images: list[Any] = []
    skipped: list[tuple[str, str]] = []
    (folder / name).mkdir(parents=True, exist_ok=True)
    for place, sample in enumerate(read_part(part)):
        if part.form == "shard" and not several and sample.image is not None:
            sample.name = sample.name.partition("/")[2]  # as `load` names those of a single shard
        try:
            if sample.image is None:
                raise Unreadable(sample.reason)
            header = read_header(io.BytesIO(sample.image))
        except Unreadable as error:
            skipped.append((sample.name, str(error)))
            continue
        ending = sample.name.rsplit(".", 1)[-1].casefold()
        file = f"{place:06d}.{ending if ending in IMAGES else 'img'}"
        (folder / name / file).write_bytes(sample.image)
        images.append((file, sample.name, sample.label, sample.captions, tuple(vars(header).values())))
    os.sync()  # the list, which makes them count, must not be on the disk before they are
    write_atomic(folder / f"{name}.json", json.dumps({"images": images, "skipped": skipped}))
