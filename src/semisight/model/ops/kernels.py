"""kernels.c, compiled once on this machine by its own C compiler: what touches every place of every block, fused.

Where there is no compiler, or SEMISIGHT_KERNELS=off, `usable` says no and torch does the same in more passes. The
compiled file lies in $XDG_CACHE_HOME/semisight (~/.cache/semisight), under a name made of the source, the compiler and
the processor, so that none of them is ever mixed with another's.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
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
        return ctypes.CDLL(str(_compiled(compiler)))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # RuntimeError: no home folder
        return None


def _compiled(compiler: str) -> Path:
    known_by = (_SOURCE.read_text(encoding="utf-8"), compiler, *_FLAGS, _processor(), str(os.path.getmtime(compiler)))
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semisight"
    target = folder / f"kernels-{hashlib.sha256(chr(0).join(known_by).encode()).hexdigest()[:16]}.so"
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "posix" and folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to someone else: code from there is not run")
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=folder) as beside:  # other processes see the whole file or none
        part = Path(beside) / target.name
        for native in _NATIVE:
            command = [compiler, *_FLAGS, *native, "-o", str(part), str(_SOURCE)]
            done = subprocess.run(command, capture_output=True, timeout=120, check=native == _NATIVE[-1])
            if done.returncode == 0:
                break
        os.replace(part, target)
    return target


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
