"""`semisight evaluate` without its command line: how often a run's labels are wrong, and how far to believe them."""

import csv
import difflib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.metrics.calibration import ReliabilityCurve, brier_score, negative_log_likelihood, reliability_curve
from semisight.metrics.classification import confusion_matrix, error_per_class, error_rate, top_k_error
from semisight.runs.classifier import Classified, Classifier
from semisight.runs.predicting import columns

Format = Literal["text", "csv", "json"]
_MATRIX_SHOWN = 15  # classes: a larger confusion matrix does not fit a terminal


@dataclass(frozen=True)
class Evaluation:
    """Errors are shares between 0 and 1. confusion[t, p]: images of class t that were called p."""

    n: int
    error: float
    k: int
    top_k_error: float
    confusion: Tensor
    reliability: ReliabilityCurve
    brier: float
    nll: float
    calibrated: bool
    class_names: tuple[str, ...]

    @property
    def calibration_error(self) -> float:
        return self.reliability.expected_error

    def to_dict(self) -> dict[str, Any]:
        per_class = error_per_class(self.confusion).tolist()
        counts = self.confusion.sum(1).tolist()
        return {
            "n": self.n,
            "error": self.error,
            f"top_{self.k}_error": self.top_k_error,
            "calibration_error": self.calibration_error,
            "brier": self.brier,
            "nll": self.nll,
            "calibrated": self.calibrated,
            "classes": [
                {"label": name, "n": n, "error": None if n == 0 else error}
                for name, n, error in zip(self.class_names, counts, per_class, strict=True)
            ],
            "confusion": self.confusion.tolist(),
        }


def evaluate(classifier: Classifier, images: ImageSet, k: int | None = None) -> Evaluation:
    """On the images that have a label, which is a class of the classifier."""
    labels = images.labels
    if labels is None or not bool((labels >= 0).any()):
        raise UserError(
            f"{images.source or 'these images'}: no image has a label to compare with. Give --labels labels.csv "
            "(columns file,label), or --class-per-folder for a folder with one folder for each class."
        )
    known = images.subset(labels >= 0)
    assert known.labels is not None
    return compare(classifier, classifier(known), known.labels, k)


def compare(classifier: Classifier, found: Classified, labels: Tensor, k: int | None = None) -> Evaluation:
    n_classes = len(classifier.class_names)
    k = k if k is not None else 5 if n_classes > 5 else min(2, n_classes)
    return Evaluation(
        n=len(labels),
        error=error_rate(found.label, labels),
        k=k,
        top_k_error=top_k_error(found.probabilities, labels, k),
        confusion=confusion_matrix(found.label, labels, n_classes),
        reliability=reliability_curve(found.probabilities, labels),
        brier=brier_score(found.probabilities, labels),
        nll=negative_log_likelihood(found.probabilities, labels),
        calibrated=classifier.calibrated,
        class_names=classifier.class_names,
    )


def renumbered(images: ImageSet, class_names: Sequence[str]) -> ImageSet:
    """The images with their labels numbered as the classifier numbers its classes, matched by name."""
    if images.labels is None or images.class_names == tuple(class_names):
        return images
    used = images.labels[images.labels >= 0].unique().tolist()
    strange = [images.class_names[c] for c in used if images.class_names[c] not in class_names]
    if strange:
        near = difflib.get_close_matches(strange[0], class_names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(
            f"{images.source} has labels that the run did not learn: {', '.join(strange[:5])}"
            f"{', ...' if len(strange) > 5 else ''}; it learned {', '.join(list(class_names)[:10])}"
            f"{', ...' if len(class_names) > 10 else ''}.{hint}"
        )
    number = torch.full((len(images.class_names) + 1,), -1)  # the last entry is for -1
    for c in used:
        number[c] = list(class_names).index(images.class_names[c])
    return images.with_labels(number[images.labels], class_names)


def written(found: Evaluation, kind: Format) -> str:
    """As text that ends in a line break."""
    if kind == "json":
        return json.dumps(found.to_dict(), indent=1, ensure_ascii=False) + "\n"
    return _as_csv(found) if kind == "csv" else _as_text(found)


def _as_csv(found: Evaluation) -> str:
    """A row for each number: metric, label (of the true class), predicted, value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["metric", "label", "predicted", "value"])
    values = found.to_dict()
    for name in ("n", "error", f"top_{found.k}_error", "calibration_error", "brier", "nll"):
        writer.writerow([name, "", "", values[name]])
    for entry in values["classes"]:
        if entry["n"]:
            writer.writerow(["error", entry["label"], "", entry["error"]])
    for true, row in zip(found.class_names, found.confusion.tolist(), strict=True):
        for predicted, count in zip(found.class_names, row, strict=True):
            writer.writerow(["confusion", true, predicted, count])
    return text.getvalue()


def _as_text(found: Evaluation) -> str:
    wrong = round(found.error * found.n)
    calibrated = "" if found.calibrated else "; the probabilities are not calibrated"
    lines = columns(
        [
            ("error", f"{found.error:.2%}", f"{wrong:,} of {found.n:,} images"),
            (f"top-{found.k} error", f"{found.top_k_error:.2%}", f"the label is not among the {found.k} most probable"),
            ("calibration error", f"{found.calibration_error:.2%}", f"how far probabilities are off{calibrated}"),
            ("Brier score", f"{found.brier:.4f}", "0 is best, 2 is worst"),
            ("-log p(label)", f"{found.nll:.4f}", "nats; 0 is best"),
        ],
        right=(1,),
    )
    return "\n".join([*lines, "", *_classes(found), *_matrix(found)]) + "\n"


def _classes(found: Evaluation) -> list[str]:
    rows = [("class", "images", "error", "most often taken for")]
    errors = error_per_class(found.confusion).tolist()
    for c, name in enumerate(found.class_names):
        n, others = int(found.confusion[c].sum()), found.confusion[c].clone()
        others[c] = 0
        taken = f"{found.class_names[int(others.argmax())]} ({int(others.max())})" if int(others.max()) else ""
        rows.append((name, f"{n:,}", f"{errors[c]:.1%}" if n else "", taken))
    return columns(rows, right=(1, 2))


def _matrix(found: Evaluation) -> list[str]:
    if len(found.class_names) > _MATRIX_SHOWN:
        return ["", "The confusion matrix is in --format csv and json."]
    names = [name[:12] for name in found.class_names]
    rows = [("true \\ called", *names)]
    for name, counts in zip(names, found.confusion.tolist(), strict=True):
        rows.append((name, *(str(count) if count else "." for count in counts)))
    return ["", *columns(rows, right=range(1, len(names) + 1))]
