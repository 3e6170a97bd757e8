"""WebDataset shards: tar files in which files that share a name up to the first dot make one sample.

    000012.jpg     the image, in any format that is read elsewhere
    000012.cls     its label, a number or a word
    000012.txt     its caption (also .caption)
    000012.json    {"label": ..., "caption": ... or "captions": [...]}

Nothing is unpacked to the disk, nothing is unpickled (.pyd, .pth, .npy entries are left alone), links and devices in
the archive are passed over, and no entry is read that claims more than it may have. Two passes: sizes, then pixels.
"""

import io
import math
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from semisight.data.arrays import memory_limit, refuse_beyond
from semisight.data.formats.folders import Progress, choose_size, printable
from semisight.data.formats.imagefolder import class_order
from semisight.data.formats.pictures import MAX_PIXELS, Header, Unreadable, read_header, read_pixels
from semisight.data.image_cache import default_cache
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.samples import (
    ENDINGS,
    IMAGES,
    MOST_BYTES,
    MOST_TEXT,
    TAR_ERRORS,
    Member,
    Sample,
    add_text,
    split_name,
)
from semisight.errors import UserError

IN_MEMORY = 1 << 30  # bytes of pixels; more go to a file that is mapped
MOST_SAMPLES = 50_000_000


@dataclass
class _Sample:
    """What the first pass found; `name` is that of the image's entry, `header` says how large it is."""

    name: str = ""
    header: Header | None = None
    label: str | None = None
    captions: list[str] = field(default_factory=list)


def find_shards(path: Path) -> list[Path]:
    """The tar files of a folder that holds nothing but shards (and small files beside them), or the file itself."""
    if path.is_file():
        return [path] if tarfile_like(path) else []
    try:
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    except OSError:
        return []
    shards = [file for file in files if file.name.endswith(ENDINGS)]
    beside = [file for file in files if file not in shards and file.suffix not in (".json", ".txt", ".md", ".yaml")]
    return shards if not beside else []


def tarfile_like(path: Path) -> bool:
    """By its name, or by the word that tar files have had at one place since 1988."""
    if path.name.endswith(ENDINGS):
        return True
    try:
        with path.open("rb") as file:
            return file.read(512)[257:262] == b"ustar"
    except OSError:
        return False


