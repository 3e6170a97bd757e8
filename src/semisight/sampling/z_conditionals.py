"""Conditionals of z: where each block's value goes, given everything else, exactly.

The decoder is linear, so moving one block's value v from place c to place a changes the log-likelihood by

    R[a] = alpha0 ( v (g[a] - g[c]) - v^2/2 ||d_a - d_c||^2 ),    g[a] = <d_a, X - X^>,

with d_a what a unit at place a adds to the picture. The prior is uniform, so p(z = a | rest) is proportional to
exp(R[a]); up to a constant, R[a] = alpha0 v ( g[a] + v (<d_a, d_c> - ||d_a||^2 / 2) ).

nearest   For the z nearest the image, d_a is a shifted copy of the dictionary. Blocks may be drawn at once only where
          their windows do not overlap: within a map, those ceil(window / pool) blocks apart, down and across. Such a
          set of windows is lifted out of the residual, all maps are drawn on it one after the other, and it is put
          back. All images are drawn at once.
above     For z further up, d_a depends on the z below, image by image (decoder_matrix.py). All maps and places of one
          block position are decoded at once; then the maps are drawn one after the other, position by position.

Both change `residual` (X - X^) and `places` in place. `log_prior` adds to the logits, for annealing; None is uniform.
"""

import torch
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.decoder import Decoder
from semisight.model.ops.pooling import crop_same, pad_same, shifted_copies
from semisight.sampling.decoder_matrix import block_patch, paint_down

# Elements of one painted patch for all its images: bounds the memory of `draw_places_above`.
_PATCH_ELEMENTS = 32_000_000


def draw_index(logits: Tensor, uniform: Tensor, below: Tensor) -> Tensor:
    """One draw per column of logits [P, n] from a uniform number each; `below` is the lower triangle of ones [P, P]."""
    weights = (logits - logits.amax(0)).exp_()
    reached = below @ weights  # cumulative sums; as a product they vectorise over the columns
    return (reached <= uniform * reached[-1]).sum(0).clamp_max_(len(below) - 1)  # rounding never leaves the block


def lower_triangle(places: int, like: Tensor) -> Tensor:
    return torch.ones(places, places, dtype=like.dtype, device=like.device).tril_()


