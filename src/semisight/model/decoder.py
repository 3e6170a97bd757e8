"""Section 2.1, equations (1)-(4): the deep deconvolutional generative model p(X | s, z).

    s        ~ N(0, I)                           K_L maps
    S~(l)    = sum_k D(k, l) * S(k, l)           full convolution with the dictionary of layer l
    z(l-1)   ~ uniform over the p x p places     one per map and block
    S(l-1)   = unpool(S~(l), z(l-1))             the value goes to place z, zeros elsewhere
    X        ~ N(S~(1) + image bias, 1/alpha0)

Given z the decoder is linear in s: the local gradient and both samplers rest on that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from semisight.model.architecture import Architecture
from semisight.model.ops.curvature import Energies, energies, worth
from semisight.model.ops.places import Drawn
from semisight.model.ops.pooling import FAST, Operators, unpool_fixed


@dataclass(frozen=True)
class Decoded:
    """The mean image [C, H, W, B]; S~(l+1), the values v that were unpooled at layer l, [K_l, h, w, B] each; and a 0
    per image, [B], whose gradient with respect to z is the curvature -v^2/2 ||d_a - d_c||^2 (see gradients.py)."""

    mean: Tensor
    values: tuple[Tensor, ...]
    curvature: Tensor


class Decoder(nn.Module):
    """p(X | s, z) with one learned precision alpha0.

    Args:
        architecture: its layers, for the size of the images.
        generator: of the start; by default always the same.
        operators: fast or naive ones.

    Example:
        >>> import semisight as ss
        >>> layers = (ss.Layer(maps=4, kernel=3, pool=2, padding="same"), ss.Layer(maps=6, kernel=4))
        >>> ss.Decoder(ss.Architecture((1, 8, 8), layers)).architecture.code_shape
        (6, 1, 1)
    """

    def __init__(
        self, architecture: Architecture, generator: torch.Generator | None = None, operators: Operators = FAST
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        self.architecture, self.operators = architecture, operators
        self.dictionaries = nn.ParameterList()
        for layer, shape in zip(architecture.layers, architecture.shapes, strict=True):
            size = (layer.maps, shape.maps_below, layer.kernel, layer.kernel)
            # Each value below is a sum of about maps * (kernel / pool)^2 terms, one nonzero place per block.
            terms = layer.maps * max(1.0, (layer.kernel / layer.pool) ** 2)
            self.dictionaries.append(nn.Parameter(torch.randn(size, generator=generator) / math.sqrt(terms)))
        self.image_bias = nn.Parameter(torch.zeros(*architecture.image_shape, 1))
        self.log_alpha0 = nn.Parameter(torch.zeros(()))

    def forward(self, s: Tensor, z: Sequence[Tensor | Drawn]) -> Decoded:
        """`s` [K_L, h, w, B]; `z` per pooled layer as drawn or one-hot [P, K_l, h, w, B], or () for VAE-d's places."""
        layers = self.architecture.layers
        top = len(layers) - 1
        maps = self.operators.deconvolve(s[None], self.dictionaries[top], layers[top])
        values: list[Tensor] = []
        curvature = s.new_zeros(s.shape[-1])
        for index in reversed(self.architecture.pooled_layers):
            values.append(maps)
            dictionary, layer = self.dictionaries[index], layers[index]
            if z:
                of = partial(self.energies, index)
                maps, zero = self.operators.unpool_curved(maps, z[index], dictionary, layer, of)
                curvature = curvature + zero
            else:
                maps = unpool_fixed(maps, dictionary, layer)
        return Decoded(maps + self.image_bias, tuple(reversed(values)), curvature)

    @torch.no_grad()
    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        """Told the training images' mean [C, H, W, 1] and variance, so that its first picture varies as much."""
        self.image_bias.copy_(mean)
        self.log_alpha0.copy_(-variance.log())
        self.dictionaries[0].mul_(0.5 * variance.sqrt())

    def log_prob(self, x: Tensor, mean: Tensor) -> Tensor:
        """(4): log N(X; mean, 1/alpha0), summed over pixels, [B]."""
        squares = (x - mean).square().sum((0, 1, 2))
        constant = self.architecture.n_pixels * (self.log_alpha0 - math.log(2 * math.pi))
        return 0.5 * (constant - self.log_alpha0.exp() * squares)

    def energies(self, index: int) -> Energies:
        """||d_a - d_c||^2 for every pair of places of layer `index`: how much X^ changes when z moves."""
        dictionaries = [dictionary.detach() for dictionary in self.dictionaries[: index + 1]]
        below = torch.ones(self.architecture.image_shape[0]).to(self.log_alpha0)
        for dictionary in dictionaries[:-1]:
            below = worth(dictionary, below)
        layer, shape = self.architecture.layers[index], self.architecture.shapes[index]
        return energies(dictionaries[-1], below, layer, shape.below)


def maximising_alpha0(squares: Tensor, n_values: int) -> Tensor:
    """The precision that maximises the likelihood: the inverse mean squared residual, over all pixels of all images."""
    return n_values / squares.sum()
