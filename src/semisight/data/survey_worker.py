"""A process that looks at some of a folder's files; started by survey.py.

    python -m semisight.data.survey_worker < job

The job is JSON: the folder and [row, name, whether to decode it if it is large]; the answers are what `examine` gives.
Nothing here imports torch, which would take longer to start than thousands of files to read.
"""

import hashlib
import json
import os
import signal
import sys
import warnings
from typing import Any

from semisight.data.formats.pictures import Unreadable, look_at, read_bytes

SMALL = 256 * 256  # pixels of an image that is decoded in any case: a fraction of a millisecond
_LINES = 64  # printed at a time


def examine(path: str | os.PathLike[str], large_too: bool, max_pixels: int) -> list[Any]:
    """What a worker answers for a file, as JSON: the fields of `Seen` after the name, or why it cannot be read."""
    try:
        content = read_bytes(path)
        look = look_at(content, max_pixels if large_too else SMALL, max_pixels)
    except Unreadable as error:
        return [str(error)]
    header = look.header
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return [header.height, header.width, header.grey, look.format, look.mode, digest, look.deviation]


def main() -> None:
    for name in ("SIGINT", "SIGPIPE"):  # as in cache_worker.py
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    job = json.load(sys.stdin)
    folder, max_pixels = job["folder"], int(job["max_pixels"])
    warnings.simplefilter("ignore")
    lines: list[str] = []
    for row, name, large_too in job["files"]:
        lines.append(json.dumps([row, *examine(os.path.join(folder, name), large_too, max_pixels)]))
        if len(lines) == _LINES:
            print("\n".join(lines), flush=True)
            lines.clear()
    if lines:
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
