"""Many image files read by several processes: a job in as JSON, one line of JSON back for each file.

    python -m semisight.data.workers < job

A job is a task, a folder and files [row, name, ...]; what else it needs belongs to the task:

    decode    every picture to its row of the pixel file of an image cache; answers [row, null], or [row, reason]
    examine   looks at every file (survey.py); answers [row, ...] what `examine` gives

A process by itself and not Python's multiprocessing: nothing is pickled, and the user's script, which need not guard
its main part, is not run again. Nothing here imports torch: it would take longer to start than thousands of files.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semisight.data.formats.pictures import Unreadable, look_at, read_bytes, read_pixels
from semisight.errors import UserError

SMALL = 256 * 256  # pixels of an image that is decoded in any case: a fraction of a millisecond
_LINES = 64  # printed at a time
_PIPE = subprocess.PIPE

File = tuple[Any, ...]  # row, name, and what the task asks of it


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def share_out(
    task: str,
    folder: Path,
    files: Sequence[File],
    processes: int,
    answer: Callable[[Any], None],
    *,
    module: str = "semisight.data.workers",
    **needs: Any,
) -> None:
    """Gives each of some processes its part of the files; `answer` gets every line, one thread at a time.

    Fewer answers than files, or another exit code than 0, is an error. `module` is what the processes run.
    """
    parts = [part for start in range(processes) if (part := files[start::processes])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # -P: a file named numpy.py in the folder one happens to work in is not numpy
    command = [sys.executable, "-P", "-m", module]
    started = [subprocess.Popen(command, stdin=_PIPE, stdout=_PIPE, env=environment) for _ in parts]
    lock = threading.Lock()

    def follow(process: subprocess.Popen[bytes], part: Sequence[File]) -> None:
        assert process.stdin is not None and process.stdout is not None
        job = {"task": task, "folder": str(folder), "files": part, **needs}
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(job).encode())
        answered = 0
        for line in process.stdout:
            answered += 1
            with lock:
                answer(json.loads(line))
        if process.wait() != 0 or answered < len(part):
            name = part[min(answered, len(part) - 1)][1].encode("utf-8", "backslashreplace").decode()
            raise UserError(
                f"a process that reads images ended with code {process.returncode} at {name} of {folder}, "
                f"after {answered} of its {len(part)} images. Is there memory left?"
            )

    try:
        with ThreadPoolExecutor(max(1, len(parts))) as pool:
            following = [pool.submit(follow, process, part) for process, part in zip(started, parts, strict=True)]
            try:
                for future in as_completed(following):
                    future.result()
            except BaseException:  # when one fails, or the user interrupts, the others stop, too
                for process in started:
                    process.kill()
                raise
    finally:
        for process in started:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def examine(path: str | os.PathLike[str], large_too: bool, max_pixels: int) -> list[Any]:
    """What is answered for a file, as JSON: the fields of `survey.Seen` after the name, or why it cannot be read."""
    try:
        content = read_bytes(path)
        look = look_at(content, max_pixels if large_too else SMALL, max_pixels)
    except Unreadable as error:
        return [str(error)]
    header = look.header
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    mark = None if look.fingerprint is None else look.fingerprint.hex()
    return [header.height, header.width, header.grey, look.format, look.mode, digest, look.deviation, mark]


def decode(path: str, target: npt.NDArray[np.uint8], max_pixels: int) -> list[Any]:
    """Writes the picture to `target` [C, H, W]; what is answered for it."""
    channels, height, width = target.shape
    try:
        target[:] = read_pixels(path, height, width, channels, max_pixels)
    except Unreadable as error:
        return [str(error)]
    return [None]


def decode_all(
    file: str | Path,
    folder: str | Path,
    images: Iterable[tuple[int, str]],
    max_pixels: int,
    answer: Callable[[Any], None],
) -> None:
    """Every picture (row, name) to its row of a pixel file."""
    pixels = np.lib.format.open_memmap(file, mode="r+")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a folder may warn of large images thousands of times; our own limit decides
        for row, name in images:
            answer([row, *decode(os.path.join(folder, name), pixels[row], max_pixels)])
    pixels.flush()


def main() -> None:
    # When the user interrupts, or the process that started this one is gone, it ends without a word.
    for name in ("SIGINT", "SIGPIPE"):
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_DFL)
    warnings.simplefilter("ignore")  # a folder may warn of large images thousands of times; our own limit decides
    job = json.load(sys.stdin)
    folder, max_pixels = job["folder"], int(job["max_pixels"])
    if job["task"] == "decode":
        decode_all(job["file"], folder, job["files"], max_pixels, lambda line: print(json.dumps(line), flush=True))
        return
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
