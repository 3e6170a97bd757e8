"""Section 2.2, equations (5)-(8) and appendix D: the recognition model q(s, z | X).

    C~(l)    = C(l-1) *_s F(l)                                convolution, read in pooling blocks
    q(z(l))  = Softmax(W1 tanh(W2 vec(block)))                one MLP per layer, shared by its maps and blocks
    C(l)     = the block's value at place z(l)                pooling="sampled", the paper's (6)
             = sum_a q(z(l) = a) C~_a(l)                      pooling="expected": s and z independent given X, see (16)
             = max_a C~_a(l)                                  pooling="max": VAE-d, which has no z
    s        ~ N(mu, diag(sigma^2)), (mu, log sigma) = MLP_k(vec C~(k, L)), a distinct MLP per map k

All maps have the batch as their last axis (see pooling.py).
"""

import math
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Nonlinearity
from semisight.model.ops.places import Chosen, PoolingWeights, pool_expected
from semisight.model.ops.pooling import FAST, Operators, convolve_and_pool
from semisight.model.posterior import Noise, Posterior

Pooling = Literal["sampled", "expected", "max"]
# Whether z is drawn, and whether q(s | X) has an exact mean.
POOLINGS: dict[Pooling, tuple[bool, bool]] = {"sampled": (True, False), "expected": (True, True), "max": (False, True)}


def after_pooling(maps: Tensor, nonlinearity: Nonlinearity) -> Tensor:
    """What a layer hands up; the paper's hands up what was pooled."""
    if nonlinearity == "none":
        return maps
    return torch.relu(normalised(maps) if nonlinearity == "norm-relu" else maps)


def below_code(maps: Tensor, nonlinearity: Nonlinearity) -> Tensor:
    """The top layer's maps, as the MLPs of the code see them: these have a tanh of their own."""
    return normalised(maps) if nonlinearity == "norm-relu" else maps


def normalised(maps: Tensor, least: float = 1e-5) -> Tensor:
    """Each image's maps of a layer, together, with mean 0 and variance 1 (layer normalisation, Ba et al., 2016).

    Over an image, not over a batch: an answer never depends on the other images, nor on how many processes share them.
    """
    variance, mean = torch.var_mean(maps, (0, 1, 2), correction=0, keepdim=True)
    return (maps - mean) * torch.rsqrt(variance + least)


class PoolingMLP(nn.Module):
    """eta = W1 tanh(W2 vec(block)), shared by all maps and blocks of a layer.

    Started near the identity with a gain, so that pooling begins close to soft max-pooling: from a random start q(z)
    collapses to uniform and the encoder stays nearly linear. tanh levels out what is larger than `reach`: two such
    values of a block are the same to q(z), and their mean is pooled where max-pooling takes the larger one.
    """

    def __init__(self, places: int, gain: float, reach: float, generator: torch.Generator) -> None:
        super().__init__()

        def near_identity(size: float) -> Tensor:
            return size * torch.eye(places) + 0.01 * torch.randn(places, places, generator=generator)

        self.inner = nn.Parameter(near_identity(1.0) / reach)
        self.inner_bias = nn.Parameter(torch.zeros(places, 1))
        self.outer = nn.Parameter(near_identity(gain) * reach)
        self.outer_bias = nn.Parameter(torch.zeros(places, 1))

    def weights(self) -> PoolingWeights:
        return PoolingWeights(self.inner, self.inner_bias, self.outer, self.outer_bias)


