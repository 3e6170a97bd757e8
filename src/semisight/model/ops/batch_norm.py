"""Batch normalisation (Ioffe and Szegedy, 2015) whose running statistics are brought up to date between steps.

    learning     (x - mean) / sqrt(variance + least), both of the batch at hand; over all processes where there are many
    otherwise    the same with running statistics: an answer never depends on the other images

It is learning where a gradient is asked for in training mode. A teacher and a frozen model are asked without one, and
answer by the running statistics. Forward changes no state, because a step that is not finite is thrown away: what a
step saw waits until `settle`.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.model.ops.processes import counted, differentiable_sum

MEMORY = 0.99  # of the running statistics, per step; less at first, as of averaged weights (training/ema.py)
_LEAST = 1e-5


class BatchNorm(nn.Module):
    """Of maps [B, C, H, W]."""

    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, maps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(maps))
        self.bias = nn.Parameter(torch.zeros(maps))
        self.register_buffer("mean", torch.zeros(maps))
        self.register_buffer("variance", torch.ones(maps))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._seen: list[Tensor] = []  # [mean, variance] of each pass of this step

    @property
    def is_learning(self) -> bool:
        return self.training and torch.is_grad_enabled() and self.weight.requires_grad

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_learning:
            return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, eps=_LEAST)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return self._over_processes(x)
        out, mean, inverse = torch.native_batch_norm(x, self.weight, self.bias, None, None, True, 0.0, _LEAST)
        self._seen.append(torch.stack([mean, inverse.pow(-2) - _LEAST]).detach())
        return out

    def _over_processes(self, x: Tensor) -> Tensor:
        """The sums of all processes, whose gradient flows back to each: they learn what one with the batch would."""
        wide = x.to(self.mean.dtype)
        count = wide.new_full((1,), x.numel() / x.shape[1])
        own = torch.cat([wide.sum((0, 2, 3)), wide.square().sum((0, 2, 3)), count])
        sums = differentiable_sum(counted() * own)
        first, second = (sums[:-1] / sums[-1]).chunk(2)
        variance = (second - first.square()).clamp_min(0)
        self._seen.append(torch.stack([first, variance]).detach())
        scale = self.weight * torch.rsqrt(variance + _LEAST)
        out = wide * scale[:, None, None] + (self.bias - first * scale)[:, None, None]
        return out.to(x.dtype)

    @torch.no_grad()
    def settle(self) -> None:
        """Brings the running statistics up to date by the passes of the step."""
        if not self._seen:
            return
        mean, variance = torch.stack(self._seen).mean(0)
        steps = int(self.steps)
        share = 1 - min(MEMORY, steps / (9 + steps))
        self.mean.lerp_(mean.to(self.mean), share)
        self.variance.lerp_(variance.to(self.variance), share)
        self.steps += 1
        self._seen.clear()


def settle(module: nn.Module, keep: bool = True) -> None:
    """After a step, for every batch normalisation inside; a step that is thrown away keeps nothing of what was seen."""
    for part in module.modules():
        if isinstance(part, BatchNorm):
            if keep:
                part.settle()
            else:
                part._seen.clear()
