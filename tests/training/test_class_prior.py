"""A prior of the code for each class: its EM against enumeration, and what images without a label are worth to it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from semisight.model.heads.labels import Softmax
from semisight.training.class_prior import ClassPrior, WithClassPrior
from semisight.training.soft_em import SoftEM

PLAIN = ClassPrior(weight=1.0, k=0.0, heat=1.0, shrinkage=0.0)


def clusters(n: int = 90, apart: float = 1.6, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Codes [n, 4] of three classes, stretched along one direction that says nothing; and their classes."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(n) % 3
    centres = apart * torch.tensor([[1.0, 0, 0, 0], [-0.5, 0.9, 0, 0], [-0.5, -0.9, 0, 0]])
    noise = torch.randn(n, 4, generator=generator) * torch.tensor([0.4, 0.4, 1.0, 5.0])
    return (centres[truth] + noise).double(), truth


def few(truth: Tensor, per_class: int) -> Tensor:
    labels = torch.full_like(truth, -1)
    labels[: 3 * per_class] = truth[: 3 * per_class]
    return labels


def error(head: Softmax, s: Tensor, truth: Tensor) -> float:
    return float((head.decision(s).argmax(1) != truth).float().mean())


def log_likelihood(s: Tensor, labels: Tensor, means: Tensor, within: Tensor) -> float:
    """Of the codes and the labels that are given, every other label summed over by enumeration."""
    log_p = torch.stack([MultivariateNormal(mean, within).log_prob(s) for mean in means], 1) - math.log(len(means))
    known = labels >= 0
    return float(log_p[known, labels[known]].sum() + log_p[~known].logsumexp(1).sum())


def by_hand(s: Tensor, labels: Tensor, how: ClassPrior) -> tuple[Tensor, Tensor, Tensor]:
    """EM one image and one class at a time: means, within, and the probabilities of every label."""
    n, within, q = len(s), torch.cov(s.T), torch.zeros(len(s), 3).double()
    q[labels >= 0, labels[labels >= 0]] = 1.0
    weights = [1.0 if label >= 0 else how.weight for label in labels.tolist()]
    diagonal = torch.diag(within.diagonal())
    means = torch.zeros(3, 4).double()
    for _ in range(how.rounds):
        sums = torch.stack([sum(weights[i] * q[i, c] * s[i] for i in range(n)) for c in range(3)])  # type: ignore[misc]
        counts = torch.stack([sum(weights[i] * q[i, c] for i in range(n)) for c in range(3)])  # type: ignore[misc]
        means = sums / (counts + how.k)[:, None]
        used = (1 - how.shrinkage) * within + how.shrinkage * diagonal
        for i in range(n):
            if labels[i] < 0:
                log_p = torch.stack([MultivariateNormal(mean, used).log_prob(s[i]) for mean in means])
                q[i] = (log_p / how.heat).softmax(0)
        centres = q.T @ s / q.sum(0)[:, None]
        parts = [q[i, c] * torch.outer(s[i] - centres[c], s[i] - centres[c]) for i in range(n) for c in range(3)]
        within = torch.stack(parts).sum(0) / n
    return means, used, q


@pytest.mark.parametrize("how", [PLAIN, ClassPrior(weight=0.4, k=0.7, heat=2.0, shrinkage=0.2)])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_its_scores_are_those_of_em_by_hand(how: ClassPrior, rounds: int) -> None:
    s, truth = clusters()
    labels = few(truth, 4)
    how = replace(how, rounds=rounds)
    means, within, _ = by_hand(s, labels, how)
    right = torch.stack([MultivariateNormal(mean, within).log_prob(s) for mean in means], 1)
    found = how([s], labels, 3).decision(s)
    torch.testing.assert_close(found.log_softmax(1), right.log_softmax(1), atol=1e-3, rtol=1e-4)


def test_the_likelihood_with_missing_labels_summed_over_never_falls() -> None:
    s, truth = clusters(apart=1.0)
    labels, found = few(truth, 3), []
    for rounds in range(1, 9):
        how = replace(PLAIN, rounds=rounds)
        means, within, q = by_hand(s, labels, how)
        head = how([s], labels, 3)
        torch.testing.assert_close(head.decision(s[labels < 0]).softmax(1), q[labels < 0], atol=1e-3, rtol=0)
        found.append(log_likelihood(s, labels, means, within))
    later = torch.tensor(found[1:])  # before, W is that of all codes
    assert bool((later.diff() > -1e-6).all()) and float(later[-1] - later[0]) > 1


def test_images_without_a_label_are_worth_labels() -> None:
    told, without = [], []
    for seed in range(8):
        s, truth = clusters(300, apart=1.1, seed=seed)
        labels = few(truth, 1)
        told.append(error(ClassPrior(heat=1.0)([s], labels, 3), s, truth))
        without.append(error(ClassPrior(weight=0.0)([s], labels, 3), s, truth))
    assert sum(told) < 0.5 * sum(without) and sum(told) / 8 < 0.1


def test_views_count_by_their_mean_and_a_full_set_has_nothing_to_guess() -> None:
    s, truth = clusters()
    shift = torch.randn(s.shape, generator=torch.Generator().manual_seed(5)).double()
    one, two = ClassPrior()([s], few(truth, 3), 3), ClassPrior()([s + shift, s - shift], few(truth, 3), 3)
    torch.testing.assert_close(one.decision(s), two.decision(s))
    assert error(ClassPrior()([s], truth, 3), s, truth) < 0.05


def test_the_product_is_the_product() -> None:
    s, truth = clusters()
    views, labels = [s.float()], few(truth, 2)
    em, prior = SoftEM()(views, labels, 3), ClassPrior()(views, labels, 3)
    both = WithClassPrior()(views, labels, 3).decision(views[0])
    right = 2.0 * em.decision(views[0]) + 0.25 / 3.0 * prior.decision(views[0])
    torch.testing.assert_close(both, right, atol=1e-4, rtol=1e-4)
