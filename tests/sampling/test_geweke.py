"""Geweke's joint-distribution test (2004) of the whole sampler, and seven broken conditionals that it must catch.

Two ways to draw parameters, latent variables and images jointly must agree: straight down the model, and by a chain
that alternates a sweep with new images given everything. Every chain starts from a draw straight down the model, so
that it is at rest from the first sweep on, and chains are independent: averages along them give an honest z-score.

The pseudo-likelihood (9) of labels is at most 1 and not normalised over them: fixed labels tilt the joint distribution,
and straight draws are accepted with that probability.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.model.heads import labels as labels_module
from semisight.model.heads.labels import BayesianSVM, draw_lambda, one_versus_all
from semisight.model.ops.pooling import NAIVE
from semisight.sampling import codes, latents, parameters
from semisight.sampling import z_conditionals as places
from semisight.sampling.gibbs import GibbsChain, GibbsConfig
from semisight.sampling.latents import Latents, SweepOptions
from semisight.sampling.parameters import Priors
from tests.sampling.oracle import generator, hot, random_places

pytestmark = pytest.mark.timeout(900)  # the longest takes about a minute, more on a busy machine

# Two pooled layers, overlapping windows below.
ARCHITECTURE = Architecture((1, 5, 5), (Layer(1, 2, 2), Layer(2, 1, 2), Layer(2, 1)))
PRIORS = Priors(dictionary_precision=1.0, bias_mean=0.3, bias_precision=2.0, alpha0_shape=6.0, alpha0_rate=2.5)
LABELS = torch.tensor([0, 1, -1])
N, CLASSES = 3, 2
GAMMA = (0.4, 1.5)
CONFIG = GibbsConfig(beta_steps=2, priors=PRIORS, options=SweepOptions(largest_block=1))
SWEEPS = 6


@dataclass(frozen=True)
class Straight:
    """Many independent joint draws; the label head and the codes are tilted by the labels."""

    beta: Tensor  # [R, J, C]
    bias: Tensor  # [R, C]
    codes: Tensor  # [R, N, J]

    def __len__(self) -> int:
        return len(self.beta)


def straight_draws(random: torch.Generator, proposals: int = 200_000) -> Straight:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    j = ARCHITECTURE.code_size
    beta, bias, code = normal(proposals, j, CLASSES), normal(proposals, CLASSES), normal(proposals, N, j)
    f = code @ beta + bias[:, None]
    y = one_versus_all(LABELS, CLASSES).double()
    hinge = (1 - y * f).clamp_min(0) * y.abs()
    log_probability = -2 * (torch.tensor(GAMMA, dtype=torch.float64) * hinge).sum((1, 2))
    kept = torch.rand(proposals, generator=random, dtype=torch.float64).log() < log_probability
    return Straight(beta[kept], bias[kept], code[kept])


@torch.no_grad()
def start(straight: Straight, number: int, random: torch.Generator) -> GibbsChain:
    """A chain at one straight draw."""
    decoder = Decoder(ARCHITECTURE, random, NAIVE).double()  # naive: quicker at this size
    for dictionary in decoder.dictionaries:
        dictionary.normal_(generator=random).div_(math.sqrt(PRIORS.dictionary_precision))
    decoder.image_bias.normal_(generator=random).div_(math.sqrt(PRIORS.bias_precision)).add_(PRIORS.bias_mean)
    shape = torch.tensor(PRIORS.alpha0_shape, dtype=torch.float64)
    decoder.log_alpha0.copy_((torch._standard_gamma(shape, generator=random) / PRIORS.alpha0_rate).log())
    head = BayesianSVM(ARCHITECTURE.code_size, CLASSES, GAMMA).double()
    head.scores.beta.copy_(straight.beta[number])
    assert head.scores.bias is not None
    head.scores.bias.copy_(straight.bias[number])
    s = straight.codes[number].T.reshape(*ARCHITECTURE.code_shape, N)
    drawn = tuple(p.to(torch.uint8) for p in random_places(ARCHITECTURE, N, random))
    images = torch.zeros(N, *ARCHITECTURE.image_shape, dtype=torch.float64)
    chain = GibbsChain(decoder, images, CONFIG, LABELS, head, Latents(s, drawn))
    chain.generator = random
    chain.lam = chain.draw_lambda(slice(None), chain.latents.codes)
    new_images(chain, random)
    return chain


@torch.no_grad()
def new_images(chain: GibbsChain, random: torch.Generator) -> None:
    mean = chain.decoder(chain.latents.s, hot(ARCHITECTURE, chain.latents.places)).mean
    noise = torch.randn(mean.shape, generator=random, dtype=torch.float64)
    chain.x = mean + noise * (-0.5 * chain.decoder.log_alpha0).exp()


@torch.no_grad()
def functions(chain: GibbsChain) -> Tensor:
    """What is compared: bounded or logarithmic, because products of Gaussians have heavy tails."""
    decoder, head, lam = chain.decoder, chain.head, chain.lam
    assert head is not None and head.scores.bias is not None and lam is not None
    decoded = decoder(chain.latents.s, hot(ARCHITECTURE, chain.latents.places))
    f = head.scores(chain.latents.codes)
    residual = (chain.x - decoded.mean).square().mean((0, 1, 2))
    z0, z1 = chain.latents.places
    values = [
        decoder.log_alpha0,
        decoder.log_alpha0.exp(),
        *(torch.tanh(d.square()).mean() for d in decoder.dictionaries),
        *(torch.log(d.square().sum() + 0.1) for d in decoder.dictionaries),
        decoder.image_bias.mean(),
        decoder.image_bias.square().mean(),
        chain.latents.s.square().mean(),
        torch.tanh(chain.latents.s[0, 0, 0]).mean(),
        torch.tanh(chain.latents.s[0, 0, 0, 0] * chain.latents.s[1, 0, 0, 0]),
        *((z0 == a).double().mean() for a in range(3)),
        *((z1 == a).double().mean() for a in range(3)),
        torch.tanh(decoded.values[0].abs()).mean(),
        torch.tanh(chain.x).mean(),
        torch.log(chain.x.square().mean()),
        torch.log(residual).mean(),
        torch.log(residual).mean() + decoder.log_alpha0,
        head.scores.beta.square().mean(),
        head.scores.bias.mean(),
        torch.tanh(f[0, 0]),
        torch.tanh(f[1, 1]),
        torch.tanh(f[2, 0]),
        torch.tanh(f[0, 0] - f[0, 1]) + torch.tanh(f[1, 1] - f[1, 0]),
        f.square().mean().log(),
        *lam[:2].log().mean(0),
        torch.tanh(lam[0] * f[0]).mean(),
    ]
    return torch.stack([v.double() for v in values])


def z_scores(ends: list[Tensor], along: list[Tensor]) -> Tensor:
    """Straight draws against averages along the chains: two independent sets of independent draws."""
    a, b = torch.stack(ends), torch.stack(along)
    return (a.mean(0) - b.mean(0)) / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()


Joint = tuple[Straight, list[Tensor]]


@pytest.fixture(scope="module")
def joint() -> Joint:
    """Straight draws, and the functions of the last 600 of them, which no chain starts from."""
    random = generator(11)
    straight = straight_draws(random)
    assert len(straight) > 2000
    return straight, [functions(start(straight, len(straight) - 1 - i, random)) for i in range(600)]


def largest_z(joint: Joint, replicates: int, seed: int, enough: float = math.inf) -> float:
    """Runs chains until one of the z-scores is `enough`."""
    (straight, ends), random = joint, generator(seed)
    along: list[Tensor] = []
    worst = 0.0
    for number in range(replicates):
        chain = start(straight, number, random)
        total = torch.zeros_like(ends[0])
        for _ in range(SWEEPS):
            chain.sweep()
            total += functions(chain)  # with the images the sweep saw: new ones would hide a wrong z or s from them
            new_images(chain, random)
        along.append(total / SWEEPS)
        if (number >= 20 and number % 5 == 0) or number == replicates - 1:
            worst = float(z_scores(ends, along).abs().max())
            if worst > enough:
                break
    return worst


def test_the_sampler_leaves_the_joint_distribution_as_it_is(joint: Joint) -> None:
    assert largest_z(joint, replicates=90, seed=12) < 4.0


def _forgetful(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Without <d_a, d_c>: as if the residual did not hold the block's own value."""
    return lambda copies, seen: 0.0 * original(copies, seen)


