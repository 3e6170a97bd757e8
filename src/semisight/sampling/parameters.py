"""Priors and conditionals of the decoder's parameters, and one update of them all, by draws or by maximisers.

    D(k, l)       ~ N(0, 1/dictionary_precision)          every entry, every layer
    image bias    ~ N(bias_mean, 1/bias_precision)        every pixel
    alpha0        ~ Gamma(alpha0_shape, alpha0_rate)

All are conjugate given s and z: D is drawn layer by layer from the image up (dictionaries.py and
dictionaries_above.py), then

    image bias | rest ~ N((bias_precision bias_mean + alpha0 sum_n R_n) / P, 1/P),    P = bias_precision + N alpha0
    alpha0 | rest     ~ Gamma(alpha0_shape + N N_X / 2, alpha0_rate + sum_n ||X_n - X^_n||^2 / 2)

with R_n = X_n less the picture. For MCEM every parameter moves to its maximiser given the others instead, with weighted
sums over images: an M-step in parts (ECM), which never lowers the expected log-joint.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.decoder import Decoder
from semisight.sampling.dictionaries import Batches, draw_nearest_dictionary
from semisight.sampling.dictionaries_above import Solver, draw_dictionary_above, maximise_dictionary_above


@dataclass(frozen=True)
class Priors:
    """Weak by default: pixels are in [0, 1] and a training set outweighs them by far."""

    dictionary_precision: float = 1.0
    bias_mean: float = 0.0
    bias_precision: float = 1.0
    alpha0_shape: float = 1.0
    alpha0_rate: float = 0.01

    def __post_init__(self) -> None:
        for name in ("dictionary_precision", "bias_precision", "alpha0_shape", "alpha0_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"the prior's {name} must be a positive number, not {value}")

    def log_density(self, decoder: Decoder) -> Tensor:
        """log p(D, bias, alpha0), up to a constant; of alpha0 itself, not its logarithm."""
        alpha0 = decoder.log_alpha0.exp()
        bias = (decoder.image_bias - self.bias_mean).square().sum()
        squares = torch.stack([d.square().sum() for d in decoder.dictionaries]).sum()
        gamma = (self.alpha0_shape - 1) * decoder.log_alpha0 - self.alpha0_rate * alpha0
        return gamma - 0.5 * (self.bias_precision * bias + self.dictionary_precision * squares)


@torch.no_grad()
def draw_parameters(
    decoder: Decoder, batches: Batches, priors: Priors, generator: torch.Generator, share_above: float = 1.0
) -> float:
    """Draws every parameter of the decoder in turn, in place; returns the mean square of the residual."""
    precision, alpha0 = priors.dictionary_precision, decoder.log_alpha0.exp()
    decoder.dictionaries[0].copy_(draw_nearest_dictionary(decoder, batches, precision, alpha0, generator))
    for index in range(1, len(decoder.dictionaries)):
        drawn = draw_dictionary_above(decoder, index, batches, precision, alpha0, generator, share_above)
        decoder.dictionaries[index].copy_(drawn)
    return _bias_and_alpha0(decoder, batches, priors, generator)


@torch.no_grad()
def maximise_parameters(decoder: Decoder, batches: Batches, priors: Priors, solver: Solver) -> float:
    """Moves every parameter to its maximiser given the others, in turn: an M-step in parts (ECM)."""
    precision, alpha0 = priors.dictionary_precision, decoder.log_alpha0.exp()
    decoder.dictionaries[0].copy_(draw_nearest_dictionary(decoder, batches, precision, alpha0, None))
    for index in range(1, len(decoder.dictionaries)):
        found = maximise_dictionary_above(decoder, index, batches, precision, alpha0, solver)
        decoder.dictionaries[index].copy_(found)
    return _bias_and_alpha0(decoder, batches, priors, None)


def _bias_and_alpha0(decoder: Decoder, batches: Batches, priors: Priors, generator: torch.Generator | None) -> float:
    total, squares, weight = _residual_sums(decoder, batches)
    decoder.image_bias.copy_(draw_bias(total, weight, decoder.log_alpha0.double().exp(), priors, generator))
    bias = decoder.image_bias.double()
    # sum_n ||R_n - bias||^2 from the same pass
    squares = squares - 2 * (bias * total).sum() + weight * bias.square().sum()
    values = weight * decoder.architecture.n_pixels
    decoder.log_alpha0.copy_(draw_alpha0(squares, values, priors, generator).log())
    return float(squares / values)


def _residual_sums(decoder: Decoder, batches: Batches) -> tuple[Tensor, Tensor, Tensor]:
    """In float64: sum_n R_n [C, H, W, 1], sum_n ||R_n||^2, and the sum of the weights."""
    total = torch.zeros_like(decoder.image_bias, dtype=torch.float64)
    squares, count = torch.zeros_like(total[0, 0, 0, 0]), torch.zeros_like(total[0, 0, 0, 0])
    for batch in batches():
        rest = batch.x - decoder(batch.s, batch.z(decoder)).mean + decoder.image_bias
        weight = batch.weights()
        total += (rest * weight).double().sum(-1, keepdim=True)
        squares += (rest.square() * weight).double().sum()
        count += weight.double().sum()
    return total, squares, count


def draw_bias(
    total: Tensor, count: Tensor, alpha0: Tensor, priors: Priors, generator: torch.Generator | None
) -> Tensor:
    precision = priors.bias_precision + count * alpha0
    mean = (priors.bias_precision * priors.bias_mean + alpha0 * total) / precision
    if generator is None:
        return mean
    noise = torch.randn(total.shape, generator=generator, dtype=total.dtype).to(total.device)
    return mean + noise / precision.sqrt()


def draw_alpha0(squares: Tensor, n_values: Tensor, priors: Priors, generator: torch.Generator | None) -> Tensor:
    shape, rate = priors.alpha0_shape + n_values / 2, priors.alpha0_rate + squares.clamp_min(0) / 2
    if generator is None:
        return (shape - 1) / rate
    return torch._standard_gamma(shape.cpu(), generator=generator).to(rate) / rate
