"""Labels on the features of a pretrained network: the model in closed form, its head by soft EM, all in seconds.

    code     probabilistic PCA of the features of all images (model/encoders/features.py)
    head     softmax on the code, from the labels alone or also from the unlabelled images (training/soft_em.py)
    choice   between the two, and the temperature of the probabilities, by cross-validation on the given labels

Beside them stands what a practitioner would try first: logistic regression on the same features, its scaling and its
regularisation chosen by cross-validation too. Every way is shown with its cross-validated error; if ours is not
better, that is said.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semisight.data.columns import LABELS, LabelColumn
from semisight.errors import UserError
from semisight.inference.labels import FittedCalibration, LabelReader
from semisight.metrics.calibration import (
    Calibration,
    expected_calibration_error,
    fit_temperature,
    negative_log_likelihood,
)
from semisight.model.encoders.features import FeatureEncoder, fit_decoder
from semisight.model.image_model import ImageModel
from semisight.model.posterior import batch_last, flat_code
from semisight.runs.images import Sets
from semisight.runs.kinds import kind_named
from semisight.runs.run import Run
from semisight.runs.settings import Settings
from semisight.training.folder import describe
from semisight.training.soft_em import SoftEM, cross_validate
from semisight.training.state import Counters

WAYS = {"our model, labels alone": SoftEM(weight=0.0), "our model with the unlabelled images": SoftEM()}
BASELINE = "logistic regression on the same features"
LEAST_FOR_FOLDS = 2  # labels of every class


@dataclass(frozen=True)
class Way:
    """What cross-validation says of one way to learn: error and nats per label, over n labels."""

    name: str
    error: float
    nll: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of the error."""
        z, p, n = 1.96, self.error, max(1, self.n)
        middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, (middle - half) / (1 + z * z / n)), min(1.0, (middle + half) / (1 + z * z / n))

    def words(self) -> str:
        low, high = self.interval
        return f"{self.name}: {self.error:.1%} wrong ({low:.0%} to {high:.0%}), {self.nll:.2f} nats per label"


def feature_model(rows: Tensor) -> ImageModel:
    """The model of feature maps [N, C, 1, 1] that maximises the bound."""
    if rows.shape[2:] != (1, 1):
        raise UserError(f"the model takes pooled features [N, C, 1, 1], not maps of {list(rows.shape[1:])}.")
    flat = rows.flatten(1).float()
    encoder = FeatureEncoder.fit(flat)
    codes = torch.cat([flat_code(encoder.moments(batch_last(part))[0]) for part in rows.float().split(2000)])
    return ImageModel(encoder, fit_decoder(codes, flat))


def codes_of(model: ImageModel, views: Sequence[Tensor]) -> list[Tensor]:
    """[N, J] for each view."""
    return [torch.cat([model.code_moments(part.float())[0] for part in view.split(2000)]) for view in views]


def learn_labels(settings: Settings, sets: Sets) -> tuple[Run, list[Way]]:
    """The run in memory, and what every way was worth on the given labels.

    Images that are set aside are measured on and not learned from; labels that are held out count as given: all that is
    chosen is chosen by cross-validation.
    """
    started, seed = time.monotonic(), settings.train.seed
    column = sets.train.columns[LABELS]
    assert isinstance(column, LabelColumn)
    labels, n_classes = column.values, len(column.class_names)
    views = [sets.train.images, *sets.train.views]
    model = feature_model(views[0])
    codes = codes_of(model, views)
    chosen = choose(codes, labels, n_classes, seed)
    ways, weight = [*chosen.ways, *_baseline(views[0].flatten(1), labels, seed)], chosen.how.weight
    head = chosen.how(codes, labels, n_classes)
    target_about = {
        "class_names": list(column.class_names),
        "n_learned": sets.n_present(LABELS),
        "held_out": sets.n_held_out(LABELS),
        "settings": {"head": "softmax", "gamma": 1.0},
    }
    about = {
        "model": {**about_model(model, settings), "gradient": "closed form", "alpha0": "exact", "pooling": "none"},
        "targets": {LABELS: target_about},
        "settings": {"weight of unlabelled images": weight},
        "ways": [dataclasses.asdict(way) for way in ways],
        "frozen": True,
    }
    counters = Counters(step=1, seconds=time.monotonic() - started)
    described = describe(settings.train, about, sets.train, sets.valid, torch.get_num_threads(), "cpu")
    meta: dict[str, Any] = {**described, "counters": dataclasses.asdict(counters)}
    reader = LabelReader(
        head.eval(),
        column.class_names,
        chosen.fitted(),
        n_learned=sets.n_present(LABELS),
        n_held_out=sets.n_held_out(LABELS),
        settings={"head": "softmax", "weight of unlabelled images": weight},
    )
    assert kind_named(LABELS).name == reader.name
    return Run(model.eval(), {LABELS: reader}, meta=meta), ways


