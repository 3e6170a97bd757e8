"""Conditional of the dictionary nearest the image, D(k, 1) ~ N(0, 1/precision): a regression of images on maps.

Given s, z and the other layers, the picture is linear in the dictionary of one layer, X - bias = J D + noise:

    D | rest ~ N(Q^-1 b, Q^-1),    Q = precision I + alpha0 sum_n w_n J'J,    b = alpha0 sum_n w_n J'(X - bias)

The weights w_n are 1 when sampling; MCEM and exact EM give a completed image the weight of its draw.

Nearest the image all channels have the same Q, of side K k^2, and it is a correlation: the entry of (k, d) and (k', d')
depends on d - d' only, the correlation of maps k and k' at that lag. Summed over images by FFT, it costs a thousandth
of the product of patches. Drawn exactly, by Cholesky; without a generator, the maximiser. Layers above have a file of
their own (dictionaries_above.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.decoder import Decoder
from semisight.model.ops.pooling import from_blocks
from semisight.sampling.decoder_matrix import one_hot


@dataclass(frozen=True)
class Completed:
    """Images with their latent variables filled in, batch last; `weight` [B] is None for ones."""

    x: Tensor  # [C, H, W, B]
    s: Tensor  # [K_L, h, w, B]
    places: tuple[Tensor, ...]  # [K_l, h, w, B] per pooled layer
    weight: Tensor | None = None

    def z(self, decoder: Decoder) -> tuple[Tensor, ...]:
        """One-hot, as the decoder reads it."""
        layers = decoder.architecture.layers
        return tuple(one_hot(p, layers[l].pool ** 2, self.s.dtype) for l, p in enumerate(self.places))

    def weights(self) -> Tensor:
        return torch.ones_like(self.x[0, 0, 0]) if self.weight is None else self.weight


Batches = Callable[[], Iterable[Completed]]  # all images, batch by batch; asked for several times


def picture(decoder: Decoder, index: int, dictionary: Tensor, unpooled: Tensor, z: tuple[Tensor, ...]) -> Tensor:
    """J D: the mean image less the bias, with `dictionary` in the place of layer `index`'s own."""
    layers = decoder.architecture.layers
    maps = decoder.operators.deconvolve(unpooled, dictionary, layers[index])
    for l in range(index - 1, -1, -1):
        maps = decoder.operators.unpool(maps, z[l], decoder.dictionaries[l].detach(), layers[l])
    return maps


@torch.no_grad()
def unpooled_maps(decoder: Decoder, index: int, batch: Completed, z: tuple[Tensor, ...]) -> Tensor:
    """S(l) of layer `index` as blocks [P, K, h, w, B]: what its dictionary is convolved with."""
    layers = decoder.architecture.layers
    top = len(layers) - 1
    if index == top:
        return batch.s[None]
    maps = decoder.operators.deconvolve(batch.s[None], decoder.dictionaries[top], layers[top])
    for l in range(top - 1, index, -1):
        maps = decoder.operators.unpool(maps, z[l], decoder.dictionaries[l], layers[l])
    return maps * z[index]


def draw_nearest_dictionary(
    decoder: Decoder, batches: Batches, precision: float, alpha0: Tensor, generator: torch.Generator | None
) -> Tensor:
    """A new dictionary for the first layer given everything else; the decoder is left as it was."""
    dictionary = decoder.dictionaries[0]
    maps, channels, kernel, _ = dictionary.shape
    size = maps * kernel * kernel
    gram = torch.zeros(size, size, dtype=torch.float64, device=dictionary.device)
    cross = torch.zeros(dictionary.shape, dtype=torch.float64, device=dictionary.device)
    correlations: Tensor | int = 0
    for batch in batches():
        z = batch.z(decoder)
        unpooled = unpooled_maps(decoder, 0, batch, z)
        target = (batch.x - decoder.image_bias.detach()) * batch.weights()
        cross += adjoint(decoder, 0, unpooled, z, target)
        u = from_blocks(unpooled, decoder.architecture.layers[0].pool) * batch.weights().sqrt()
        correlations = correlations + _spectrum(u, kernel)
        gram -= _unseen_gram(decoder, u)
    assert isinstance(correlations, Tensor)
    gram += _gram_of_spectrum(correlations, decoder.architecture.shapes[0].convolved, kernel)
    # [K, c, k, k] -> one column per channel, rows in the order [K, k, k] of the Gram matrix
    right = alpha0.double() * cross.permute(0, 2, 3, 1).reshape(size, channels)
    gram.mul_(alpha0.double()).diagonal().add_(precision)
    root = torch.linalg.cholesky(gram)
    columns = torch.linalg.solve_triangular(root, right, upper=False)
    if generator is not None:
        columns += torch.randn(columns.shape, generator=generator, dtype=columns.dtype).to(columns.device)
    drawn = torch.linalg.solve_triangular(root.T, columns, upper=True)
    return drawn.view(maps, kernel, kernel, channels).permute(0, 3, 1, 2).to(dictionary.dtype).contiguous()


