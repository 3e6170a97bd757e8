"""The page on labels: counts and errors, confusion, reliability, certainty, error against labels.

Errors are measured on images that were not learned from: those whose labels --labels-per-class has hidden, or else the
held-out ones. Where there are none, only what the model says is shown, not how often it is right.
"""

import warnings as python_warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from semisight.data.columns import LabelColumn
from semisight.data.image_set import ImageSet
from semisight.inference.encode import mean_codes
from semisight.inference.labels import LabelAnswer, LabelReader
from semisight.metrics.classification import error_per_class
from semisight.random import Stream, random_order
from semisight.report import charts, page
from semisight.report.material import Material, shown, tile, tile_width
from semisight.report.page import Section
from semisight.report.reliability import reliability_chart
from semisight.runs.evaluate import LabelEvaluation, compare_labels
from semisight.runs.images import Sets
from semisight.runs.references import Way, read_ways, verdict
from semisight.runs.run import Comparison, Run

_MEASURED, _SHOWN, _FITTED = 10_000, 2_000, 5_000  # images at most: for errors, for certainty, to fit on
_COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
WEAK = 0.5  # share of wrong answers
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

    classifier: LabelReader
    labelled: Tensor
    held_out: Tensor
    n_unlabelled: int
    hidden: bool
    evaluation: LabelEvaluation | None
    shown: ImageSet
    classified: LabelAnswer
    truth: Tensor
    few: tuple[FewLabels, ...]
    comparison: Comparison | None
    ways: tuple[Way, ...] = ()

    @property
    def per_class(self) -> float:
        """Labels learned from, of each class on average."""
        return float(self.labelled.float().mean())


