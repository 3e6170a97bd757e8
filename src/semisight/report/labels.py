"""Sections of the page on labels: counts and errors, confusion, reliability, certainty, error against labels."""

from html import escape

import numpy as np
from PIL import Image
from torch import Tensor

from semisight.metrics.classification import error_per_class
from semisight.report import charts, page
from semisight.report.labels_seen import LabelsSeen, label_words, most_confused
from semisight.report.material import Material, tile, tile_width
from semisight.report.page import Section
from semisight.report.reliability import reliability_chart

_NUMBERS_SHOWN = 20  # classes: a larger matrix is drawn as a picture
_CERTAIN = 12  # images at each end
_LOW, _HIGH = np.array([246, 244, 240]), np.array([200, 84, 16])


def overview(m: Material) -> Section:
    seen = _seen(m)
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
    body = page.paragraphs(label_words(seen)) + page.cards(entries) + _classes(seen)
    return Section("labels", "Labels", "", body)


def _classes(seen: LabelsSeen) -> str:
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
        return f"<h3>Each class</h3>{table}"
    return f"<details><summary>Each of the {len(names)} classes</summary>{table}</details>"


def _whole(counts: Tensor) -> list[str]:
    return [f"{count:,}" if count else "" for count in counts.tolist()]


def confusion(m: Material) -> Section:
    of = _seen(m).evaluation
    assert of is not None
    pairs = [f"{true} called {called} ({count:,})" for true, called, count in most_confused(of)]
    often = f"Most often: {', '.join(pairs[:6])}." if pairs else "No image was given a wrong label."
    if len(of.class_names) <= _NUMBERS_SHOWN:
        drawing = page.confusion_table(of.class_names, of.confusion.tolist())
    else:
        drawing = f'<div class="matrix">{page.img(_matrix_picture(of.confusion), "confusion matrix")}</div>'
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


def reliability(m: Material) -> Section:
    seen = _seen(m)
    of = seen.evaluation
    assert of is not None
    same = " They were calibrated on these same images, so in truth it is a little worse: "
    fitted = seen.classifier.fitted
    if fitted is not None and fitted.by == "moves":
        honest = " No label was held out to calibrate them: they say how often the answer stays when an image is moved."
    elif fitted is not None and not seen.hidden:
        honest = f"{same}measured crosswise, {fitted.error:.1%}."
    else:
        honest = "" if fitted is not None else " They are the model's own: no label was held out to calibrate them."
    return Section(
        "reliability",
        "How far to believe the probabilities",
        "Of the images that the model is 80% sure of, 80% should be right.",
        page.figure(
            f'<div class="charts"><figure>{reliability_chart(of.reliability)}</figure></div>',
            f"Bars: how often the label was right, by how sure the model was; the fainter a bar, the fewer images it "
            f"stands for. On the dashed line the probabilities are exactly right; on average they are off by "
            f"{of.calibration_error:.1%} (expected calibration error, {of.n:,} images).{honest}",
        ),
    )


def certainty(m: Material) -> Section:
    seen = _seen(m)
    order = seen.classified.probability.argsort(descending=True)
    n = min(_CERTAIN, len(order) // 2) or len(order)
    most, least = order[:n], order[len(order) - n :].flip(0)
    known = bool((seen.truth >= 0).any())
    longest = max(map(len, seen.classifier.class_names))
    width = tile_width(m) if longest <= 3 else "7rem"  # a name needs its place
    mark = " A wrong label is marked, and the right one follows." if known else ""
    body = "".join(
        f"<h3>{title}</h3>" + page.figure(page.tiles([_guess(seen, int(i)) for i in which], width), caption)
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


def _guess(seen: LabelsSeen, i: int) -> str:
    names = seen.classifier.class_names
    label, probability = int(seen.classified.label[i]), float(seen.classified.probability[i])
    truth, spread = int(seen.truth[i]), float(seen.classified.spread[i])
    wrong = truth >= 0 and truth != label
    image = seen.shown.batch(seen.classified.label.new_tensor([i]))[0]
    right = f"is {names[truth]}" if wrong else ""
    hint = f"{seen.shown.names[i]}: {names[label]}, probability {probability:.3f}, spread {spread:.3f}"
    text = f"<b>{escape(names[label])}</b><br>{probability:.0%} <i>({spread:.2g})</i>"
    text += f"<br>{escape(right)}" if wrong else ""
    return page.named(tile(image, f"{hint}; {right}" if wrong else hint), text, wrong)


def few_labels(m: Material) -> Section:
    seen = _seen(m)
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
            f'<div class="charts"><figure><figcaption><b>Error in percent</b></figcaption>{drawing}</figure>'
            f"<figure>{table}</figure></div>",
            f"The codes were learned with {learned} labels of each class and stay as they are; only the classifier on "
            f"them is fitted anew. With fewer labels in training the codes would be a little worse too.{more}",
        ),
    )


def _seen(m: Material) -> LabelsSeen:
    assert m.labels is not None
    return m.labels


def sections(m: Material) -> list[Section]:
    """Those that a run with labels has something to show for."""
    if m.labels is None:
        return []
    measured = m.labels.evaluation is not None
    return [
        overview(m),
        *([confusion(m), reliability(m)] if measured else []),
        certainty(m),
        *([few_labels(m)] if m.labels.few else []),
    ]
