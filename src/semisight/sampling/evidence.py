"""log p(X) of a trained model, image by image: how far the bound is below the truth ("encoder against truth").

importance_weighted   log 1/K sum_k p(X, s_k, z_k) / q(s_k, z_k | X) with K draws from the encoder (Burda et al., 2016).
                      Rises with K from the bound (10) towards log p(X); needs q near the posterior.
annealed              Neal (2001): draws from a base b(s, z) are carried by exact Gibbs sweeps through

                          f_t  ~  b(s, z)^(1 - t) [p(s) p(z) p(X | s, z)]^t,    0 = t_0 < ... < t_T = 1

                      and collect the weight  sum_i (t_i - t_{i-1}) log [p(X, s, z) / b(s, z)]. Base and target are
                      conjugate: s stays Gaussian given z, z's logits mix, and alpha0 becomes t alpha0, so that the very
                      same conditionals serve. The base is the prior, or the encoder's q, from which far fewer
                      temperatures are needed.

exp of either has mean p(X): the logarithm lies below log p(X) on average, and errs on the careful side.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, cast

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.decoder import Decoder
from semisight.model.encoders.paper import PaperEncoder, PoolingMLP, after_pooling, below_code
from semisight.model.image_model import ImageModel
from semisight.model.ops.places import draw_places
from semisight.model.ops.pooling import convolve_blocks
from semisight.model.posterior import batch_last, flat_code
from semisight.sampling.codes import CodePrior
from semisight.sampling.dictionaries import Completed
from semisight.sampling.latents import Latents, SweepOptions, checked_images, slices, sweep_latents


@dataclass(frozen=True)
class Base:
    """b(s, z) = N(s; mu, sigma^2) prod of Mult(z; q): the prior or the encoder's posterior, batch last."""

    mu: Tensor  # [K_L, h, w, B]
    log_sigma: Tensor  # [K_L, h, w, B]
    log_q: tuple[Tensor, ...]  # [P, K_l, h, w, B] per pooled layer

    def draw(self, generator: torch.Generator) -> Latents:
        eps = torch.randn(self.mu.shape, generator=generator, dtype=self.mu.dtype).to(self.mu.device)
        places = []
        for log_q in self.log_q:
            uniform = torch.rand(log_q.shape[1:], generator=generator, dtype=log_q.dtype).to(log_q.device)
            places.append(draw_places(log_q.exp(), uniform).argmax(0).to(torch.uint8))
        return Latents(self.mu + eps * self.log_sigma.exp(), tuple(places))

    def log_density(self, latents: Latents) -> Tensor:
        """log b(s, z), [B]."""
        standard = (latents.s - self.mu) * (-self.log_sigma).exp()
        total = (-0.5 * (standard.square() + math.log(2 * math.pi)) - self.log_sigma).sum((0, 1, 2))
        for log_q, places in zip(self.log_q, latents.places, strict=True):
            total = total + log_q.gather(0, places.long()[None])[0].sum((0, 1, 2))
        return total

    def at(self, t: float) -> tuple[CodePrior, tuple[Tensor, ...]]:
        """The Gaussian and the logits of b^(1 - t) [p(s) p(z)]^t."""
        precision = (-2 * self.log_sigma).exp()
        diagonal, linear = (1 - t) * precision + t, (1 - t) * precision * self.mu
        return CodePrior(flat_code(diagonal), flat_code(linear)), tuple((1 - t) * q for q in self.log_q)


@torch.no_grad()
def prior_base(decoder: Decoder, batch: int) -> Base:
    architecture, like = decoder.architecture, decoder.log_alpha0
    zeros = like.new_zeros(*architecture.code_shape, batch)
    log_q = []
    for l in architecture.pooled_layers:
        places = architecture.layers[l].pool ** 2
        shape = (places, architecture.layers[l].maps, *architecture.shapes[l].pooled, batch)
        log_q.append(like.new_full(shape, -math.log(places)))
    return Base(zeros, zeros, tuple(log_q))


@torch.no_grad()
def encoder_base(model: ImageModel, x: Tensor) -> Base:
    """q(s, z | X) of images [C, H, W, B] with every place's probability; s and z must be independent given X."""
    encoder = model.encoder
    if not (isinstance(encoder, PaperEncoder) and encoder.has_places and encoder.mean_is_exact):
        raise UserError("annealing from the encoder needs the paper's, with pooling='expected'; use base='prior'")
    layers = model.architecture.layers
    c, log_q = (x - encoder.centre) / encoder.scale, []
    for l in model.architecture.pooled_layers:
        blocks = convolve_blocks(c, encoder.filters[l], layers[l]) + encoder.biases[l]
        weights = cast(PoolingMLP, encoder.pooling_mlps[l]).weights()
        log_q.append(weights.logits(blocks.flatten(1))[1].log_softmax(0).view(blocks.shape))
        c = (log_q[-1].exp() * blocks).sum(0)
        c = after_pooling(c, model.architecture.nonlinearity)
    top = convolve_blocks(c, encoder.filters[len(layers) - 1], layers[-1]) + encoder.biases[len(layers) - 1]
    mu, log_sigma = encoder.code_mlp(below_code(top[0], model.architecture.nonlinearity))
    return Base(mu, log_sigma, tuple(log_q))