def _fft_size(convolved: tuple[int, int], kernel: int) -> tuple[int, int]:
    """Large enough that lags up to kernel - 1 neither wrap onto each other nor onto the maps' far side."""
    return max(convolved[0], kernel) + kernel - 1, max(convolved[1], kernel) + kernel - 1


def _spectrum(u: Tensor, kernel: int) -> Tensor:
    """sum_n conj(U_k) U_k' for maps [K, m, m, B], [frequencies, K, K]."""
    size = _fft_size((u.shape[1], u.shape[2]), kernel)
    spectrum = torch.fft.rfft2(u.permute(3, 0, 1, 2), s=size).flatten(2).permute(2, 1, 0)  # [frequencies, K, B]
    return torch.bmm(spectrum.conj(), spectrum.transpose(1, 2)).to(torch.complex128)


def _gram_of_spectrum(spectrum: Tensor, convolved: tuple[int, int], kernel: int) -> Tensor:
    """<u_k shifted by d, u_k' shifted by d'> summed over pixels and images, rows and columns ordered [K, k, k]."""
    high, wide = _fft_size(convolved, kernel)
    maps = spectrum.shape[1]
    spectrum = spectrum.permute(1, 2, 0).unflatten(2, (high, wide // 2 + 1))
    lags = torch.fft.irfft2(spectrum, s=(high, wide))  # [K, K', lag, lag]: sum_q u_k(q) u_k'(q + lag)
    shift = torch.arange(kernel, device=lags.device)
    difference = shift[:, None] - shift[None, :]
    picked = lags[:, :, difference % high][..., difference % wide]  # [K, K', dy, dy', dx, dx']
    size = maps * kernel * kernel
    return picked.permute(0, 2, 4, 1, 3, 5).reshape(size, size)


def _unseen_gram(decoder: Decoder, u: Tensor) -> Tensor | float:
    """The part of that sum which falls on pixels beyond the edge of a 'same' layer, where no image was seen."""
    layer, (high, wide) = decoder.architecture.layers[0], decoder.architecture.shapes[0].below
    if layer.padding == "valid":
        return 0.0
    k, before = layer.kernel, layer.pad_before
    padded = F.pad(u, (0, 0, k - 1, k - 1, k - 1, k - 1))
    views = padded.unfold(1, k, 1).unfold(2, k, 1).flip(4, 5)  # [K, H + k - 1, W + k - 1, B, k, k]; u_k(q - d)
    outside = torch.ones(views.shape[1:3], dtype=torch.bool, device=u.device)
    outside[before : before + high, before : before + wide] = False
    columns = views[:, outside].permute(0, 3, 4, 1, 2).reshape(u.shape[0] * k * k, -1).double()
    return columns @ columns.T


def adjoint(decoder: Decoder, index: int, unpooled: Tensor, z: tuple[Tensor, ...], target: Tensor) -> Tensor:
    """J' target, in the shape of the dictionary."""
    with torch.enable_grad():
        variable = torch.zeros_like(decoder.dictionaries[index]).requires_grad_()
        value = (picture(decoder, index, variable, unpooled, z) * target).sum()
        (gradient,) = torch.autograd.grad(value, variable)
    return gradient
