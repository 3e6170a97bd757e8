"""The transductive SVM: its solver against scikit-learn's, its balance, what unlabelled images buy, and bad input."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits, make_moons
from sklearn.svm import SVC, LinearSVC

from semisight.baselines.tsvm import TransductiveSVM, latent_labels, newton_step
from semisight.errors import UserError


def two_blobs(n: int = 600, seed: int = 0, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Two long parallel Gaussians in 10 dimensions: 4 standard deviations apart, six times as long as wide."""
    random = np.random.default_rng(seed)
    y = (random.random(n) < share).astype(int)
    X = random.normal(size=(n, 10))
    X[:, 0] += 4 * y
    X[:, 1] *= 6
    return X.astype(np.float32), y


def few(y: np.ndarray, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of labelled and unlabelled rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    labelled = np.concatenate([order[y[order] == c][:per_class] for c in np.unique(y)])
    return labelled, np.setdiff1d(order, labelled)


# ---- the pieces ----------------------------------------------------------------------------------------------------


def test_newton_steps_reach_scikit_learns_solution() -> None:
    """The same objective as LinearSVC's squared hinge with its regularised intercept."""
    X, _ = two_blobs(300)
    y = np.digitize(X[:, 0], [1.0, 3.0])  # three classes, the middle one not separable
    X = X / 10
    theirs = LinearSVC(C=2.0, tol=1e-10, max_iter=200_000, dual=True, random_state=0).fit(X, y)
    A = np.concatenate([X, np.ones((len(X), 1), np.float32)], 1)
    Y = np.eye(3, dtype=np.float32)[y]
    W = np.zeros((A.shape[1], 3), np.float32)
    for _ in range(15):
        W = newton_step(A, W, 2 * Y, 2 * (1 - Y), lambda residual: residual, n_cg=30)
    expected = np.concatenate([theirs.coef_, theirs.intercept_[:, None]], 1).T
    np.testing.assert_allclose(W, expected, rtol=1e-3, atol=2e-3)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8))
def test_a_newton_step_never_raises_the_objective(seed: int, n_cg: int) -> None:
    random = np.random.default_rng(seed)
    X, W = random.normal(size=(40, 6)).astype(np.float32), 3 * random.normal(size=(6, 3)).astype(np.float32)
    positive, negative = random.exponential(size=(2, 40, 3)).astype(np.float32) * 10 ** random.uniform(-2, 2)

    def objective(weights: np.ndarray) -> np.ndarray:
        f = (X @ weights).astype(np.float64)
        losses = positive * np.maximum(1 - f, 0) ** 2 + negative * np.maximum(1 + f, 0) ** 2
        return 0.5 * (weights.astype(np.float64) ** 2).sum(0) + losses.sum(0)

    after = objective(newton_step(X, W, positive, negative, lambda residual: residual, n_cg))
    assert (after <= objective(W) * (1 + 1e-4)).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 6), st.floats(0.2, 20))
