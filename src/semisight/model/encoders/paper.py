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
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Nonlinearity
from semisight.model.ops.places import Chosen, Drawn, PoolingWeights, pool_expected
from semisight.model.ops.pooling import FAST, Operators, convolve_and_pool

Pooling = Literal["sampled", "expected", "max"]
POOLINGS: tuple[Pooling, ...] = ("sampled", "expected", "max")


@dataclass(frozen=True)
class Noise:
    """All random numbers of a draw from q(s, z | X): eps ~ N(0, 1) for s, one uniform number per block for z."""

    eps: Tensor  # [K_L, h, w, B]
    uniform: tuple[Tensor, ...]  # per pooled layer [K_l, h, w, B]; () for VAE-d


@dataclass(frozen=True)
class Posterior:
    """q(s, z | X) and one draw from it; batch last."""

    mu: Tensor  # [K_L, h, w, B]
    log_sigma: Tensor  # [K_L, h, w, B]
    s: Tensor  # [K_L, h, w, B]
    chosen: tuple[Chosen, ...]  # per pooled layer: z, its entropy and probability; empty for pooling="max"

    @property
    def z(self) -> tuple[Tensor, ...]:
        """One-hot [P, K_l, h, w, B] per pooled layer."""
        return tuple(chosen.z for chosen in self.chosen)

    @property
    def drawn(self) -> tuple[Tensor | Drawn, ...]:
        """z as it was drawn, for the decoder: the same, with less to read."""
        return tuple(chosen.drawn for chosen in self.chosen)

    @property
    def code(self) -> Tensor:
        """The drawn s as heads read it, [B, J]."""
        return flat_code(self.s)

    @property
    def mean(self) -> Tensor:
        return flat_code(self.mu)

    @property
    def log_spread(self) -> Tensor:
        return flat_code(self.log_sigma)

    def places(self) -> tuple[Tensor, ...]:
        """z as indices, [B, K_l, h, w] per pooled layer."""
        return tuple(z.argmax(0).movedim(-1, 0) for z in self.z)


def flat_code(maps: Tensor) -> Tensor:
    """[K_L, h, w, B] -> [B, J]."""
    return maps.flatten(0, 2).T


def maps_of_code(code: Tensor, architecture: Architecture) -> Tensor:
    """The inverse of `flat_code`: [B, J] -> [K_L, h, w, B]."""
    return code.T.reshape(*architecture.code_shape, code.shape[0])


def draw_noise(
    architecture: Architecture,
    batch: int,
    generator: torch.Generator,
    rows: slice | None = None,
    dtype: torch.dtype = torch.float32,
    places: bool = True,
) -> Noise:
    """Random numbers for `batch` images; with `rows`, those of a part of them; without `places`, none for z (VAE-d).

    Several processes draw for the whole global batch and keep their rows: they then train what one process would.
    """
    rows = rows or slice(0, batch)
    eps = torch.randn(*architecture.code_shape, batch, generator=generator, dtype=dtype)[..., rows]
    uniform = []
    for index in architecture.pooled_layers if places else ():
        shape = (architecture.layers[index].maps, *architecture.shapes[index].pooled, batch)
        uniform.append(torch.rand(shape, generator=generator, dtype=dtype)[..., rows])
    return Noise(eps, tuple(uniform))


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


class ImageEncoder(nn.Module):
    """q(s, z | X); `X` comes as [C, H, W, B]."""

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
        # The encoder looks at (X - centre) / scale; both come from the training images (ImageModel.start_from).
        self.register_buffer("centre", torch.zeros(*architecture.image_shape, 1))
        self.register_buffer("scale", torch.ones(()))
        self.filters, self.biases, self.pooling_mlps = nn.ParameterList(), nn.ParameterList(), nn.ModuleList()
        for layer, shape in zip(architecture.layers, architecture.shapes, strict=True):
            fan_in = shape.maps_below * layer.kernel**2
            filters = torch.randn(layer.maps, shape.maps_below, layer.kernel, layer.kernel, generator=generator)
            self.filters.append(nn.Parameter(filters / math.sqrt(fan_in)))
            self.biases.append(nn.Parameter(torch.zeros(layer.maps, 1, 1, 1)))
        if pooling != "max":
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
            if self.pooling == "max":
                c = blocks.amax(0)
            else:
                weights, expected = cast(PoolingMLP, self.pooling_mlps[index]).weights(), self.pooling == "expected"
                chosen.append(self.operators.choose(blocks, weights, noise.uniform[index], expected, through))
                c = chosen[-1].pooled
            c = after_pooling(c, self.architecture.nonlinearity)
        top = self._convolve(c, len(self.architecture.layers) - 1)[0]  # the top layer has one place
        mu, log_sigma = self.code_mlp(below_code(top, self.architecture.nonlinearity))
        s = mu + noise.eps * log_sigma.exp()  # (18)
        return Posterior(mu, log_sigma, s, tuple(chosen))

    def means(self, x: Tensor) -> Tensor:
        """mu alone, [K_L, h, w, B]."""
        return self.moments(x)[0]

    @torch.no_grad()
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma, [K_L, h, w, B], for prediction where q(s | X) needs no drawn z: nothing is drawn."""
        if self.pooling == "sampled":
            raise UserError(
                'with pooling="sampled" q(s | X) depends on the drawn z: encode the images with a generator'
            )
        c = (x - self.centre) / self.scale
        for index in self.architecture.pooled_layers:
            pool = partial(torch.amax, dim=0)
            if self.pooling == "expected":
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
