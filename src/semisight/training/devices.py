"""Where to compute and how precisely: chosen from the hardware, or checked against it."""

import os
from typing import TYPE_CHECKING

import torch

from semisight.errors import UserError
from semisight.training.config import Precision, TrainConfig

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
    """Fabric on the chosen device, its processes started: those of torchrun, else `config.processes` of our own.

    Our own means that Fabric runs the program's command line again for every further process.
    """
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:
        raise UserError("training needs lightning-fabric: pip install lightning-fabric.") from None
    device = choose_device(config.device)
    precision = choose_precision(device, config.precision)
    world = local = config.processes
    if torch.distributed.is_available() and torch.distributed.is_torchelastic_launched():
        world, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
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
        # a term may leave a parameter out of a step (no label in the batch): DDP must look which ones
        strategy=DDPStrategy(find_unused_parameters=True) if world > 1 else "auto",
        precision={"32": "32-true", "bf16": "bf16-mixed", "64": "64-true"}[precision],  # type: ignore[arg-type]
    )
    fabric.launch()
    return fabric
