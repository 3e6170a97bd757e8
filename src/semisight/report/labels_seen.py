"""What a run knows about labels: the numbers of the report's label sections, and what their pictures are drawn from.

Errors are measured on images that were not learned from: those whose labels --labels-per-class has hidden, or else the
held-out ones. Where there are none, only what the model says is shown, not how often it is right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semisight.data.columns import LabelColumn
from semisight.data.image_set import ImageSet
from semisight.random import Stream, random_order
from semisight.runs.classifier import Classified, Classifier
from semisight.runs.evaluating import Evaluation, compare
from semisight.runs.images import Sets
from semisight.runs.run import Comparison, Run

_MEASURED, _SHOWN, _FITTED = 10_000, 2_000, 5_000  # images at most: for errors, for certainty, to fit on
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_REPEATS = 5  # choices of labels that each error is averaged over


@dataclass(frozen=True)
class FewLabels:
    """The error of a classifier fitted anew on `per_class` labels of each class, mean and spread over choices."""

    per_class: int
    error: float
    spread: float


@dataclass(frozen=True)
class LabelsSeen:
    """labelled, held_out: [C] labels of each class. truth: [N] of `shown`, -1 where unknown."""

    classifier: Classifier
    labelled: Tensor
    held_out: Tensor
    n_unlabelled: int
    hidden: bool
    evaluation: Evaluation | None
    shown: ImageSet
    classified: Classified
    truth: Tensor
    few: tuple[FewLabels, ...]
    comparison: Comparison | None

    @property
    def per_class(self) -> float:
        """Labels learned from, of each class on average."""
        return float(self.labelled.float().mean())


def see_labels(run: Run, sets: Sets) -> LabelsSeen:
    classifier, seed = run.labels(), run.config.seed
    n_classes = len(classifier.class_names)
    measured = sets.measured("labels")
    if measured is not None:
        measured = _some(measured, _MEASURED, seed)
        shown = measured
    else:
        shown = _some(_unlabelled(sets), _SHOWN, seed)
    classified = classifier(shown)
    truth = measured.labels if measured is not None else None
    return LabelsSeen(
        classifier=classifier,
        labelled=_counts(sets.train, n_classes),
        held_out=torch.zeros(n_classes, dtype=torch.int64) if sets.valid is None else _counts(sets.valid, n_classes),
        n_unlabelled=len(sets.train) - sets.n_present("labels"),
        hidden="labels" in sets.truth,
        evaluation=None if truth is None else compare(classifier, classified, truth),
        shown=shown,
        classified=classified,
        truth=torch.full((len(shown),), -1) if truth is None else truth,
        few=() if measured is None else error_by_labels(run, sets, measured),
        comparison=Comparison.read(run.folder),
    )


def _unlabelled(sets: Sets) -> ImageSet:
    """Images to show predictions for: not trained on, else without a label, else any."""
    if sets.valid is not None:
        return sets.valid
    assert sets.train.labels is not None
    unknown = sets.train.labels < 0
    return sets.train.subset(unknown) if bool(unknown.any()) else sets.train


def _some(images: ImageSet, most: int, seed: int) -> ImageSet:
    if len(images) <= most:
        return images
    return images.subset(random_order(len(images), seed, Stream.LABELS_SHOWN)[:most].sort().values)


def _counts(images: ImageSet, n_classes: int) -> Tensor:
    labels = images.labels
    if labels is None:
        return torch.zeros(n_classes, dtype=torch.int64)
    return torch.bincount(labels[labels >= 0], minlength=n_classes)


def error_by_labels(run: Run, sets: Sets, measured: ImageSet) -> tuple[FewLabels, ...]:
    """The codes stay as they are; the softmax head alone is fitted anew, to 1, 2, 5, ... labels of each class.

    Where labels were hidden, they come to light here: this shows what more labels would be worth.
    """
    column = sets.truth["labels"][0] if "labels" in sets.truth else sets.train.columns["labels"]
    assert isinstance(column, LabelColumn) and measured.labels is not None
    labels = column.values
    known = (labels >= 0).nonzero().squeeze(1)
    known = known[random_order(len(known), run.config.seed, Stream.LABELS_SHOWN)[:_FITTED]].sort().values
    labels = labels[known]
    counts = torch.bincount(labels, minlength=len(run.labels().class_names))
    steps = [n for n in _COUNTS if n <= int(counts.min())]
    if len(steps) < 2:
        return ()
    codes, others = codes_of(run, sets.train.subset(known)), codes_of(run, measured)
    centre, scale = codes.mean(0), codes.std(0).clamp_min(1e-6)
    x, y = ((part - centre) / scale for part in (codes, others))
    result = []
    for n in steps:
        repeats = _REPEATS if n <= 20 else 1
        errors = [_fitted_error(x, labels, y, measured.labels, n, run.config.seed, k) for k in range(repeats)]
        result.append(FewLabels(n, float(np.mean(errors)), float(np.std(errors))))
    return tuple(result)


def _fitted_error(
    codes: Tensor, labels: Tensor, others: Tensor, truth: Tensor, per_class: int, seed: int, number: int
) -> float:
    from sklearn.linear_model import LogisticRegression

    chosen = torch.cat(
        [
            members[random_order(len(members), seed, Stream.FEWER_LABELS, number + 1, c + 1)[:per_class]]
            for c in labels.unique().tolist()
            for members in [(labels == c).nonzero().squeeze(1)]
        ]
    )
    # C = 1 is the prior N(0, I) on beta: the softmax head's most probable weights.
    fitted = LogisticRegression(C=1.0, max_iter=200).fit(codes[chosen].numpy(), labels[chosen].numpy())
    return float((fitted.predict(others.numpy()) != truth.numpy()).mean())


@torch.no_grad()
def codes_of(run: Run, images: ImageSet) -> Tensor:
    """The mean codes, [N, J]."""
    generator = torch.Generator().manual_seed(run.config.seed)
    parts = torch.arange(len(images)).split(500)
    return torch.cat([run.model.encode(images.batch(part).to(run.device), generator).mean.cpu() for part in parts])


def label_words(seen: LabelsSeen) -> list[str]:
    """What was learned about labels, in sentences."""
    n_labels, n_classes = int(seen.labelled.sum()), len(seen.classifier.class_names)
    beside = f" and {seen.n_unlabelled:,} images without a label" if seen.n_unlabelled else ""
    learned = f"From {n_labels:,} labels of {n_classes} classes{beside}"
    if seen.evaluation is None:
        lines = [
            f"{learned} it learned to label images. How often it is right cannot be said: no label was held out. "
            "Measure it with semisight evaluate on other labelled images."
        ]
    else:
        of = seen.evaluation
        who = "whose labels were hidden from it" if seen.hidden else "that were held out"
        lines = [f"{learned}, it gives the right label to {1 - of.error:.1%} of {of.n:,} images {who}."]
        if seen.comparison is not None:
            lines.append(_compared(seen.comparison.error, of.error))
    return [*lines, seen.classifier.believable()]


def _compared(without: float, error: float) -> str:
    start = f"The same labels without the unlabelled images gave {1 - without:.1%}"
    if error >= without:
        return f"{start}: here the unlabelled images did not help."
    return (
        f"{start}: the unlabelled images made it {100 * (without - error):.1f} points better and took away "
        f"{1 - error / without:.0%} of its mistakes."
    )


def most_confused(seen: Evaluation, most: int = 12) -> Sequence[tuple[str, str, int]]:
    """(true class, called, images), the most frequent first."""
    wrong = seen.confusion.clone()
    wrong.fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True)[:most].tolist()
    pairs = [(divmod(place, len(seen.class_names)), int(wrong.flatten()[place])) for place in order]
    return [(seen.class_names[t], seen.class_names[p], count) for (t, p), count in pairs if count]
