"""kernels.c, compiled once on this machine by its own C compiler: what touches every place of every block, fused.

Where there is no compiler, or SEMISIGHT_KERNELS=off, `usable` says no and torch does the same in more passes. The
compiled file lies in $XDG_CACHE_HOME/semisight (~/.cache/semisight), under a name made of the source, the compiler and
the processor, so that none of them is ever mixed with another's, and of its own checksum.

It is code, so it is loaded only if nobody else can have put it there (owner and mode of the file, its folder and those
above), and if it is whole: a damaged one would end the process without a word. One that is not is compiled again.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_NATIVE = (("-march=native",), ("-mcpu=native",), ())  # the first that the compiler takes
_MOST_PLACES = 25
_SMALLEST_PART = 20_000  # blocks for which a thread of its own pays
_FUNCTIONS = ("choose", "choose_back", "pool", "finish", "place")
SWITCH = "SEMISIGHT_KERNELS"


def usable(blocks: Tensor) -> bool:
    """Whether the kernels can work on blocks [P, ...]."""
    fits = blocks.device.type == "cpu" and blocks.dtype == torch.float32 and len(blocks) <= _MOST_PLACES
    return fits and library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled kernels; None where they cannot be had."""
    if os.environ.get(SWITCH, "on").lower() in ("off", "0", "no"):
        return None
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if compiler is None:
        return None
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semisight"
        _make_private(folder)
        stem = f"kernels-{_known_by(compiler)}"
        for attempt in range(2):
            for found in sorted(folder.glob(f"{stem}-*.so")):
                loaded = _loaded(found)
                if loaded is not None:
                    return loaded
                found.unlink()  # damaged: truncated, empty, a flipped bit
            if attempt == 0:
                _compile(compiler, folder, stem)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: no home folder
        if isinstance(error, PermissionError):
            _say(f"{error}: its compiled kernels are not used, which makes it slower")
    return None


def _known_by(compiler: str) -> str:
    parts = (_SOURCE.read_text(encoding="utf-8"), compiler, *_FLAGS, _processor(), str(os.path.getmtime(compiler)))
    return hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]


def _make_private(folder: Path) -> None:
    """The folder, in which nobody but us (and root) can put a file or swap one, nor in any folder above it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name != "posix":
        return
    owner = os.getuid()
    for each in (folder.resolve(), *folder.resolve().parents):
        found = each.stat()
        if found.st_uid not in ((owner,) if each == folder.resolve() else (owner, 0)):
            raise PermissionError(f"{each} belongs to someone else")
        shared = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if shared and not (found.st_mode & stat.S_ISVTX and each != folder.resolve()):
            raise PermissionError(f"others can write to {each}")


def _loaded(file: Path) -> ctypes.CDLL | None:
    """The library in a file, if that is ours and as it was written."""
    found = file.lstat()
    ours = os.name != "posix" or (found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    if not stat.S_ISREG(found.st_mode) or not ours:
        return None
    if file.stem.rpartition("-")[2] != hashlib.sha256(file.read_bytes()).hexdigest()[:32]:
        return None
    try:
        loaded = ctypes.CDLL(str(file))
        return loaded if all(hasattr(loaded, name) for name in _FUNCTIONS) else None
    except OSError:
        return None


def _compile(compiler: str, folder: Path, stem: str) -> None:
    _say(f"compiling its kernels with {compiler}, once on this machine ({SWITCH}=off prevents it)")
    with tempfile.TemporaryDirectory(dir=folder) as beside:  # other processes see the whole file or none
        part = Path(beside) / "kernels.so"
        for native in _NATIVE:
            command = [compiler, *_FLAGS, *native, "-o", str(part), str(_SOURCE)]
            done = subprocess.run(command, capture_output=True, timeout=120, check=native == _NATIVE[-1])
            if done.returncode == 0:
                break
        part.chmod(0o700)
        with part.open("rb") as file:  # on disk before it has its name, so that a power cut leaves no half of it
            content = file.read()
            os.fsync(file.fileno())
        os.replace(part, folder / f"{stem}-{hashlib.sha256(content).hexdigest()[:32]}.so")


def _say(message: str) -> None:
    print(f"semisight: {message}", file=sys.stderr)


def _processor() -> str:
    """What decides which instructions there are: a home folder may be shared by several machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return (
        platform.machine() + platform.processor() + next((x for x in lines if x.startswith(("flags", "Features"))), "")
    )


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "semisight-kernels")


def in_parts(count: int, work: Callable[[int, int], None], blocks_each: int = 1) -> None:
    """work(start, stop) over all of `count`, by as many threads as torch uses; a call to C lets the others run."""
    parts = max(1, min(torch.get_num_threads(), count * blocks_each // _SMALLEST_PART))
    if parts == 1:
        return work(0, count)
    bounds = [count * part // parts for part in range(parts + 1)]
    for _ in _threads(parts).map(work, bounds[:-1], bounds[1:]):
        pass


def call(name: str, *arguments: Tensor | int | None) -> None:
    """A function of kernels.c. Of its numbers the first is an int, the others are long, and flags (bool) int."""
    loaded = library()
    assert loaded is not None
    first, *rest = arguments
    getattr(loaded, name)(ctypes.c_int(first), *map(_as_c, rest))  # type: ignore[arg-type]


def _as_c(value: Tensor | int | None) -> Any:
    if value is None:
        return ctypes.c_void_p(None)
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_int(value) if isinstance(value, bool) else ctypes.c_long(value)
