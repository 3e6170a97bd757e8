"""Section 2.1, (2)-(4): how much the picture changes when a value moves to another place of its block.

    E[a, c] = ||d_a - d_c||^2,      d_a: the dictionary element laid at place a, as far as the map below reaches

For layer 1 that is exact, also for blocks at the edge of a 'same' layer, where a part of d_a is cropped. Further up, a
unit in map c below changes the picture by the energy of that map's own dictionary; we weigh by these energies and
leave out the overlap of different units below (which has no sign in the mean).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.ops import kernels
from semisight.model.ops.places import one_hot


@dataclass(frozen=True)
class Energies:
    """E of one layer. Blocks inside are alike; where the map below ends there are other kinds of rows and columns."""

    of_kind: Tensor  # [kinds of rows, kinds of columns, K, P, P]
    rows: tuple[range, ...]
    columns: tuple[range, ...]

    @staticmethod
    def kinds(runs: tuple[range, ...]) -> Tensor:
        """For each block along an axis the number of its kind."""
        return torch.tensor([kind for kind, run in enumerate(runs) for _ in run], dtype=torch.int32)

    def moved(self, z: Tensor, maps: slice, out: Tensor | None = None) -> Tensor:
        """sum_c E[a, c] z_c for some maps: their z, one-hot [P, K', h, w, B], to [K', P, h, w, B]."""
        places, (height, width, batch) = len(z), z.shape[2:]
        y, x = (max(range(len(runs)), key=lambda kind: len(runs[kind])) for runs in (self.rows, self.columns))
        here = z.transpose(0, 1)  # [K', P, h, w, B]
        flat = None if out is None else out.view(here.shape[0], places, -1)
        out = torch.bmm(self.of_kind[y, x, maps], here.flatten(2), out=flat).view(-1, places, height, width, batch)
        for kind_y, rows in enumerate(self.rows):
            for kind_x, columns in enumerate(self.columns):
                if (kind_y, kind_x) != (y, x):  # blocks at the edge, worked out again
                    part = (..., slice(rows.start, rows.stop), slice(columns.start, columns.stop), slice(None))
                    edge = torch.bmm(self.of_kind[kind_y, kind_x, maps], here[part].flatten(2))
                    out[part] = edge.view(out[part].shape)
        return out


def energies(dictionary: Tensor, below: Tensor, layer: Layer, shape: tuple[int, int]) -> Energies:
    """E for a dictionary [K, c, k, k]; `below` [c]: what a unit of each map below is worth; `shape`: its size."""
    size = layer.kernel
    gram = torch.bmm((dictionary * below[:, None, None]).flatten(2).transpose(1, 2), dictionary.flatten(2))
    taps = gram.view(-1, size, size, size, size).transpose(2, 3).reshape(-1, size**2, size**2)  # [K, (s, s'), (t, t')]
    (rows, on_y), (columns, on_x) = (_alike(layer, n, dictionary.dtype, dictionary.device) for n in shape)
    overlap = (on_y.flatten(0, 2) @ taps @ on_x.flatten(0, 2).T).view(-1, *on_y.shape[:3], *on_x.shape[:3])
    overlap = overlap.permute(1, 4, 0, 2, 5, 3, 6).reshape(len(rows), len(columns), -1, layer.pool**2, layer.pool**2)
    own = overlap.diagonal(dim1=-2, dim2=-1)
    return Energies(own[..., None] + own[..., None, :] - 2 * overlap, rows, columns)


def worth(dictionary: Tensor, below: Tensor) -> Tensor:
    """What a unit of each map is worth, [K]: the energy of its dictionary element."""
    return dictionary.square().sum((2, 3)) @ below


@lru_cache(maxsize=64)
def _alike(layer: Layer, size: int, dtype: torch.dtype, device: torch.device) -> tuple[tuple[range, ...], Tensor]:
    """Along one axis of `size` pixels: runs of blocks that see the edge alike, and which taps of d_u and d_u' meet.

    The second is [kinds, u, u', (s, s')]: 1 where tap s at place u and tap s' at place u' are one pixel of that map.
    """
    u, s = torch.arange(layer.pool), torch.arange(layer.kernel)
    pixel = u[:, None] + s  # within the block's window
    meet = pixel[:, None, :, None] == pixel[:, None]  # [u, u', s, s']
    starts = layer.pool * torch.arange(layer.convolved(size) // layer.pool) - layer.pad_before
    kinds: list[Tensor] = []
    runs: list[range] = []
    for block, start in enumerate(starts.tolist()):
        inside = (pixel + start >= 0) & (pixel + start < size)  # [u, s]
        if kinds and torch.equal(kinds[-1], inside):
            runs[-1] = range(runs[-1].start, block + 1)
        else:
            kinds.append(inside)
            runs.append(range(block, block + 1))
    taps = torch.stack([meet & inside[:, None, :, None] for inside in kinds])
    return tuple(runs), taps.flatten(3).to(device, dtype)


_AT_ONCE = 65_536  # values, so that a handful of tensors stay in a core's second cache


def finish_gradients(
    grad_u: Tensor,
    z: Tensor,
    index: Tensor | None,
    values: Tensor,
    of: Callable[[], Energies] | None,
    weight: Tensor | None,
) -> Tensor:
    """The gradient of the unpooled z * values becomes, in place, that of z; returns that of values.

    With `weight` [B], the gradient of the curvature, grad_z holds -1/2 E v^2 weight too; at the drawn place it is 0.
    z may come as an index (placing.Drawn). Some maps at a time, in the same memory each time, so that it stays cached;
    not where second derivatives are asked for, as then nothing may be written over.
    """
    again = not torch.is_grad_enabled()
    grad_values = torch.empty_like(values)
    energies = None if of is None or weight is None else of()
    if again and index is not None and kernels.usable(grad_u):
        _finish_in_c(grad_u, index, values, energies, weight, grad_values)
        return grad_values
    curved = None if weight is None else values * (-0.5 * weight)
    step = min(len(values), max(1, _AT_ONCE // grad_u[:, 0].numel()))
    at_memory, work_memory = (values.new_empty(len(z) * values[:step].numel()) for _ in range(2))
    for start in range(0, len(values), step):
        maps = slice(start, min(start + step, len(values)))
        grad, v = grad_u[:, maps], values[maps]
        size = grad.numel()
        work = work_memory[:size].view(grad.shape)
        at_here = (at_memory[:size] if again else torch.empty_like(at_memory[:size])).view(grad.shape)
        at = z[:, maps] if index is None else one_hot(index[maps], range(len(z)), at_here)
        if energies is not None and curved is not None:
            moved = energies.moved(at, maps, work_memory[:size] if again else None)
            grad.addcmul_(moved.transpose(0, 1), curved[maps])
        if again:
            torch.sum(torch.mul(grad, at, out=work), 0, out=grad_values[maps])
        else:
            grad_values[maps] = (grad * at).sum(0)
        grad.mul_(v)
    return grad_values


def _finish_in_c(
    grad_u: Tensor, index: Tensor, values: Tensor, energies: Energies | None, weight: Tensor | None, grad_values: Tensor
) -> None:
    """`finish_gradients` by kernels.c, which also says what it does."""
    places, (maps, height, width, batch) = len(grad_u), values.shape
    index, values = index.contiguous(), values.contiguous()
    of_blocks: tuple[Tensor | int | None, ...] = (None, None, None, None, 0)
    if energies is not None and weight is not None:
        kinds = (energies.kinds(energies.rows), energies.kinds(energies.columns))
        of_blocks = (energies.of_kind.contiguous(), weight.contiguous(), *kinds, len(energies.columns))

    def work(start: int, stop: int) -> None:
        sizes = (maps, height, width, batch, start, stop)
        kernels.call("finish", places, *sizes, grad_u, index, values, *of_blocks, grad_values)

    kernels.in_parts(maps * height, work, width * batch)


class Curvature(torch.autograd.Function):
    """0 per image; with respect to z its gradient is -1/2 E v^2, see gradients.py. For the naive twin: the fast path
    works it out together with the gradient of its products."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, values: Tensor, of: Callable[[], Energies]) -> Tensor:
        ctx.save_for_backward(z, values)
        ctx.of = of
        return z.new_zeros(z.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        z, values = ctx.saved_tensors
        energies, out = ctx.of(), torch.empty(z.shape, dtype=z.dtype, device=z.device)
        weight = values.square().mul_(-0.5 * grads[0])
        for k in range(len(values)):
            one = slice(k, k + 1)
            torch.mul(energies.moved(z[:, one], one)[0], weight[k], out=out[:, k])
        return out, None, None
