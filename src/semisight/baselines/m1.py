"""Table 2, M1 (Kingma, Rezende, Mohamed and Welling, "Semi-supervised learning with deep generative models", 2014).

    z ~ N(0, I)                       50 numbers
    x ~ Bernoulli(sigmoid(f(z)))      f and the encoder: two layers of 600 softplus units, as published

A variational autoencoder of pixels that knows no labels: its mean codes go to a transductive SVM (M1+TSVM) or to the
generative model of codes and labels in m2.py (M1+M2). Grey values are drawn as black or white anew in every step.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines.network import AT_A_TIME
from semisight.objectives.step import Images


def mlp(*sizes: int) -> nn.Sequential:
    """Softplus between layers, nothing after the last."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.Softplus()]
    return nn.Sequential(*layers[:-1])


def kl_to_normal(mu: Tensor, log_sigma: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, I)) over the last axis: the paper's (17)."""
    return 0.5 * (mu**2 + (2 * log_sigma).exp() - 2 * log_sigma - 1).sum(-1)


class M1(nn.Module):
    """`n_pixels` is that of the flattened image."""

    def __init__(self, n_pixels: int, code: int = 50, hidden: int = 600) -> None:
        super().__init__()
        self.code = code
        self.encoder = mlp(n_pixels, hidden, hidden, 2 * code)
        self.decoder = mlp(code, hidden, hidden, n_pixels)

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma of q(z|x)."""
        mu, log_sigma = self.encoder(images.flatten(1)).chunk(2, dim=1)
        return mu, log_sigma

    def bound(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Of every image, with one draw of z, in nats."""
        x = images.flatten(1)
        if self.training:
            x = (torch.rand(x.shape, generator=generator).to(x) < x).to(x)
        mu, log_sigma = self.moments(x)
        z = mu + log_sigma.exp() * torch.randn(mu.shape, generator=generator).to(mu)
        log_likelihood = -F.binary_cross_entropy_with_logits(self.decoder(z), x, reduction="none").sum(1)
        return log_likelihood - kl_to_normal(mu, log_sigma)

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        bound = self.bound(images, generator).mean()
        return -bound, {"bound": bound}

    def after_step(self) -> None:
        return

    @torch.no_grad()
    def posteriors(self, images: Images) -> Tensor:
        """mu and log sigma of q(z|x), [N, 50 + 50] on the CPU."""
        index, weight = torch.arange(len(images)).split(AT_A_TIME), next(self.parameters())
        return torch.cat([self.encoder(images.batch(some).to(weight).flatten(1)).cpu() for some in index])

    def codes(self, images: Images) -> Tensor:
        """The means of q(z|x), [N, 50] on the CPU."""
        return self.posteriors(images)[:, : self.code]


def log_normal(x: Tensor, mu: Tensor, log_sigma: Tensor) -> Tensor:
    """log N(x; mu, sigma^2) over the last axis."""
    return (-0.5 * ((x - mu) / log_sigma.exp()) ** 2 - log_sigma - 0.5 * math.log(2 * math.pi)).sum(-1)
