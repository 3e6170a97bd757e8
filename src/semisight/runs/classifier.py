"""Section 5.1 for people: labels of new images with probabilities, and how far to believe them.

A run that held labels out has RUN/calibration.json: the map from decision values to probabilities, fitted on them.

Where labels are too few for that, unlabelled images are moved a little (data/moving.py), and one temperature is fitted
so that the probabilities say how often the answer stays the same. What is assumed: moves keep the label, and an answer
that a move changes is wrong about as often as one of a new image. With two labels of each digit that is nearly as good
as held-out labels (docs/experiments.md); it is not called calibrated, for nothing checks it. Without either the
probabilities are the model's own, which may be far too sure or far too unsure, and this is said.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.inference.labels import in_batches
from semisight.metrics.calibration import Calibration, expected_calibration_error, fit_affine, fit_temperature
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.random import Stream, random_order
from semisight.runs.label_training import LabelSettings

ENOUGH_FOR_EACH_CLASS = 30  # held-out labels of a class, on average: with fewer, one temperature for all classes


@dataclass(frozen=True)
class Fitted:
    """A calibration as RUN/calibration.json keeps it.

    step    of the weights it was fitted for; other weights need another
    n       held-out labels it was fitted on, or moved images
    error   expected calibration error, each half of these labels measured with what the other half gave; nan if unknown
    by      what it was fitted on
    """

    calibration: Calibration
    step: int
    n: int
    error: float
    by: Literal["labels", "moves"] = "labels"

    def write(self, path: Path) -> None:
        error = None if math.isnan(self.error) else self.error
        about = {"step": self.step, "n": self.n, "by": self.by, "calibration_error": error}
        write_atomic(path, json.dumps({**about, **dict[str, Any](self.calibration.to_dict())}, indent=2) + "\n")

    @staticmethod
    def read(path: Path) -> "Fitted | None":
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            error = values["calibration_error"]
            return Fitted(
                Calibration.from_dict(values),
                int(values["step"]),
                int(values["n"]),
                math.nan if error is None else float(error),
                "moves" if values.get("by") == "moves" else "labels",
            )
        except OSError as error:
            raise UserError(f"could not read {path}: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({type(error).__name__}: {error}); delete it to go without.") from error


@dataclass(frozen=True)
class Classified:
    """Labels for images: probabilities [N, C], and the spread [N, C] of the decision values over codes."""

    probabilities: Tensor
    spreads: Tensor

    @property
    def label(self) -> Tensor:
        return self.probabilities.argmax(1)

    @property
    def probability(self) -> Tensor:
        """Of the label that was chosen."""
        return self.probabilities.amax(1)

    @property
    def spread(self) -> Tensor:
        """Of the label that was chosen."""
        return self.spreads.gather(1, self.label[:, None]).squeeze(1)


@dataclass(frozen=True)
class Classifier:
    """The label part of a run."""

    model: ImageModel
    head: LabelHead
    class_names: tuple[str, ...]
    settings: LabelSettings
    fitted: Fitted | None
    n_labelled: int
    n_held_out: int

    @property
    def calibrated(self) -> bool:
        """On labels that were held out."""
        return self.fitted is not None and self.fitted.by == "labels"

    @property
    def calibration(self) -> Calibration:
        return (
            own_probabilities(self.settings, len(self.class_names)) if self.fitted is None else self.fitted.calibration
        )

    def __call__(self, images: ImageSet) -> Classified:
        found = in_batches(self.model, self.head, images)
        return Classified(self.calibration.probabilities(found.decision.cpu()), found.spread.cpu())

    def decisions(self, images: ImageSet) -> Tensor:
        return in_batches(self.model, self.head, images).decision.cpu()

    def believable(self) -> str:
        """What to think of the probabilities, for people."""
        if self.fitted is not None and self.fitted.by == "moves":
            return (
                "Probabilities are not calibrated on labels (there are too few to hold some out): they say how often "
                f"the answer stayed the same when {self.fitted.n:,} unlabelled images were moved a little, which is "
                "about right as long as such moves keep the label."
            )
        if self.fitted is not None:
            return (
                f"Probabilities are calibrated on {self.fitted.n:,} held-out labels; they are off by "
                f"{self.fitted.error:.1%} on average."
            )
        why = (
            "there are too few labels to hold some out"
            if not self.n_held_out
            else "the training has not come to its end, or this is not the checkpoint they were calibrated for"
        )
        return f"Probabilities are the model's own and not calibrated ({why}): take them as an order, not as odds."


def own_probabilities(settings: LabelSettings, n_classes: int) -> Calibration:
    """p(l | s) of the head itself. The SVM's, exp(-2 gamma sum of hinges), is softmax(4 gamma f) for |f| < 1."""
    scale = 1.0 if settings.head == "softmax" else 4 * settings.gamma
    return Calibration(
        torch.full((n_classes,), scale, dtype=torch.float64), torch.zeros(n_classes, dtype=torch.float64)
    )


def fit_calibration(decision: Tensor, labels: Tensor, step: int, seed: int) -> Fitted:
    """From decision values [N, C] and labels [N] that were held out."""
    fit = fit_affine if len(labels) >= ENOUGH_FOR_EACH_CLASS * decision.shape[1] else fit_temperature
    halves = random_order(len(labels), seed, Stream.FOLDS).chunk(2)
    if len(halves) < 2:
        return Fitted(fit(decision, labels), step, len(labels), float("nan"))
    measured = torch.empty(decision.shape, dtype=torch.float64)
    for here, there in (halves, halves[::-1]):
        measured[here] = fit(decision[there], labels[there]).probabilities(decision[here].double())
    return Fitted(fit(decision, labels), step, len(labels), expected_calibration_error(measured, labels))


def fit_to_moves(still: Tensor, moved: Tensor, step: int) -> Fitted:
    """From decision values [N, C] of unlabelled images, as they are and moved: what the moved one is taken for stands
    in for the label."""
    return Fitted(fit_temperature(still, moved.argmax(1)), step, len(still), math.nan, "moves")


def labels_of(about: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a checkpoint says of its labels, or None for a run that learned from images alone."""
    found: Mapping[str, Any] | None = about.get("labels")
    return found
