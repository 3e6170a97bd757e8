"""Tags of new images: decision values over codes, Platt's two numbers, and the tags that an image has."""

import math

import pytest
import torch

from semisight.inference.encode import Codes
from semisight.inference.tags import TagCalibration, TagReader, fit_tags
from semisight.model.heads.tags import TagHead


def reader_of(fitted: TagCalibration | None = None) -> TagReader:
    head = TagHead(2, 2, "logistic")
    with torch.no_grad():
        head.scores.beta.copy_(torch.eye(2))
    return TagReader(head, ("red", "round"), fitted)


def test_probabilities_and_spread_over_draws_of_z() -> None:
    mu = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])
    answer = reader_of()(Codes(mu, torch.full_like(mu, math.log(2.0))))
    torch.testing.assert_close(answer.probabilities, torch.sigmoid(torch.tensor([[2.0, 0.0]])))
    torch.testing.assert_close(answer.spreads, torch.tensor([[5**0.5, 2.0]]))  # within 2, between draws 1 and 0
    assert answer.tags(0) == (("red", pytest.approx(0.8808, abs=1e-4)), ("round", 0.5))
    assert answer.tags(0, threshold=0.6) == (("red", pytest.approx(0.8808, abs=1e-4)),) and len(answer) == 1
    calibrated = reader_of(TagCalibration(2.0, -1.0, step=3, n=100))
    of = calibrated(Codes(mu, torch.zeros_like(mu)))
    torch.testing.assert_close(of.probabilities, torch.sigmoid(torch.tensor([[3.0, -1.0]])))
    joined = calibrated.joined([of, of])
    assert len(joined) == 2 and "calibrated on 100" in calibrated.believable()
    assert "not calibrated" in reader_of().believable()


def test_the_calibration_is_fitted_on_known_entries_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(1500, 2, generator=generator)
    values = torch.bernoulli(torch.sigmoid(3 * f + 1), generator=generator).to(torch.int8)
    hidden = torch.rand(1500, 2, generator=generator) < 0.5
    fitted = fit_tags(f, torch.where(hidden, -1, values).to(torch.int8), step=5)
    assert fitted is not None and fitted.step == 5 and fitted.n == int((~hidden).sum())
    assert fitted.scale == pytest.approx(3, abs=0.5) and fitted.offset == pytest.approx(1, abs=0.3)
    assert TagCalibration.from_dict(fitted.to_dict()) == fitted
    assert fit_tags(f[:60], values[:60], step=5) is None, "too few of each kind"
    assert fit_tags(f, torch.ones_like(values), step=5) is None
