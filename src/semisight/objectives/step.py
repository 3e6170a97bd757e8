"""Section 4, one step of learning: what an objective is given, what it gives back, and where its chance comes from.

    batch ~ plan(step, seed)          which images, the same for any number of processes
    noise ~ generator(step, seed)     drawn for the whole batch, sliced to the rows of this process
    loss  = -bound                    mean over this process's rows

Nothing here has a state that must be saved: both come from (seed, step) alone, so a resumed run sees what an
uninterrupted one would have seen, and two processes see what one process with the doubled batch would.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn


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


def sum_over_processes(value: Tensor) -> Tensor:
    """The sum of `value` over all processes, or `value` itself where there is one; for `Objective.after_step`."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    value = value.clone()
    torch.distributed.all_reduce(value)
    return value
