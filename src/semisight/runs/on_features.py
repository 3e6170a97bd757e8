"""Labels on the features of a pretrained network: the model in closed form, its head by soft EM, all in seconds.

    code     probabilistic PCA of the features of all images (model/encoders/features.py)
    head     softmax on the code, from the labels alone or also from the unlabelled images (training/soft_em.py); with
             few labels of each class also times a prior of the code for each class (training/class_prior.py)
    choice   between these, and the temperature of the probabilities, by cross-validation on the given labels

Beside them stands what a practitioner would try first: logistic regression on the same features (references.py). Every
way is shown with its cross-validated error. If logistic regression is clearly better, it is what the run learns: the
features themselves are the code then.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semisight.data.columns import LABELS, LabelColumn
from semisight.errors import UserError
from semisight.inference.labels import FittedCalibration, LabelReader
from semisight.metrics.calibration import Calibration, expected_calibration_error, fit_temperature
from semisight.model.encoders.features import FeatureEncoder, ScaledFeatures, fit_decoder
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.model.posterior import batch_last, flat_code
from semisight.runs.images import Sets
from semisight.runs.kinds import kind_named
from semisight.runs.references import BASELINE, Logistic, Way, logistic_regression
from semisight.runs.run import Run
from semisight.runs.settings import Settings
from semisight.training.class_prior import WithClassPrior
from semisight.training.folder import describe
from semisight.training.soft_em import CrossValidated, SoftEM, cross_validate, label_folds
from semisight.training.state import Counters

_SURER = 1 / 3  # how much surer the head of all labels is, times classes per label; on Caltech-101, docs/experiments.md
WAYS: dict[str, SoftEM | WithClassPrior] = {
    "our model, labels alone": SoftEM(weight=0.0),
    "our model with the unlabelled images": SoftEM(),
    "the same, and a prior for each class": WithClassPrior(),
}
FEW = 4  # labels of a class, on average, below which the last is tried: with 5 and 10 it gained nothing on Caltech-101


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


# ---- which head ----


@dataclass(frozen=True)
class Chosen:
    """How the head is learned, the map from its decision values to probabilities, and what every way was worth."""

    how: SoftEM | WithClassPrior
    calibration: Calibration | None
    ways: tuple[Way, ...]
    calibration_error: float = math.nan
    said: CrossValidated | None = None

    def fitted(self) -> FittedCalibration | None:
        if self.calibration is None:
            return None
        return FittedCalibration(self.calibration, 1, self.ways[0].n, self.calibration_error, "cross-validation")


def choose(codes: Sequence[Tensor], labels: Tensor, n_classes: int, seed: int, ways: int = len(WAYS)) -> Chosen:
    """With the unlabelled images, in the way with the least cross-validated error, unless that is more than a standard
    error above the error without them; and probabilities fitted to what the chosen way said of held-out labels. `ways`
    of WAYS are tried."""
    tried = [(name, how) for name, how in list(WAYS.items())[:ways] if how.weight == 0 or bool((labels < 0).any())]
    if int((labels >= 0).sum()) >= FEW * n_classes:
        tried = [(name, how) for name, how in tried if not isinstance(how, WithClassPrior)]
    if not label_folds(labels, seed=seed):  # nothing can be left out to measure on
        return Chosen(tried[-1][1], None, ())
    found, said = [], []
    for name, how in tried:
        started = time.monotonic()
        said.append(cross_validate(how, codes, labels, n_classes, seed=seed))
        found.append(Way.of(name, said[-1], seconds=time.monotonic() - started))
    best = min(range(1, len(said)), key=lambda i: said[i].error, default=0)
    best = 0 if best and clearly_better(said[0], said[best]) else best
    calibration, error = calibrate(said[best])
    if tried[best][1].weight > 0:  # heads in cross-validation had fewer labels, and were less sure
        more = 1 + _SURER * n_classes / found[best].n
        calibration = dataclasses.replace(calibration, scale=calibration.scale * more)
    found[best] = dataclasses.replace(found[best], chosen=True)
    return Chosen(tried[best][1], calibration, tuple(found), error, said[best])


def clearly_better(one: CrossValidated, other: CrossValidated) -> bool:
    """Whether `one` has a lower error on the same labels, by more than a standard error of the difference."""
    gain = other.wrong - one.wrong
    return float(gain.mean()) > float(gain.std()) / len(gain) ** 0.5


def calibrate(said: CrossValidated) -> tuple[Calibration, float]:
    """The temperature that suits what was said of held-out labels, and how far the probabilities are off there."""
    found = fit_temperature(said.decisions, said.labels)
    return found, expected_calibration_error(found.probabilities(said.decisions), said.labels)


# ---- a run ----


@dataclass(frozen=True)
class Judged:
    """A set of features with every way to learn labels on it judged; `learn` makes the run of the best."""

    settings: Settings
    sets: Sets
    model: ImageModel
    codes: list[Tensor]
    chosen: Chosen
    logistic: Logistic | None
    seconds: float

    @property
    def takes_logistic(self) -> bool:
        ours, theirs = self.chosen.said, self.logistic
        return ours is not None and theirs is not None and clearly_better(theirs.said, ours)

    @property
    def said(self) -> CrossValidated | None:
        """By the way that is chosen, of labels that it had not seen."""
        return self.logistic.said if self.takes_logistic and self.logistic is not None else self.chosen.said

    @property
    def ways(self) -> tuple[Way, ...]:
        """All that was tried; the chosen one is marked."""
        if self.logistic is None:
            return self.chosen.ways
        taken = self.takes_logistic
        ours = [dataclasses.replace(way, chosen=way.chosen and not taken) for way in self.chosen.ways]
        return (*ours, dataclasses.replace(Way.of(BASELINE, self.logistic.said, ours=False), chosen=taken))

    def learn(self, ways: Sequence[Way] | None = None) -> Run:
        """The run in memory; `ways` is what it keeps of all that was tried, also elsewhere."""
        started, settings, sets = time.monotonic(), self.settings, self.sets
        column = _labels(sets)
        weight = self.chosen.how.weight
        model: ImageModel = self.model
        head: Softmax
        if self.takes_logistic and self.logistic is not None:
            rows = sets.train.images.flatten(1).float()
            encoder, head = self.logistic.fit(rows, column.values, len(column.class_names))
            codes = torch.cat([flat_code(encoder.moments(batch_last(part))[0]) for part in _split(sets)])
            model, weight = ImageModel(encoder, fit_decoder(codes, rows)), 0.0
            calibration, error = calibrate(self.logistic.said)
            fitted: FittedCalibration | None = FittedCalibration(
                calibration, 1, len(self.logistic.said.labels), error, "cross-validation"
            )
        else:
            head = self.chosen.how(self.codes, column.values, len(column.class_names))
            fitted = self.chosen.fitted()
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
            "ways": [dataclasses.asdict(way) for way in (self.ways if ways is None else ways)],
            "frozen": True,
        }
        counters = Counters(step=1, seconds=self.seconds + time.monotonic() - started)
        described = describe(settings.train, about, sets.train, sets.valid, torch.get_num_threads(), "cpu")
        meta: dict[str, Any] = {**described, "counters": dataclasses.asdict(counters)}
        reader = LabelReader(
            head.eval(),
            column.class_names,
            fitted,
            n_learned=sets.n_present(LABELS),
            n_held_out=sets.n_held_out(LABELS),
            settings={"head": "softmax", "weight of unlabelled images": weight},
        )
        assert kind_named(LABELS).name == reader.name
        return Run(model.eval(), {LABELS: reader}, meta=meta)


def judge(settings: Settings, sets: Sets) -> Judged:
    """Every way on the features that `sets` has in the pixels' place, judged on the labels to learn from.

    Images that are set aside are measured on and not learned from, and their labels choose nothing.
    """
    started, seed = time.monotonic(), settings.train.seed
    column = _labels(sets)
    views = [sets.train.images, *sets.train.views]
    model = feature_model(views[0])
    codes = codes_of(model, views)
    n_classes = len(column.class_names)
    chosen = choose(codes, column.values, n_classes, seed)
    logistic = logistic_regression(views[0].flatten(1).float(), column.values, n_classes, seed)
    return Judged(settings, sets, model, codes, chosen, logistic, time.monotonic() - started)


def _labels(sets: Sets) -> LabelColumn:
    column = sets.train.columns[LABELS]
    assert isinstance(column, LabelColumn)
    return column


def _split(sets: Sets) -> Sequence[Tensor]:
    return sets.train.images.float().split(2000)


def about_model(model: ImageModel, settings: Settings) -> dict[str, Any]:
    """What a checkpoint says of a model of features."""
    return {
        "features": {
            "n_features": model.architecture.image_shape[0],
            "code_size": model.code_size,
            "backbone": settings.data.backbone,
            "views": settings.data.views,
            "scaled": isinstance(model.encoder, ScaledFeatures),
        }
    }
