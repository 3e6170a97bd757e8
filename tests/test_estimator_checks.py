"""scikit-learn's own checks of an estimator. Rows of a few numbers stand in for images there."""

from collections.abc import Callable

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from semisight import SemiSight

EXPECTED = {
    "check_fit_score_takes_y": "fit(images, labels): the second argument is y, called by what it is here",
    "check_supervised_y_no_nan": "a label that is NaN is an unknown one, and images alone can be learned from",
    "check_methods_subset_invariance": "float32 sums over another number of images end in other seventh digits",
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    # -1 is a class in some of these checks, so here only None and NaN are unknown
    [SemiSight(max_steps=3, batch_size=16, consistency=False, unknown_label=None, image_shape="square")],
    expected_failed_checks=lambda estimator: EXPECTED,
)
def test_conventions(estimator: SemiSight, check: Callable[[SemiSight], None]) -> None:
    check(estimator)
