"""Table 2, M2 on the codes of M1 (Kingma, Rezende, Mohamed and Welling, 2014): the label is a latent variable.

    y ~ uniform over the classes,  z ~ N(0, I),  x ~ N(mu(y, z), sigma(y, z)^2)        x: a code of M1

    known label:    -L(x, y) = E_q(z|x,y) [log p(x|y,z) + log p(y) + log p(z) - log q(z|x,y)]
    unknown label:  -U(x)    = sum_y q(y|x) {-L(x, y)} + entropy of q(y|x)
    minimised:      sum of L over labelled codes + sum of U over the others + alpha sum of -log q(y|x), labelled

The sum over y is taken in full: one pass for all classes of all codes. alpha is 0.1 N, shared by the labelled codes, as
published. Networks: one layer of 500 softplus units, z of 50 numbers.

An image is given as the mean and log sigma of its q(code | image), and x is drawn anew in every step, as published.
Some of M1's numbers say nothing (their q is the prior): drawn, they are noise that cannot be learned by heart. On means
that were scaled to one size the error was twice as large (docs/experiments.md).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines.m1 import kl_to_normal, log_normal, mlp

MOST_LOG_SIGMA = 5.0  # either way: a code that is matched exactly would have no bound


class M2(nn.Module):
    """`labelled_share` is that of all training codes: batches hold more labels than the whole set does."""

    def __init__(
        self,
        features: int,
        n_classes: int,
        labelled_share: float,
        code: int = 50,
        hidden: int = 500,
        alpha: float = 0.1,
    ) -> None:
        super().__init__()
        self.n_classes, self.code, self.share, self.alpha = n_classes, code, labelled_share, alpha
        self.classifier = mlp(features, hidden, n_classes)  # q(y|x)
        self.encoder = mlp(features + n_classes, hidden, 2 * code)  # q(z|x,y)
        self.decoder = mlp(code + n_classes, hidden, 2 * features)  # p(x|y,z)

    def bound_with(self, x: Tensor, y: Tensor, eps: Tensor) -> Tensor:
        """-L(x, y) for labels y one-hot [..., C], with z drawn by eps [..., code]."""
        mu, log_sigma = self.encoder(torch.cat([x, y], -1)).chunk(2, -1)
        z = mu + log_sigma.exp() * eps
        mean, log_spread = self.decoder(torch.cat([z, y], -1)).chunk(2, -1)
        log_spread = log_spread.clamp(-MOST_LOG_SIGMA, MOST_LOG_SIGMA)
        return log_normal(x, mean, log_spread) - kl_to_normal(mu, log_sigma) - math.log(self.n_classes)

    def bound_without(self, x: Tensor, eps: Tensor) -> Tensor:
        """-U(x): every label is tried, with its own draw of z; eps is [C, B, code]."""
        log_q = self.classifier(x).log_softmax(1)  # [B, C]
        every = torch.eye(self.n_classes).to(x)[:, None].expand(-1, len(x), -1)  # [C, B, C]
        of_label = self.bound_with(x.expand(self.n_classes, -1, -1), every, eps).T  # [B, C]
        return (log_q.exp() * (of_label - log_q)).sum(1)

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        known = labels >= 0
        x, log_sigma = images.flatten(1).chunk(2, 1)
        x = x + log_sigma.exp() * torch.randn(x.shape, generator=generator).to(x)
        eps = torch.randn(self.n_classes, len(x), self.code, generator=generator).to(x)
        zero = x.new_zeros(())
        labelled, guessed = zero, zero
        if bool(known.any()):
            y = F.one_hot(labels[known], self.n_classes).to(x)
            labelled = self.bound_with(x[known], y, eps[0, known]).mean()
            guessed = F.cross_entropy(self.classifier(x[known]), labels[known])
        unlabelled = zero if bool(known.all()) else self.bound_without(x[~known], eps[:, ~known]).mean()
        bound = self.share * labelled + (1 - self.share) * unlabelled
        return self.alpha * guessed - bound, {"bound": bound, "label": -guessed}

    def after_step(self) -> None:
        return

    def scores(self, images: Tensor) -> Tensor:
        return self.classifier(images.flatten(1).chunk(2, 1)[0])