def test_latent_labels_hold_the_balance(seed: int, n_classes: int, sharpness: float) -> None:
    random = np.random.default_rng(seed)
    logits = (sharpness * random.normal(size=(400, n_classes))).astype(np.float32)
    shares = random.dirichlet(np.full(n_classes, 5.0)) * 0.9 + 0.1 / n_classes
    P, offsets = latent_labels(logits, shares, np.zeros(n_classes))
    np.testing.assert_allclose(P.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(P.mean(0), shares, rtol=2e-3)
    unshifted, _ = latent_labels(logits + offsets.astype(np.float32), None, np.zeros(n_classes))
    np.testing.assert_allclose(P, unshifted, atol=1e-4)  # nothing but a softmax with offsets


# ---- what it is for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_unlabelled_blobs_beat_the_supervised_svm(seed: int) -> None:
    X, y = two_blobs(seed=seed)
    fresh, truth = two_blobs(seed=100 + seed)
    labelled, unlabelled = few(y, 4, seed)
    supervised = np.mean(LinearSVC(dual=True).fit(X[labelled], y[labelled]).predict(fresh) != truth)
    ours = TransductiveSVM(kernel="linear").fit(X[labelled], y[labelled], X[unlabelled])
    assert np.mean(ours.predict(fresh) != truth) < 0.06  # the best rule errs at Phi(-2) = 2.3 %
    assert np.mean(ours.predict(fresh) != truth) < supervised
    assert np.mean(ours.transduction_ != y[unlabelled]) < 0.06


def test_unlabelled_moons_beat_the_supervised_svm() -> None:
    X, y = make_moons(600, noise=0.08, random_state=1)
    errors, supervised = [], []
    for seed in range(5):
        labelled, unlabelled = few(y, 4, seed)
        ours = TransductiveSVM(gamma=5.0, n_components=200).fit(X[labelled], y[labelled], X[unlabelled])
        theirs = SVC(C=10.0, gamma=5.0).fit((X / X.std())[labelled], y[labelled])
        errors.append(np.mean(ours.transduction_ != y[unlabelled]))
        supervised.append(np.mean(theirs.predict((X / X.std())[unlabelled]) != y[unlabelled]))
    assert np.mean(errors) < 0.6 * np.mean(supervised)


def test_digits_from_five_labels_per_class() -> None:
    X, y = load_digits(return_X_y=True)
    errors, supervised = [], []
    for seed in range(2):
        labelled, unlabelled = few(y, 5, seed)
        ours = TransductiveSVM(n_components=300, seed=seed).fit(X[labelled], y[labelled], X[unlabelled])
        errors.append(np.mean(ours.predict(X[unlabelled]) != y[unlabelled]))
        supervised.append(np.mean(SVC(C=10.0).fit(X[labelled], y[labelled]).predict(X[unlabelled]) != y[unlabelled]))
    assert np.mean(errors) < 0.75 * np.mean(supervised)


def test_the_balance_given_is_the_balance_got() -> None:
    X, y = two_blobs(800, share=0.25)
    labelled, unlabelled = few(y, 5, 0)  # the labels say half and half, the user knows better
    told = TransductiveSVM(kernel="linear", class_balance=[0.75, 0.25]).fit(X[labelled], y[labelled], X[unlabelled])
    assert np.mean(told.transduction_ == 1) == pytest.approx(0.25, abs=0.01)
    untold = TransductiveSVM(kernel="linear").fit(X[labelled], y[labelled], X[unlabelled])
    assert np.mean(untold.transduction_ == 1) == pytest.approx(0.5, abs=0.01)
    assert np.mean(told.transduction_ != y[unlabelled]) < np.mean(untold.transduction_ != y[unlabelled])
    free = TransductiveSVM(kernel="linear", class_balance=None).fit(X[labelled], y[labelled], X[unlabelled])
    assert np.mean(free.transduction_ == 1) != pytest.approx(0.5, abs=0.01)


def test_without_weight_on_the_unlabelled_it_is_the_supervised_svm() -> None:
    X, y = two_blobs()
    labelled, unlabelled = few(y, 6, 0)
    ours = TransductiveSVM(kernel="linear", C=1.0, C_unlabelled=0.0).fit(X[labelled], y[labelled], X[unlabelled])
    mean = X[unlabelled].mean(0)
    scale = np.sqrt(((X[unlabelled] - mean) ** 2).sum(1).mean())
    theirs = LinearSVC(C=1.0, tol=1e-9, max_iter=100_000, dual=True).fit((X[labelled] - mean) / scale, y[labelled])
    decision = ours.decision_function(X)
    np.testing.assert_allclose(decision[:, 1], theirs.decision_function((X - mean) / scale), rtol=1e-2, atol=1e-3)


def test_same_seed_same_answer_and_names_as_labels() -> None:
    X, y = two_blobs(300)
    names = np.array(["cat", "dog"])[y]
    labelled, unlabelled = few(y, 5, 0)
    one, two = (
        TransductiveSVM(n_components=100, seed=3).fit(X[labelled], names[labelled], X[unlabelled]) for _ in "ab"
    )
    assert np.array_equal(one.decision_function(X), two.decision_function(X))
    assert one.decision_function(X).shape == (300, 2) and one.decision_function(X).dtype == np.float32
    assert set(one.predict(X)) <= {"cat", "dog"} and list(one.classes_) == ["cat", "dog"]


def test_constant_features_and_a_huge_C_stay_finite() -> None:
    X, y = two_blobs(200)
    X[:, 5] = 7.0
    labelled, unlabelled = few(y, 5, 0)
    for kernel in ("linear", "rbf"):
        ours = TransductiveSVM(C=1e6, kernel=kernel, n_components=50).fit(X[labelled], y[labelled], X[unlabelled])  # type: ignore[arg-type]
        assert np.isfinite(ours.decision_function(X)).all()


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_bad_input_is_named() -> None:
    X, y = two_blobs(40)
    labelled, unlabelled = few(y, 4, 0)
    Xl, yl, Xu = X[labelled], y[labelled], X[unlabelled]
    holes = Xu.copy()
    holes[3, 2] = np.nan
    cases = [
        ((Xl, np.zeros(len(yl), int), Xu), "at least two classes"),
        ((Xl[:0], yl[:0], Xu), "no labelled image"),
        ((Xl, yl, Xu[:0]), "no unlabelled image"),
        ((Xl, yl[:-1], Xu), "one label for each of the 8 rows"),
        ((Xl, np.where(np.arange(8) == 0, -1, yl), Xu), "negative labels"),
        ((Xl, yl, Xu[:, :5]), "10 features and X_unlabelled 5"),
        ((Xl, yl, holes), "X_unlabelled has values that are not finite, first in row 3"),
        ((Xl.reshape(8, 2, 5), yl, Xu), "flatten each image"),
        ((np.array([["a"] * 10] * 8), yl, Xu), "must hold numbers"),
    ]
    for arguments, message in cases:
        with pytest.raises(UserError, match=message):
            TransductiveSVM().fit(*arguments)


@pytest.mark.parametrize("balance", [[0.5, 0.6], [1.0], [1.5, -0.5], "equal"])
def test_a_bad_balance_is_refused(balance: list[float] | str) -> None:
    X, y = two_blobs(40)
    labelled, unlabelled = few(y, 4, 0)
    with pytest.raises(UserError, match="class_balance"):
        TransductiveSVM(class_balance=balance).fit(X[labelled], y[labelled], X[unlabelled])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings", [{"C": 0}, {"C_unlabelled": -1}, {"gamma": 0}, {"n_components": 0}, {"kernel": "cubic"}]
)
def test_bad_settings_are_refused(settings: dict) -> None:
    with pytest.raises(UserError):
        TransductiveSVM(**settings)


def test_predicting_too_early_or_with_other_features_is_refused() -> None:
    X, y = two_blobs(40)
    with pytest.raises(UserError, match="not been fitted"):
        TransductiveSVM().predict(X)
    labelled, unlabelled = few(y, 4, 0)
    fitted = TransductiveSVM(kernel="linear").fit(X[labelled], y[labelled], X[unlabelled])
    with pytest.raises(UserError, match="fitted on 10"):
        fitted.predict(X[:, :4])
