"""Split R-hat and effective draws, against chains of which both are known."""

import math

import pytest
import torch

from semisight.errors import UserError
from semisight.metrics.chains import effective_draws, split_r_hat


def autoregressive(rho: float, chains: int = 4, n: int = 4000, seed: int = 0) -> torch.Tensor:
    """x_t = rho x_(t-1) + sqrt(1 - rho^2) e_t, started at rest: N(0, 1) with autocorrelation rho^lag."""
    e = torch.randn(n, chains, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = [e[0]]
    for t in range(1, n):
        x.append(rho * x[-1] + math.sqrt(1 - rho * rho) * e[t])
    return torch.stack(x, 1)


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 0.9])
def test_effective_draws_of_an_autoregression(rho: float) -> None:
    found = float(effective_draws(autoregressive(rho)))
    assert found == pytest.approx(16_000 * (1 - rho) / (1 + rho), rel=0.15)


def test_r_hat_by_its_definition() -> None:
    draws = autoregressive(0.3, chains=3, n=10)
    halves = [chain[part] for chain in draws for part in (slice(0, 5), slice(5, 10))]
    means = torch.stack([half.mean() for half in halves])
    within = torch.stack([half.var() for half in halves]).mean()
    between = 5 * means.var()
    assert float(split_r_hat(draws)) == pytest.approx(float(((4 / 5 * within + between / 5) / within).sqrt()))


def test_chains_that_disagree_or_drift_are_told() -> None:
    draws = autoregressive(0.0, n=400)
    assert float(split_r_hat(draws)) < 1.02
    apart = draws + 2.0 * torch.arange(4)[:, None]
    drifting = draws + torch.linspace(0, 4, 400)
    assert float(split_r_hat(apart)) > 1.5 and float(split_r_hat(drifting)) > 1.3
    assert float(effective_draws(apart)) < 20
    stuck = torch.zeros(2, 10) + torch.arange(2)[:, None]
    assert torch.isinf(split_r_hat(stuck)) and float(split_r_hat(torch.zeros(2, 10))) == 1.0


def test_quantities_are_judged_apart() -> None:
    draws = torch.stack([autoregressive(0.0, n=200), autoregressive(0.9, n=200)], 2)
    together, alone = effective_draws(draws), [effective_draws(draws[..., i]) for i in range(2)]
    assert together.shape == (2,) and torch.allclose(together, torch.stack(alone))
    assert torch.allclose(split_r_hat(draws), torch.stack([split_r_hat(draws[..., i]) for i in range(2)]))


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(UserError, match="at least 4 draws"):
        split_r_hat(torch.zeros(2, 3))
