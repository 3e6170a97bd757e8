"""A process that decodes some of a folder's images into the pixel file of a cache; started by cache.py.

    python -m semisight.data.image_cache_worker < job

The job is JSON: the folder, the file (.npy) with its shape, and [row, name] pairs. Every image is written to its row;
what is printed is one line of JSON per image, [row, null], or [row, reason] where it could not be read.
"""

import json
import signal
import sys
import warnings
from pathlib import Path

import numpy as np

from semisight.data.formats.pictures import Unreadable, read_pixels


def main() -> None:
    # When the user interrupts, or the process that started this one is gone, it ends without a word.
    for name in ("SIGINT", "SIGPIPE"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    job = json.load(sys.stdin)
    folder, max_pixels = Path(job["folder"]), int(job["max_pixels"])
    pixels = np.lib.format.open_memmap(job["file"], mode="r+")
    _, channels, height, width = pixels.shape
    warnings.simplefilter("ignore")  # a folder may warn of large images thousands of times; our own limit decides
    for row, name in job["images"]:
        reason = None
        try:
            pixels[row] = read_pixels(folder / name, height, width, channels, max_pixels)
        except Unreadable as error:
            reason = str(error)
        print(json.dumps([row, reason]), flush=True)
    pixels.flush()


if __name__ == "__main__":
    main()
