"""Errors, top-k, confusion and spread, by hand and against scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from semisight.errors import UserError
from semisight.metrics.classification import (
    confusion_matrix,
    error_per_class,
    error_rate,
    top_k_error,
)


def test_error_rate_by_hand_and_without_the_unlabelled() -> None:
    assert error_rate([0, 1, 2, 2], [0, 1, 1, 2]) == 0.25
    assert error_rate(torch.tensor([0, 1, 2, 2]), np.array([0, -1, 1, -1])) == 0.5


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 40))
def test_against_scikit_learn(seed: int, n_classes: int, n: int) -> None:
    random = np.random.default_rng(seed)
    labels, scores = random.integers(0, n_classes, n), random.normal(size=(n, n_classes))
    predicted = scores.argmax(1)
    matrix = confusion_matrix(predicted, labels, n_classes)
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(labels, predicted, labels=range(n_classes)))
    assert error_rate(predicted, labels) == pytest.approx(1 - metrics.accuracy_score(labels, predicted))
    assert 1 - matrix.diagonal().sum().item() / n == pytest.approx(error_rate(predicted, labels))
    assert top_k_error(scores, labels, 1) == pytest.approx(error_rate(predicted, labels))
    assert top_k_error(scores, labels, n_classes) == 0
    if n_classes > 2:
        theirs = metrics.top_k_accuracy_score(labels, scores, k=2, labels=range(n_classes))
        assert top_k_error(scores, labels, 2) == pytest.approx(1 - theirs)
    errors = [top_k_error(scores, labels, k) for k in range(1, n_classes + 1)]
    assert errors == sorted(errors, reverse=True)


def test_a_model_without_an_opinion_is_wrong_in_the_top_k() -> None:
    assert top_k_error(torch.zeros(5, 4), torch.arange(5) % 4, 3) == 1


def test_error_per_class_names_the_empty_class() -> None:
    errors = error_per_class(confusion_matrix([0, 0, 1], [0, 1, 1], 3))
    assert errors[:2].tolist() == [0, 0.5] and math.isnan(errors[2])


def test_bad_input_is_named() -> None:
    with pytest.raises(UserError, match="none of the images has a label"):
        error_rate([1, 2], [-1, -1])
    with pytest.raises(UserError, match=r"\[3\] and labels \[2\]"):
        error_rate([1, 2, 3], [1, 2])
    with pytest.raises(UserError, match=r"must be \[images\] with"):
        error_rate(torch.zeros(2, 3, 4), [1, 2])
    with pytest.raises(UserError, match="a label is 3"):
        top_k_error(torch.zeros(2, 3), [0, 3], 1)
    with pytest.raises(UserError, match="top-4"):
        top_k_error(torch.zeros(2, 3), [0, 1], 4)
    with pytest.raises(UserError, match="2 classes"):
        confusion_matrix([0, 2], [0, 1], 2)