@torch.no_grad()
def log_joint(decoder: Decoder, x: Tensor, latents: Latents) -> Tensor:
    """log p(X, s, z), [B]."""
    z = Completed(x, latents.s, latents.places).z(decoder)
    total = decoder.log_prob(x, decoder(latents.s, z).mean)
    total = total - 0.5 * (latents.s.square() + math.log(2 * math.pi)).sum((0, 1, 2))
    for l, places in enumerate(latents.places):
        total = total - places[..., 0].numel() * math.log(decoder.architecture.layers[l].pool ** 2)
    return total


@torch.no_grad()
def importance_weighted(
    model: ImageModel, images: Tensor, n_draws: int, generator: torch.Generator, batch_size: int = 256
) -> Tensor:
    """The importance-weighted bound of images [N, C, H, W], [N]; works with every pooling, 'max' included."""
    if n_draws < 1:
        raise UserError(f"an importance-weighted bound needs at least 1 draw, not {n_draws}")
    return log_weights(model, images, n_draws, generator, batch_size).logsumexp(0) - math.log(n_draws)


@torch.no_grad()
def log_weights(
    model: ImageModel, images: Tensor, n_draws: int, generator: torch.Generator, batch_size: int = 256
) -> Tensor:
    """log p(X, s, z) - log q(s, z | X) at draws from q, [n_draws, N]; their mean over draws estimates the bound."""
    checked_images(images, model.architecture, model.decoder.log_alpha0)
    parts = []
    for n in slices(len(images), batch_size):
        x = batch_last(images[n]).to(model.decoder.log_alpha0)
        parts.append(torch.stack([_log_weight(model, x, generator) for _ in range(n_draws)]))
    return torch.cat(parts, 1)


def _log_weight(model: ImageModel, x: Tensor, generator: torch.Generator) -> Tensor:
    """log p(X, s, z) - log q(s, z | X) at one draw, [B]."""
    posterior = model.encoder(x, model.noise(x.shape[-1], generator), through=False)  # through=False: with log q(z)
    base = Base(posterior.mu, posterior.log_sigma, ())
    weight = model.decoder.log_prob(x, model.decoder(posterior.s, posterior.z).mean)
    weight = weight - 0.5 * (posterior.s.square() + math.log(2 * math.pi)).sum((0, 1, 2))
    weight = weight - base.log_density(Latents(posterior.s, ()))
    for chosen in posterior.chosen:
        blocks = chosen.log_q_z[..., 0].numel()
        weight = weight - blocks * math.log(chosen.z.shape[0]) - chosen.log_q_z.sum((0, 1, 2))
    return weight


@dataclass(frozen=True)
class AnnealingConfig:
    n_temperatures: int = 200
    n_chains: int = 4
    base: Literal["prior", "encoder"] = "encoder"
    power: float = 1.0  # t_i = (i/T)^power; for the prior, where little happens late, 3 or 4 is better
    seed: int = 0
    options: SweepOptions = field(default_factory=SweepOptions)

    def __post_init__(self) -> None:
        if self.n_temperatures < 1 or self.n_chains < 1:
            raise UserError("annealing needs at least 1 temperature and 1 chain")
        if self.base not in ("prior", "encoder"):
            raise UserError(f"base must be 'prior' or 'encoder', not {self.base!r}")
        if not self.power > 0:
            raise UserError(f"power must be positive, not {self.power}")


@dataclass(frozen=True)
class Evidence:
    """Per image: the estimate of log p(X), and how many of the chains carry it (1 to n_chains)."""

    log_evidence: Tensor  # [N]
    effective_chains: Tensor  # [N]


@torch.no_grad()
def annealed(
    model: ImageModel, images: Tensor, config: AnnealingConfig, progress: Callable[[int, int], None] | None = None
) -> Evidence:
    """Annealed importance sampling for images [N, C, H, W]; `progress` is told image-chains done and in all."""
    all_x = checked_images(images, model.architecture, model.decoder.log_alpha0)
    if not model.encoder.has_places:
        raise UserError("a model with pooling='max' has no z to anneal; use importance_weighted")
    generator = torch.Generator().manual_seed(config.seed)
    weights = all_x.new_empty(config.n_chains, len(images))
    done = 0
    for n in slices(len(images), config.options.batch_size):
        x = all_x[..., n].contiguous()
        base = encoder_base(model, x) if config.base == "encoder" else prior_base(model.decoder, x.shape[-1])
        for chain in range(config.n_chains):
            weights[chain, n] = _one_chain(model.decoder, x, base, config, generator)
            done += x.shape[-1]
            if progress is not None:
                progress(done, len(images) * config.n_chains)
    share = weights.softmax(0)
    return Evidence(weights.logsumexp(0) - math.log(config.n_chains), 1 / share.square().sum(0))


def _one_chain(decoder: Decoder, x: Tensor, base: Base, config: AnnealingConfig, generator: torch.Generator) -> Tensor:
    latents = base.draw(generator)
    weight, before = torch.zeros_like(x[0, 0, 0]), 0.0
    alpha0 = decoder.log_alpha0.exp()
    for step in range(1, config.n_temperatures + 1):
        t = (step / config.n_temperatures) ** config.power
        weight = weight + (t - before) * (log_joint(decoder, x, latents) - base.log_density(latents))
        if step < config.n_temperatures:
            prior, logits = base.at(t)
            sweep_latents(decoder, x, latents, prior, t * alpha0, generator, config.options, logits)
        before = t
    return weight
