"""What a result is held against: cross-validated errors with their intervals, and logistic regression as a reference.

    logistic regression on the same features        what a practitioner would try first
    logistic regression on HOG (or on pixels)        what needs no network at all

Every way to learn is judged on the same held-out labels. Scaling and regularisation of logistic regression are chosen
by cross-validation too. If ours is not better, that is said.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semisight.data.hog import hog
from semisight.errors import UserError
from semisight.metrics.calibration import fit_temperature, negative_log_likelihood
from semisight.model.encoders.features import ScaledFeatures
from semisight.model.heads.labels import Softmax
from semisight.random import Stream, random_order
from semisight.runs.run import WAYS, Run
from semisight.training.soft_em import CrossValidated, in_order, label_folds
from semisight.untrusted import read_json

BASELINE = "logistic regression on the same features"
ON_HOG, ON_PIXELS = "logistic regression on HOG", "logistic regression on pixels"
_SIDE, _LEAST_SIDE = 64, 24  # pixels for HOG; smaller images are taken as they are
_MOST_LABELS = 3000  # that a reference is fitted to
_STANDARD, _UNIT = (0.001, 0.01, 0.1), (1.0, 10.0, 100.0)  # C by scaling


@dataclass(frozen=True)
class Way:
    """What cross-validation says of one way to learn: error and nats per label, over n labels.

    ours      whether it is one of ours, not a reference
    chosen    whether the run was learned in this way
    seconds   that judging it took
    """

    name: str
    error: float
    nll: float
    n: int
    ours: bool = True
    chosen: bool = False
    seconds: float = 0.0

    @staticmethod
    def of(name: str, said: CrossValidated, ours: bool = True, seconds: float = 0.0) -> "Way":
        p = fit_temperature(said.decisions, said.labels).probabilities(said.decisions)
        return Way(name, said.error, negative_log_likelihood(p, said.labels), len(said.labels), ours, False, seconds)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the error."""
        z, p, n = 1.96, self.error, max(1, self.n)
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))

    def words(self) -> str:
        low, high = self.interval
        return f"{self.name}: {self.error:.1%} wrong ({low:.0%} to {high:.0%}), {self.nll:.2f} nats per label"


def read_ways(run: Run) -> tuple[Way, ...]:
    """As a run keeps them; none of a run that was not judged."""
    path = run.folder.file(WAYS)
    kept: Any = run.about.get("ways") or ()
    try:
        if path.exists():
            kept = read_json(path)["ways"]
        return tuple(Way(**one) for one in kept)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); delete it to go without.") from error


def table(ways: Sequence[Way]) -> list[str]:
    """The small table, and whether ours is better."""
    if not ways:
        return [
            "Too few labels for cross-validation (two of a class are needed): how good it is cannot be said.",
        ]
    lines = ["What cross-validation on the given labels says:"]
    lines += [f"  {'*' if way.chosen else ' '} {way.words()}" for way in ways]
    return lines + [f"  {line}" for line in verdict(ways)]


def verdict(ways: Sequence[Way], error: float | None = None) -> list[str]:
    """Whether ours is better than the references, in a sentence; `error` is that of the run on other labels, for a run
    that was not cross-validated itself."""
    ours = [way.error for way in ways if way.ours] or ([] if error is None else [error])
    references = [way for way in ways if not way.ours]
    if not ours or not references:
        return []
    best = min(references, key=lambda way: way.error)
    if min(ours) >= best.error:
        return [f"Ours is not better than {best.name} here ({best.error:.1%} wrong)."]
    return []


# ---- logistic regression ----


