"""The latent variables of a set of images, and one sweep of exact conditionals over them given the parameters.

    z(l) | rest     from the top pooled layer down to the image      (places.py)
    s | rest        given z, and given labels where there are any    (codes.py)

z is kept as one byte per block, not one-hot: a P-th of the memory, so that whole training sets fit.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.model.decoder import Decoder
from semisight.model.posterior import Posterior, batch_last, flat_code
from semisight.sampling.codes import LARGEST_BLOCK, CodePrior, draw_code
from semisight.sampling.dictionaries import Completed
from semisight.sampling.z_conditionals import draw_nearest_places, draw_places_above


@dataclass(frozen=True)
class Latents:
    """s [K_L, h, w, N] and places, uint8 [K_l, h, w, N] per pooled layer; sweeps change both in place."""

    s: Tensor
    places: tuple[Tensor, ...]

    def __len__(self) -> int:
        return self.s.shape[-1]

    @property
    def codes(self) -> Tensor:
        """As heads read them, [N, J]."""
        return flat_code(self.s)

    def rows(self, n: slice) -> "Latents":
        """A view of some images."""
        return Latents(self.s[..., n], tuple(p[..., n] for p in self.places))

    def clone(self) -> "Latents":
        return Latents(self.s.clone(), tuple(p.clone() for p in self.places))


def prior_latents(architecture: Architecture, count: int, generator: torch.Generator, like: Tensor) -> Latents:
    """s ~ N(0, I), z uniform."""
    for index in architecture.pooled_layers:
        if architecture.layers[index].pool > 15:
            raise UserError(f"the samplers take pools of up to 15 x 15; layer {index + 1} has more")
    s = torch.randn(*architecture.code_shape, count, generator=generator, dtype=like.dtype).to(like.device)
    places = []
    for index in architecture.pooled_layers:
        layer, (h, w) = architecture.layers[index], architecture.shapes[index].pooled
        drawn = torch.randint(layer.pool**2, (layer.maps, h, w, count), generator=generator, dtype=torch.uint8)
        places.append(drawn.to(like.device))
    return Latents(s, tuple(places))


def first_latents(decoder: Decoder, count: int, generator: torch.Generator, start: Latents | None) -> Latents:
    """Where a chain of `count` images begins: at its own copy of `start`, or where the prior draws it."""
    if start is None:
        return prior_latents(decoder.architecture, count, generator, decoder.log_alpha0)
    check_latents(start, decoder, count)
    return start.clone()


def posterior_latents(posterior: Posterior) -> Latents:
    """The draw that an encoder made: a start near where the chain is going."""
    return Latents(posterior.s.detach().clone(), tuple(z.argmax(0).to(torch.uint8) for z in posterior.z))


SMALLEST_SHARE = 0.02  # of alpha0, where it begins to rise


def share_of_alpha0(step: int, rise: int) -> float:
    """What alpha0 is multiplied by while it rises over the first `rise` steps: from SMALLEST_SHARE to 1, evenly in log.

    From the prior a chain gets to likely places much sooner so: at the full alpha0 places freeze around a code that was
    found for places drawn at random.
    """
    return SMALLEST_SHARE ** (1 - step / rise) if step < rise else 1.0


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep goes about it; every choice leaves the same distribution."""

    largest_block: int = LARGEST_BLOCK  # codes larger than this are drawn by groups of maps
    share_above: float = 1.0  # of the positions of z and channels of D above the first layer drawn per sweep, at random
    batch_size: int = 256

    def __post_init__(self) -> None:
        if self.largest_block < 1 or self.batch_size < 1:
            raise UserError("largest_block and batch_size must be at least 1")
        if not 0 < self.share_above <= 1:
            raise UserError(f"share_above must be above 0 and at most 1, not {self.share_above}")


@torch.no_grad()
def sweep_latents(
    decoder: Decoder,
    x: Tensor,
    latents: Latents,
    prior: CodePrior,
    alpha0: Tensor,
    generator: torch.Generator,
    options: SweepOptions,
    log_prior: tuple[Tensor, ...] | None = None,
) -> None:
    """One sweep for images x [C, H, W, B]; `log_prior` of z [P, K_l, h, w, B] per layer, None for the uniform."""
    places, residual = sweep_places(decoder, x, latents, alpha0, generator, options, log_prior)
    drawn = draw_code(decoder, residual, latents.s, places, prior, alpha0, generator, options.largest_block)
    latents.s.copy_(drawn)


@torch.no_grad()
def sweep_places(
    decoder: Decoder,
    x: Tensor,
    latents: Latents,
    alpha0: Tensor,
    generator: torch.Generator,
    options: SweepOptions,
    log_prior: tuple[Tensor, ...] | None = None,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """z of every layer given s, in place; returns them as int64, and X - X^."""
    places = tuple(p.long() for p in latents.places)
    decoded = decoder(latents.s, Completed(x, latents.s, places).z(decoder))
    for index in range(len(places) - 1, -1, -1):
        residual, values = x - decoded.mean, decoded.values[index]
        extra = None if log_prior is None else log_prior[index]
        if index == 0:
            layer = decoder.architecture.layers[0]
            draw_nearest_places(residual, values, places[0], decoder.dictionaries[0], layer, alpha0, generator, extra)
            latents.places[0].copy_(places[0])
            return places, residual
        share = options.share_above
        draw_places_above(decoder, index, residual, values, places, alpha0, generator, extra, share)
        latents.places[index].copy_(places[index])
        decoded = decoder(latents.s, Completed(x, latents.s, places).z(decoder))  # values below moved with z
    return places, x - decoded.mean


def slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def checked_images(images: Tensor, architecture: Architecture, like: Tensor) -> Tensor:
    """[N, C, H, W] to [C, H, W, N] in the decoder's precision; refuses what the model cannot take."""
    if images.dim() != 4 or tuple(images.shape[1:]) != architecture.image_shape:
        raise UserError(
            f"the model takes images of (channels, height, width) = {architecture.image_shape}, "
            f"not {tuple(images.shape[1:])}"
        )
    if len(images) == 0:
        raise UserError("there are no images to sample for")
    x = batch_last(images).to(like)
    if not images.is_floating_point():
        raise UserError("the samplers take float images in [0, 1]; divide whole numbers by 255")
    if not bool(torch.isfinite(x).all()):
        raise UserError("some images hold values that are not finite numbers")
    return x


def check_latents(latents: Latents, decoder: Decoder, n_images: int) -> None:
    """Refuses latent variables that are not those of these images under this decoder."""
    architecture = decoder.architecture
    if len(latents) != n_images:
        raise UserError(f"{n_images} images, but latent variables for {len(latents)}")
    if len(latents.places) != len(architecture.pooled_layers):
        raise UserError(
            "the samplers need a place for every pooling block; a model with pooling='max' has none, "
            "so it cannot start a chain"
        )
    shapes = [(architecture.layers[l].maps, *architecture.shapes[l].pooled) for l in architecture.pooled_layers]
    wrong = [p for p, shape in zip(latents.places, shapes, strict=True) if tuple(p.shape[:-1]) != shape]
    if wrong or tuple(latents.s.shape[:-1]) != architecture.code_shape:
        raise UserError("the latent variables to start from belong to another architecture")
