"""Section 5.1, how MCEM tests: the MAP estimate of the top-layer map s by gradient steps, everything else summed out.

The gradient of log p(s | X) with respect to s is the mean over p(z | s, X) of the gradient of log p(X, s | z) (Fisher).
z is sampled from there by a chain of exact sweeps that follows s while the steps shrink to nothing. alpha0 rises to its
value over the first steps, without which s ends in a poorer mode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM
from semisight.model.posterior import flat_code
from semisight.sampling.dictionaries import Completed
from semisight.sampling.latents import (
    Latents,
    SweepOptions,
    checked_images,
    prior_latents,
    share_of_alpha0,
    slices,
    sweep_places,
)


@dataclass(frozen=True)
class MapConfig:
    """How the top-layer map's MAP estimate is found."""

    steps: int = 200  # of Adam, its rate falling to zero; one sweep over z before each
    rate: float = 0.1  # in units of the code's prior spread
    anneal: float = 0.4  # share of the steps over which alpha0 rises to its value (latents.py)
    seed: int = 0
    options: SweepOptions = field(default_factory=SweepOptions)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UserError(f"a MAP estimate takes at least 1 step, not {self.steps}")
        if not self.rate > 0:
            raise UserError(f"the rate must be positive, not {self.rate}")
        if not 0 <= self.anneal <= 1:
            raise UserError(f"alpha0 may rise over a share of 0 to 1 of the steps, not {self.anneal}")


def map_codes(
    decoder: Decoder,
    images: Tensor,
    config: MapConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """argmax_s p(s | X) for images [N, C, H, W], z summed out by sampling: codes [N, J] for the label head."""
    x = checked_images(images, decoder.architecture, decoder.log_alpha0)
    generator = torch.Generator().manual_seed(config.seed)
    latents = prior_latents(decoder.architecture, len(images), generator, x)
    latents.s.zero_()
    done = 0
    for n in slices(len(images), config.options.batch_size):
        here, rows = x[..., n].contiguous(), latents.rows(n)
        rows = rows.clone()
        optimiser = torch.optim.Adam([rows.s], lr=config.rate)
        for step in range(config.steps):
            optimiser.param_groups[0]["lr"] = config.rate * (1 - step / config.steps)
            share = share_of_alpha0(step, round(config.anneal * config.steps))
            rows.s.grad = -sampled_gradient(decoder, here, rows, generator, config.options, share)
            optimiser.step()
        latents.s[..., n] = rows.s
        done += n.stop - n.start
        if progress is not None:
            progress(done, len(images))
    return flat_code(latents.s)


@torch.no_grad()
def map_decisions(
    decoder: Decoder,
    head: BayesianSVM | None,
    images: Tensor,
    config: MapConfig,
    progress: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Decision values [N, C] at the MAP estimate of each image's code."""
    if head is None:
        raise UserError("this model was learned without labels and cannot give any: run MCEM with labels and a head")
    return head.decision(map_codes(decoder, images, config, progress))


def sampled_gradient(
    decoder: Decoder,
    x: Tensor,
    latents: Latents,
    generator: torch.Generator,
    options: SweepOptions,
    share: float = 1.0,
) -> Tensor:
    """Moves z by one sweep given s, then the gradient of log p(X, s | z) with respect to s, [K_L, h, w, B].

    With `share` times alpha0 in its place.
    """
    alpha0 = share * decoder.log_alpha0.detach().exp()
    places, _ = sweep_places(decoder, x, latents, alpha0, generator, options)
    with torch.enable_grad():
        s = latents.s.detach().clone().requires_grad_()
        likelihood = decoder.log_prob(x, decoder(s, Completed(x, s, places).z(decoder)).mean).sum()
        (gradient,) = torch.autograd.grad(share * likelihood - 0.5 * s.square().sum(), s)
    return gradient
