"""Whether two rows of a table differ by more than the chance of a run.

    d_i = value of one row - value of the other, seed i        the same images to learn from, the same start
    t   = mean(d) / (sd(d) / sqrt(n))                          Student's paired t; p for both sides

A seed moves a run's error by about as much as the rows of Table 1 differ, so one seed says nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from scipy import stats

from semisight.errors import UserError
from semisight.experiments.results import Row


@dataclass(frozen=True)
class Difference:
    """Over the seeds that both rows have: the means, the mean of one minus the other, and its standard error."""

    metric: str
    N: str
    seeds: tuple[int, ...]
    means: tuple[float, float]
    mean: float
    standard_error: float
    lower: int  # at how many seeds the first is lower
    p: float  # how often chance alone would make a mean this far from 0

    def words(self) -> str:
        return (
            f"{self.means[0]:.4g} and {self.means[1]:.4g}: {self.mean:+.2g} +- {self.standard_error:.2g}, "
            f"lower at {self.lower} of {len(self.seeds)} seeds, p = {self.p:.2g}"
        )


def differences(rows: Iterable[Row], one: str, other: str) -> list[Difference]:
    """For each metric and N that both rows have with two seeds or more."""
    rows = list(rows)
    names = list(dict.fromkeys(row.row for row in rows))
    for name in (one, other):
        if name not in names:
            near = get_close_matches(name, names, n=1)
            raise UserError(f"there is no row {name!r}{f'; did you mean {near[0]!r}?' if near else '.'}")
    values = {(row.row, row.metric, row.N, row.seed): row.value for row in rows}
    seeds: dict[tuple[str, str], list[int]] = {}
    for name, metric, n, seed in values:
        if name == one and (other, metric, n, seed) in values:
            seeds.setdefault((metric, n), []).append(seed)
    found = []
    for (metric, n), shared in seeds.items():
        if len(shared) < 2:
            continue
        first, second = (np.array([values[name, metric, n, seed] for seed in shared]) for name in (one, other))
        found.append(_difference(metric, n, tuple(shared), first, second))
    if not found:
        raise UserError(f"{one} and {other} share no metric with two seeds or more: measure more with --splits 0,1,2")
    return found


def _difference(metric: str, n: str, seeds: tuple[int, ...], first: np.ndarray, second: np.ndarray) -> Difference:
    d = first - second
    error = float(d.std(ddof=1)) / len(d) ** 0.5
    p = float(stats.ttest_rel(first, second).pvalue) if error > 0 else float(d.mean() == 0)
    means = (float(first.mean()), float(second.mean()))
    return Difference(metric, n, seeds, means, float(d.mean()), error, int((d < 0).sum()), p)
