"""Section 2, (2)-(3) and (5)-(6): convolution read in pooling blocks, unpooling with deconvolution, each one product.

Inside the model the batch is the LAST axis: maps are [K, H, W, B] and pooling blocks [P, K, h, w, B], P = p*p places.
Copying patches is then a copy of long contiguous runs, softmax and sampling over places vectorise, and almost all
time is spent in matrix products.

Convolution and deconvolution are adjoint, and each is a handful of products over maps copied once (im2col.py):

    correlate(X, F)[a, k, i, j] = <F[k] laid at place a, block (i, j) of X>      all places of a block
    spread(U, F) = sum over blocks of sum_{a,k} U[a, k, i, j] F[k] at place a    unpooled values, deconvolved

Products are done in the parameters' precision, whatever mixed precision hands in. The naive versions at the end do the
same step by step; tests hold the two together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.ops import kernels
from semisight.model.ops.curvature import Curvature, Energies, finish_gradients
from semisight.model.ops.fourier import Fourier, FourierConvolve, FourierUnpool, fourier_for
from semisight.model.ops.im2col import Geometry, Layout, layout_for
from semisight.model.ops.places import (
    Chosen,
    Drawn,
    PoolingWeights,
    as_one_hot,
    choose_places,
    naive_choose_places,
    one_hot,
)


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


# One gathered chunk stays below this, so that memory does not grow with the window and caches hold it.
_CHUNK_ELEMENTS = 4_000_000
_POOLED_AT_ONCE = 500_000  # values of blocks, in prediction: 2 MB, a core's second cache


def _row_chunks(rows: int, elements_per_row: int, limit: int | None = None, at_least: int = 1) -> list[slice]:
    step = max(at_least, min(rows, (limit or _CHUNK_ELEMENTS) // max(1, elements_per_row)))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


Blocks = Callable[[slice, slice], Tensor]  # values at some places of some rows of blocks, [places, K, rows, w, B]


def _blocks(u: Tensor) -> Blocks:
    return lambda places, part: u[places, :, part]


def _unpooled(values: Tensor, z: Tensor, index: Tensor | None) -> Blocks:
    """z * values, where z may come as an index (placing.Drawn)."""

    def unpooled(places: slice, part: slice) -> Tensor:
        if index is None:
            return z[places, :, part] * values[:, part]
        here, v = index[:, part], values[:, part]
        if values.is_contiguous() and index.is_contiguous() and kernels.usable(values[None]):
            count, out = places.stop - places.start, values.new_empty(places.stop - places.start, *v.shape)
            kernels.call("place", count, places.start, len(v), v[0].numel(), v.stride(0), here, v, out)
            return out
        return one_hot(here, range(places.start, places.stop)).mul_(v)

    return unpooled


def _correlate(maps: Tensor, matrices: Tensor, layout: Layout, bias: Tensor | None = None) -> Tensor:
    """[c, H, W, B] -> [P, K, h, w, B]."""
    g, (_, height, width, batch) = layout.geometry, maps.shape
    rows = matrices.shape[1]
    out = maps.new_empty(g.n_places, rows // layout.together, g.blocks(height), g.blocks(width), batch)
    column = None if bias is None else bias.reshape(-1, 1).repeat(layout.together, 1)
    for part in _row_chunks(out.shape[2], layout.elements(maps)):
        for group in layout.groups(layout.gather(maps[:, g.pixels(part)])):
            target = out[group.places, :, part].view(rows, -1)
            for term, columns in group.terms:
                if term == 0 and column is not None:
                    torch.addmm(column, matrices[term], columns, out=target)
                else:
                    target.addmm_(matrices[term], columns, beta=min(term, 1))  # the first writes, the others add
    return out


def _spread(blocks: Blocks, shape: torch.Size, matrices: Tensor, layout: Layout) -> Tensor:
    """The adjoint, [P, K, h, w, B] -> [c, H, W, B]; `shape` ends in h, w, B."""
    g, (h, w, batch) = layout.geometry, shape[-3:]
    out = matrices.new_zeros(layout.channels(matrices), *((n - 1) * g.pool + g.window for n in (h, w)), batch)
    for part in _row_chunks(h, layout.elements(out)):
        maps = out[:, g.pixels(part)]
        gathered = layout.empty(maps).zero_()
        for group in layout.groups(gathered):
            rows = blocks(group.places, part).reshape(matrices.shape[1], -1)
            for term, columns in group.terms:
                columns.addmm_(matrices[term].T, rows)
        layout.scatter_add(gathered, maps)
    return out


def _outer(u: Tensor, maps: Tensor, matrices: Tensor, layout: Layout) -> Tensor:
    """Gradient of <u, correlate(maps, matrices)> with respect to the matrices."""
    total = torch.zeros_like(matrices)
    for part in _row_chunks(u.shape[2], layout.elements(maps)):
        for group in layout.groups(layout.gather(maps[:, layout.geometry.pixels(part)])):
            rows = u[group.places, :, part].reshape(matrices.shape[1], -1)
            for term, columns in group.terms:
                total[term].addmm_(rows, columns.T)
    return total


class _Correlate(torch.autograd.Function):
    """Own backward: it gathers again instead of keeping what was gathered, several times the input."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, matrices: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
        ctx.save_for_backward(maps, matrices)
        ctx.layout, ctx.bias_shape = layout, None if bias is None else bias.shape
        return _correlate(maps, matrices, layout, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        maps, matrices = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_maps = _spread(_blocks(grad), grad.shape, matrices, ctx.layout) if ctx.needs_input_grad[0] else None
        grad_matrices = _outer(grad, maps, matrices, ctx.layout) if ctx.needs_input_grad[1] else None
        grad_bias = grad.flatten(2).sum(2).sum(0).view(ctx.bias_shape) if ctx.needs_input_grad[2] else None
        return grad_maps, grad_matrices, grad_bias, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, matrices: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(u, matrices)
        ctx.layout = layout
        return _spread(_blocks(u), u.shape, matrices, layout)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        u, matrices = ctx.saved_tensors
        (grad,) = grads
        grad_u = _correlate(grad, matrices, ctx.layout) if ctx.needs_input_grad[0] else None
        grad_matrices = _outer(u, grad, matrices, ctx.layout) if ctx.needs_input_grad[1] else None
        return grad_u, grad_matrices, None


class _UnpoolSpread(torch.autograd.Function):
    """`_Spread` of z * values, without ever keeping that product, as large as z; and a 0 per image (curvature.py).

    If z comes as an index, `z` is the token of it (placing.Drawn), and only its gradient matters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        z: Tensor,
        index: Tensor | None,
        matrices: Tensor,
        layout: Layout,
        of: Callable[[], Energies] | None,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(values, z, index, matrices)
        ctx.layout, ctx.of = layout, of
        ctx.set_materialize_grads(False)
        maps = _spread(_unpooled(values, z, index), values.shape, matrices, layout)
        return maps, values.new_zeros(values.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """All three gradients in one go over the blocks: what was just worked out is still in the cache."""
        values, z, index, matrices = ctx.saved_tensors
        layout: Layout = ctx.layout
        rows, grad, unpooled = matrices.shape[1], grads[0], _unpooled(values, z, index)
        if grad is None:  # only the curvature's was asked for
            size = ((n - 1) * layout.geometry.pool + layout.geometry.window for n in values.shape[1:3])
            grad = values.new_zeros(layout.channels(matrices), *size, values.shape[-1])
        grad_u, grad_matrices = values.new_empty(z.shape), torch.zeros_like(matrices)
        for part in _row_chunks(values.shape[1], layout.elements(grad)):
            for group in layout.groups(layout.gather(grad[:, layout.geometry.pixels(part)])):
                u = unpooled(group.places, part).reshape(rows, -1)
                target = grad_u[group.places, :, part].view(rows, -1)
                for term, columns in group.terms:
                    target.addmm_(matrices[term], columns, beta=min(term, 1))
                    grad_matrices[term].addmm_(u, columns.T)
        grad_values = finish_gradients(grad_u, z, index, values, ctx.of, grads[1])
        return grad_values, grad_u, None, grad_matrices, None, None


def _layout(filters: Tensor, pool: int, offsets: range | None = None) -> Layout:
    return layout_for(Geometry(filters.shape[-1], pool, range(pool) if offsets is None else offsets), filters.shape[1])


def _fourier(filters: Tensor, pool: int, height: int, width: int, like: Tensor) -> Fourier | None:
    """The way over the frequencies for padded maps of that size, where it is the faster one."""
    geometry = Geometry(filters.shape[-1], pool, range(pool))
    if like.device.type != "cpu":
        return None
    return fourier_for(geometry, filters.shape[0], filters.shape[1], (height, width), like.shape[-1])


def convolve_blocks(x: Tensor, filters: Tensor, layer: Layer, bias: Tensor | None = None) -> Tensor:
    """(5): maps [c, H, W, B] and filters [K, c, k, k] to the values of every pooling block, [P, K, h, w, B]."""
    maps = pad_same(x.to(filters.dtype), layer)
    fourier = _fourier(filters, layer.pool, maps.shape[1], maps.shape[2], maps)
    if fourier is not None:
        frequencies: Tensor = FourierConvolve.apply(maps, filters, bias, fourier)
        return frequencies
    layout = _layout(filters, layer.pool)
    out: Tensor = _Correlate.apply(maps, layout.matrices(filters), bias, layout)
    return out


@torch.no_grad()
def convolve_and_pool(
    x: Tensor, filters: Tensor, layer: Layer, bias: Tensor, pool: Callable[[Tensor], Tensor]
) -> Tensor:
    """(5) and (6) for prediction, [c, H, W, B] -> [K, h, w, B]: the blocks are pooled a few rows at a time, while they
    are in the cache, and never kept."""
    layout, maps = _layout(filters, layer.pool), pad_same(x.to(filters.dtype), layer)
    g = layout.geometry
    out = maps.new_empty(len(filters), g.blocks(maps.shape[1]), g.blocks(maps.shape[2]), maps.shape[3])
    fourier = _fourier(filters, layer.pool, maps.shape[1], maps.shape[2], maps)
    if fourier is not None:
        spectrum, places = fourier.spectrum(filters), g.n_places
        for images in _row_chunks(maps.shape[3], places * out[..., 0].numel(), _POOLED_AT_ONCE, at_least=64):
            blocks = maps.new_empty(places, *out.shape[:3], images.stop - images.start)
            fourier.run(spectrum, maps[..., images], bias=bias.view(-1, 1), to_blocks=blocks)
            out[..., images] = pool(blocks)
        return out
    matrices = layout.matrices(filters)
    for part in _row_chunks(out.shape[1], g.n_places * out[:, 0].numel(), _POOLED_AT_ONCE):
        out[:, part] = pool(_correlate(maps[:, g.pixels(part)], matrices, layout, bias))
    return out


def deconvolve_blocks(u: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    """(3): unpooled values [P, K, h, w, B] and dictionary [K, c, k, k] to the maps below, [c, H, W, B]."""
    layout = _layout(dictionary, layer.pool)
    out: Tensor = _Spread.apply(u.to(dictionary.dtype).contiguous(), layout.matrices(dictionary), layout)
    return crop_same(out, layer)


def unpool_deconvolve(values: Tensor, z: Tensor | Drawn, dictionary: Tensor, layer: Layer) -> Tensor:
    """(2) and (3) at once: values [K, h, w, B] go to place z [P, K, h, w, B] of their blocks and are deconvolved."""
    return unpool_curved(values, z, dictionary, layer, None)[0]


def unpool_curved(
    values: Tensor, z: Tensor | Drawn, dictionary: Tensor, layer: Layer, of: Callable[[], Energies] | None
) -> tuple[Tensor, Tensor]:
    """The same, and a 0 per image [B] whose gradient is that of the curvature; `of` is asked only for that gradient."""
    values, index = values.to(dictionary.dtype), None
    if isinstance(z, Drawn):
        index, z = z.index.to(dictionary.dtype), z.token
    z = z.to(dictionary.dtype)
    layout = _layout(dictionary, layer.pool)
    height, width = ((n - 1) * layer.pool + layer.window for n in values.shape[1:3])
    fourier = _fourier(dictionary, layer.pool, height, width, values)
    if fourier is not None:
        maps, zero = FourierUnpool.apply(values, z, index, dictionary, fourier, of)
    else:
        maps, zero = _UnpoolSpread.apply(values, z, index, layout.matrices(dictionary), layout, of)
    return crop_same(maps, layer), zero


def unpool_fixed(values: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    """VAE-d: every value goes to the same place of its block, so only that place is worked out."""
    place = layer.pool // 2
    layout = _layout(dictionary, layer.pool, range(place, place + 1))
    out: Tensor = _Spread.apply(values[None].to(dictionary.dtype).contiguous(), layout.matrices(dictionary), layout)
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


def unpool_at(values: Tensor, z: Tensor) -> Tensor:
    """(2): the value goes to place z, zeros elsewhere; still as blocks [P, ...]."""
    return values * z


def naive_convolve_blocks(x: Tensor, filters: Tensor, layer: Layer, bias: Tensor | None = None) -> Tensor:
    maps = F.conv2d(pad_same(x, layer).permute(3, 0, 1, 2), filters)  # [B, K, m, m]
    blocks = to_blocks(maps.permute(1, 2, 3, 0), layer.pool)
    return blocks if bias is None else blocks + bias


def naive_deconvolve_blocks(u: Tensor, dictionary: Tensor, layer: Layer) -> Tensor:
    maps = from_blocks(u, layer.pool).permute(3, 0, 1, 2)  # [B, K, m, m]
    return crop_same(F.conv_transpose2d(maps, dictionary).permute(1, 2, 3, 0), layer)


def naive_unpool_deconvolve(values: Tensor, z: Tensor | Drawn, dictionary: Tensor, layer: Layer) -> Tensor:
    return naive_deconvolve_blocks(unpool_at(values, as_one_hot(z)), dictionary, layer)


def naive_unpool_curved(
    values: Tensor, z: Tensor | Drawn, dictionary: Tensor, layer: Layer, of: Callable[[], Energies] | None
) -> tuple[Tensor, Tensor]:
    z = as_one_hot(z)
    maps = naive_unpool_deconvolve(values, z, dictionary, layer)
    return maps, z.new_zeros(z.shape[-1]) if of is None else Curvature.apply(z, values.detach(), of)


@dataclass(frozen=True)
class Operators:
    """The operations that exist twice, fast and naive; a model is built with one set of them."""

    convolve: Callable[[Tensor, Tensor, Layer, Tensor | None], Tensor]  # with the bias [K, 1, 1, 1] added
    deconvolve: Callable[[Tensor, Tensor, Layer], Tensor]
    unpool: Callable[[Tensor, Tensor | Drawn, Tensor, Layer], Tensor]
    unpool_curved: Callable[
        [Tensor, Tensor | Drawn, Tensor, Layer, Callable[[], Energies] | None], tuple[Tensor, Tensor]
    ]
    choose: Callable[[Tensor, PoolingWeights, Tensor, bool, bool], Chosen]


FAST = Operators(convolve_blocks, deconvolve_blocks, unpool_deconvolve, unpool_curved, choose_places)
NAIVE = Operators(
    naive_convolve_blocks,
    naive_deconvolve_blocks,
    naive_unpool_deconvolve,
    naive_unpool_curved,
    naive_choose_places,
)