def about_model(model: ImageModel, settings: Settings) -> dict[str, Any]:
    """What a checkpoint says of a model of features."""
    return {
        "features": {
            "n_features": model.architecture.image_shape[0],
            "code_size": model.code_size,
            "backbone": settings.data.backbone,
            "views": settings.data.views,
        }
    }


@dataclass(frozen=True)
class Chosen:
    """How the head is learned, the map from its decision values to probabilities, and what every way was worth."""

    how: SoftEM
    calibration: Calibration | None
    ways: tuple[Way, ...]
    calibration_error: float = math.nan

    def fitted(self) -> FittedCalibration | None:
        if self.calibration is None:
            return None
        return FittedCalibration(self.calibration, 1, self.ways[0].n, self.calibration_error, "cross-validation")


def choose(codes: Sequence[Tensor], labels: Tensor, n_classes: int, seed: int, ways: int = len(WAYS)) -> Chosen:
    """With the unlabelled images, unless they cost more than a standard error of the cross-validated error; and
    probabilities fitted to what the chosen way said of held-out labels. `ways` of WAYS are tried."""
    counts = torch.bincount(labels[labels >= 0], minlength=n_classes)
    tried = [(name, how) for name, how in list(WAYS.items())[:ways] if how.weight == 0 or bool((labels < 0).any())]
    if int(counts.min()) < LEAST_FOR_FOLDS:  # nothing can be left out to measure on
        return Chosen(tried[-1][1], None, ())
    said = [cross_validate(how, codes, labels, n_classes, seed=seed) for _, how in tried]
    maps = [fit_temperature(one.decisions, one.labels) for one in said]
    shares = [one.probabilities(of.decisions) for one, of in zip(maps, said, strict=True)]
    found = tuple(
        Way(name, of.error, negative_log_likelihood(p, of.labels), len(of.labels))
        for (name, _), of, p in zip(tried, said, shares, strict=True)
    )
    best = 0
    if len(said) > 1:
        wrong = [(of.decisions.argmax(1) != of.labels).double() for of in said]
        gain = wrong[0] - wrong[1]
        best = int(float(gain.mean()) >= -float(gain.std()) / len(gain) ** 0.5)
    how, calibration = tried[best][1], maps[best]
    if how.weight > 0:  # heads in cross-validation had fewer labels, and were less sure than the one that saw them all
        more = 1 + 2 * n_classes / (3 * found[best].n)
        calibration = dataclasses.replace(calibration, scale=calibration.scale * more)
    return Chosen(how, calibration, found, expected_calibration_error(shares[best], said[best].labels))


def _baseline(rows: Tensor, labels: Tensor, seed: int) -> list[Way]:
    """Logistic regression on the features, standardised or of unit length, C by cross-validation inside each fold."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import Normalizer, StandardScaler

    known = labels >= 0
    x, y = rows[known].numpy(), labels[known].numpy()
    least = int(np.bincount(y)[np.unique(y)].min())
    if least < LEAST_FOR_FOLDS:
        return []
    best: Way | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for scaler, strengths in ((StandardScaler(), (0.001, 0.01, 0.1)), (Normalizer(), (1.0, 10.0, 100.0))):
            for C in strengths:
                p = np.zeros((len(y), int(labels.max()) + 1))
                folds = StratifiedKFold(max(2, min(3, least)), shuffle=True, random_state=seed)
                for fit, aside in folds.split(x, y):
                    scaled = scaler.fit(x[fit])
                    model = LogisticRegression(C=C, max_iter=1000, tol=1e-6).fit(scaled.transform(x[fit]), y[fit])
                    p[np.ix_(aside, model.classes_)] = model.predict_proba(scaled.transform(x[aside]))
                error = float((p.argmax(1) != y).mean())
                nll = float(-np.log(np.clip(p[np.arange(len(y)), y], 1e-12, 1)).mean())
                way = Way(BASELINE, error, nll, len(y))
                best = way if best is None or way.error < best.error else best
    return [] if best is None else [best]


def words(ways: Sequence[Way]) -> list[str]:
    """The small table, and whether ours is better."""
    if not ways:
        return ["Too few labels for cross-validation (two of every class are needed): how good it is cannot be said."]
    lines = ["What cross-validation on the given labels says:", *(f"  {way.words()}" for way in ways)]
    ours = [way for way in ways if way.name != BASELINE]
    theirs = [way for way in ways if way.name == BASELINE]
    if theirs and min(way.error for way in ours) > theirs[0].error:
        lines.append(f"  Ours is not better than {BASELINE} here.")
    return lines
