"""Section 4, one step of learning: what an objective is given, what it gives back, and where its chance comes from.

    batch ~ plan(step, seed)          which images, the same for any number of processes
    noise ~ generator(step, seed)     drawn for the whole batch, sliced to the rows of this process
    loss  = -bound                    mean over this process's rows

Nothing here has a state that must be saved: both come from (seed, step) alone, so a resumed run sees what an
uninterrupted one would have seen, and several processes, each with its rows of the batch, see what one process with
the whole batch would.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.model.ops.processes import differentiable_sum

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Images in [0, 1] `[B, C, H, W]`, and their places in the training set `[B]`."""

    images: Tensor
    index: Tensor


@dataclass(frozen=True)
class Rows:
    """Rows start..stop of a global batch of `total` rows are the ones this process holds."""

    start: int
    stop: int
    total: int

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Step:
    """A scalar to descend (mean over the local rows), and every term of it, detached, for the logs."""

    loss: Tensor
    terms: dict[str, Tensor]


class Teacher(Protocol):
    """Averaged weights: they run behind, but vary less, and what they say of an image is more often right."""

    def in_place(self) -> AbstractContextManager[None]:
        """Inside, the model holds the averages."""
        ...


class Objective(Protocol):
    """What the trainer needs of a model with its bound: an `nn.Module` with the methods of the first block.

    Forward must not change any running state: a step whose loss is not finite is thrown away. Such state
    (running means, an exact alpha0) is brought up to date in `after_step`, which every process calls after the
    optimiser's step with the number of that step, counted from 0. The names of the terms are the same on every process.
    """

    teacher: Teacher | None  # set by the trainer; None where it keeps no averages

    def __call__(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step: ...

    def after_step(self, global_step: int) -> None: ...

    def rate_multipliers(self) -> Mapping[str, float]: ...

    def parts(self) -> Mapping[str, nn.Module]:
        """What prediction needs, by name: `model` and `head.<target>`. The rest of the state only resuming needs."""
        ...

    # the rest is nn.Module's
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def state_dict(self) -> dict[str, Any]: ...


class Images(Protocol):
    """A set of images, such as `semisight.data.ImageSet`."""

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> Tensor: ...


class Plan(Protocol):
    """Which images make up the (global) batch of a step, worked out from the step and the seed alone."""

    @property
    def steps_per_epoch(self) -> int: ...

    def indices(self, step: int, seed: int) -> Tensor: ...


def own_rows(total: int, rank: int, processes: int) -> Rows:
    """The rows of a global batch that process `rank` takes: contiguous, as even as they can be."""
    return Rows(total * rank // processes, total * (rank + 1) // processes, total)


# ---- several processes ----


def several_processes() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized() and place_of_process()[1] > 1


def place_of_process() -> tuple[int, int]:
    """The number of this process, and how many there are: (0, 1) where there is one."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def sum_over_processes(value: Tensor) -> Tensor:
    """The sum of `value` over all processes, or `value` itself where there is one; for `Objective.after_step`."""
    if not several_processes():
        return value
    value = value.clone()
    torch.distributed.all_reduce(value)
    return value


def whole_batch(own: Tensor, rows: Rows) -> Tensor:
    """[total, J]: the rows of all processes, from those of this one, [count, J]. Gradients flow back to whose they are.

    A sum of rows with zeros around them, because processes may differ by a row.
    """
    if not several_processes():
        return own
    return differentiable_sum(F.pad(own, (0, 0, rows.start, rows.total - rows.stop)))


def from_first_process(value: T) -> T:
    """What the first process has, on every process: anything that can be pickled, between processes of one job."""
    if not several_processes():
        return value
    held = [value]
    torch.distributed.broadcast_object_list(held, src=0)
    return held[0]


def copy_buffers_of_first(module: nn.Module) -> None:
    """The buffers of a module as the first process has them, whatever size they have grown to."""
    if not several_processes():
        return
    first = place_of_process()[0] == 0
    shapes = from_first_process({name: (buffer.shape, buffer.dtype) for name, buffer in module.named_buffers()})
    for name, (shape, dtype) in shapes.items():
        own = module.get_buffer(name)
        held = own.contiguous() if first else torch.empty(shape, dtype=dtype, device=own.device)
        torch.distributed.broadcast(held, src=0)
        if not first:
            *way, last = name.split(".")
            setattr(module.get_submodule(".".join(way)), last, held)
