"""Probabilities from decision values, fitted on held-out labels, and how far to believe them.

    p(l | X) = softmax_l(scale_l f_l + offset_l)

`fit_temperature` has one scale and no offsets (Guo et al., "On calibration of modern neural networks", 2017),
`fit_affine` a scale and an offset per class (Platt, 1999, for many classes: "vector scaling"), drawn towards the
temperature by a ridge, so that a handful of held-out labels cannot tear the classes apart. Both maximise a concave
likelihood against Platt's smoothed targets, which keep the scale finite when no held-out image is misclassified.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semisight.errors import UserError
from semisight.metrics.classification import Numbers, labelled_pair

_MOST = 1e12  # of a scale or an offset


@dataclass(frozen=True)
class Calibration:
    """The fitted map from decision values [B, C] to probabilities; `scale` and `offset` are float64 [C]."""

    scale: Tensor
    offset: Tensor

    def probabilities(self, decision: Tensor) -> Tensor:
        """[B, C], rows adding up to 1, in the type of `decision`."""
        scale, offset = self.scale.to(decision), self.offset.to(decision)
        return (decision * scale + offset).softmax(1)

    def fits(self, n_classes: int) -> bool:
        """Whether it is one for so many classes, of numbers that leave probabilities finite."""
        values = torch.stack([self.scale, self.offset]) if self.scale.shape == self.offset.shape else self.scale[:0]
        return values.shape == (2, n_classes) and bool((values.abs() < _MOST).all())

    def to_dict(self) -> dict[str, list[float]]:
        return {"scale": self.scale.tolist(), "offset": self.offset.tolist()}

    @staticmethod
    def from_dict(values: dict[str, Sequence[float]]) -> "Calibration":
        scale, offset = (torch.as_tensor(values[key], dtype=torch.float64) for key in ("scale", "offset"))
        return Calibration(scale, offset)


@dataclass(frozen=True)
class ReliabilityCurve:
    """What the report draws: in each bin of confidence, how sure the model was and how often it was right."""

    edges: Tensor  # float64 [bins + 1]
    confidence: Tensor  # float64 [bins], mean confidence, nan where empty
    accuracy: Tensor  # float64 [bins], nan where empty
    count: Tensor  # int64 [bins]

    @property
    def expected_error(self) -> float:
        """Expected calibration error: mean |confidence - accuracy|, bins weighted by their images."""
        gap = (self.confidence - self.accuracy).abs().nan_to_num(0)
        return ((gap * self.count).sum() / self.count.sum()).item()


def fit_temperature(decision: Numbers, labels: Numbers) -> Calibration:
    """One scale, fitted on held-out decision values [B, C] and labels [B] (-1: not used)."""
    f, y = _held_out(decision, labels)
    start = torch.zeros(1, dtype=torch.float64)  # of log scale, in units of the decision values' own spread
    unit = 1 / f.std().clamp_min(1e-12)

    def loss(log_scale: Tensor) -> Tensor:
        return _cross_entropy(log_scale.exp() * unit * f, y)

    scale = (_minimise(loss, start).exp() * unit).expand(f.shape[1]).clone()
    return Calibration(scale, torch.zeros_like(scale))


def fit_affine(decision: Numbers, labels: Numbers, ridge: float = 1.0) -> Calibration:
    """A scale and an offset per class; `ridge`, in units of one image, draws them to one temperature and to 0."""
    if not ridge >= 0:
        raise UserError(f"the ridge of a calibration must not be negative, and is {ridge}")
    f, y = _held_out(decision, labels)
    n, n_classes = f.shape
    common = fit_temperature(decision, labels).scale

    def loss(change: Tensor) -> Tensor:
        factor, offset = 1 + change[:n_classes], change[n_classes:]
        return _cross_entropy(factor * common * f + offset, y) + ridge / (2 * n) * change.square().sum()

    change = _minimise(loss, torch.zeros(2 * n_classes, dtype=torch.float64))
    return Calibration((1 + change[:n_classes]) * common, change[n_classes:])


def reliability_curve(probabilities: Numbers, labels: Numbers, n_bins: int = 15) -> ReliabilityCurve:
    """Bins of equal width over the confidence, the largest probability of each image."""
    if n_bins < 1:
        raise UserError(f"a reliability curve needs at least one bin, not {n_bins}")
    p, y = labelled_pair(probabilities, labels)
    p = _as_probabilities(p)
    confidence, predicted = p.max(1)
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    which = (confidence * n_bins).ceil().long().sub(1).clamp(0, n_bins - 1)  # (low, high], so that 1 is in the last
    count = torch.bincount(which, minlength=n_bins)
    sums = torch.bincount(which, confidence, minlength=n_bins)
    right = torch.bincount(which, (predicted == y).double(), minlength=n_bins)
    return ReliabilityCurve(edges, sums / count, right / count, count)


def expected_calibration_error(probabilities: Numbers, labels: Numbers, n_bins: int = 15) -> float:
    return reliability_curve(probabilities, labels, n_bins).expected_error


def negative_log_likelihood(probabilities: Numbers, labels: Numbers) -> float:
    """Mean of -log p(true label) in nats: a proper score, it rewards both being right and knowing when not."""
    p, y = labelled_pair(probabilities, labels)
    own = _as_probabilities(p).gather(1, y[:, None])
    return -own.clamp_min(1e-12).log().mean().item()


def brier_score(probabilities: Numbers, labels: Numbers) -> float:
    """Mean squared distance of the probabilities from the truth: 0 at best, 2 at worst."""
    p, y = labelled_pair(probabilities, labels)
    p = _as_probabilities(p)
    return (p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean().item()


def _held_out(decision: Numbers, labels: Numbers) -> tuple[Tensor, Tensor]:
    f, y = labelled_pair(decision, labels)
    f = f.double()
    if not bool(f.isfinite().all()):
        raise UserError("decision values that are not finite cannot be calibrated: has the training diverged?")
    if f.shape[1] < 2:
        raise UserError("calibration needs decision values for at least two classes")
    return f, y


def _as_probabilities(p: Tensor) -> Tensor:
    p = p.double()
    if not bool((p >= 0).all()) or not bool(((p.sum(1) - 1).abs() < 1e-3).all()):
        raise UserError("these are not probabilities: each row must be non-negative and add up to 1")
    return p


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Against targets (n onehot + 1/C) / (n + 1), n the number of images: Platt's smoothing, for C classes.

    One image's worth of doubt in all, not one for each class: with few labels and many classes that would drown them.
    """
    n = len(logits)
    log_p = logits.log_softmax(1)
    own = log_p.gather(1, labels[:, None]).squeeze(1)
    return -((n * own + log_p.mean(1)) / (n + 1)).mean()


def _minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    # scipy's L-BFGS: the first step of torch's own takes seconds, for it loads torch's compiler. Imported here: every
    # command that reads a calibration would wait for it.
    from scipy.optimize import minimize

    def value_and_gradient(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        with torch.enable_grad():
            at = torch.from_numpy(x).requires_grad_()
            value = loss(at)
            (gradient,) = torch.autograd.grad(value, at)
        return value.item(), gradient.numpy()

    options = {"maxiter": 500, "ftol": 1e-13, "gtol": 1e-8}
    return torch.from_numpy(minimize(value_and_gradient, start.numpy(), jac=True, method="L-BFGS-B", options=options).x)
