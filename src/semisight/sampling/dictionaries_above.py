"""Conditional of the dictionaries above the first, D(k, l) ~ N(0, 1/precision).

The picture is linear in them too (dictionaries.py), but channels are coupled through the layers below, and Q, of side
K_l K_{l-1} k^2, is too large to write down, and too ill-conditioned for a draw by iterations.

drawn       exactly, one map k and channel c at a time: its k^2 values given all others. For one channel c, everything
            happens on the h w values of map c below. With W_n their decoder matrix and u_k the unpooled map,

                G_n = W_n'W_n,   g_n = W_n'(X_n - X^_n),   Q_kc = precision I + alpha0 sum_n S'G_n S,   S d = d * u_k

            Q of all maps is worked out at once; then the maps are drawn in turn, each moving g_n by -G_n S (change).
            Memory: (h w)^2 numbers per image.
maximised   all maps and channels together by conjugate gradients from the current dictionary, for the M-step: every
            step raises the quadratic, so that stopping early is allowed.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.errors import UserError
from semisight.model.architecture import Layer
from semisight.model.decoder import Decoder
from semisight.model.ops.pooling import from_blocks
from semisight.sampling.decoder_matrix import one_hot, paint_down, paint_map
from semisight.sampling.dictionaries import Batches, adjoint, picture, unpooled_maps

_WORK_ELEMENTS = 16_000_000  # of the largest tensor made for some images at a time


@torch.no_grad()
def draw_dictionary_above(
    decoder: Decoder,
    index: int,
    batches: Batches,
    precision: float,
    alpha0: Tensor,
    generator: torch.Generator,
    share: float = 1.0,
) -> Tensor:
    """A new dictionary for layer `index` >= 1; with share < 1 only that share of its channels, picked at random."""
    layer = decoder.architecture.layers[index]
    dictionary = decoder.dictionaries[index].detach().clone()
    maps, channels, kernel, _ = dictionary.shape
    noise = torch.randn(dictionary.shape, generator=generator, dtype=dictionary.dtype).to(dictionary.device)
    order = torch.arange(channels)
    if share < 1:
        order = torch.randperm(channels, generator=generator)[: max(1, round(share * channels))]
    state = _State.of(decoder, index, batches)
    h, w = decoder.architecture.shapes[index].below
    for c in order.tolist():
        gram, g = state.channel(decoder, index, c)  # [N, h, w, h, w], [N, h, w]
        systems = _systems(state.unpooled, gram, layer, kernel).double().mul_(alpha0)  # [K, k*k, k*k]
        systems.diagonal(dim1=1, dim2=2).add_(precision)
        roots = torch.linalg.cholesky(systems)
        matrix = gram.view(len(g), h * w, h * w)
        moved = torch.zeros_like(g)
        for k in range(maps):
            u = state.unpooled[k]  # [m, m', N]
            slope = alpha0 * _correlated(u, _frame(g, layer), kernel) - precision * dictionary[k, c]
            change = _draw(roots[k], slope, noise[k, c])
            dictionary[k, c] += change
            shift = _crop(_convolved(u, change), layer, (h, w))  # S change, [N, h, w]
            g = g - torch.bmm(shift.flatten(1)[:, None], matrix).view(g.shape)
            moved += shift
        state.move(decoder, index, c, moved)
    return dictionary


def _draw(root: Tensor, slope: Tensor, noise: Tensor) -> Tensor:
    """N(Q^-1 slope, Q^-1) from standard normal noise, for one element [k, k] and Q's Cholesky factor in float64."""
    columns = torch.linalg.solve_triangular(root, slope.double().view(-1, 1), upper=False)
    columns = columns + noise.double().reshape(-1, 1)
    return torch.linalg.solve_triangular(root.T, columns, upper=True).to(slope.dtype).view_as(slope)


