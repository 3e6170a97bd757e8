"""Torch's batch normalisation, as an encoder of one's own may have it, over the batch of all processes together, on any
device (SyncBatchNorm needs a GPU). That of the deep encoder (batch_norm.py) does so by itself.

    mean = sum over all processes of x / n        var = sum over all processes of (x - mean)^2 / n

Processes may hold different numbers of rows. Gradients flow through both sums to every process.
"""

import torch
from torch import Tensor, nn

from semisight.model.ops.processes import counted, differentiable_sum


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """As nn.BatchNorm1d, 2d and 3d, channels on axis 1; made by `synchronise`."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch normalisation needs [B, C, ...], not {list(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        weight = counted()
        count = input.new_tensor(weight * input.numel() / input.shape[1])
        torch.distributed.all_reduce(count)
        mean = differentiable_sum(weight * input.sum(axes)) / count
        centred = input - mean.view(shape)
        variance = differentiable_sum(weight * centred.square().sum(axes)) / count
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._track(mean.detach(), variance.detach() * count / (count - 1))
        result = centred * (variance + self.eps).rsqrt().view(shape)
        return result if self.weight is None else result * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(variance.to(self.running_var), share)


def synchronise(module: nn.Module) -> None:
    """Every batch normalisation in a module from here on counts the rows of all processes, in place: parameters,
    buffers and their names stay what they are."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and not isinstance(part, nn.SyncBatchNorm):
            part.__class__ = SynchronisedBatchNorm