def read_shards(
    shards: Sequence[Path],
    *,
    size: int | None = None,
    channels: int | None = None,
    choose: Callable[[int], Sequence[int]] | None = None,
    progress: Progress | None = None,
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """All samples with an image, in the order of the shards."""
    samples, skipped = _first_pass(shards, max_pixels)
    keys = [key for key, sample in samples.items() if sample.header is not None]
    if choose is not None:
        keys = [keys[i] for i in choose(len(keys))]
    where = str(shards[0].parent if len(shards) > 1 else shards[0])
    if not keys:
        raise UserError(f"no image in {where} could be read. {skipped_summary(skipped)}")
    headers = [header for key in keys if (header := samples[key].header) is not None]
    height, width, notes = choose_size(headers, size)
    channels = channels or (1 if all(header.grey for header in headers) else 3)
    pixels = room_for((len(keys), channels, height, width), f"{len(keys)} images of {where}")
    row_of = {samples[key].name: row for row, key in enumerate(keys)}
    filled, done = np.zeros(len(keys), bool), 0
    for name, content in _entries(shards, lambda name: name in row_of):
        try:
            pixels[row_of[name]] = read_pixels(io.BytesIO(content), height, width, channels, max_pixels)
            filled[row_of[name]] = True
            done += 1
        except Unreadable as error:
            skipped.append(Skipped(printable(name), str(error)))
        if progress is not None:
            progress(done, len(keys))
    rows = np.flatnonzero(filled).tolist()
    if not rows:
        raise UserError(f"no image in {where} could be read. {skipped_summary(skipped)}")
    return as_set(kept(pixels, rows), [samples[keys[row]] for row in rows], skipped, where, notes)


def room_for(shape: tuple[int, int, int, int], what: str) -> Any:
    """uint8 of that shape: in memory, or for very many images a mapped file in the user's cache, which has no name and
    is gone with the process."""
    n_bytes = math.prod(shape)
    if n_bytes <= min(IN_MEMORY, memory_limit()):
        return np.empty(shape, np.uint8)
    place = default_cache()
    place.mkdir(parents=True, exist_ok=True)
    refuse_beyond(shutil.disk_usage(place).free, n_bytes, what)
    with tempfile.TemporaryFile(dir=place) as file:
        os.posix_fallocate(file.fileno(), 0, n_bytes)  # a mapped file on a full disk would kill who writes to it
        return np.memmap(file, np.uint8, "r+", shape=shape)


def kept(pixels: Any, rows: Sequence[int]) -> Any:
    """These rows, in rising order, where they are: choosing them would copy a mapped file into memory."""
    for to, row in enumerate(rows):
        if to != row:
            pixels[to] = pixels[row]
    return pixels[: len(rows)]


def _first_pass(shards: Sequence[Path], max_pixels: int) -> tuple[dict[str, _Sample], list[Skipped]]:
    samples: dict[str, _Sample] = {}
    skipped: list[Skipped] = []
    for name, content in _entries(shards, lambda name: True, skipped):
        key, ending = split_name(name)
        sample = samples.setdefault(key, _Sample())
        if len(samples) > MOST_SAMPLES:
            raise UserError(f"{shards[0]} and the others hold more than {MOST_SAMPLES:,} samples")
        if ending in IMAGES:
            if sample.name:
                skipped.append(Skipped(printable(name), "second image of its sample"))
                continue
            try:
                sample.name, sample.header = name, read_header(io.BytesIO(content), max_pixels)
            except Unreadable as error:
                skipped.append(Skipped(printable(name), str(error)))
        elif ending in ("cls", "txt", "caption", "json") and len(content) <= MOST_TEXT:
            add_text(sample, ending, content)
    return samples, skipped


def _entries(
    shards: Sequence[Path], wanted: Callable[[str], bool], skipped: list[Skipped] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Names, with that of the shard before them if there are several, and contents of plain files."""
    for shard in shards:
        before = f"{shard.name}/" if len(shards) > 1 else ""
        try:
            with tarfile.open(shard, "r:*", tarinfo=Member) as archive:
                for member in archive:
                    name = before + member.name.removeprefix("./")
                    if not member.isreg() or not wanted(name):
                        continue
                    if member.size > MOST_BYTES or member.size < 0:
                        if skipped is not None:
                            skipped.append(Skipped(printable(name), f"too large: {member.size:,} bytes"))
                        continue
                    file = archive.extractfile(member)
                    if file is not None:
                        yield name, file.read(MOST_BYTES)
                    cast(Any, archive).members = []  # tarfile remembers every entry; a shard may have millions
        except TAR_ERRORS as error:
            if skipped is not None:  # the first pass tells; what came before the damage is kept
                skipped.append(Skipped(printable(shard.name), f"truncated or corrupt: {error}"))


def as_set(
    pixels: Any, samples: Sequence["_Sample | Sample"], skipped: Sequence[Skipped], where: str, notes: tuple[str, ...]
) -> ImageSet:
    names = class_order({sample.label for sample in samples if sample.label is not None})
    number = {name: c for c, name in enumerate(names)}
    labels = [-1 if sample.label is None else number[sample.label] for sample in samples]
    captions = tuple(tuple(sample.captions) for sample in samples)
    return ImageSet.of(
        torch.from_numpy(pixels),
        tuple(printable(sample.name) for sample in samples),
        torch.tensor(labels, dtype=torch.int64) if names else None,
        tuple(printable(name) for name in names),
        captions if any(captions) else None,
        skipped=tuple(skipped),
        source=where,
        notes=notes,
    )
