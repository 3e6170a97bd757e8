"""The encoder against the truth: how far the bound is below log p(X), and q(s, z | X) from p(s, z | X).

bound         the mean of log p(X, s, z) - log q(s, z | X) over draws from q: (10), estimated from the same draws as
weighted      its importance-weighted form (evidence.py)
annealed      log p(X) by annealing (evidence.py), from q where s and z are independent given X, else from the prior
distance      q's means, spreads and places against those of Gibbs samples given the same parameters, and for scale the
              same between two chains that know nothing of each other: one begun at the encoder's draw, one at the prior

All estimates of log p(X) err downwards, so the largest of them is the nearest, and the gap found is at least as large.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.image_model import ImageModel
from semisight.model.posterior import flat_code
from semisight.sampling.evidence import AnnealingConfig, annealed, encoder_base, log_weights
from semisight.sampling.inference import InferenceConfig, infer_latents
from semisight.sampling.latents import checked_images, posterior_latents


@dataclass(frozen=True)
class TruthConfig:
    n_draws: int = 64  # from q
    annealing: AnnealingConfig = field(default_factory=lambda: AnnealingConfig(n_temperatures=100))
    gibbs: InferenceConfig = field(default_factory=lambda: InferenceConfig(100, 100))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_draws < 2:
            raise UserError(
                f"a mean and a spread over draws from the encoder need at least 2 of them, not {self.n_draws}"
            )


@dataclass(frozen=True)
class Moments:
    """Of a distribution of s and z: mean and spread of s [N, J], probability of every place [P, K_l, h, w, N]."""

    mean: Tensor
    spread: Tensor
    places: tuple[Tensor, ...]


@dataclass(frozen=True)
class Distance:
    """Between two distributions, over all images; the second one gives the unit."""

    code: float  # root mean square of the difference of means, in spreads
    spread: float  # the ratio of spreads, in the geometric mean
    places: float  # total variation, mean over blocks: 0 the same, 1 nothing in common
    same_place: float  # share of blocks whose likeliest place is the same


@dataclass(frozen=True)
class Truth:
    """Per image [N]; what needs z is None for a model without (pooling="max")."""

    bound: Tensor
    weighted: Tensor
    annealed: Tensor | None
    encoder: Distance | None  # q against Gibbs
    chains: Distance | None  # Gibbs against Gibbs
    code: Tensor | None  # the mean of s by Gibbs [N, J]
    places: tuple[Tensor, ...]  # and the likeliest places, uint8 [K_l, h, w, N]

    @property
    def log_evidence(self) -> Tensor:
        """The larger of two estimates that both err downwards."""
        return self.weighted if self.annealed is None else torch.maximum(self.weighted, self.annealed)

    @property
    def gap(self) -> Tensor:
        return self.log_evidence - self.bound


@torch.no_grad()
def encoder_against_truth(
    model: ImageModel, images: Tensor, config: TruthConfig, progress: Callable[[int, int], None] | None = None
) -> Truth:
    """For images [N, C, H, W]; `progress` is told image-sweeps done and in all."""
    checked_images(images, model.architecture, model.decoder.log_alpha0)
    images = images.to(model.decoder.log_alpha0)
    told = _Told(len(images), config, progress)
    weights = log_weights(model, images, config.n_draws, torch.Generator().manual_seed(config.seed))
    bound, weighted = weights.mean(0), weights.logsumexp(0) - math.log(config.n_draws)
    if not model.encoder.has_places:
        return Truth(bound, weighted, None, None, None, None, ())
    annealing = replace(config.annealing, seed=config.seed)
    if not model.encoder.mean_is_exact:
        annealing = replace(annealing, base="prior", power=max(annealing.power, 3.0))
    found = annealed(model, images, annealing, lambda done, _: told(done * annealing.n_temperatures))
    told.finish(annealing.n_temperatures * annealing.n_chains)

    start = posterior_latents(model.encode(images, torch.Generator().manual_seed(config.seed)))
    near = infer_latents(model.decoder, images, config.gibbs, start, True, lambda done, _: told(done))
    told.finish(config.gibbs.burn_in + config.gibbs.n_samples)
    other = replace(config.gibbs, seed=config.gibbs.seed + 1)
    far = infer_latents(model.decoder, images, other, None, True, lambda done, _: told(done))
    gibbs, again = (Moments(m.mean, m.variance.sqrt(), m.frequency) for m in (near, far))
    places = tuple(p.argmax(0).to(torch.uint8) for p in gibbs.places)
    q = encoder_moments(model, images, config)
    return Truth(bound, weighted, found.log_evidence, distance(q, gibbs), distance(again, gibbs), gibbs.mean, places)


def encoder_moments(model: ImageModel, images: Tensor, config: TruthConfig) -> Moments:
    """Of q(s, z | X): exactly where s and z are independent given X, else over draws of z."""
    x = checked_images(images, model.architecture, model.decoder.log_alpha0)
    if model.encoder.has_places and model.encoder.mean_is_exact:
        base = encoder_base(model, x)
        return Moments(flat_code(base.mu), flat_code(base.log_sigma).exp(), tuple(q.exp() for q in base.log_q))
    generator = torch.Generator().manual_seed(config.seed)
    drawn = [model.encode(images, generator) for _ in range(config.n_draws)]
    means = torch.stack([p.mean for p in drawn])
    within = torch.stack([(2 * p.log_spread).exp() for p in drawn]).mean(0)
    places = tuple(torch.stack(z).mean(0) for z in zip(*(p.z for p in drawn), strict=True))
    return Moments(means.mean(0), (within + means.var(0, correction=0)).sqrt(), places)


def distance(one: Moments, other: Moments) -> Distance:
    floor = 1e-6  # a chain that never moved has no spread
    spread = other.spread.clamp_min(floor)
    code = ((one.mean - other.mean) / spread).square().mean().sqrt()
    ratio = (one.spread.clamp_min(floor) / spread).log().mean().exp()
    apart = torch.cat([0.5 * (p - q).abs().sum(0).flatten() for p, q in zip(one.places, other.places, strict=True)])
    same = torch.cat([(p.argmax(0) == q.argmax(0)).flatten() for p, q in zip(one.places, other.places, strict=True)])
    return Distance(float(code), float(ratio), float(apart.mean()), float(same.double().mean()))


class _Told:
    """Adds up what the parts tell, in image-sweeps."""

    def __init__(self, count: int, config: TruthConfig, progress: Callable[[int, int], None] | None) -> None:
        gibbs, annealing = config.gibbs, config.annealing
        sweeps = 2 * (gibbs.burn_in + gibbs.n_samples) + annealing.n_temperatures * annealing.n_chains
        self.count, self.total, self.before, self.progress = count, count * sweeps, 0, progress

    def __call__(self, done: int) -> None:
        if self.progress is not None:
            self.progress(self.before + done, self.total)

    def finish(self, sweeps: int) -> None:
        self.before += self.count * sweeps
