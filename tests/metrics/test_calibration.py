"""Calibration on synthetic models whose true probabilities are known, and whose decision values lie about them."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from semisight.errors import UserError
from semisight.metrics.calibration import (
    Calibration,
    brier_score,
    expected_calibration_error,
    fit_affine,
    fit_temperature,
    negative_log_likelihood,
    reliability_curve,
)


def truthful(n: int, n_classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from their softmax: perfectly calibrated."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, n_classes, dtype=torch.float64, generator=generator)
    return logits, torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)


@pytest.mark.parametrize("factor", [0.2, 5.0, 1e4])
def test_temperature_undoes_a_scale(factor: float) -> None:
    logits, labels = truthful(20_000)
    fitted = fit_temperature(factor * logits, labels)
    assert (fitted.scale * factor).tolist() == pytest.approx([1.0] * 4, rel=0.03)
    fresh, fresh_labels = truthful(20_000, seed=1)
    before = expected_calibration_error((factor * fresh).softmax(1), fresh_labels)
    after = expected_calibration_error(fitted.probabilities(factor * fresh), fresh_labels)
    assert before > 0.1 and after < 0.015


def test_affine_undoes_a_scale_and_an_offset_per_class() -> None:
    logits, labels = truthful(30_000)
    bent = (logits - torch.tensor([1.0, 0.0, -1.0, 0.5])) / torch.tensor([0.5, 1.0, 2.0, 3.0])
    fresh, fresh_labels = truthful(20_000, seed=1)
    fresh_bent = (fresh - torch.tensor([1.0, 0.0, -1.0, 0.5])) / torch.tensor([0.5, 1.0, 2.0, 3.0])
    affine, temperature = fit_affine(bent, labels), fit_temperature(bent, labels)
    # recovered but for a constant in all offsets, which the softmax does not see
    assert affine.scale.tolist() == pytest.approx([0.5, 1.0, 2.0, 3.0], rel=0.05)
    assert (affine.offset - affine.offset[1]).tolist() == pytest.approx([1.0, 0.0, -1.0, 0.5], abs=0.1)
    assert expected_calibration_error(affine.probabilities(fresh_bent), fresh_labels) < 0.015
    best = negative_log_likelihood(fresh.softmax(1), fresh_labels)
    assert negative_log_likelihood(affine.probabilities(fresh_bent), fresh_labels) == pytest.approx(best, abs=0.005)
    assert negative_log_likelihood(temperature.probabilities(fresh_bent), fresh_labels) > best + 0.05


def test_svm_decision_values_become_believable() -> None:
    """One-versus-all margins of about 1 on a hard problem: their softmax is shy, calibrated it is not."""
    logits, labels = truthful(8_000)
    margins = (logits - logits.mean(1, keepdim=True)).clamp(-1.2, 1.2)  # squashed, as hinge losses leave them
    held_out, fresh = slice(0, 4_000), slice(4_000, None)
    before = expected_calibration_error(margins[fresh].softmax(1), labels[fresh])
    for fit in (fit_temperature, fit_affine):
        after = expected_calibration_error(
            fit(margins[held_out], labels[held_out]).probabilities(margins[fresh]), labels[fresh]
        )
        assert after < 0.5 * before


@pytest.mark.parametrize("fit", [fit_temperature, fit_affine])
def test_few_flawless_held_out_labels_give_finite_probabilities(fit) -> None:
    """No mistakes among 20 held-out images: about 1/20 of doubt remains, not none."""
    labels = torch.arange(20) % 4
    decision = 3.0 * torch.nn.functional.one_hot(labels, 4).double() - 1
    fitted = fit(decision, labels)
    confidence = fitted.probabilities(decision).max(1).values
    assert bool(fitted.scale.isfinite().all()) and bool((confidence > 0.8).all()) and bool((confidence < 0.98).all())


def test_many_classes_do_not_drown_few_labels_in_doubt() -> None:
    labels = torch.arange(30) % 10
    decision = 3.0 * torch.nn.functional.one_hot(labels, 10).double() - 1
    assert float(fit_temperature(decision, labels).probabilities(decision).max(1).values.min()) > 0.95


def test_a_useless_model_becomes_unsure() -> None:
    generator = torch.Generator().manual_seed(0)
    decision, labels = torch.randn(5_000, 4, generator=generator), torch.randint(0, 4, (5_000,), generator=generator)
    assert fit_temperature(10 * decision, labels).probabilities(10 * decision).max() < 0.35


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0.01, 100))
def test_temperature_keeps_the_order_and_ignores_missing_labels(seed: int, n_classes: int, factor: float) -> None:
    logits, labels = truthful(60, n_classes, seed)
    decision = (factor * logits).float()
    fitted = fit_temperature(decision, labels)
    p = fitted.probabilities(decision)
    assert p.dtype == torch.float32 and torch.allclose(p.sum(1), torch.ones(60), atol=1e-5)
    assert bool((fitted.scale > 0).all())
    some = torch.where(torch.arange(60) < 50, labels, -1)
    assert torch.equal(fit_temperature(decision, some).scale, fit_temperature(decision[:50], labels[:50]).scale)


def test_reliability_curve_by_hand() -> None:
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.55, 0.45], [1.0, 0.0], [0.3, 0.7]])
    curve = reliability_curve(p, [0, 1, 0, 0, -1], n_bins=5)
    assert curve.count.tolist() == [0, 0, 1, 0, 3]
    assert curve.confidence[2].item() == pytest.approx(0.55) and curve.accuracy[2].item() == 1
    assert curve.confidence[4].item() == pytest.approx(2.8 / 3) and curve.accuracy[4].item() == pytest.approx(2 / 3)
    assert math.isnan(curve.confidence[0]) and math.isnan(curve.accuracy[3])
    assert curve.edges.tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    assert curve.expected_error == pytest.approx((0.45 * 1 + (2.8 - 2) / 3 * 3) / 4)


def test_scores_by_hand() -> None:
    p = [[0.5, 0.5], [1.0, 0.0]]
    assert negative_log_likelihood(p, [0, 0]) == pytest.approx(math.log(2) / 2)
    assert brier_score(p, [0, 0]) == pytest.approx(0.25)
    assert brier_score(p, [0, 1]) == pytest.approx((0.5 + 2) / 2)


def test_calibration_survives_a_json_file() -> None:
    logits, labels = truthful(200)
    fitted = fit_affine(logits, labels)
    again = Calibration.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert torch.equal(fitted.probabilities(logits), again.probabilities(logits))


def test_fitting_works_where_gradients_are_off_and_from_arrays() -> None:
    logits, labels = truthful(200)
    expected = fit_temperature(logits, labels).scale
    with torch.no_grad():
        assert torch.equal(fit_temperature(logits, labels).scale, expected)
    assert torch.equal(fit_temperature(np.asarray(logits), np.asarray(labels)).scale, expected)


def test_bad_input_is_named() -> None:
    logits, labels = truthful(10)
    with pytest.raises(UserError, match="none of the images has a label"):
        fit_temperature(logits, torch.full((10,), -1))
    with pytest.raises(UserError, match="not finite"):
        fit_temperature(logits / 0, labels)
    with pytest.raises(UserError, match="at least two classes"):
        fit_temperature(logits[:, :1], torch.zeros(10))
    with pytest.raises(UserError, match="ridge"):
        fit_affine(logits, labels, ridge=-1)
    with pytest.raises(UserError, match="not probabilities"):
        reliability_curve(logits, labels)
    with pytest.raises(UserError, match="bin"):
        reliability_curve(logits.softmax(1), labels, n_bins=0)
