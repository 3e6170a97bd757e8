"""Differences between rows: as the definition has them, and no more often significant than they should be."""

import numpy as np
import pytest
from scipy import stats

from semisight.errors import UserError
from semisight.experiments.paired import differences
from semisight.experiments.results import Row


def rows(name: str, values: dict[int, float], metric: str = "error", n: str = "10") -> list[Row]:
    return [Row("t", name, n, metric, seed, value, "", 1.0, "abc", "a machine") for seed, value in values.items()]


def test_as_the_definition_has_it() -> None:
    draw = np.random.default_rng(0)
    one, other = draw.normal(1.0, 0.1, 9), draw.normal(1.1, 0.1, 9)
    (found,) = differences([*rows("a", dict(enumerate(one))), *rows("b", dict(enumerate(other)))], "a", "b")
    d = one - other
    error = (((d - d.mean()) ** 2).sum() / 8 / 9) ** 0.5
    assert (found.mean, found.standard_error) == pytest.approx((d.mean(), error))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(d.mean()) / error, 8))
    assert found.lower == (one < other).sum() and found.means == pytest.approx((one.mean(), other.mean()))


def test_chance_alone_is_seldom_called_a_difference() -> None:
    draw = np.random.default_rng(1)
    ps = []
    for _ in range(400):
        seeds = draw.normal(0, 5, 6)  # what a seed does to both rows at once is no part of the difference
        one, other = seeds + draw.normal(size=6), seeds + draw.normal(size=6)
        ps.append(differences([*rows("a", dict(enumerate(one))), *rows("b", dict(enumerate(other)))], "a", "b")[0].p)
    assert 0.02 < np.mean(np.array(ps) < 0.05) < 0.09
    assert stats.kstest(ps, "uniform").pvalue > 1e-3


def test_only_shared_seeds_of_the_same_metric_and_n_are_paired() -> None:
    table = [
        *rows("a", {0: 1.0, 1: 2.0, 2: 5.0}),
        *rows("b", {1: 4.0, 2: 7.0, 3: 0.0}),
        *rows("a", {0: 1.0, 1: 1.0}, n="60"),
        *rows("b", {0: 1.0}, n="60"),
        *rows("a", {0: 1.0, 1: 1.0}, "ms"),
    ]
    (found,) = differences(table, "a", "b")
    assert (found.metric, found.N, found.seeds, found.mean, found.lower) == ("error", "10", (1, 2), -2.0, 2)
    assert (found.standard_error, found.p) == (0.0, 0.0)  # two equal differences: certain, as far as two can tell
    assert differences(rows("a", {0: 1.0, 1: 2.0}), "a", "a")[0].p == 1
    with pytest.raises(UserError, match="two seeds or more"):
        differences([*rows("a", {0: 1.0}), *rows("b", {0: 2.0})], "a", "b")
    with pytest.raises(UserError, match="there is no row 'c'"):
        differences(table, "a", "c")
