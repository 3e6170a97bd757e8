"""beta's mode: nothing around it is higher, the paper's own steps end there, and odd sets of labels do no harm."""

import itertools

import pytest
import torch
from torch import Tensor

from semisight.model.heads.labels import BayesianSVM, one_versus_all
from semisight.sampling.beta_mode import maximise_beta
from tests.sampling.oracle import generator

J, CLASSES = 4, 3
CODES = torch.randn(40, J, generator=generator(6), dtype=torch.float64)
LABELS = torch.randint(-1, CLASSES, (40,), generator=generator(7))
WEIGHT = torch.rand(40, generator=generator(8), dtype=torch.float64)


def toy_head(precision: float = 1.0, bias: bool = True) -> BayesianSVM:
    gamma = (0.3, 1.5, 1.0)
    return BayesianSVM(J, CLASSES, gamma, bias, generator=generator(5), precision=precision).double()


def value(head: BayesianSVM, labels: Tensor = LABELS) -> float:
    return float(((WEIGHT * head.log_prob(labels, CODES)).sum() + head.log_prior(1)).detach())


@torch.no_grad()
def ridge_step(head: BayesianSVM) -> None:
    """(31)-(35) as printed: lambda's expectation at the old beta, then a weighted ridge regression for each class."""
    y = one_versus_all(LABELS, CLASSES).double()
    inverse = head.lambda_posterior(LABELS, CODES).mean_inverse
    inputs = torch.cat([CODES, torch.ones(40, 1, dtype=torch.float64)], 1)
    for c in range(CLASSES):
        scale = head.gamma[c].double() * WEIGHT * y[:, c].abs()
        precision = head.precision * torch.eye(J + 1).double() + (inputs * (scale * inverse[:, c])[:, None]).T @ inputs
        solution = torch.linalg.solve(precision, inputs.T @ (scale * (inverse[:, c] + 1) * y[:, c]))
        head.scores.beta[:, c], head.scores.bias[c] = solution[:-1], solution[-1]  # type: ignore[index]


@pytest.mark.parametrize("precision", [1.0, 20.0])
def test_the_papers_steps_end_at_the_mode(precision: float) -> None:
    mode, stepped = toy_head(precision), toy_head(precision)
    maximise_beta(mode, LABELS, CODES, WEIGHT)
    values = [value(stepped)]
    for _ in range(400):
        ridge_step(stepped)
        values.append(value(stepped))
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 0.1
    assert value(mode) == pytest.approx(values[-1], abs=5e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_nothing_around_the_mode_is_higher(bias: bool) -> None:
    head = toy_head(bias=bias)
    maximise_beta(head, LABELS, CODES, WEIGHT)
    best = value(head)
    random = generator(9)
    with torch.no_grad():
        for size in (1e-3, 1e-2, 0.1, 1.0):
            for _ in range(20):
                moved = toy_head(bias=bias)
                for p, q in zip(moved.scores.parameters(), head.scores.parameters(), strict=True):
                    p.copy_(q + size * torch.randn(q.shape, generator=random, dtype=q.dtype))
                assert value(moved) < best + 1e-4


def test_a_class_without_images_and_no_labels_at_all() -> None:
    head, labels = toy_head(), LABELS.where(LABELS != 1, -1)
    before = value(head, labels)
    maximise_beta(head, labels, CODES, WEIGHT)
    assert value(head, labels) > before
    nothing = torch.full_like(LABELS, -1)
    maximise_beta(head, nothing, CODES, WEIGHT)
    assert float(head.scores.beta.detach().abs().max()) < 1e-6  # the prior's mode


def test_the_value_never_falls() -> None:
    head = toy_head()
    maximise_beta(head, LABELS, CODES, WEIGHT)
    best = value(head)
    for seed in range(5):
        maximise_beta(head, LABELS, CODES, WEIGHT, seed)
        assert value(head) >= best
        best = value(head)