@dataclass(frozen=True)
class Logistic:
    """Scaling and C that cross-validation chose, and what it said."""

    unit: bool
    C: float
    said: CrossValidated

    def fit(self, rows: Tensor, labels: Tensor, n_classes: int) -> tuple[ScaledFeatures, Softmax]:
        """To all given labels, as an encoder with its head: rows [N, D], labels [N], -1 where unknown."""
        known = labels >= 0
        encoder = ScaledFeatures(rows.shape[1], self.unit)
        if not self.unit:
            encoder.centre.copy_(rows[known].mean(0))
            encoder.scale.copy_(_deviation(rows[known]))
        model = _fit(_scale(encoder, rows[known]), labels[known], self.C)
        head = Softmax(rows.shape[1], n_classes)
        weights, bias = torch.from_numpy(model.coef_).float(), torch.from_numpy(model.intercept_).float()
        if len(weights) == 1:  # two classes have one row
            weights, bias = torch.cat([-weights / 2, weights / 2]), torch.cat([-bias / 2, bias / 2])
        with torch.no_grad():
            head.scores.beta.zero_()
            assert head.scores.bias is not None
            head.scores.bias.fill_(-30.0)  # a class without a label is never said
            head.scores.beta[:, torch.from_numpy(model.classes_)] = weights.T
            head.scores.bias[torch.from_numpy(model.classes_)] = bias
        return encoder, head


def logistic_regression(
    rows: Tensor,
    labels: Tensor,
    n_classes: int,
    seed: int,
    standard: Sequence[float] = _STANDARD,
    unit: Sequence[float] = _UNIT,
) -> Logistic | None:
    """The best scaling and C for rows [N, D]; None where no label can be held out."""
    folds = label_folds(labels, seed=seed)
    if not folds:
        return None
    known = labels >= 0
    best: Logistic | None = None
    for is_unit, strengths in ((False, standard), (True, unit)):
        scaled = []
        for aside in folds:
            kept = known.clone()
            kept[aside] = False
            encoder = ScaledFeatures(rows.shape[1], is_unit)
            if not is_unit:
                encoder.centre.copy_(rows[kept].mean(0))
                encoder.scale.copy_(_deviation(rows[kept]))
            scaled.append((aside, _scale(encoder, rows[kept]), labels[kept], _scale(encoder, rows[aside])))
        for C in strengths:
            parts = []
            for aside, x, y, others in scaled:
                model = _fit(x, y, C)
                log_p = torch.full((len(aside), n_classes), -30.0)
                with np.errstate(divide="ignore"):  # the log of a probability that is 0
                    said = torch.from_numpy(model.predict_log_proba(others.numpy()))
                log_p[:, torch.from_numpy(model.classes_)] = said.float().clamp_min(-30.0)
                parts.append(CrossValidated(aside, log_p, labels[aside]))
            found = Logistic(is_unit, C, in_order(parts))
            best = found if best is None or found.said.error < best.said.error else best
    return best


def _fit(x: Tensor, y: Tensor, C: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegression(C=C, max_iter=1000, tol=1e-6).fit(x.numpy(), y.numpy())


def _scale(encoder: ScaledFeatures, rows: Tensor) -> Tensor:
    scaled = (rows.float() - encoder.centre) / encoder.scale
    return torch.nn.functional.normalize(scaled, dim=1) if bool(encoder.unit) else scaled


def _deviation(rows: Tensor) -> Tensor:
    spread = rows.float().std(0, correction=0)
    return torch.where(spread > 1e-6, spread, torch.ones_like(spread))


def on_pixels(images: Tensor, labels: Tensor, n_classes: int, seed: int) -> tuple[str, CrossValidated] | None:
    """Logistic regression on HOG of images [N, C, H, W] in [0, 1]; on their pixels where they are too small for it."""
    small = min(images.shape[2:]) < _LEAST_SIDE
    rows = images.flatten(1) if small else torch.cat([hog(part) for part in images.split(250)])
    found = logistic_regression(rows.float(), labels, n_classes, seed, standard=(0.001, 0.01), unit=(10.0,))
    return None if found is None else (ON_PIXELS if small else ON_HOG, found.said)


def side_for(side: int) -> int:
    """At which images are read for a reference on pixels."""
    return _SIDE if side > _SIDE else side


def few_enough(labels: Tensor, seed: int) -> Tensor:
    """Places of given labels that a reference is fitted to: all, or some of very many."""
    known = (labels >= 0).nonzero().squeeze(1)
    if len(known) <= _MOST_LABELS:
        return known
    return known[random_order(len(known), seed, Stream.REFERENCE)[:_MOST_LABELS]].sort().values