def uniform_like(places: Tensor, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(places.shape, generator=generator, dtype=like.dtype).to(like.device)


@torch.no_grad()
def draw_nearest_places(
    residual: Tensor,
    values: Tensor,
    places: Tensor,
    dictionary: Tensor,
    layer: Layer,
    alpha0: Tensor,
    generator: torch.Generator,
    log_prior: Tensor | None = None,
) -> None:
    """`residual` [C, H, W, B], `values` and `places` (int64) [K, h, w, B], `log_prior` [P, K, h, w, B]."""
    pool, window = layer.pool, layer.window
    if pool == 1:
        return
    maps, h, w, _ = places.shape
    apart = -(-window // pool)
    copies = shifted_copies(dictionary, pool).flatten(2).transpose(0, 1).contiguous()  # [K, P, c*window*window]
    seen, pattern = _seen_pixels(residual, layer)
    table = _overlaps(copies, seen)  # [K, P, P*U]
    framed = pad_same(residual, layer)
    uniform = uniform_like(places, residual, generator)
    below = lower_triangle(pool * pool, residual)
    for i in range(min(apart, h)):
        for j in range(min(apart, w)):
            view = framed[:, i * pool :, j * pool :].unfold(1, window, apart * pool).unfold(2, window, apart * pool)
            view = view.permute(0, 4, 5, 1, 2, 3)  # [c, window, window, rows, columns, B]
            windows = view.clone(memory_format=torch.contiguous_format).view(copies.shape[2], -1)
            at = (slice(None), slice(i, None, apart), slice(j, None, apart))
            v, old, u = (t[at].reshape(maps, -1) for t in (values, places, uniform))
            prior = None if log_prior is None else log_prior[(slice(None), *at)].flatten(2)  # [P, K, n]
            shape = places[at].shape
            kind = pattern[at[1:]][..., None].expand(shape[1:]).reshape(-1)
            mask = None if seen.shape[1] == 1 else seen[:, kind]
            new = torch.empty_like(old)
            for k in range(maps):
                lookup = old[k] * seen.shape[1] + kind
                logits = torch.addcmul(copies[k] @ windows, table[k].index_select(1, lookup), v[k])
                logits.mul_(v[k] * alpha0)
                if prior is not None:
                    logits += prior[:, k]
                new[k] = draw_index(logits, u[k], below)
                change = torch.zeros_like(logits).scatter_(0, old[k][None], v[k][None])
                change.scatter_add_(0, new[k][None], -v[k][None])
                if mask is None:
                    windows.addmm_(copies[k].T, change)
                else:
                    windows += (copies[k].T @ change).mul_(mask)
            view.copy_(windows.view(view.shape))
            places[at] = new.view(shape)
    if framed is not residual:
        residual.copy_(crop_same(framed, layer))


def _seen_pixels(residual: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """Which pixels of a block's window lie in the picture: the U patterns [c*window*window, U], and each block's.

    One pattern of ones for 'valid' layers; for 'same' ones the windows at the edge see less, and overlap less.
    """
    inside = pad_same(torch.ones_like(residual[..., :1]), layer)
    view = inside.unfold(1, layer.window, layer.pool).unfold(
        2, layer.window, layer.pool
    )  # [c, h, w, 1, window, window]
    h, w = view.shape[1:3]
    flat = view.permute(0, 4, 5, 1, 2, 3).reshape(-1, h * w)
    patterns, which = flat.unique(dim=1, return_inverse=True)
    return patterns, which.view(h, w)


def _overlaps(copies: Tensor, seen: Tensor) -> Tensor:
    """<d_a, d_c> - ||d_a||^2 / 2 over the pixels each pattern sees: [K, P, P*U], the last index c * U + pattern."""
    parts = []
    for mask in seen.T:
        gram = (copies * mask) @ copies.transpose(1, 2)  # [K, P, P]
        parts.append(gram - 0.5 * gram.diagonal(dim1=1, dim2=2)[:, :, None])
    return torch.stack(parts, dim=-1).flatten(2)


@torch.no_grad()
def draw_places_above(
    decoder: Decoder,
    index: int,
    residual: Tensor,
    values: Tensor,
    places: tuple[Tensor, ...],
    alpha0: Tensor,
    generator: torch.Generator,
    log_prior: Tensor | None = None,
    share: float = 1.0,
) -> None:
    """Draws places[index]; with share < 1 only that share of the block positions, picked at random.

    Also right for index 0, where it is slower than `draw_nearest_places`: tests hold the two together.
    """
    architecture = decoder.architecture
    layer, shape = architecture.layers[index], architecture.shapes[index]
    if layer.pool == 1:
        return
    h, w = shape.pooled
    order = torch.arange(h * w)
    if share < 1:
        order = torch.randperm(h * w, generator=generator)[: max(1, round(share * h * w))]
    uniform = uniform_like(places[index], residual, generator)
    batch = residual.shape[-1]
    for position in order.tolist():
        row, column = divmod(position, w)
        patch = block_patch(decoder.dictionaries[index], layer, row, column, shape.below)
        # How large the patch will be on the picture, at most, bounds how many images are painted at once.
        step = max(1, _PATCH_ELEMENTS // (architecture.n_pixels * patch.values.shape[-1]))
        for start in range(0, batch, step):
            n = slice(start, min(start + step, batch))
            below = tuple(p[..., n] for p in places[:index])
            prior = None if log_prior is None else log_prior[:, :, row, column, n]
            painted = paint_down(decoder, patch, index - 1, below)
            height, width = painted.values.shape[2:4]
            part = residual[:, painted.top : painted.top + height, painted.left : painted.left + width, n]
            effects = painted.values.flatten(1, 3).transpose(1, 2)  # [B or 1, K*P, pixels]
            effects = effects.unflatten(1, (layer.maps, -1)).expand(part.shape[-1], -1, -1, -1).contiguous()
            at = (slice(None), row, column, n)
            seen = part.flatten(0, 2).T.clone(memory_format=torch.contiguous_format)  # [B, pixels]
            _draw_at_one_position(seen, effects, values[at], places[index][at], uniform[at], alpha0, prior)
            part.copy_(seen.T.view(part.shape))


def _draw_at_one_position(
    seen: Tensor, effects: Tensor, values: Tensor, places: Tensor, uniform: Tensor, alpha0: Tensor, prior: Tensor | None
) -> None:
    """`seen` [B, pixels] is the residual, `effects` [B, K, P, pixels] what units add; the rest are [K, B] views."""
    gram = effects @ effects.transpose(2, 3)  # [B, K, P, P]
    gram = gram - 0.5 * gram.diagonal(dim1=2, dim2=3)[..., None]
    count = effects.shape[2]
    triangle = lower_triangle(count, seen)
    for k in range(effects.shape[1]):
        d, v, old = effects[:, k], values[k], places[k]
        g = torch.bmm(d, seen[..., None])[..., 0]  # [B, P]
        curvature = gram[:, k].gather(2, old[:, None, None].expand(-1, count, 1))[..., 0]
        logits = ((g + v[:, None] * curvature) * (alpha0 * v)[:, None]).T
        if prior is not None:
            logits = logits + prior[:, k]
        new = draw_index(logits, uniform[k], triangle)
        image = torch.arange(len(new), device=new.device)
        seen += v[:, None] * (d[image, old] - d[image, new])
        places[k] = new
