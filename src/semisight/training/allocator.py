"""Keeps freed memory in the process: glibc gives every tensor over 128 KiB back to the kernel, and page faults were
half the time of a training step.

Only our own commands and a trainer that is told to (`TrainConfig.keep_memory`) call this; importing never does,
because the setting holds for the whole process.
"""

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>


def keep_memory(up_to: int = 1 << 30) -> bool:
    """Allocations below `up_to` bytes are kept for the next use; False where the C library knows no `mallopt`."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # macOS, musl, Windows
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    # some versions of glibc refuse a threshold above 32 MiB
    mapped = mallopt(_M_MMAP_THRESHOLD, up_to) or mallopt(_M_MMAP_THRESHOLD, min(up_to, 1 << 25))
    return bool(mapped and mallopt(_M_TRIM_THRESHOLD, up_to))
