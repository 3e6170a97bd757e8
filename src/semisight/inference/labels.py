"""Sections 4 and 5.1: labels for new images, by decision values averaged over q(s, z | X), and how far to believe them.

    f(X) = E_q(z|X) [ beta' mu(X, z) + bias ]        the average over s is exact, because f is linear in s

The spread is the standard deviation of f over q(s, z | X): how sure the code leaves us. Probabilities come from f by a
calibration that was fitted on held-out labels. Where labels are too few for that, unlabelled images are weakly
augmented (data/augment.py), and one temperature is fitted so that the probabilities say how often the answer stays the
same. What is assumed: augmentation keeps the label, and an answer that it changes is wrong about as often as one of a
new image. With two labels of each digit that is nearly as good as held-out labels (docs/experiments.md); it is not
called calibrated, for nothing checks it. Without either the probabilities are the model's own, which may be far too
sure or far too unsure, and this is said.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from semisight.inference.encode import Codes, check_answer
from semisight.metrics.calibration import Calibration, expected_calibration_error, fit_affine, fit_temperature
from semisight.model.heads.labels import LabelHead
from semisight.model.heads.tags import TagHead
from semisight.random import Stream, random_order

ENOUGH_FOR_EACH_CLASS = 30  # held-out labels of a class, on average: with fewer, one temperature for all classes


CalibratedBy = Literal["labels", "augmentation", "cross-validation"]
_BY: dict[str, CalibratedBy] = {"labels": "labels", "cross-validation": "cross-validation"}


@dataclass(frozen=True)
class Decisions:
    """Decision values and their standard deviation over codes, [B, C] each."""

    value: Tensor
    spread: Tensor


@torch.no_grad()
def decide(head: LabelHead | TagHead, codes: Codes) -> Decisions:
    each = torch.stack([head.decision(mu) for mu in codes.mu])
    within = torch.stack([head.spread(mu, s).square() for mu, s in zip(codes.mu, codes.log_sigma, strict=True)]).mean(0)
    return Decisions(each.mean(0), (within + each.var(0, correction=0)).sqrt())


@dataclass(frozen=True)
class FittedCalibration:
    """A calibration as a run keeps it.

    step    of the weights it was fitted for; other weights need another
    n       held-out labels it was fitted on, or augmented images
    error   expected calibration error, each half of these labels measured with what the other half gave; nan if unknown
    by      what it was fitted on
    """

    calibration: Calibration
    step: int
    n: int
    error: float
    by: CalibratedBy = "labels"

    def to_dict(self) -> dict[str, Any]:
        error = None if math.isnan(self.error) else self.error
        about = {"step": self.step, "n": self.n, "by": self.by, "calibration_error": error}
        return {**about, **self.calibration.to_dict()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "FittedCalibration":
        error = values["calibration_error"]
        return FittedCalibration(
            Calibration.from_dict(dict(values)),
            int(values["step"]),
            int(values["n"]),
            math.nan if error is None else float(error),
            _BY.get(str(values.get("by", "labels")), "augmentation"),
        )


def fit_calibration(decision: Tensor, labels: Tensor, step: int, seed: int) -> FittedCalibration:
    """From decision values [N, C] and labels [N] that were held out."""
    fit = fit_affine if len(labels) >= ENOUGH_FOR_EACH_CLASS * decision.shape[1] else fit_temperature
    halves = random_order(len(labels), seed, Stream.FOLDS).chunk(2)
    if len(halves) < 2:
        return FittedCalibration(fit(decision, labels), step, len(labels), math.nan)
    measured = torch.empty(decision.shape, dtype=torch.float64)
    for here, there in (halves, halves[::-1]):
        measured[here] = fit(decision[there], labels[there]).probabilities(decision[here].double())
    error = expected_calibration_error(measured, labels)
    return FittedCalibration(fit(decision, labels), step, len(labels), error)


def fit_to_augmentation(plain: Tensor, augmented: Tensor, step: int) -> FittedCalibration:
    """From decision values [N, C] of unlabelled images, as they are and augmented: what the augmented one is taken for
    stands in for the label."""
    return FittedCalibration(fit_temperature(plain, augmented.argmax(1)), step, len(plain), math.nan, "augmentation")


@dataclass(frozen=True)
class LabelAnswer:
    """Labels for images: probabilities [N, C], and the spread [N, C] of the decision values over codes."""

    probabilities: Tensor
    spreads: Tensor
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.probabilities)

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

    @staticmethod
    def joined(parts: Sequence["LabelAnswer"]) -> "LabelAnswer":
        return LabelAnswer(
            torch.cat([part.probabilities for part in parts]),
            torch.cat([part.spreads for part in parts]),
            parts[0].class_names,
        )


@dataclass(frozen=True)
class LabelReader:
    """The labels of a run: what a head says of codes, in probabilities of named classes."""

    head: LabelHead
    class_names: tuple[str, ...]
    fitted: FittedCalibration | None = None
    n_learned: int = 0
    n_held_out: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "labels"

    @property
    def calibrated(self) -> bool:
        """On labels that were held out, or by cross-validation on the given ones."""
        return self.fitted is not None and self.fitted.by != "augmentation"

    @property
    def calibration(self) -> Calibration:
        """The fitted one, or the head's own probabilities: the SVM's, exp(-2 gamma sum of hinges), is
        softmax(4 gamma f) for |f| < 1."""
        if self.fitted is not None:
            return self.fitted.calibration
        return Calibration(self.head.probability_scale().double().cpu(), torch.zeros(len(self.class_names)).double())

    def __call__(self, codes: Codes, generator: torch.Generator | None = None) -> LabelAnswer:
        found = decide(self.head, codes)
        check_answer(found.value, found.spread)
        probabilities = self.calibration.probabilities(found.value.cpu())
        return LabelAnswer(probabilities, found.spread.cpu(), self.class_names)

    def joined(self, parts: Sequence[LabelAnswer]) -> LabelAnswer:
        return LabelAnswer.joined(parts)

    export_name = "probabilities"

    def exported(self, code: Tensor, max_words: int) -> Tensor:
        """Probabilities for mean codes [B, J], in plain operations."""
        calibration = self.calibration
        scale, offset = calibration.scale.float(), calibration.offset.float()
        return (self.head.decision(code) * scale + offset).softmax(1)

    def export_about(self) -> dict[str, Any]:
        return {"classes": list(self.class_names), "calibrated": self.calibrated}

    def believable(self) -> str:
        """What to think of the probabilities, for people."""
        if self.fitted is not None and not self.calibrated:
            return (
                "Probabilities are not calibrated on labels (there are too few to hold some out): they say how often "
                f"the answer stayed the same when {self.fitted.n:,} unlabelled images were weakly augmented. That is "
                "an estimate that no label has checked."
            )
        if self.fitted is not None and self.fitted.by == "cross-validation":
            return (
                f"Probabilities are calibrated by cross-validation on the {self.fitted.n:,} given labels; there they "
                f"are off by {self.fitted.error:.1%} on average."
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
