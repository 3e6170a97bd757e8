"""Adam by name and group, the schedule, clipping, averaged weights."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from semisight.errors import UserError
from semisight.training.config import TrainConfig
from semisight.training.ema import EMA
from semisight.training.optimiser import (
    build_optimiser,
    clip,
    load_optimiser,
    optimiser_tensors,
    rate_at,
    set_rate,
)


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (4, 3), "bias": (3,), "log_alpha0": ()}
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}


def test_a_step_is_adams_with_the_multiplied_rate() -> None:
    own = parameters()
    config = TrainConfig(learning_rate=0.01)
    optimiser = build_optimiser(own, {"log_alpha0": 10.0}, config)
    before = {name: p.detach().clone() for name, p in own.items()}
    for p in own.values():
        p.grad = torch.full_like(p, 0.3)
    set_rate(optimiser, 0.01)
    optimiser.step()
    for name, p in own.items():  # Adam's first step is the rate against the gradient's sign
        expected = 0.1 if name == "log_alpha0" else 0.01
        torch.testing.assert_close(before[name] - p.detach(), torch.full_like(p, expected), rtol=1e-4, atol=1e-6)


def test_decay_pulls_on_matrices_only() -> None:
    own = parameters()
    optimiser = build_optimiser(own, {}, TrainConfig(weight_decay=0.5, learning_rate=0.1))
    before = {name: p.detach().clone() for name, p in own.items()}
    for p in own.values():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    torch.testing.assert_close(own["weight"].detach(), before["weight"] * (1 - 0.1 * 0.5))
    assert torch.equal(own["bias"], before["bias"]) and torch.equal(own["log_alpha0"], before["log_alpha0"])


def test_a_multiplier_of_nothing_is_an_error() -> None:
    with pytest.raises(UserError, match="log_alpha"):
        build_optimiser(parameters(), {"log_alpha": 10.0}, TrainConfig())


def test_state_by_name_goes_on_to_the_bit() -> None:
    config = TrainConfig(learning_rate=0.01)
    first, second = parameters(), parameters()
    one, two = build_optimiser(first, {}, config), build_optimiser(second, {}, config)

    def steps(own: dict[str, nn.Parameter], optimiser: torch.optim.Optimizer, numbers: range) -> None:
        for i in numbers:
            generator = torch.Generator().manual_seed(i)
            for name, p in own.items():  # bias sees no gradient at first: it has no state then
                p.grad = None if name == "bias" and i < 3 else torch.randn(p.shape, generator=generator)
            optimiser.step()

    steps(first, one, range(6))
    steps(second, two, range(2))
    third = {name: nn.Parameter(p.detach().clone()) for name, p in second.items()}
    three = build_optimiser(third, {}, config)
    load_optimiser(three, third, optimiser_tensors(two, second))
    steps(third, three, range(2, 6))
    assert all(torch.equal(first[name], third[name]) for name in first)


@given(st.integers(0, 50), st.integers(51, 500), st.floats(0, 1))
def test_the_cosine_rises_falls_and_ends_where_it_should(warmup: int, total: int, final: float) -> None:
    config = TrainConfig(learning_rate=1.0, schedule="cosine", warmup_steps=warmup, final_rate=final)
    rates = [rate_at(step, config, total) for step in range(total + 1)]
    assert all(a < b for a, b in pairwise(rates[:warmup]))
    assert math.isclose(rates[warmup], 1.0) and max(rates) <= 1 + 1e-12
    assert all(a >= b - 1e-12 for a, b in pairwise(rates[warmup:]))
    assert math.isclose(rates[total], final, abs_tol=1e-12)
    assert rate_at(total + 5, config, total) == rates[total]


def test_clipping_keeps_the_direction() -> None:
    own = list(parameters().values())
    for p in own:
        p.grad = torch.ones_like(p)
    norm = torch.nn.utils.get_total_norm([p.grad for p in own if p.grad is not None])
    clip(own, norm, 100.0)
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in own if p.grad is not None)
    clip(own, norm, 2.0)
    clipped = torch.nn.utils.get_total_norm([p.grad for p in own if p.grad is not None])
    assert math.isclose(float(clipped), 2.0, rel_tol=1e-5)
    clip(own, norm, None)


def test_the_average_is_the_formula_and_swaps_in_and_out() -> None:
    own = parameters()
    average = EMA(own, decay=0.5)
    expected = {name: p.detach().clone() for name, p in own.items()}
    for n in range(5):
        for p in own.values():
            p.data += 1.0
        average.update()
        decay = min(0.5, (1 + n) / (10 + n))
        for name, p in own.items():
            expected[name] += (1 - decay) * (p.detach() - expected[name])
    for name, value in average.tensors().items():
        torch.testing.assert_close(value, expected[name])
    weights = {name: p.detach().clone() for name, p in own.items()}
    with pytest.raises(RuntimeError, match="inside"), average.in_place():
        for name, p in own.items():
            torch.testing.assert_close(p.detach(), expected[name])
        raise RuntimeError("inside")
    assert all(torch.equal(own[name], weights[name]) for name in own)


def test_one_cycle_rises_and_falls_and_ends_with_the_steps_or_the_time() -> None:
    config = TrainConfig(learning_rate=1.0, schedule="one-cycle")
    rates = [rate_at(step, config, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.05) and rates[20] == 1.0 == max(rates) and rates[100] == 0.0
    assert rates[10] == pytest.approx(0.525) and rates[60] == pytest.approx(0.5)
    by_time = [rate_at(7, config, None, gone / 100) for gone in range(101)]
    assert by_time == rates
    assert rate_at(10, config, 100, 0.6) == rates[60] and rate_at(60, config, 100, 0.1) == rates[60]
    assert rate_at(200, config, 100) == 0.0 == rate_at(0, config, None, 1.3)
