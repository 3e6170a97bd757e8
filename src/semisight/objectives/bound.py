"""Section 4, equations (10), (12) and (17): the variational lower bound of one image, term by term.

    bound = E_q[log p(X | s, z)] - KL(q(s|X) || N(0, I)) - KL(q(z|X) || uniform) + xi E_q[log p(Y | s)]

Both KLs are exact; only the first and last term are estimated, with the one draw of s and z that the posterior holds.
What the bound is worth and how its gradient is estimated are separate: see gradients.py for the latter.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from semisight.model.decoder import Decoded, Decoder
from semisight.model.ops.places import Chosen
from semisight.model.posterior import Posterior


@dataclass(frozen=True)
class Bound:
    """Every term per image, [B]. `side` already carries its weight xi; it is 0 where label or caption is missing."""

    reconstruction: Tensor
    kl_s: Tensor
    kl_z: Tensor
    side: Tensor

    @property
    def value(self) -> Tensor:
        return self.reconstruction - self.kl_s - self.kl_z + self.side

    def with_side(self, side: Tensor) -> "Bound":
        return replace(self, side=side)

    def means(self) -> dict[str, Tensor]:
        """What logs and progress bars show."""
        terms = {"bound": self.value, "reconstruction": self.reconstruction, "kl_s": self.kl_s, "kl_z": self.kl_z}
        return {name: term.detach().mean() for name, term in (terms | {"side": self.side}).items()}


def kl_code(mu: Tensor, log_sigma: Tensor) -> Tensor:
    """(17): KL(N(mu, sigma^2) || N(0, I)), summed over the code [K, h, w, B] to [B]."""
    return 0.5 * (mu.square() + (2 * log_sigma).exp() - 1 - 2 * log_sigma).sum((0, 1, 2))


def kl_places(chosen: Chosen) -> Tensor:
    """KL(q(z) || uniform) = sum over blocks of [log P - entropy], to [B]."""
    blocks = chosen.negative_entropy[..., 0].numel()
    return blocks * math.log(chosen.places) + chosen.negative_entropy.sum((0, 1, 2))


def image_bound(x: Tensor, posterior: Posterior, decoded: Decoded, decoder: Decoder) -> Bound:
    """(10): the bound of an image without label or caption; x is [C, H, W, B]."""
    reconstruction = decoder.log_prob(x, decoded.mean)
    kl_z = torch.zeros_like(reconstruction)
    for chosen in posterior.chosen:
        kl_z = kl_z + kl_places(chosen)
    kl_s = kl_code(posterior.mu, posterior.log_sigma)
    return Bound(reconstruction, kl_s, kl_z, torch.zeros_like(reconstruction))
