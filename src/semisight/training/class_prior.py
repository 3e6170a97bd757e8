"""Beyond the paper: a prior of the code for each class, so that the bound of an image without a label marginalises it.

    y ~ uniform,   m_y ~ N(0, W / k),   s | y ~ N(m_y, W)             W: the same around every class
    given          log p(s | y)                                       weight 1
    unlabelled     log sum_y p(y) p(s | y)                            weight w in m, 1 in W

Ascended by EM over the codes: which class each image without a label may be of, then m and W. What it says of a new
code is a softmax of linear scores, so it is a head like any other. The numbers of a code are not Gaussian and far from
independent given the class: at face value nearly every image would be of one class for certain after the first round.
So the likelihood of an image without a label counts to the power 1 / `heat`, and W is drawn a little towards the
diagonal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.heads.labels import Softmax
from semisight.training.soft_em import SoftEM

_LEAST = 1e-6  # variance that is added to W


@dataclass(frozen=True)
class ClassPrior:
    """weight: of an unlabelled image in the means; 0 learns from the labels alone. shrinkage: of W to the diagonal."""

    weight: float = 0.3
    k: float = 0.5
    heat: float = 3.0
    shrinkage: float = 0.1
    rounds: int = 15

    @torch.no_grad()
    def __call__(self, views: Sequence[Tensor], labels: Tensor, n_classes: int) -> Softmax:
        """The head for codes [N, J] of each view (their mean is what counts) and labels [N], -1 where unknown."""
        s, known = torch.stack(list(views)).mean(0), labels >= 0
        given, others = s[known], s[~known]
        y = F.one_hot(labels[known], n_classes).to(s)
        total = torch.cov(s.T)
        diagonal = torch.diag(total.diagonal())
        q, within = s.new_zeros(len(others), n_classes), total
        head = Softmax(s.shape[1], n_classes).to(s)
        for _ in range(self.rounds if self.weight and len(others) else 1):
            weights = y.sum(0) + self.weight * q.sum(0) + self.k
            means = (y.T @ given + self.weight * (q.T @ others)) / weights[:, None]
            self._tell(head, means, (1 - self.shrinkage) * within + self.shrinkage * diagonal)
            q = (head.decision(others) / self.heat).softmax(1)
            counts = y.sum(0) + q.sum(0)
            centres = (y.T @ given + q.T @ others) / counts.clamp_min(_LEAST)[:, None]
            within = (s.T @ s - centres.T @ (counts[:, None] * centres)) / len(s)
        return head

    def _tell(self, head: Softmax, means: Tensor, within: Tensor) -> None:
        """log p(s | y) up to what is the same for all classes: linear in s."""
        beta = torch.linalg.solve(within + _LEAST * torch.eye(len(within)).to(within), means.T)  # [J, C]
        head.scores.beta.copy_(beta)
        assert head.scores.bias is not None
        head.scores.bias.copy_(-0.5 * (means.T * beta).sum(0))


@dataclass(frozen=True)
class WithClassPrior:
    """The product of what soft EM and a prior for each class say, the latter to the power `share`."""

    em: SoftEM = field(default_factory=SoftEM)
    prior: ClassPrior = field(default_factory=ClassPrior)
    share: float = 0.25

    @property
    def weight(self) -> float:
        """Of an unlabelled image."""
        return self.em.weight

    @torch.no_grad()
    def __call__(self, views: Sequence[Tensor], labels: Tensor, n_classes: int) -> Softmax:
        head, prior = self.em(views, labels, n_classes), self.prior(views, labels, n_classes)
        for name in ("beta", "bias"):
            of_em, of_prior = (getattr(one.scores, name) for one in (head, prior))
            of_em.mul_(self.em.sharpening).add_(of_prior, alpha=self.share / self.prior.heat)
        return head
