"""A sum over all processes of a training, through which gradients flow: that of a sum is the sum of theirs."""

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
