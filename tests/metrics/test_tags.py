"""Average precision and F1 of tags, worked out by hand; only known entries count."""

import math

import pytest
import torch

from semisight.metrics.tags import score_tags


def test_scores_by_hand() -> None:
    p = torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.9, 0.2], [0.3, 0.6, 0.3], [0.1, 0.4, 0.4]])
    values = torch.tensor([[1, 0, 1], [0, 1, -1], [1, -1, 1], [-1, 1, -1]], dtype=torch.int8)
    scores = score_tags(p, values, ("red", "round", "here"))
    red, round_, here = scores.tags
    assert (red.known, red.positive) == (3, 2)
    # ranked 1, 0, 1: precision 1 at the first half of the recall, 2/3 at the second
    assert red.average_precision == pytest.approx((1 + 2 / 3) / 2)
    assert red.f1 == pytest.approx(0.5)  # one right, one wrong, one missed
    assert (round_.known, round_.average_precision) == (3, 1.0)
    assert round_.f1 == pytest.approx(2 / 3)
    assert math.isnan(here.average_precision) and math.isnan(here.f1), "all that is known are 1s"
    assert scores.mean_average_precision == pytest.approx((red.average_precision + 1.0) / 2)
    assert scores.mean_f1 == pytest.approx((0.5 + 2 / 3) / 2)
    assert scores.accuracy == pytest.approx(3 / 8) and scores.n == 4


def test_nothing_known_is_no_score() -> None:
    scores = score_tags(torch.rand(3, 2), torch.full((3, 2), -1), ("a", "b"))
    assert math.isnan(scores.mean_average_precision) and math.isnan(scores.mean_f1)
