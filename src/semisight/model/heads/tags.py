"""Section 3.1 for several labels per image: C classifiers that do not exclude each other, each known or unknown.

    beta_l  ~ N(0, I),  f_l = beta_l's + bias_l
    y_l     = 1 if the image has tag l, 0 if it has not; -1 where that is unknown
    log p(y_l | s) = -2 gamma max(1 - (2 y_l - 1) f_l, 0)          the Bayesian SVM of (9), collapsed
                   = log sigmoid((2 y_l - 1) f_l)                  logistic

An unknown entry contributes exactly nothing. Shapes: codes [B, J]; values int8 [B, C]; decision values [B, C].
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.model.heads.labels import LinearScores, expected_hinge

TagKind = Literal["svm", "logistic"]


class TagHead(nn.Module):
    """p(y | s) for C tags.

    Args:
        code_size: J, the numbers of a code.
        n_tags: C.
        kind: "svm" or "logistic".
        gamma: weighs the SVM's errors against its prior.

    Example:
        >>> import semisight as ss, torch
        >>> ss.TagHead(code_size=4, n_tags=5).decision(torch.zeros(2, 4)).shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        code_size: int,
        n_tags: int,
        kind: TagKind = "svm",
        gamma: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if n_tags < 1:
            raise ValueError(f"there must be at least one tag, not {n_tags}")
        if kind not in ("svm", "logistic"):
            raise ValueError(f"a tag's classifier is 'svm' or 'logistic', not {kind!r}")
        self.scores, self.kind, self.gamma = LinearScores(code_size, n_tags, True, generator), kind, gamma

    @property
    def n_tags(self) -> int:
        return self.scores.beta.shape[1]

    def log_prob(self, values: Tensor, s: Tensor) -> Tensor:
        """[B]: log p of the known entries."""
        has, has_not = self.log_prob_each(s)
        return pick_tags(values, has, has_not).sum(1)

    def log_prob_each(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """[B, C] twice: log p(y_l = 1 | s) and log p(y_l = 0 | s), for the SVM up to a constant."""
        f = self.scores(s)
        if self.kind == "logistic":
            return F.logsigmoid(f), F.logsigmoid(-f)
        return -2 * self.gamma * (1 - f).clamp_min(0), -2 * self.gamma * (1 + f).clamp_min(0)

    def expected_log_prob_each(self, mu: Tensor, log_sigma: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of `log_prob_each` over q(s|X) = N(mu, sigma^2): exact for the SVM; for the logistic a lower bound,
        E log(1 + exp(-f)) <= log(1 + exp(-E f + Var f / 2))."""
        f, variance = self.scores(mu), self.scores.variance(log_sigma)
        if self.kind == "logistic":
            return -F.softplus(variance / 2 - f), -F.softplus(variance / 2 + f)
        deviation = variance.sqrt()
        return -2 * self.gamma * expected_hinge(1 - f, deviation), -2 * self.gamma * expected_hinge(1 + f, deviation)

    def probability(self, f: Tensor) -> Tensor:
        """p(y = 1) of decision values, by the head itself; the SVM's is sigmoid(4 gamma f) for |f| < 1."""
        return torch.sigmoid(self.probability_scale() * f)

    def probability_scale(self) -> float:
        return 1.0 if self.kind == "logistic" else 4 * self.gamma

    def log_prior(self, n_images: int) -> Tensor:
        return self.scores.log_prior(n_images)

    def decision(self, mu: Tensor) -> Tensor:
        return self.scores(mu)

    def spread(self, mu: Tensor, log_sigma: Tensor) -> Tensor:
        del mu
        return self.scores.variance(log_sigma).sqrt()


def pick_tags(values: Tensor, has: Tensor, has_not: Tensor) -> Tensor:
    """[B, C]: of each entry what its value says, exactly zero where it is unknown."""
    return torch.where(values == 1, has, torch.where(values == 0, has_not, torch.zeros_like(has)))
