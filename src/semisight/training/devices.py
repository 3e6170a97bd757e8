"""Where to compute and how precisely: chosen from the hardware, or checked against it."""

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from semisight.errors import UserError
from semisight.training.config import Precision, TrainConfig
from semisight.training.rendezvous import join

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def choose_device(wanted: str = "auto") -> torch.device:
    """The device `wanted` (cpu, cuda, cuda:1, mps), or for auto the fastest kind that is there."""
    if wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"there is no device {wanted!r}: use auto, cpu, cuda, cuda:1 or mps.") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"training does not run on {wanted!r}: use auto, cpu, cuda, cuda:1 or mps.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device {wanted!r}: this machine offers {torch.cuda.device_count()} CUDA devices to torch.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("device 'mps' needs a Mac with Apple silicon and a torch built for it; use auto or cpu.")
    return device


def choose_precision(device: torch.device, wanted: Precision = "auto") -> Precision:
    """32, bf16 (matrix products and convolutions only; the rest stays 32) or 64.

    auto takes bf16 on GPUs that compute it in hardware. On CPUs auto is 32: without AMX or AVX512-BF16, bf16 was ten
    times slower.
    """
    if wanted == "64" and device.type == "mps":
        raise UserError("precision 64: Apple GPUs have no 64-bit numbers; use 32, or device cpu.")
    if wanted == "bf16" and device.type == "cuda" and not _cuda_has_bf16():
        raise UserError(f"precision bf16: {torch.cuda.get_device_name(device)} does not compute it; use 32 or auto.")
    if wanted == "auto":
        return "bf16" if device.type == "cuda" and _cuda_has_bf16() else "32"
    return wanted


@functools.lru_cache(maxsize=1)
def bf16_pays() -> bool:
    """Whether this processor convolves and learns in bfloat16 at least a quarter faster than in float32.

    Measured, in a process of its own: a virtual machine may announce instructions that it does not let anyone use, and
    the process that tries them is killed.
    """
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    try:
        told = subprocess.run([sys.executable, "-P", "-c", _TRIAL], capture_output=True, text=True, timeout=60)
        return told.returncode == 0 and float(told.stdout) > 1.25
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False


_TRIAL = """
import time, torch
torch.set_num_threads(1)
conv = torch.nn.Conv2d(64, 96, 3, padding=1).to(memory_format=torch.channels_last)
x = torch.rand(32, 64, 16, 16).contiguous(memory_format=torch.channels_last).requires_grad_()
def seconds(bf16):
    found = []
    for _ in range(4):
        began = time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            out = conv(x)
        out.float().square().mean().backward()
        found.append(time.process_time() - began)
    return min(found)
a = torch.rand(256, 256, dtype=torch.bfloat16)
a @ a
print(seconds(False) / seconds(True))
"""


def _cuda_has_bf16() -> bool:
    return torch.cuda.is_bf16_supported(including_emulation=False)


def use_threads(threads: int | None) -> int:
    """Sets torch's threads, or leaves them as they are for None; gives their number.

    None is not worked out from the machine's load: sums over another number of threads end in other last bits, and
    a resumed run would no longer equal an uninterrupted one.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def launch(config: TrainConfig) -> "Fabric":
    """Fabric on the chosen device, its processes started: by torchrun or SLURM, else `config.processes` of our own.

    Our own means that Fabric runs the program's command line again for every further process.
    """
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:
        raise UserError("training needs lightning-fabric: pip install lightning-fabric.") from None
    device = choose_device(config.device)
    precision = choose_precision(device, config.precision)
    world, local = job_size() or (config.processes, config.processes)
    if device.type == "mps" and world > 1:
        raise UserError("an Apple GPU trains with one process; use device cpu for several.")
    one_gpu = device.type == "cuda" and ":" in str(device)
    gpus = 1 if one_gpu else torch.cuda.device_count() if device.type == "cuda" else local
    if local > gpus:
        raise UserError(f"{local} processes need a GPU each, and device {config.device!r} offers {gpus}.")
    fabric = Fabric(
        accelerator=device.type,
        devices=[device.index] if one_gpu else local,
        num_nodes=world // local,
        # gradients are summed by the steps themselves (step.py)
        strategy=DDPStrategy() if world > 1 else "auto",
        precision={"32": "32-true", "bf16": "bf16-mixed", "64": "64-true"}[precision],  # type: ignore[arg-type]
    )
    with lost_process_told(world):
        join(fabric.device)
        fabric.launch()
    return fabric


def job_size() -> tuple[int, int] | None:
    """How many processes torchrun or SLURM started, in all and on this machine; None where neither did."""
    if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        return int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    tasks, nodes = int(os.environ.get("SLURM_NTASKS", "1")), int(os.environ.get("SLURM_NNODES", "1"))
    # a shell inside an allocation is one process, whatever was allocated: only srun gives each task a step
    if tasks > 1 and "SLURM_PROCID" in os.environ and os.environ.get("SLURM_JOB_NAME") not in ("bash", "interactive"):
        return tasks, tasks // nodes
    return None


def is_first_process() -> bool:
    """Whether this process may write; further ones are started by torchrun, by SLURM, or by the trainer itself."""
    names = ("RANK", "SLURM_PROCID") if job_size() else ("RANK", "LOCAL_RANK")
    return int(next((os.environ[name] for name in names if name in os.environ), "0")) == 0


@contextlib.contextmanager
def lost_process_told(processes: int) -> Iterator[None]:
    """Inside, the end of another process of the job is a UserError that says so."""
    try:
        yield
    except RuntimeError as error:
        if processes == 1 or not _is_of_connection(error):
            raise
        raise UserError(
            f"another of the {processes} processes of this training ended, or cannot be reached: see what it said. "
            "The newest checkpoint is whole; to go on, give the same command with --resume (torchrun --max-restarts "
            "does so by itself). "
            f"{str(error).splitlines()[0][:300]}"
        ) from error


def _is_of_connection(error: RuntimeError) -> bool:
    text = str(error).casefold()
    known = ("connection closed", "connection reset", "connect", "gloo", "nccl", "broken pipe", "timed out", "timeout")
    return isinstance(error, torch.distributed.DistError) or any(word in text for word in known)
