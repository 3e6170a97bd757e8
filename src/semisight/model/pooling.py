"""Section 2, (2)-(3) and (5)-(6): convolution read in pooling blocks, unpooling with deconvolution, each one product.

Inside the model the batch is the LAST axis: maps are [K, H, W, B] and pooling blocks [P, K, h, w, B], P = p*p places.
Gathering patches is then a copy of long contiguous runs, softmax and sampling over places vectorise, and almost all
time is spent in matrix products.

A pooling block sees a window of k + p - 1 pixels; its value at place (u, v) is the k x k filter laid at (u, v) of that
window. So the p*p values of all K maps are one matrix of p*p shifted copies of the filters times the windows:

    correlate(X, W)[a, k, i, j] = <W[a, k], window(i, j) of X>         convolution, all places of a block at once
    spread(U, W) = sum over blocks of sum_{a,k} U[a, k, i, j] W[a, k]  its adjoint: unpooled values, deconvolved

The naive versions at the end do the same step by step; tests hold the two together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.placing import Chosen, PoolingWeights, choose_places, naive_choose_places


def shifted_copies(filters: Tensor, pool: int) -> Tensor:
    """[K, c, k, k] -> [P, K, c, k+p-1, k+p-1]: the filter at each of the p*p places of a block's window."""
    if pool == 1:
        return filters[None]
    return torch.stack([F.pad(filters, (v, pool - 1 - v, u, pool - 1 - u)) for u in range(pool) for v in range(pool)])


def pad_same(x: Tensor, layer: Layer) -> Tensor:
    """Zeros around [c, H, W, B] so that a 'same' layer keeps the size; nothing to do for 'valid'."""
    if layer.padding == "valid":
        return x
    before, after = layer.pad_before, layer.pad_total - layer.pad_before
    return F.pad(x, (0, 0, before, after, before, after))


def crop_same(x: Tensor, layer: Layer) -> Tensor:
    """The adjoint of `pad_same`."""
    if layer.padding == "valid":
        return x
    before, after = layer.pad_before, layer.pad_total - layer.pad_before
    return x[:, before : x.shape[1] - after, before : x.shape[2] - after]


# One gathered chunk of windows stays below this, so that memory does not grow with the window and caches hold it.
_CHUNK_ELEMENTS = 4_000_000


def _windows(x: Tensor, window: int, pool: int) -> Tensor:
    """A view [c, window, window, h, w, B] of all windows of [c, H, W, B]."""
    return x.unfold(1, window, pool).unfold(2, window, pool).permute(0, 4, 5, 1, 2, 3)


