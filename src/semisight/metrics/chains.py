"""Whether Markov chains have mixed: split R-hat and the effective number of draws (Gelman et al., 2013, section 11.4).

    R-hat^2 = ((n - 1) / n W + B / n) / W      W within, B between the halves of all chains; 1 where they agree
    draws   = m n / (1 + 2 sum of autocorrelations), summed as Geyer (1992) does: by pairs, while these stay positive
              and do not grow

Draws come as [chains, draws, ...]; what follows the first two axes are quantities of their own.
"""

import torch
from torch import Tensor

from semisight.errors import UserError

LEAST_DRAWS = 4


def split_r_hat(draws: Tensor) -> Tensor:
    """[...]; infinite where chains stand still at different values, 1 where all stand still at the same.

    Example:
        >>> import torch
        >>> draws = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
        >>> bool(split_r_hat(draws) < 1.01)
        True
        >>> bool(split_r_hat(draws + torch.tensor([0.0, 0.0, 0.0, 3.0])[:, None]) > 1.5)
        True
    """
    halves = _halves(draws)
    within, overall = _variances(halves)
    same = (overall == 0) & (within == 0)
    return torch.where(same, torch.ones_like(overall), (overall / within).sqrt())


def effective_draws(draws: Tensor) -> Tensor:
    """[...]: so many independent draws would say as much about the mean."""
    halves = _halves(draws)
    m, n = halves.shape[:2]
    within, overall = _variances(halves)
    centred = halves - halves.mean(1, keepdim=True)
    # all lags at once, padded so that the end does not meet the beginning
    spectrum = torch.fft.rfft(centred, n=2 * n, dim=1)
    covariance = torch.fft.irfft(spectrum.abs().square(), n=2 * n, dim=1)[:, :n].mean(0) / n
    correlation = 1 - (within - covariance * n / (n - 1)) / overall  # [n, ...]
    correlation[0] = 1.0
    pairs = correlation[: n - n % 2].unflatten(0, (n // 2, 2)).sum(1)
    positive = (pairs > 0).cumprod(0)
    falling = torch.cummin(pairs, 0).values * positive
    time = (2 * falling.sum(0) - 1).clamp_min(1 / torch.tensor(float(m * n)).log10())
    found = m * n / time
    return torch.where(overall == 0, torch.full_like(found, float("nan")), found)


def _halves(draws: Tensor) -> Tensor:
    """[2 chains, draws // 2, ...]: a chain that still drifts disagrees with itself."""
    if draws.dim() < 2 or draws.shape[1] < LEAST_DRAWS:
        raise UserError(
            f"whether chains have mixed is told from at least {LEAST_DRAWS} draws of each, [chains, draws, ...], not "
            f"from {list(draws.shape)}."
        )
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]]).double()


def _variances(halves: Tensor) -> tuple[Tensor, Tensor]:
    """Within chains, and of all draws as the chains together estimate it."""
    n = halves.shape[1]
    within = halves.var(1).mean(0)
    between = n * halves.mean(1).var(0)
    return within, (n - 1) / n * within + between / n