@dataclass
class _State:
    """All images: their residual, which follows the draws, and what the dictionary is convolved with."""

    residual: Tensor  # [C, H, W, N]
    unpooled: Tensor  # [K, m, m', N]
    places: tuple[Tensor, ...]  # of the layers below, [K_l, h, w, N]

    @staticmethod
    def of(decoder: Decoder, index: int, batches: Batches) -> "_State":
        residuals, unpooled, places = [], [], []
        pool = decoder.architecture.layers[index].pool
        for batch in batches():
            z = batch.z(decoder)
            residuals.append(batch.x - decoder(batch.s, z).mean)
            unpooled.append(from_blocks(unpooled_maps(decoder, index, batch, z), pool))
            places.append(batch.places[:index])
        return _State(
            torch.cat(residuals, -1),
            torch.cat(unpooled, -1),
            tuple(torch.cat(parts, -1) for parts in zip(*places, strict=True)),
        )

    def channel(self, decoder: Decoder, index: int, c: int) -> tuple[Tensor, Tensor]:
        """G_n and g_n for map c of the layer below, [N, h, w, h, w] and [N, h, w]."""
        h, w = decoder.architecture.shapes[index].below
        below, count = index - 1, self.residual.shape[-1]
        layer, size = decoder.architecture.layers[below], decoder.architecture.shapes[below].below
        grams, slopes = [], []
        step = max(1, _WORK_ELEMENTS // (decoder.architecture.n_pixels * h * w))
        for start in range(0, count, step):
            n = slice(start, min(start + step, count))
            patch = paint_map(self.places[below][c, ..., n], decoder.dictionaries[below][c], layer).inside(size)
            w_n = paint_down(decoder, patch, below - 1, tuple(p[..., n] for p in self.places)).values.flatten(1, 3)
            grams.append(torch.bmm(w_n.transpose(1, 2), w_n))
            slopes.append(torch.bmm(self.residual[..., n].flatten(0, 2).T[:, None], w_n)[:, 0])
        return torch.cat(grams).view(count, h, w, h, w), torch.cat(slopes).view(count, h, w)

    def move(self, decoder: Decoder, index: int, c: int, moved: Tensor) -> None:
        """Takes from the residual what values [N, h, w] added to map c of the layer below paint."""
        layers, below = decoder.architecture.layers, index - 1
        step = max(1, _WORK_ELEMENTS // max(p[..., 0].numel() * layers[l].pool ** 2 for l, p in enumerate(self.places)))
        for start in range(0, len(moved), step):
            n = slice(start, min(start + step, len(moved)))
            values, dictionary = moved[n].permute(1, 2, 0)[None], decoder.dictionaries[below][c : c + 1]
            z = one_hot(self.places[below][c : c + 1, ..., n], layers[below].pool ** 2, moved.dtype)
            maps = decoder.operators.unpool(values.contiguous(), z, dictionary, layers[below])
            for l in range(below - 1, -1, -1):
                z = one_hot(self.places[l][..., n], layers[l].pool ** 2, moved.dtype)
                maps = decoder.operators.unpool(maps, z, decoder.dictionaries[l], layers[l])
            self.residual[..., n] -= maps


def _frame(maps: Tensor, layer: Layer) -> Tensor:
    """[N, h, w] with zeros where a 'same' layer paints beyond the edge."""
    if layer.padding == "valid":
        return maps
    before, after = layer.pad_before, layer.pad_total - layer.pad_before
    return F.pad(maps, (before, after, before, after))


def _correlated(u: Tensor, g: Tensor, kernel: int) -> Tensor:
    """sum_n of the correlation of g_n [N, m + k - 1, m' + k - 1] with maps [m, m', N], [k, k]: sum_n S'g_n."""
    high, wide, _ = u.shape
    table = (u.flatten(0, 1) @ g.flatten(1)).view(high, wide, *g.shape[1:])  # pixel by position
    a, b, c, d = table.stride()
    return table.as_strided((high, wide, kernel, kernel), (a + c, b + d, c, d)).sum((0, 1))  # position = pixel + lag


def _convolved(u: Tensor, element: Tensor) -> Tensor:
    """The full convolution of maps [m, m', N] with one element [k, k], [N, m + k - 1, m' + k - 1].

    As one product with the matrix of all shifts of the element, several times faster than the library's.
    """
    high, wide, _ = u.shape
    padded = F.pad(element, (wide - 1, wide - 1, high - 1, high - 1))
    shifts = padded.unfold(0, high, 1).unfold(1, wide, 1).flip(2, 3)  # [h', w', m, m']: element(position - pixel)
    return (shifts.flatten(2).flatten(0, 1) @ u.flatten(0, 1)).T.contiguous().unflatten(1, shifts.shape[:2])


def _crop(maps: Tensor, layer: Layer, size: tuple[int, int]) -> Tensor:
    return maps[:, layer.pad_before : layer.pad_before + size[0], layer.pad_before : layer.pad_before + size[1]]


def _systems(unpooled: Tensor, gram: Tensor, layer: Layer, kernel: int) -> Tensor:
    """sum_n S'G_n S for every map, [K, k*k, k*k]; the cheaper of two ways."""
    high, wide = unpooled.shape[1:3]
    positions = gram.shape[1] * gram.shape[2]
    by_pairs = (high * wide) ** 2 * kernel**4
    by_patches = positions**2 * kernel**2 + positions * kernel**4
    return (_by_pairs if by_pairs <= by_patches else _by_patches)(unpooled, gram, layer, kernel)


def _by_pairs(unpooled: Tensor, gram: Tensor, layer: Layer, kernel: int) -> Tensor:
    """Small maps: sum over pairs of their pixels q, q' of u(q) u(q') times G_n shifted by q and q'."""
    maps, high, wide, count = unpooled.shape
    before, after = layer.pad_before, layer.pad_total - layer.pad_before
    framed = gram if layer.padding == "valid" else F.pad(gram, (before, after) * 4)
    total = unpooled.new_zeros(maps, kernel**4)
    pixels = [(y, x) for y in range(high) for x in range(wide)]
    for y, x in pixels:
        for v, u in pixels:
            part = framed[:, y : y + kernel, x : x + kernel, v : v + kernel, u : u + kernel].reshape(count, -1)
            total.addmm_(unpooled[:, y, x] * unpooled[:, v, u], part)
    return total.view(maps, kernel**2, kernel**2)


def _by_patches(unpooled: Tensor, gram: Tensor, layer: Layer, kernel: int) -> Tensor:
    """Large maps: S written down, image by image."""
    maps, _, _, count = unpooled.shape
    h, w = gram.shape[1:3]
    total = unpooled.new_zeros(maps, kernel**2, kernel**2)
    step = max(1, _WORK_ELEMENTS // (h * w * maps * kernel**2))
    for start in range(0, count, step):
        n = slice(start, min(start + step, count))
        margin = kernel - 1
        padded = F.pad(unpooled[..., n], (0, 0, margin, margin, margin, margin))
        views = padded.unfold(1, kernel, 1).unfold(2, kernel, 1).flip(4, 5)  # [K, h', w', N, k, k]: u_k(position - d)
        views = views[:, layer.pad_before : layer.pad_before + h, layer.pad_before : layer.pad_before + w]
        s = views.permute(3, 1, 2, 0, 4, 5).reshape(-1, h * w, maps * kernel**2)
        moved = torch.bmm(gram[n].view(-1, h * w, h * w), s)
        left, right = (t.view(-1, maps, kernel**2).transpose(0, 1) for t in (s, moved))
        total += left.transpose(1, 2) @ right
    return total


@dataclass(frozen=True)
class Solver:
    """When conjugate gradients stop: `tolerance` is the size of what is left, in units where Q has about unit scale."""

    tolerance: float = 1e-3
    most_steps: int = 20

    def __post_init__(self) -> None:
        if not self.tolerance > 0 or self.most_steps < 1:
            raise UserError("a solver needs a positive tolerance and at least 1 step")


def maximise_dictionary_above(
    decoder: Decoder, index: int, batches: Batches, precision: float, alpha0: Tensor, solver: Solver
) -> Tensor:
    """The dictionary of layer `index` moved towards Q^-1 b; exact for a small tolerance and enough steps."""
    current = decoder.dictionaries[index].detach()
    right = torch.zeros_like(current)
    energy = current.new_zeros(current.shape[0])
    for batch in batches():
        z, weight = batch.z(decoder), batch.weights()
        unpooled = unpooled_maps(decoder, index, batch, z)
        right += adjoint(decoder, index, unpooled, z, alpha0 * weight * (batch.x - decoder.image_bias.detach()))
        energy += (unpooled.square() * weight).sum((0, 2, 3, 4))
    # Every map and channel is scaled by its energy, roughly Q's diagonal.
    scale = 1 / (precision + alpha0 * energy[:, None] * _energy_below(decoder, index))[:, :, None, None]
    solution = current.clone()
    left = right - _times_q(decoder, index, batches, precision, alpha0, solution)
    direction = scaled = scale * left
    size = float((left * scaled).sum())
    enough = solver.tolerance**2 * right.numel()
    steps = 0
    while size > enough and steps < solver.most_steps:
        image = _times_q(decoder, index, batches, precision, alpha0, direction)
        length = size / float((direction * image).sum())
        solution += length * direction
        left = left - length * image
        scaled = scale * left
        size, before = float((left * scaled).sum()), size
        direction = scaled + (size / before) * direction
        steps += 1
    return solution


def _times_q(
    decoder: Decoder, index: int, batches: Batches, precision: float, alpha0: Tensor, direction: Tensor
) -> Tensor:
    total = precision * direction
    for batch in batches():
        z = batch.z(decoder)
        unpooled = unpooled_maps(decoder, index, batch, z)
        with torch.no_grad():
            out = picture(decoder, index, direction, unpooled, z)
        total = total + adjoint(decoder, index, unpooled, z, out * (alpha0 * batch.weights()))
    return total


def _energy_below(decoder: Decoder, index: int) -> Tensor:
    """How much a unit of each map below adds to the picture, roughly, [K_{index-1}]."""
    energy = torch.ones_like(decoder.image_bias[:, 0, 0, 0])
    for dictionary in decoder.dictionaries[:index]:
        energy = dictionary.detach().square().sum((2, 3)) @ energy
    return energy
