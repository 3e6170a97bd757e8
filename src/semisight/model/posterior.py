"""Section 2.2, (16)-(18): what an encoder says of images, q(s, z | X) and one draw from it, whatever encoder it is.

An **encoder** is an `nn.Module` that maps images to a `Posterior`; the rest of the code asks nothing else of it:

    has_places      it draws z, for every pooled layer of the decoder; without, values go to fixed places (VAE-d)
    mean_is_exact   q(s | X) does not depend on a drawn z: one pass gives its mean
    code_shape      (K_L, h, w) of the code

All maps have the batch as their last axis (see ops/pooling.py).
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from semisight.model.architecture import Architecture
from semisight.model.ops.places import Chosen, Drawn


@dataclass(frozen=True)
class Noise:
    """All random numbers of a draw from q(s, z | X): eps ~ N(0, 1) for s, one uniform number per block for z."""

    eps: Tensor  # [K_L, h, w, B]
    uniform: tuple[Tensor, ...]  # per pooled layer [K_l, h, w, B]; () without places


@dataclass(frozen=True)
class Posterior:
    """q(s, z | X) and one draw from it; batch last."""

    mu: Tensor  # [K_L, h, w, B]
    log_sigma: Tensor  # [K_L, h, w, B]
    s: Tensor  # [K_L, h, w, B]
    chosen: tuple[Chosen, ...] = ()  # per pooled layer: z, its entropy and probability; () without places

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


class Encoder(Protocol):
    """The seam: see the head of this file."""

    @property
    def has_places(self) -> bool: ...

    @property
    def mean_is_exact(self) -> bool: ...

    @property
    def code_shape(self) -> tuple[int, int, int]: ...

    def __call__(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        """A draw for images [C, H, W, B]; `through` lets the gradient pass through the drawn z to q."""
        ...

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma, [K_L, h, w, B], for prediction without a draw; only where `mean_is_exact`."""
        ...

    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        """Told the training images' mean [C, H, W, 1] and variance, before the first step."""
        ...


@runtime_checkable
class CodeAlone(Protocol):
    """What an encoder may have beside, where its s does not look at z: then z is left out where nothing is decoded."""

    def code(self, x: Tensor, eps: Tensor) -> Posterior:
        """A draw of s alone."""
        ...


@runtime_checkable
class StartsFromImages(Protocol):
    """What an encoder may have beside, where its start depends on more than mean and variance."""

    def start_from_images(self, images: Tensor) -> None:
        """Shown training images [N, C, H, W] after `start_from`."""
        ...


class NetworkEncoder(nn.Module):
    """Any network of images [B, C, H, W] as an encoder without places: q(s | X) = N(mu, sigma^2).

    The network gives [B, 2 J] numbers, or anything that flattens to that: first mu, then log sigma.

    Args:
        network: an `nn.Module` from images [B, C, H, W] in [0, 1] to [B, 2 J].
        code_shape: (K, h, w) with K h w = J; the decoder's top maps have that shape.

    Example:
        >>> import torch
        >>> import semisight as ss
        >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12))
        >>> encoder = ss.NetworkEncoder(network, code_shape=(6, 1, 1))
        >>> encoder.has_places, encoder.mean_is_exact
        (False, True)
    """

    has_places = False
    mean_is_exact = True

    def __init__(self, network: nn.Module, code_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.network, self.code_shape = network, code_shape

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        del through  # there is no z for a gradient to pass through
        mu, log_sigma = self._mu_and_log_sigma(x)
        return Posterior(mu, log_sigma, mu + noise.eps * log_sigma.exp())

    @torch.no_grad()
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._mu_and_log_sigma(x)

    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        """A network has its own start."""

    def _mu_and_log_sigma(self, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = self.network(batch_first(x)).flatten(1).T  # [2 J, B]
        mu, log_sigma = maps.chunk(2)
        shape = (*self.code_shape, x.shape[-1])
        return mu.reshape(shape), log_sigma.reshape(shape)


def flat_code(maps: Tensor) -> Tensor:
    """[K_L, h, w, B] -> [B, J]."""
    return maps.flatten(0, 2).T


def maps_of_code(code: Tensor, architecture: Architecture) -> Tensor:
    """The inverse of `flat_code`: [B, J] -> [K_L, h, w, B]."""
    return code.T.reshape(*architecture.code_shape, code.shape[0])


def batch_last(images: Tensor) -> Tensor:
    """[B, C, H, W] -> [C, H, W, B], contiguous."""
    return images.permute(1, 2, 3, 0).contiguous()


def batch_first(maps: Tensor) -> Tensor:
    """[C, H, W, B] -> [B, C, H, W], contiguous."""
    return maps.permute(3, 0, 1, 2).contiguous()
