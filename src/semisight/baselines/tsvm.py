"""Section 5.2, Table 2: the transductive SVM that gets features learned without labels (xi = 0), or raw pixels.

    minimise over W and P:   |W|^2 / 2  +  C sum_labelled sum_k hinge^2(y_ik f_ik)
        + C_u sum_unlabelled {sum_k [p_ik hinge^2(f_ik) + (1 - p_ik) hinge^2(-f_ik)] - T entropy(p_i)},   f = X W,
    where each row of P is a distribution over classes and column k adds up to class k's share of the unlabelled images.

One-versus-rest SVMs whose unlabelled images carry latent labels P. The two steps alternate: P given W is a softmax with
one offset per class, which holds the balance; W given P is a smooth convex problem, improved by a preconditioned Newton
step, all classes at once. T falls and C_u rises meanwhile (deterministic annealing: Sindhwani, Keerthi and Chapelle,
"Deterministic annealing for semi-supervised kernel machines", 2006; class balance as in Joachims, 1999), because
from a cold start the latent labels would freeze where the few labels put them. The kernel is scikit-learn's Nystroem.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve
from sklearn.kernel_approximation import Nystroem

from semisight.errors import UserError

Floats = NDArray[np.float32]
Precondition = Callable[[Floats], Floats]

STAGES = 8
FIRST_TEMPERATURE, LAST_TEMPERATURE = 1.0, 0.2  # in units of the squared hinge; higher ones only cost time
FIRST_WEIGHT = 0.02  # of C_unlabelled, reached after two thirds of the stages
ALTERNATIONS = 8  # per stage, fewer when the latent labels stand still
STILL = 1e-3  # share of latent labels that may yet change
ROWS = 10_000  # images taken through the kernel at a time


class TransductiveSVM:
    """Learns from labelled and unlabelled rows of features together.

    `C` weighs each labelled image, `C_unlabelled` each unlabelled one; left out, all unlabelled images together weigh
    ten times the labelled ones, yet none more than C/10: chosen, like the other defaults, on held-out training images
    of MNIST. `class_balance`: "labels" (the unlabelled classes have the labels' shares), the shares themselves in the
    order of `classes_`, or None for no constraint. Features are centred and divided by one number, so that their mean
    squared length is 1; `gamma` of the rbf kernel is in that unit (1 is scikit-learn's "scale").
    """

    classes_: NDArray
    transduction_: NDArray  # the classes given to the unlabelled images

    def __init__(
        self,
        C: float = 10.0,
        C_unlabelled: float | None = None,
        class_balance: Literal["labels"] | Sequence[float] | None = "labels",
        kernel: Literal["rbf", "linear"] = "rbf",
        gamma: float = 1.0,
        n_components: int = 1000,
        seed: int = 0,
    ) -> None:
        if not C > 0 or not gamma > 0 or (C_unlabelled is not None and not C_unlabelled >= 0) or n_components < 1:
            raise UserError(
                "the transductive SVM needs C > 0, C_unlabelled >= 0, gamma > 0 and n_components >= 1, "
                f"not C={C}, C_unlabelled={C_unlabelled}, gamma={gamma}, n_components={n_components}"
            )
        if kernel not in ("rbf", "linear"):
            raise UserError(f'the transductive SVM has no kernel "{kernel}": choose "rbf" or "linear"')
        self.C, self.C_unlabelled, self.class_balance = C, C_unlabelled, class_balance
        self.kernel, self.gamma, self.n_components, self.seed = kernel, gamma, n_components, seed
        self._W: Floats | None = None

    def fit(self, X_labelled: ArrayLike, y: ArrayLike, X_unlabelled: ArrayLike) -> "TransductiveSVM":
        """X_labelled [n, d] with labels y [n], integers or names; X_unlabelled [m, d]."""
        labelled, unlabelled = _features(X_labelled, "X_labelled"), _features(X_unlabelled, "X_unlabelled")
        labels = np.asarray(y)
        self._check(labelled, labels, unlabelled)
        self.classes_, index = np.unique(labels, return_inverse=True)
        shares = self._shares(index)

        self._learn_features(unlabelled if len(unlabelled) >= len(labelled) else np.concatenate([labelled, unlabelled]))
        X = self._map(labelled, unlabelled)  # [n + m, D]
        n, m = len(labelled), len(unlabelled)
        Y = np.eye(len(self.classes_), dtype=np.float32)[index]
        gram_labelled, gram_unlabelled = X[:n].T @ X[:n], X[n:].T @ X[n:]

        W = np.zeros((X.shape[1], len(self.classes_)), np.float32)
        precondition = _preconditioner(2 * self.C * gram_labelled)
        for _ in range(20):  # the supervised SVM, where annealing starts
            W = newton_step(X[:n], W, self.C * Y, self.C * (1 - Y), precondition, n_cg=20)

        weight = self.C * min(10 * n / m, 0.1) if self.C_unlabelled is None else self.C_unlabelled
        offsets, latent = np.zeros(len(self.classes_)), np.full(m, -1)
        for stage in range(STAGES):
            T = FIRST_TEMPERATURE * (LAST_TEMPERATURE / FIRST_TEMPERATURE) ** (stage / (STAGES - 1))
            C_u = weight * FIRST_WEIGHT ** max(0.0, 1 - 1.5 * (stage + 1) / STAGES)
            # Inside the margin the curvature is 2 C_u, beyond it nearly nothing: halfway is a fair guess.
            precondition = _preconditioner(2 * self.C * gram_labelled + C_u * gram_unlabelled)
            for alternation in range(ALTERNATIONS):
                f = X[n:] @ W
                preference = np.maximum(1 + f, 0) ** 2 - np.maximum(1 - f, 0) ** 2
                P, offsets = latent_labels(preference / np.float32(T), shares, offsets)
                before, latent = latent, P.argmax(1)
                if alternation > 0 and (before != latent).mean() < STILL:
                    break
                positive = np.concatenate([self.C * Y, C_u * P])
                negative = np.concatenate([self.C * (1 - Y), C_u * (1 - P)])
                W = newton_step(X, W, positive, negative, precondition, n_cg=6)
        self._W, self.transduction_ = W, self.classes_[latent]
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """[n, n_classes]: f of every one-versus-rest classifier, in the order of `classes_`."""
        if self._W is None:
            raise UserError("this transductive SVM has not been fitted: call fit(X_labelled, y, X_unlabelled) first")
        features = _features(X, "X")
        if features.shape[1] != len(self._mean):
            raise UserError(f"X has {features.shape[1]} features, but the SVM was fitted on {len(self._mean)}")
        return self._map(features) @ self._W

    def predict(self, X: ArrayLike) -> NDArray:
        best = self.decision_function(X).argmax(1)
        return self.classes_[best]

    def _check(self, labelled: Floats, labels: NDArray, unlabelled: Floats) -> None:
        if len(labelled) == 0:
            raise UserError("no labelled image: a transductive SVM needs at least one of each of two classes")
        if len(unlabelled) == 0:
            raise UserError("no unlabelled image: use an ordinary SVM, there is nothing to transduce")
        if labels.shape != (len(labelled),):
            raise UserError(
                f"y must hold one label for each of the {len(labelled)} rows, but its shape is {labels.shape}"
            )
        if labels.dtype.kind in "if" and bool((labels < 0).any()):
            raise UserError("y has negative labels: give images without a label as X_unlabelled")
        if len(np.unique(labels)) < 2:
            raise UserError(f'all {len(labels)} labels are "{labels[0]}": an SVM needs at least two classes')
        if labelled.shape[1] != unlabelled.shape[1]:
            raise UserError(
                f"X_labelled has {labelled.shape[1]} features and X_unlabelled {unlabelled.shape[1]}: they must agree"
            )

    def _shares(self, index: NDArray) -> NDArray[np.float64] | None:
        if self.class_balance is None:
            return None
        if isinstance(self.class_balance, str):
            if self.class_balance != "labels":
                raise UserError(
                    f'class_balance is "labels", None or a share for each class, not "{self.class_balance}"'
                )
            return np.bincount(index) / len(index)
        shares = np.asarray(self.class_balance, dtype=np.float64)
        if shares.shape != self.classes_.shape or not bool((shares > 0).all()) or abs(shares.sum() - 1) > 1e-3:
            raise UserError(
                f"class_balance must be {len(self.classes_)} positive shares that add up to 1, "
                f"one for each of {list(self.classes_)}, not {list(self.class_balance)}"
            )
        return shares / shares.sum()

    def _learn_features(self, X: Floats) -> None:
        self._mean, self._scale = _centre(X)
        self._nystroem: Nystroem | None = None
        self._kernel_mean, self._kernel_scale = np.zeros(1, np.float32), np.float32(1)
        if self.kernel == "rbf":
            random = np.random.default_rng(self.seed)
            rows = random.permutation(len(X))[:ROWS]
            self._nystroem = Nystroem(
                gamma=self.gamma, n_components=min(self.n_components, len(rows)), random_state=self.seed
            ).fit((X[rows] - self._mean) / self._scale)
            self._kernel_mean, self._kernel_scale = _centre(self._map(X[rows])[:, :-1])

    def _map(self, *tables: Floats) -> Floats:
        """All rows centred, scaled, through the kernel, and a column of ones for the bias."""
        width = len(self._mean) if self._nystroem is None else len(self._nystroem.components_)
        mapped = np.ones((sum(len(table) for table in tables), width + 1), np.float32)
        end = 0
        for table in tables:
            for start in range(0, len(table), ROWS):
                part = (table[start : start + ROWS] - self._mean) / self._scale
                if self._nystroem is not None:
                    part = (self._nystroem.transform(part) - self._kernel_mean) / self._kernel_scale
                mapped[end : end + len(part), :-1] = part
                end += len(part)
        return mapped


def newton_step(
    X: Floats, W: Floats, positive: Floats, negative: Floats, precondition: Precondition, n_cg: int
) -> Floats:
    """One Newton step, with an exact line search per class, on

    |W|^2 / 2 + sum_ik [positive_ik max(0, 1 - f_ik)^2 + negative_ik max(0, 1 + f_ik)^2],  f = X W.
    """

    def slopes(f: Floats) -> tuple[Floats, Floats]:
        below, above = 1 - f, 1 + f
        curvature = 2 * (positive * (below > 0) + negative * (above > 0))
        return 2 * (negative * np.maximum(above, 0) - positive * np.maximum(below, 0)), curvature

    f = X @ W
    slope, curvature = slopes(f)
    # Conjugate gradients for (I + X' diag(curvature) X) D = -gradient, the classes side by side.
    residual = -(W + X.T @ slope)
    D, XD = np.zeros_like(W), np.zeros_like(f)
    z = precondition(residual)
    direction, size = z, (residual * z).sum(0)
    enough = 1e-3 * size + 1e-20
    for _ in range(n_cg):
        X_direction = X @ direction
        A_direction = direction + X.T @ (curvature * X_direction)
        length = size / np.maximum((direction * A_direction).sum(0), 1e-30)
        D, XD, residual = D + length * direction, XD + length * X_direction, residual - length * A_direction
        z = precondition(residual)
        before, size = size, (residual * z).sum(0)
        if bool((size < enough).all()):
            break
        direction = z + size / np.maximum(before, 1e-30) * direction

    # The objective along D is convex and piecewise quadratic: Newton on its slope, kept inside a bracket.
    W_D, D_D = (W * D).sum(0), (D * D).sum(0)
    step, low, high = np.ones_like(W_D), np.zeros_like(W_D), np.full_like(W_D, np.inf)
    for _ in range(4):
        slope, curvature = slopes(f + step * XD)
        g, h = W_D + step * D_D + (slope * XD).sum(0), D_D + (curvature * XD * XD).sum(0)
        low, high = np.where(g < 0, step, low), np.where(g > 0, step, high)
        step = step - g / np.maximum(h, 1e-30)
        outside = (step <= low) | (step >= high)
        step = np.where(
            outside, np.where(np.isinf(high), np.maximum(step, low), (low + np.minimum(high, 1e6)) / 2), step
        )
    return (W + step * D).astype(np.float32)


def latent_labels(
    logits: Floats, shares: NDArray[np.float64] | None, offsets: NDArray[np.float64]
) -> tuple[Floats, NDArray[np.float64]]:
    """P = softmax(logits + offsets) [m, K], with the offsets, sought from those given, that make column means `shares`.

    The offsets minimise mean(logsumexp(logits + offsets)) - shares'offsets, convex in a handful of unknowns: Newton.
    """
    logits = logits - logits.max(1, keepdims=True)

    def at(b: NDArray[np.float64]) -> tuple[Floats, float]:
        shifted = logits + b.astype(np.float32)
        top = shifted.max(1, keepdims=True)
        P = np.exp(shifted - top)
        total = P.sum(1, keepdims=True)
        value = float((np.log(total) + top).mean(dtype=np.float64))
        return P / total, value if shares is None else value - float(shares @ b)

    P, value = at(offsets)
    if shares is None:
        return P, offsets
    n_classes = len(shares)
    for _ in range(50):
        got = P.mean(0, dtype=np.float64)
        gradient = got - shares
        if np.abs(gradient / shares).max() < 1e-3:
            break
        # Adding a constant to all offsets changes nothing: the matrix of ones fills that null direction.
        hessian = np.diag(got) - (P.T @ P).astype(np.float64) / len(P) + 1 / n_classes + 1e-6 * np.eye(n_classes)
        change = -np.linalg.solve(hessian, gradient)
        length = 1.0
        P, new = at(offsets + change)
        while new > value + 1e-4 * length * float(gradient @ change) + 1e-8 and length > 1e-3:
            length /= 2
            P, new = at(offsets + length * change)
        offsets, value = offsets + length * change, new
    return P, offsets


def _preconditioner(curvature: Floats) -> Precondition:
    # In float64: in float32 a large C would drown the identity and with it positive definiteness.
    factor = cho_factor(curvature.astype(np.float64) + np.eye(len(curvature)), overwrite_a=True)
    return lambda residual: cho_solve(factor, residual).astype(np.float32)


def _centre(X: Floats) -> tuple[Floats, np.float32]:
    """The mean, and the root mean squared length about it."""
    mean = X.mean(0, dtype=np.float64).astype(np.float32)
    total = sum(float(np.square(X[start : start + ROWS] - mean).sum()) for start in range(0, len(X), ROWS))
    return mean, np.float32(max((total / len(X)) ** 0.5, 1e-12))


def _features(X: ArrayLike, name: str) -> Floats:
    features = np.asarray(X)
    if features.dtype.kind not in "fiub":
        raise UserError(f"{name} must hold numbers, not {features.dtype}")
    if features.ndim != 2:
        raise UserError(
            f"{name} must be a table [images, features], but its shape is {features.shape}: flatten each image"
        )
    features = features.astype(np.float32, copy=False)
    if not bool(np.isfinite(features).all()):
        bad = int((~np.isfinite(features).all(1)).nonzero()[0][0])
        raise UserError(f"{name} has values that are not finite, first in row {bad}: remove or mend those rows")
    return features
