"""A sum over all processes of a training, through which gradients flow: that of a sum is the sum of theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone().contiguous()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].clone().contiguous()
        torch.distributed.all_reduce(total)
        return total


def differentiable_sum(value: Tensor) -> Tensor:
    """The sum of `value` over all processes; every process must ask for it, and go back through it."""
    return cast(Tensor, _Sum.apply(value))


_COUNTED: ContextVar[float] = ContextVar("_COUNTED", default=1.0)


@contextmanager
def uncounted() -> Iterator[None]:
    """Inside, this process has images of no weight, because it has none of those that are asked about: a batch
    normalisation over all processes leaves them out, and they are there for every process to take part in its sums."""
    before = _COUNTED.set(0.0)
    try:
        yield
    finally:
        _COUNTED.reset(before)


def counted() -> float:
    """What an image of this process weighs in statistics of the batch of all processes: 1, or 0 inside `uncounted`."""
    return _COUNTED.get()