def _row_chunks(rows: int, elements_per_row: int) -> list[slice]:
    step = max(1, min(rows, _CHUNK_ELEMENTS // max(1, elements_per_row)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _correlate(x: Tensor, weights: Tensor, pool: int) -> Tensor:
    places, maps, _, window, _ = weights.shape
    views = _windows(x, window, pool)
    h, w, batch = views.shape[3:]
    matrix = weights.reshape(places * maps, -1)
    chunks = _row_chunks(h, matrix.shape[1] * w * batch)
    if len(chunks) == 1:
        return (matrix @ views.reshape(matrix.shape[1], -1)).view(places, maps, h, w, batch)
    out = x.new_empty(places, maps, h, w, batch)
    for rows in chunks:
        columns = views[:, :, :, rows].reshape(matrix.shape[1], -1)
        out[:, :, rows] = (matrix @ columns).view(places, maps, -1, w, batch)
    return out


def _outer(u: Tensor, x: Tensor, window: int, pool: int, values: Tensor | None = None) -> Tensor:
    """Gradient of <u, correlate(x, W)> with respect to W; with `values`, of <z * values, ...> for u = z."""
    places, maps, h, w, batch = u.shape
    views = _windows(x, window, pool)
    size = x.shape[0] * window * window
    total = x.new_zeros(places * maps, size)
    for rows in _row_chunks(h, size * w * batch):
        total.addmm_(_unpooled(u, values, rows), views[:, :, :, rows].reshape(size, -1).T)
    return total.view(places, maps, x.shape[0], window, window)


def _unpooled(u: Tensor, values: Tensor | None, rows: slice) -> Tensor:
    """Some rows of the unpooled values as a matrix [P*K, rows*w*B]; with `values`, u is z and is multiplied here."""
    part = u[:, :, rows] if values is None else u[:, :, rows] * values[:, rows]
    return part.reshape(u.shape[0] * u.shape[1], -1)


def _spread(u: Tensor, weights: Tensor, pool: int, values: Tensor | None = None) -> Tensor:
    places, maps, channels, window, _ = weights.shape
    h, w, batch = u.shape[2:]
    matrix = weights.reshape(places * maps, -1).T  # [c*window*window, P*K]
    slabs = -(-window // pool)  # a window reaches over this many blocks
    out = u.new_zeros(channels, h + slabs - 1, pool, w + slabs - 1, pool, batch)
    for rows in _row_chunks(h, matrix.shape[0] * w * batch):
        columns = (matrix @ _unpooled(u, values, rows)).view(channels, window, window, -1, w, batch)
        columns = columns.permute(0, 3, 1, 4, 2, 5)  # [c, rows, window, w, window, B]
        for i in range(slabs):
            for j in range(slabs):
                part = columns[:, :, i * pool : (i + 1) * pool, :, j * pool : (j + 1) * pool]
                high, wide = part.shape[2], part.shape[4]
                out[:, rows.start + i : rows.stop + i, :high, j : j + w, :wide] += part
    full = out.view(channels, (h + slabs - 1) * pool, (w + slabs - 1) * pool, batch)
    return full[:, : (h - 1) * pool + window, : (w - 1) * pool + window]


class _Correlate(torch.autograd.Function):
    """Own backward: it gathers the windows again instead of keeping them, (window / pool)^2 times the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, pool: int) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.pool = pool
        return _correlate(x, weights, pool)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        (grad,) = grads
        grad_x = _spread(grad, weights, ctx.pool) if ctx.needs_input_grad[0] else None
        grad_w = _outer(grad, x, weights.shape[-1], ctx.pool) if ctx.needs_input_grad[1] else None
        return grad_x, grad_w, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, weights: Tensor, pool: int) -> Tensor:
        ctx.save_for_backward(u, weights)
        ctx.pool = pool
        return _spread(u, weights, pool)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        u, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_u = _correlate(grad, weights, ctx.pool) if ctx.needs_input_grad[0] else None
        grad_w = _outer(u, grad, weights.shape[-1], ctx.pool) if ctx.needs_input_grad[1] else None
        return grad_u, grad_w, None


class _UnpoolSpread(torch.autograd.Function):
    """`_Spread` of z * values, without ever keeping that product: it is as large as z."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, z: Tensor, weights: Tensor, pool: int) -> Tensor:
        ctx.save_for_backward(values, z, weights)
        ctx.pool = pool
        return _spread(z, weights, pool, values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        values, z, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_u = _correlate(grad, weights, ctx.pool)
        grad_values = _sum_products(grad_u, z) if ctx.needs_input_grad[0] else None
        grad_w = _outer(z, grad, weights.shape[-1], ctx.pool, values) if ctx.needs_input_grad[2] else None
        grad_z = grad_u.mul_(values) if ctx.needs_input_grad[1] else None
        return grad_values, grad_z, grad_w, None


def _sum_products(u: Tensor, z: Tensor) -> Tensor:
    """sum over places of u * z, one place at a time: no temporary of all places."""
    total = u[0] * z[0]
    for place in range(1, u.shape[0]):
        total.addcmul_(u[place], z[place])
    return total


def convolve_blocks(x: Tensor, filters: Tensor, layer: Layer) -> Tensor:
    """(5): maps [c, H, W, B] and filters [K, c, k, k] to the values of every pooling block, [P, K, h, w, B]."""
    out: Tensor = _Correlate.apply(pad_same(x, layer), shifted_copies(filters, layer.pool), layer.pool)
    return out


def deconvolve_blocks(u: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    """(3): unpooled values [P, K, h, w, B] and dictionary [K, c, k, k] to the maps below, [c, H, W, B]."""
    out: Tensor = _Spread.apply(u, shifted_copies(dictionary, layer.pool), layer.pool)
    return crop_same(out, layer)


def unpool_deconvolve(values: Tensor, z: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    """(2) and (3) at once: values [K, h, w, B] go to place z [P, K, h, w, B] of their blocks and are deconvolved."""
    out: Tensor = _UnpoolSpread.apply(values, z, shifted_copies(dictionary, layer.pool), layer.pool)
    return crop_same(out, layer)


def unpool_fixed(values: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    """VAE-d: every value goes to the same place of its block, so one of the shifted copies is enough."""
    place = fixed_place(layer.pool)
    copy = shifted_copies(dictionary, layer.pool)[place : place + 1]
    out: Tensor = _Spread.apply(values[None], copy, layer.pool)
    return crop_same(out, layer)


def fixed_place(pool: int) -> int:
    """The place that VAE-d's deterministic unpooling fills: the block's centre."""
    return (pool // 2) * pool + pool // 2


# --- The naive twin: the same, step by step, as the paper writes it; the oracle of the tests and of `make bench`. ---


def to_blocks(maps: Tensor, pool: int) -> Tensor:
    """[K, m, m', B] -> [P, K, m/p, m'/p, B]."""
    k, height, width, batch = maps.shape
    split = maps.reshape(k, height // pool, pool, width // pool, pool, batch)
    return split.permute(2, 4, 0, 1, 3, 5).reshape(pool * pool, k, height // pool, width // pool, batch)


def from_blocks(blocks: Tensor, pool: int) -> Tensor:
    """The inverse of `to_blocks`."""
    _, k, h, w, batch = blocks.shape
    split = blocks.reshape(pool, pool, k, h, w, batch).permute(2, 3, 0, 4, 1, 5)
    return split.reshape(k, h * pool, w * pool, batch)


def pool_at(blocks: Tensor, z: Tensor) -> Tensor:
    """(6): the value at place z of each block."""
    return (blocks * z).sum(0)


def unpool_at(values: Tensor, z: Tensor) -> Tensor:
    """(2): the value goes to place z, zeros elsewhere; still as blocks [P, ...]."""
    return values * z


def naive_convolve_blocks(x: Tensor, filters: Tensor, layer: Layer) -> Tensor:
    maps = F.conv2d(pad_same(x, layer).permute(3, 0, 1, 2), filters)  # [B, K, m, m]
    return to_blocks(maps.permute(1, 2, 3, 0), layer.pool)


def naive_deconvolve_blocks(u: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    maps = from_blocks(u, layer.pool).permute(3, 0, 1, 2)  # [B, K, m, m]
    return crop_same(F.conv_transpose2d(maps, dictionary).permute(1, 2, 3, 0), layer)


def naive_unpool_deconvolve(values: Tensor, z: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    return naive_deconvolve_blocks(unpool_at(values, z), dictionary, layer)


@dataclass(frozen=True)
class Operators:
    """The operations that exist twice, fast and naive; a model is built with one set of them."""

    convolve: Callable[[Tensor, Tensor, Layer], Tensor]
    deconvolve: Callable[[Tensor, Tensor, Layer], Tensor]
    unpool: Callable[[Tensor, Tensor, Tensor, Layer], Tensor]
    choose: Callable[[Tensor, PoolingWeights, Tensor, bool, bool], Chosen]


FAST = Operators(convolve_blocks, deconvolve_blocks, unpool_deconvolve, choose_places)
NAIVE = Operators(naive_convolve_blocks, naive_deconvolve_blocks, naive_unpool_deconvolve, naive_choose_places)
