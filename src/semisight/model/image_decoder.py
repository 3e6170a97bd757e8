"""Section 2.1, equations (1)-(4): the deep deconvolutional generative model p(X | s, z).

    s        ~ N(0, I)                           K_L maps
    S~(l)    = sum_k D(k, l) * S(k, l)           full convolution with the dictionary of layer l
    z(l-1)   ~ uniform over the p x p places     one per map and block
    S(l-1)   = unpool(S~(l), z(l-1))             the value goes to place z, zeros elsewhere
    X        ~ N(S~(1) + image bias, 1/alpha0)

Given z the decoder is linear in s: the local gradient and both samplers rest on that.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semisight.model.architecture import Architecture
from semisight.model.pooling import FAST, Operators, unpool_fixed


@dataclass(frozen=True)
class Decoded:
    """The mean image [C, H, W, B], and S~(l+1), the values that were unpooled at layer l, [K_l, h, w, B] each."""

    mean: Tensor
    values: tuple[Tensor, ...]


class ImageDecoder(nn.Module):
    """p(X | s, z) with one learned precision alpha0."""

    def __init__(self, architecture: Architecture, generator: torch.Generator, operators: Operators = FAST) -> None:
        super().__init__()
        self.architecture, self.operators = architecture, operators
        self.dictionaries = nn.ParameterList()
        for layer, shape in zip(architecture.layers, architecture.shapes, strict=True):
            size = (layer.maps, shape.maps_below, layer.kernel, layer.kernel)
            # Each value below is a sum of about maps * (kernel / pool)^2 terms, one nonzero place per block.
            terms = layer.maps * max(1.0, (layer.kernel / layer.pool) ** 2)
            self.dictionaries.append(nn.Parameter(torch.randn(size, generator=generator) / math.sqrt(terms)))
        self.image_bias = nn.Parameter(torch.zeros(*architecture.image_shape, 1))
        self.log_alpha0 = nn.Parameter(torch.zeros(()))

    def forward(self, s: Tensor, z: tuple[Tensor, ...]) -> Decoded:
        """`s` [K_L, h, w, B]; `z` one-hot [P, K_l, h, w, B] per pooled layer, or () for VAE-d's fixed places."""
        layers = self.architecture.layers
        top = len(layers) - 1
        maps = self.operators.deconvolve(s[None], self.dictionaries[top], layers[top])
        values: list[Tensor] = []
        for index in reversed(self.architecture.pooled_layers):
            values.append(maps)
            dictionary, layer = self.dictionaries[index], layers[index]
            if z:
                maps = self.operators.unpool(maps, z[index], dictionary, layer)
            else:
                maps = unpool_fixed(maps, dictionary, layer)
        return Decoded(maps + self.image_bias, tuple(reversed(values)))

    def log_prob(self, x: Tensor, mean: Tensor) -> Tensor:
        """(4): log N(X; mean, 1/alpha0), summed over pixels, [B]."""
        squares = (x - mean).square().sum((0, 1, 2))
        constant = self.architecture.n_pixels * (self.log_alpha0 - math.log(2 * math.pi))
        return 0.5 * (constant - self.log_alpha0.exp() * squares)

    def energy_differences(self) -> tuple[Tensor, ...]:
        """||d_a - d_c||^2 for every pair of places, [P, P, K_l] per pooled layer: how much X^ changes when z moves.

        For layer 1 it is exact: 2 (R(0) - R(a - c)), R the autocorrelation of D(k, 1). Further up, a unit in map c
        below changes the picture by the energy of that map's own dictionary; we weigh by these energies and leave out
        the overlap of different units below (which has no sign in the mean).
        """
        weight = torch.ones(
            self.architecture.image_shape[0], device=self.log_alpha0.device, dtype=self.log_alpha0.dtype
        )
        result = []
        for index, layer in enumerate(self.architecture.layers[:-1]):
            overlap = _autocorrelation(self.dictionaries[index].detach(), weight, layer.pool)
            place, middle = torch.arange(layer.pool, device=weight.device), layer.pool - 1
            lag = (place[:, None] - place).add(middle)  # [p, p], along one axis
            between = overlap[lag[:, None, :, None], lag[None, :, None, :]]  # [u, v, u', v', K]
            energy = overlap[middle, middle]
            result.append(2 * (energy - between.reshape(layer.pool**2, layer.pool**2, -1)))
            weight = energy
        return tuple(result)


def _autocorrelation(dictionary: Tensor, weight: Tensor, pool: int) -> Tensor:
    """R(y, x) = sum over c and pixels of weight[c] D[k, c] D[k, c] moved by (y, x), |y|, |x| < p, [2p-1, 2p-1, K]."""
    weighted, size = dictionary * weight[:, None, None], dictionary.shape[-1]
    out = dictionary.new_zeros(2 * pool - 1, 2 * pool - 1, len(dictionary))
    for y in range(min(pool, size)):
        for x in range(1 - min(pool, size), min(pool, size)):
            here = weighted[:, :, y:, max(x, 0) : size + min(x, 0)]
            moved = dictionary[:, :, : size - y, max(-x, 0) : size - max(x, 0)]
            total = (here * moved).sum((1, 2, 3))
            out[pool - 1 + y, pool - 1 + x] = total
            out[pool - 1 - y, pool - 1 - x] = total
    return out


def maximising_alpha0(squares: Tensor, n_values: int) -> Tensor:
    """The precision that maximises the likelihood: the inverse mean squared residual, over all pixels of all images."""
    return n_values / squares.sum()
