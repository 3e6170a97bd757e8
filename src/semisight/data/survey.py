"""What lies in a folder of images, file by file, without keeping a pixel: sizes, modes, what cannot be read, hashes.

Every file is read once, its bytes hashed (two files with one hash are the same picture) and its header looked at.
Small images are decoded as well, and JPEGs of middle size; of large ones only some, drawn by chance: a damaged photo,
or one that is nearly the same as another (duplicates.py), is found with certainty only where it is decoded, and a
hundred thousand photos would take hours. Many files are shared out to one process per core.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisight.data.formats.folders import printable, walk
from semisight.data.formats.pictures import MAX_PIXELS, Header
from semisight.data.image_set import Skipped
from semisight.data.workers import cores, examine, share_out
from semisight.errors import UserError

LARGE_DECODED = 1000  # so many of the images that are larger than workers.SMALL
_FEW = 400  # files that are looked at sooner than further processes start

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Seen:
    """One readable image of a folder."""

    name: str
    header: Header
    format: str
    mode: str
    digest: str  # of the file's bytes
    deviation: float | None  # of its grey values, 0..255; None if it was not decoded
    fingerprint: bytes | None = None  # duplicates.py


@dataclass(frozen=True)
class Survey:
    """All files of a folder: the readable images in the order of their names, and the others with the reason."""

    folder: Path
    seen: tuple[Seen, ...]
    skipped: tuple[Skipped, ...]

    @property
    def n_decoded(self) -> int:
        return sum(one.deviation is not None for one in self.seen)


def survey_folder(
    folder: str | Path, *, workers: int | None = None, max_pixels: int = MAX_PIXELS, progress: Progress | None = None
) -> Survey:
    """Looks at every file below a folder; nothing is written."""
    folder = Path(folder).expanduser()
    found = walk(folder)
    if not found.names:
        raise UserError(f"{folder} is empty: no file in it or in the folders below it")
    n = len(found.names)
    drawn = set(random.Random(0).sample(range(n), min(LARGE_DECODED, n)))
    files = [(row, name, row in drawn) for row, name in enumerate(found.names)]
    answers: dict[int, list[Any]] = {}

    def answer(line: list[Any]) -> None:
        answers[line[0]] = line[1:]
        if progress is not None:
            progress(len(answers), n)

    processes = min(8, workers or cores()) if n > _FEW else 1
    if processes == 1:
        for row, name, large_too in files:
            answer([row, *examine(folder / name, large_too, max_pixels)])
    else:
        share_out("examine", folder, files, processes, answer, max_pixels=max_pixels)
    return _gathered(folder, found.names, answers, found.skipped)


def _gathered(folder: Path, names: Sequence[str], answers: dict[int, list[Any]], skipped: Sequence[Skipped]) -> Survey:
    seen, late = [], []
    for row, name in enumerate(names):
        answer = answers[row]
        if len(answer) == 1:
            late.append(Skipped(printable(name), answer[0]))
            continue
        height, width, grey, kind, mode, digest, deviation, mark = answer
        mark = None if mark is None else bytes.fromhex(mark)
        seen.append(Seen(printable(name), Header(height, width, grey), kind, mode, digest, deviation, mark))
    return Survey(folder, tuple(seen), tuple(sorted([*skipped, *late], key=lambda skip: skip.name)))