class CodeMLP(nn.Module):
    """(36)-(38): a distinct MLP per map, as batched weights. Hidden units: as many as the map has, within 8 to 64."""

    def __init__(self, maps: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        hidden = min(max(size, 8), 64)

        def weights(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
            scale = gain / math.sqrt(columns)
            return nn.Parameter(scale * torch.randn(maps, rows, columns, generator=generator))

        self.hidden = weights(hidden, size)
        self.hidden_bias = nn.Parameter(torch.zeros(maps, hidden, 1))
        self.mu = weights(size, hidden)
        self.mu_bias = nn.Parameter(torch.zeros(maps, size, 1))
        self.log_sigma = weights(size, hidden, gain=0.1)
        self.log_sigma_bias = nn.Parameter(torch.full((maps, size, 1), -1.0))  # a start that lets the image through

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        vectors = maps.flatten(1, 2)  # [K, h*w, B]
        h = torch.tanh(torch.baddbmm(self.hidden_bias, self.hidden, vectors))
        mu = torch.baddbmm(self.mu_bias, self.mu, h)
        log_sigma = torch.baddbmm(self.log_sigma_bias, self.log_sigma, h)
        return mu.view(maps.shape), log_sigma.view(maps.shape)


class PaperEncoder(nn.Module):
    """q(s, z | X); `X` comes as [C, H, W, B].

    Args:
        architecture: that of the decoder.
        pooling: how places are chosen: one of POOLINGS.
        generator: draws the first weights.
        pooling_gain: how strongly larger values are preferred at the start, where places are chosen.
        operators: fast ones, or their naive twins.
        reach: inputs beyond it are levelled out where places are chosen.

    Example:
        >>> import semisight as ss, torch
        >>> architecture = ss.Architecture((1, 8, 8), (ss.Layer(8, 3, pool=3), ss.Layer(16, 2)))
        >>> ss.PaperEncoder(architecture, "expected", torch.Generator().manual_seed(0)).code_shape
        (16, 1, 1)
    """

    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        architecture: Architecture,
        pooling: Pooling,
        generator: torch.Generator,
        pooling_gain: float = 5.0,
        operators: Operators = FAST,
        reach: float = 1.0,
    ) -> None:
        super().__init__()
        if pooling not in POOLINGS:
            raise UserError(f"pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
        if not reach > 0:
            raise UserError(f"reach must be above 0, not {reach}")
        self.architecture, self.pooling, self.operators = architecture, pooling, operators
        self.has_places, self.mean_is_exact, self.code_shape = *POOLINGS[pooling], architecture.code_shape
        # The encoder looks at (X - centre) / scale; both come from the training images (start_from).
        self.register_buffer("centre", torch.zeros(*architecture.image_shape, 1))
        self.register_buffer("scale", torch.ones(()))
        self.filters, self.biases, self.pooling_mlps = nn.ParameterList(), nn.ParameterList(), nn.ModuleList()
        for layer, shape in zip(architecture.layers, architecture.shapes, strict=True):
            fan_in = shape.maps_below * layer.kernel**2
            filters = torch.randn(layer.maps, shape.maps_below, layer.kernel, layer.kernel, generator=generator)
            self.filters.append(nn.Parameter(filters / math.sqrt(fan_in)))
            self.biases.append(nn.Parameter(torch.zeros(layer.maps, 1, 1, 1)))
        if self.has_places:
            for index in architecture.pooled_layers:
                places = architecture.layers[index].pool ** 2
                self.pooling_mlps.append(PoolingMLP(places, pooling_gain, reach, generator))
        self.code_mlp = CodeMLP(architecture.layers[-1].maps, math.prod(architecture.code_shape[1:]), generator)

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        """`through` lets the gradient pass through the drawn z to q (straight-through)."""
        c = (x - self.centre) / self.scale
        chosen: list[Chosen] = []
        for index in self.architecture.pooled_layers:
            blocks = self._convolve(c, index)
            if self.has_places:
                weights, expected = cast(PoolingMLP, self.pooling_mlps[index]).weights(), self.mean_is_exact
                chosen.append(self.operators.choose(blocks, weights, noise.uniform[index], expected, through))
                c = chosen[-1].pooled
            else:
                c = blocks.amax(0)
            c = after_pooling(c, self.architecture.nonlinearity)
        top = self._convolve(c, len(self.architecture.layers) - 1)[0]  # the top layer has one place
        mu, log_sigma = self.code_mlp(below_code(top, self.architecture.nonlinearity))
        s = mu + noise.eps * log_sigma.exp()  # (18)
        return Posterior(mu, log_sigma, s, tuple(chosen))

    @torch.no_grad()
    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        self.centre.copy_(mean)
        self.scale.copy_(variance.sqrt())

    @torch.no_grad()
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma, [K_L, h, w, B], for prediction where q(s | X) needs no drawn z: nothing is drawn."""
        if not self.mean_is_exact:
            raise UserError(
                'with pooling="sampled" q(s | X) depends on the drawn z: encode the images with a generator'
            )
        c = (x - self.centre) / self.scale
        for index in self.architecture.pooled_layers:
            pool = partial(torch.amax, dim=0)
            if self.has_places:
                pool = partial(pool_expected, weights=cast(PoolingMLP, self.pooling_mlps[index]).weights())
            layer = self.architecture.layers[index]
            c = convolve_and_pool(c, self.filters[index], layer, self.biases[index], pool)
            c = after_pooling(c, self.architecture.nonlinearity)
        top = self._convolve(c, len(self.architecture.layers) - 1)[0]
        mu, log_sigma = self.code_mlp(below_code(top, self.architecture.nonlinearity))
        return mu, log_sigma

    def _convolve(self, maps: Tensor, index: int) -> Tensor:
        layer = self.architecture.layers[index]
        return self.operators.convolve(maps, self.filters[index], layer, self.biases[index])