def _blind(original: Callable[..., None]) -> Callable[..., None]:
    """z above drawn blind to the image."""

    def broken(decoder: Any, index: Any, residual: Any, values: Any, drawn: Any, alpha0: Tensor, *rest: Any) -> None:
        original(decoder, index, residual, values, drawn, 0.0 * alpha0, *rest)

    return broken


def _wide(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """s drawn from half the precision."""
    return lambda a, alpha0, diagonal: 0.5**0.5 * original(a, alpha0, diagonal)


def _shape(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A fifth too many pixels."""
    return lambda squares, n, priors, random: original(squares, 1.2 * n, priors, random)


def _precision(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Dictionaries above the first that forget two thirds of their prior."""

    def broken(decoder: Any, index: int, batches: Any, precision: float, *rest: Any) -> Tensor:
        return original(decoder, index, batches, precision / 3, *rest)

    return broken


def _still(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The bias at its mean, not drawn."""
    return lambda total, count, alpha0, priors, random: original(total, count, alpha0, priors, None)


def _printed(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """(34) as it is printed: shape 1."""
    return lambda y, f, gamma, random: draw_lambda(y, f, torch.ones_like(gamma), random)


BROKEN: dict[str, tuple[Any, str, Callable[[Any], Any]]] = {
    "z nearest: forgets its own value": (places, "_overlaps", _forgetful),
    "z above: blind to the image": (latents, "draw_places_above", _blind),
    "s: too wide": (codes, "_root", _wide),
    "alpha0: wrong shape": (parameters, "draw_alpha0", _shape),
    "dictionaries: wrong prior": (parameters, "draw_dictionary_above", _precision),
    "bias: not drawn": (parameters, "draw_bias", _still),
    "lambda: shape 1": (labels_module, "draw_lambda", _printed),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_conditional_is_caught(name: str, joint: Joint, monkeypatch: pytest.MonkeyPatch) -> None:
    module, attribute, breaking = BROKEN[name]
    monkeypatch.setattr(module, attribute, breaking(getattr(module, attribute)))
    assert largest_z(joint, replicates=120, seed=12, enough=5.0) > 5.0