def look(run: Run, sets: Sets) -> LabelsSeen:
    classifier, seed = run.labels, run.config.seed
    n_classes = len(classifier.class_names)
    measured = sets.measured("labels")
    if measured is not None:
        measured = _some(measured, _MEASURED, seed)
        shown = measured
    else:
        shown = _some(_unlabelled(sets), _SHOWN, seed)
    classified = run.predict(shown)
    truth = measured.labels if measured is not None else None
    return LabelsSeen(
        classifier=classifier,
        labelled=_counts(sets.train, n_classes),
        held_out=torch.zeros(n_classes, dtype=torch.int64) if sets.valid is None else _counts(sets.valid, n_classes),
        n_unlabelled=len(sets.train) - sets.n_present("labels"),
        hidden="labels" in sets.truth,
        evaluation=None if truth is None else compare_labels(classifier, classified, truth),
        shown=shown,
        classified=classified,
        truth=torch.full((len(shown),), -1) if truth is None else truth,
        few=() if measured is None else error_by_labels(run, sets, measured),
        comparison=Comparison.read(run.folder),
        ways=read_ways(run),
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
    counts = torch.bincount(labels, minlength=len(run.labels.class_names))
    steps = [n for n in _COUNTS if n <= int(counts.min())]
    if len(steps) < 2:
        return ()
    codes, others = mean_codes(run.model, sets.train, index=known), mean_codes(run.model, measured)
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
    with python_warnings.catch_warnings():  # many classes with one label each look like a regression to scikit-learn
        python_warnings.simplefilter("ignore", UserWarning)
        fitted = LogisticRegression(C=1.0, max_iter=200).fit(codes[chosen].numpy(), labels[chosen].numpy())
    return float((fitted.predict(others.numpy()) != truth.numpy()).mean())


def words(seen: LabelsSeen) -> list[str]:
    """What was learned about labels, in sentences."""
    n_labels, n_classes = int(seen.labelled.sum()), len(seen.classifier.class_names)
    beside = f" and {seen.n_unlabelled:,} images without a label" if seen.n_unlabelled else ""
    learned = f"From {n_labels:,} labels of {n_classes} classes{beside}"
    of = seen.evaluation
    if of is None:
        lines = [f"{learned} it learned to label images. {_by_folds(seen.ways)}"]
    else:
        who = "whose labels were hidden from it" if seen.hidden else "that were held out"
        lines = [f"{learned}, it gives the right label to {1 - of.error:.1%} of {of.n:,} images {who}."]
        if seen.comparison is not None:
            lines.append(_compared(seen.comparison.error, of.error))
    return [*lines, seen.classifier.believable(), *verdict(seen.ways, None if of is None else of.error)]


def _by_folds(ways: Sequence[Way]) -> str:
    """How often it is right, where no label was held out but cross-validation has judged it."""
    chosen = [way for way in ways if way.chosen]
    if not chosen:
        return (
            "How often it is right cannot be said: no label was held out. Measure it with semisight evaluate on other "
            "labelled images."
        )
    low, high = chosen[0].interval
    return (
        f"By cross-validation on the given labels {chosen[0].error:.1%} of its answers are wrong ({low:.0%} to "
        f"{high:.0%}), with fewer labels than it has now."
    )


def _compared(without: float, error: float) -> str:
    start = f"The same labels without the unlabelled images gave {1 - without:.1%}"
    if error >= without:
        return f"{start}: here the unlabelled images did not help."
    return (
        f"{start}: the unlabelled images made it {100 * (without - error):.1f} points better and took away "
        f"{1 - error / without:.0%} of its mistakes."
    )


def most_confused(seen: LabelEvaluation, most: int = 12) -> Sequence[tuple[str, str, int]]:
    """(true class, called, images), the most frequent first."""
    wrong = seen.confusion.clone()
    wrong.fill_diagonal_(0)
    order = wrong.flatten().argsort(descending=True)[:most].tolist()
    pairs = [(divmod(place, len(seen.class_names)), int(wrong.flatten()[place])) for place in order]
    return [(seen.class_names[t], seen.class_names[p], count) for (t, p), count in pairs if count]


# ---- sections ----

_NUMBERS_SHOWN = 20  # classes: a larger matrix is drawn as a picture
_CERTAIN = 12  # images at each end
_LOW, _HIGH = np.array([246, 244, 240]), np.array([200, 84, 16])


def overview(m: Material, seen: LabelsSeen) -> Section:
    of, classifier = seen.evaluation, seen.classifier
    entries = [
        (f"{int(seen.labelled.sum()):,}", f"labels of {len(classifier.class_names)} classes were learned from"),
    ]
    if seen.n_unlabelled:
        entries.append((f"{seen.n_unlabelled:,}", "images without a label were learned from"))
    if of is not None:
        entries += [
            (f"{of.error:.1%}", f"error, on {of.n:,} images that were not learned from"),
            (f"{of.top_k_error:.1%}", f"top-{of.k} error: the label is not among the {of.k} most probable"),
            (f"{of.calibration_error:.1%}", "calibration error: how far the probabilities are off"),
        ]
    if of is not None and seen.comparison is not None:
        entries.append((f"{seen.comparison.error:.1%}", "error of the same labels without the unlabelled images"))
    body = page.paragraphs(words(seen)) + page.cards(entries) + _classes(seen)
    return Section("labels", "Labels", "", body)


def _classes(seen: LabelsSeen) -> Markup:
    names = seen.classifier.class_names
    head = ["class", "labels learned from", "held out"]
    columns: list[list[str]] = [list(names), _whole(seen.labelled), _whole(seen.held_out)]
    if seen.evaluation is not None:
        counts = seen.evaluation.confusion.sum(1)
        errors = error_per_class(seen.evaluation.confusion).tolist()
        head += ["measured on", "error"]
        columns += [_whole(counts), [f"{e:.1%}" if n else "" for e, n in zip(errors, counts.tolist(), strict=True)]]
    table = page.grid_table(head, list(zip(*columns, strict=True)))
    if len(names) <= _NUMBERS_SHOWN:
        return page.headed("Each class", table)
    return page.fold(f"Each of the {len(names)} classes", table)


def _whole(counts: Tensor) -> list[str]:
    return [f"{count:,}" if count else "" for count in counts.tolist()]


def confusion(m: Material, seen: LabelsSeen) -> Section:
    of = seen.evaluation
    assert of is not None
    pairs = [f"{true} called {called} ({count:,})" for true, called, count in most_confused(of)]
    often = f"Most often: {', '.join(pairs[:6])}." if pairs else "No image was given a wrong label."
    if len(of.class_names) <= _NUMBERS_SHOWN:
        drawing = page.confusion_table(of.class_names, of.confusion.tolist())
    else:
        drawing = page.matrix(page.img(_matrix_picture(of.confusion), "confusion matrix"))
        often += f" {of.class_names[0]} is at the top left."
    return Section(
        "confusion",
        "Which labels are taken for which",
        "Every row is a true label, every column what the model called it. What is right lies on the diagonal.",
        page.figure(drawing, often),
    )


def _matrix_picture(confusion: Tensor) -> Image.Image:
    shares = (confusion.double() / confusion.sum(1, keepdim=True).clamp_min(1)).sqrt().numpy()[..., None]
    pixels = np.rint(_LOW + shares * (_HIGH - _LOW)).astype(np.uint8)
    factor = max(1, 600 // len(pixels))
    return Image.fromarray(pixels).resize((len(pixels) * factor,) * 2, Image.Resampling.NEAREST)


def reliability(m: Material, seen: LabelsSeen) -> Section:
    of = seen.evaluation
    assert of is not None
    same = " They were calibrated on these same images, so in truth it is a little worse: "
    fitted = seen.classifier.fitted
    if fitted is not None and fitted.by == "augmentation":
        honest = " No label has calibrated them: they say how often the answer stays when an image is augmented."
    elif fitted is not None and not seen.hidden:
        honest = f"{same}measured crosswise, {fitted.error:.1%}."
    else:
        honest = "" if fitted is not None else " They are the model's own: no label was held out to calibrate them."
    return Section(
        "reliability",
        "How far to believe the probabilities",
        "Of the images that the model is 80% sure of, 80% should be right.",
        page.figure(
            page.charts(("", "", reliability_chart(of.reliability))),
            f"Bars: how often the label was right, by how sure the model was; the fainter a bar, the fewer images it "
            f"stands for. On the dashed line the probabilities are exactly right; on average they are off by "
            f"{of.calibration_error:.1%} (expected calibration error, {of.n:,} images).{honest}",
        ),
    )


def certainty(m: Material, seen: LabelsSeen) -> Section:
    order = seen.classified.probability.argsort(descending=True)
    n = min(_CERTAIN, len(order) // 2) or len(order)
    most, least = order[:n], order[len(order) - n :].flip(0)
    known = bool((seen.truth >= 0).any())
    longest = max(map(len, seen.classifier.class_names))
    width = tile_width(m) if longest <= 3 else "7rem"  # a name needs its place
    mark = " A wrong label is marked, and the right one follows." if known else ""
    body = Markup().join(
        page.headed(title, page.figure(page.tiles([_guess(seen, int(i)) for i in which], width), caption))
        for title, which, caption in (
            (
                "Most certain",
                most,
                "The label, its probability, and in brackets its spread: how much its decision value varies over codes "
                f"of the image.{mark}",
            ),
            (
                "Least certain",
                least,
                "The images worth labelling next: each new label says most where the model is in doubt.",
            ),
        )
    )
    lead = "Images that were not learned from, with the label that the model gives them."
    return Section("certainty", "Most and least certain", lead if m.sets.valid is not None else "", body)


def _guess(seen: LabelsSeen, i: int) -> Markup:
    names = seen.classifier.class_names
    label, probability = int(seen.classified.label[i]), float(seen.classified.probability[i])
    truth, spread = int(seen.truth[i]), float(seen.classified.spread[i])
    wrong = truth >= 0 and truth != label
    image = shown(seen.shown, i)
    right = f"is {names[truth]}" if wrong else ""
    hint = f"{seen.shown.names[i]}: {names[label]}, probability {probability:.3f}, spread {spread:.3f}"
    lines = [f"{probability:.0%} ({spread:.2g})", *([right] if wrong else [])]
    return page.named(tile(image, f"{hint}; {right}" if wrong else hint), names[label], lines, wrong)


def few_labels(m: Material, seen: LabelsSeen) -> Section:
    names = {float(k): str(few.per_class) for k, few in enumerate(seen.few)}
    points = [(float(k), 100 * few.error) for k, few in enumerate(seen.few)]
    lines = [charts.Line("error", "first", points)]
    learned = f"{seen.per_class:g}" if seen.per_class == round(seen.per_class) else f"about {seen.per_class:.0f}"
    more = (
        f" More labels than the {learned} of each class that were learned from are those that were hidden."
        if seen.hidden
        else ""
    )
    table = page.grid_table(
        ["labels of each class", "error", "spread over choices"],
        [(str(few.per_class), f"{few.error:.1%}", f"{few.spread:.1%}" if few.spread else "") for few in seen.few],
    )
    drawing = charts.chart("Error against labels", lines, "labels of each class", "clip-few", names)
    return Section(
        "few-labels",
        "Error against number of labels",
        "What fewer or more labels would be worth, with the codes as they are.",
        page.figure(
            page.charts(("Error in percent", "", drawing), ("", "", table)),
            f"The codes were learned with {learned} labels of each class and stay as they are; only the classifier on "
            f"them is fitted anew. With fewer labels in training the codes would be a little worse too.{more}",
        ),
    )


def sections(m: Material, seen: LabelsSeen) -> list[Section]:
    """Those that a run with labels has something to show for."""
    if seen.evaluation is None:
        return [overview(m, seen)]
    return [overview(m, seen), confusion(m, seen), reliability(m, seen)]


def further(m: Material, seen: LabelsSeen) -> list[Section]:
    return [certainty(m, seen), *([few_labels(m, seen)] if seen.few else [])]


def warnings_of(error: float, n: int, always: float, how: str) -> list[str]:
    """A weak classifier is called so: it is wrong as often as not, or no better than one answer for every image."""
    if error >= always:
        return [
            f"This classifier is useless as it is: {error:.0%} of its answers were wrong on {n:,} {how}, and the most "
            f"frequent label for every image would be wrong in {always:.0%}."
        ]
    if error >= WEAK:
        return [
            f"This classifier is weak: {error:.0%} of its answers were wrong on {n:,} {how}. Do not rely on them; "
            "label more images first, those below under What to label next."
        ]
    return []


def warnings(m: Material, seen: LabelsSeen) -> list[str]:
    """From images that were not learned from; without such from the cross-validation of the training, if it did one."""
    of = seen.evaluation
    if of is not None:
        always = 1 - float(of.confusion.sum(1).amax()) / max(1, of.n)
        return warnings_of(of.error, of.n, always, "images that it did not learn from")
    ways = [way for way in m.run.about.get("ways", ()) if str(way["name"]).startswith("our")]
    if not ways:
        return []
    best, counts = min(ways, key=lambda way: float(way["error"])), seen.labelled
    always = 1 - float(counts.amax()) / max(1, int(counts.sum()))
    return warnings_of(float(best["error"]), int(best["n"]), always, "given labels, each left out in turn")


def learned_with(seen: LabelsSeen) -> str:
    return f"{int(seen.labelled.sum()):,} labels of {len(seen.classifier.class_names)} classes"
