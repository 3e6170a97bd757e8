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

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.heads.labels import Softmax

LearnsHead = Callable[[Sequence[Tensor], Tensor, int], Softmax]  # from codes of each view and labels, -1 where unknown


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
    """What cross-validation says of one way to learn: decision values [n, C] of given labels, each from a model that
    had not seen the image; these labels [n], and their places [n] among all images."""

    index: Tensor
    decisions: Tensor
    labels: Tensor

    @property
    def wrong(self) -> Tensor:
        return (self.decisions.argmax(1) != self.labels).double()

    @property
    def error(self) -> float:
        return float(self.wrong.mean())

    def at(self, index: Tensor) -> "CrossValidated":
        """Only what is said of the labels at these places."""
        kept = torch.isin(self.index, index)
        return CrossValidated(self.index[kept], self.decisions[kept], self.labels[kept])


def label_folds(labels: Tensor, folds: int = 3, seed: int = 0) -> list[Tensor]:
    """Places of given labels, parted by class into folds that are held out in turn; none if no class has two labels.

    A class with a single label is always learned from. Two folds where most classes have no third label.
    """
    from sklearn.model_selection import StratifiedKFold

    counts = torch.bincount(labels[labels >= 0])
    several = counts[counts > 1]
    if not len(several):
        return []
    known = ((labels >= 0) & (counts[labels.clamp_min(0)] > 1)).nonzero().squeeze(1)
    folds = max(2, min(folds, int(several.median())))
    y = labels[known].numpy()
    with warnings.catch_warnings():  # rare classes are in fewer folds
        warnings.simplefilter("ignore", UserWarning)
        parts = StratifiedKFold(folds, shuffle=True, random_state=seed).split(y, y)
        return [known[torch.from_numpy(aside)] for _, aside in parts]


def cross_validate(
    how: LearnsHead, views: Sequence[Tensor], labels: Tensor, n_classes: int, folds: int = 3, seed: int = 0
) -> CrossValidated:
    """A held-out image is left out altogether, also as an unlabelled one."""
    found = []
    for aside in label_folds(labels, folds, seed):
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[aside] = False
        head = how([view[kept] for view in views], labels[kept], n_classes)
        found.append(CrossValidated(aside, mean_decision(head, [view[aside] for view in views]), labels[aside]))
    return in_order(found)


def in_order(parts: Sequence[CrossValidated]) -> CrossValidated:
    """What was said of each fold as one, by place."""
    index = torch.cat([part.index for part in parts])
    order = index.argsort()
    decisions, labels = torch.cat([part.decisions for part in parts]), torch.cat([part.labels for part in parts])
    return CrossValidated(index[order], decisions[order], labels[order])
