"""Device, precision, threads, and memory that stays in the process."""

import subprocess
import sys

import pytest
import torch

from semisight.errors import UserError
from semisight.training.devices import choose_device, choose_precision, use_threads


@pytest.mark.parametrize(
    ("cuda", "mps", "chosen"),
    [(True, False, "cuda"), (False, True, "mps"), (False, False, "cpu"), (True, True, "cuda")],
)
def test_the_fastest_device_that_is_there(monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, chosen: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device().type == chosen


def test_devices_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert choose_device("cuda:0") == torch.device("cuda:0") and choose_device("cpu").type == "cpu"
    with pytest.raises(UserError, match="offers 1 CUDA"):
        choose_device("cuda:1")
    for name in ("mps", "gpu", "xla", "meta"):
        with pytest.raises(UserError, match=name):
            choose_device(name)


def test_bf16_only_where_the_hardware_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert choose_precision(cpu) == "32" and choose_precision(torch.device("mps")) == "32"
    assert choose_precision(cpu, "64") == "64" and choose_precision(cpu, "bf16") == "bf16"  # asked for is asked for
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    for has, expected in ((True, "bf16"), (False, "32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has=has: has)
        assert choose_precision(cuda) == expected
    with pytest.raises(UserError, match="Old GPU"):
        choose_precision(cuda, "bf16")
    with pytest.raises(UserError, match="64-bit"):
        choose_precision(torch.device("mps"), "64")


def test_threads_are_left_alone_unless_asked() -> None:
    before = torch.get_num_threads()
    assert use_threads(None) == before
    try:
        assert use_threads(2) == 2
    finally:
        torch.set_num_threads(before)


PAGE_FAULTS = """
import ctypes, resource, sys
import semisight.training.allocator as allocator
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, (ctypes.c_size_t,), (ctypes.c_void_p,)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        block = libc.malloc(1 << 23)
        ctypes.memset(block, 1, 1 << 23)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

libc.free(libc.malloc(1 << 25))  # above the highest threshold that glibc would choose by itself
importing = faults()
kept = allocator.keep_memory()
faults()
print(importing, int(kept), faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc gives memory back so eagerly")
def test_memory_is_kept_only_when_asked() -> None:
    output = subprocess.run([sys.executable, "-c", PAGE_FAULTS], capture_output=True, text=True, check=True).stdout
    importing, kept, afterwards = map(int, output.split())
    if not kept:
        pytest.skip("this C library has no mallopt")
    assert afterwards < 100 < importing
