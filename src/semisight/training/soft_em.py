"""Beyond the paper: a softmax head on codes that stay as they are, learned from few labels and many images without.

    given       -log p(y | s)                     weight 1
    unlabelled  -sum_c q_c log p(c | s)           weight w, q the head's own prediction, sharpened: the E step
    prior       |beta|^2 / 2C                     (26)

Alternately the targets q are worked out for all unlabelled images (averaged over the views of an image) and the head
is fitted to all of them by L-BFGS, from where it was. Classes that are predicted more often than their share of the
given labels weigh less: unlabelled photographs are of very unequal classes, and this matters most. A head fitted to few
labels is far too unsure, and unsharpened targets would flatten it further. Soft targets were better than thresholds;
whether they pay at all is for cross-validation to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.heads.labels import Softmax


@dataclass(frozen=True)
class SoftEM:
    """weight: of an unlabelled image beside a labelled one; 0 learns from the labels alone. C: prior variance."""

    weight: float = 0.15
    C: float = 10.0
    rounds: int = 8
    first_sharpening: float = 4.0  # of the head that saw labels alone
    sharpening: float = 2.0
    balance: float = 1.0  # power of labelled share / predicted share of a class

    def __call__(self, views: Sequence[Tensor], labels: Tensor, n_classes: int) -> Softmax:
        """The head for codes [N, J] of each view and labels [N], -1 where unknown."""
        known = labels >= 0
        given = F.one_hot(labels[known], n_classes).to(views[0])
        n_views = len(views)
        head = Softmax(views[0].shape[1], n_classes)
        with torch.no_grad():
            head.scores.beta.zero_()
        rows = torch.cat([view[known] for view in views])
        self._fit(head, rows, given.repeat(n_views, 1), torch.full((len(rows),), 1 / n_views), steps=100)
        if self.weight == 0 or bool(known.all()):
            return head
        rows = torch.cat([torch.cat([view[known], view[~known]]) for view in views])
        unlabelled = [view[~known] for view in views]
        for number in range(self.rounds):
            sharpening = self.sharpening if number else self.first_sharpening
            q = (mean_decision(head, unlabelled) * sharpening).softmax(1)
            each = (q * (given.mean(0) / (q.mean(0) + 0.1 / n_classes)) ** self.balance).sum(1)
            weights = torch.cat([torch.ones(len(given)), self.weight * each / each.mean()])
            self._fit(head, rows, torch.cat([given, q]).repeat(n_views, 1), weights.repeat(n_views) / n_views, steps=15)
        return head

    def _fit(self, head: Softmax, rows: Tensor, targets: Tensor, weights: Tensor, steps: int) -> None:
        optimiser = torch.optim.LBFGS(
            head.parameters(),
            max_iter=steps,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-4,
            tolerance_change=1e-7,
        )

        def loss() -> Tensor:
            optimiser.zero_grad()
            fit = -(weights * (targets * head.scores(rows).log_softmax(1)).sum(1)).sum()
            value = fit + head.scores.beta.square().sum() / (2 * self.C)
            value.backward()
            return value

        optimiser.step(loss)


@torch.no_grad()
def mean_decision(head: Softmax, views: Sequence[Tensor]) -> Tensor:
    """Decision values [N, C] averaged over views."""
    return torch.stack([head.decision(view) for view in views]).mean(0)


@dataclass(frozen=True)
class CrossValidated:
    """What cross-validation says of one way to learn: decision values [n, C] of the given labels, each from a head that
    had not seen the image, and these labels."""

    how: SoftEM
    decisions: Tensor
    labels: Tensor

    @property
    def error(self) -> float:
        return float((self.decisions.argmax(1) != self.labels).double().mean())


def cross_validate(
    how: SoftEM, views: Sequence[Tensor], labels: Tensor, n_classes: int, folds: int = 3, seed: int = 0
) -> CrossValidated:
    """A held-out image is left out altogether, also as an unlabelled one."""
    from sklearn.model_selection import StratifiedKFold

    known = (labels >= 0).nonzero().squeeze(1)
    y = labels[known]
    folds = max(2, min(folds, int(torch.bincount(y, minlength=n_classes)[y.unique()].min())))
    decisions = torch.empty(len(y), n_classes)
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    for _, aside in splits.split(y.numpy(), y.numpy()):
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[known[aside]] = False
        head = how([view[kept] for view in views], labels[kept], n_classes)
        decisions[aside] = mean_decision(head, [view[known[aside]] for view in views])
    return CrossValidated(how, decisions, y)
