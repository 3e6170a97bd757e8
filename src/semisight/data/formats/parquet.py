"""Parquet files of images: a column `image` with the bytes of a picture file, and maybe label, caption(s) and file.

As Hugging Face stores data sets, too, whose images are {bytes, path}. Read as shards are, in two passes: sizes, then
pixels (samples.py reads the rows, a few at a time).
"""

import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from semisight.data.formats.folders import Progress, choose_size
from semisight.data.formats.pictures import MAX_PIXELS, Header, Unreadable, read_header, read_pixels
from semisight.data.formats.webdataset import as_set, kept, room_for
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.samples import PARQUET, Sample, parts_of, read_part
from semisight.errors import UserError


def find_parquet(path: Path) -> list[Path]:
    """The Parquet files of a folder that holds nothing else but small files, or the file itself."""
    if path.is_file():
        return [path] if path.name.endswith(PARQUET) else []
    try:
        files = sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith((".", "_")))
    except OSError:
        return []
    found = [file for file in files if file.name.endswith(PARQUET)]
    return found if len(found) == len([file for file in files if file.suffix not in (".json", ".md", ".txt")]) else []


def read_parquet(
    files: Sequence[Path],
    *,
    size: int | None = None,
    channels: int | None = None,
    choose: Callable[[int], Sequence[int]] | None = None,
    progress: Progress | None = None,
    max_pixels: int = MAX_PIXELS,
) -> ImageSet:
    """All rows with an image, in the order of the files."""
    where = str(files[0].parent if len(files) > 1 else files[0])
    skipped: list[Skipped] = []
    found: list[tuple[int, Sample, Header]] = []
    for place, sample in enumerate(_samples(files)):
        try:
            if sample.image is None:
                raise Unreadable(sample.reason)
            header = read_header(io.BytesIO(sample.image), max_pixels)
            sample.image = None  # pixels come in the second pass
            found.append((place, sample, header))
        except Unreadable as error:
            skipped.append(Skipped(sample.name, str(error)))
    if choose is not None:
        found = [found[i] for i in choose(len(found))]
    if not found:
        raise UserError(f"no image in {where} could be read. {skipped_summary(skipped)}")
    headers = [header for _, _, header in found]
    height, width, notes = choose_size(headers, size)
    channels = channels or (1 if all(header.grey for header in headers) else 3)
    pixels = room_for((len(found), channels, height, width), f"{len(found)} images of {where}")
    row_of = {place: row for row, (place, _, _) in enumerate(found)}
    filled: list[int] = []
    for place, sample in enumerate(_samples(files)):
        if place not in row_of or sample.image is None:
            continue
        try:
            pixels[row_of[place]] = read_pixels(io.BytesIO(sample.image), height, width, channels, max_pixels)
            filled.append(row_of[place])
        except Unreadable as error:
            skipped.append(Skipped(sample.name, str(error)))
        if progress is not None:
            progress(len(filled), len(found))
    if not filled:
        raise UserError(f"no image in {where} could be read. {skipped_summary(skipped)}")
    filled.sort()
    named = [found[row][1] for row in filled]
    return as_set(kept(pixels, filled), named, skipped, where, notes)


def _samples(files: Sequence[Path]) -> Iterator[Sample]:
    for file in files:
        for part in parts_of(str(file)):
            yield from read_part(part)
