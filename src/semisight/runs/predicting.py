"""`semisight predict` without its command line: images in, labels with probabilities out, as a table, CSV or JSON."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from semisight.data.image_set import ImageSet, Skipped
from semisight.runs.classifier import Classifier

Format = Literal["table", "csv", "json"]
_ROWS_SHOWN = 50  # more than this nobody reads on a terminal
_DIGITS = 6


@dataclass(frozen=True)
class Guess:
    """The label of one image, and the next likely ones: (label, probability), the best first."""

    file: str
    spread: float
    top: tuple[tuple[str, float], ...]

    @property
    def label(self) -> str:
        return self.top[0][0]

    @property
    def probability(self) -> float:
        return self.top[0][1]


def guess(classifier: Classifier, images: ImageSet, top: int = 3) -> list[Guess]:
    """One for each image, in their order, with the `top` most probable labels."""
    found, names = classifier(images), classifier.class_names
    best = found.probabilities.topk(min(top, len(names)), dim=1)
    spreads = found.spread.tolist()
    return [
        Guess(file, spread, tuple((names[c], p) for c, p in zip(labels, values, strict=True)))
        for file, spread, labels, values in zip(
            images.names, spreads, best.indices.tolist(), best.values.tolist(), strict=True
        )
    ]


def written(guesses: Sequence[Guess], skipped: Sequence[Skipped], classifier: Classifier, kind: Format) -> str:
    """The guesses as text that ends in a line break."""
    if kind == "csv":
        return _as_csv(guesses)
    if kind == "json":
        return json.dumps(_as_json(guesses, skipped, classifier), indent=1, ensure_ascii=False) + "\n"
    return _as_table(guesses)


def _as_csv(guesses: Sequence[Guess]) -> str:
    """file, label, probability, spread, and label_2, probability_2, ... for the next likely ones."""
    more = range(2, len(guesses[0].top) + 1)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["file", "label", "probability", "spread", *(f"{word}_{k}" for k in more for word in ("label", "probability"))]
    )
    for one in guesses:
        others = [value for label, p in one.top[1:] for value in (label, _short(p))]
        writer.writerow([one.file, one.label, _short(one.probability), _short(one.spread), *others])
    return text.getvalue()


def _as_json(guesses: Sequence[Guess], skipped: Sequence[Skipped], classifier: Classifier) -> dict[str, Any]:
    return {
        "classes": list(classifier.class_names),
        "calibrated": classifier.calibrated,
        "images": [
            {
                "file": one.file,
                "label": one.label,
                "probability": _short(one.probability),
                "spread": _short(one.spread),
                "top": [{"label": label, "probability": _short(p)} for label, p in one.top],
            }
            for one in guesses
        ],
        "skipped": [{"file": entry.name, "reason": entry.reason} for entry in skipped],
    }


def _as_table(guesses: Sequence[Guess]) -> str:
    rows = [("file", "label", "probability", "spread", "or")]
    rows += [
        (
            one.file,
            one.label,
            f"{one.probability:.1%}",
            f"{one.spread:.2f}",
            ", ".join(f"{label} {p:.1%}" for label, p in one.top[1:]),
        )
        for one in guesses[:_ROWS_SHOWN]
    ]
    lines = columns(rows, right=(2, 3))
    if len(guesses) > _ROWS_SHOWN:
        lines.append(f"... and {len(guesses) - _ROWS_SHOWN:,} more: --format csv or json gives all of them")
    return "\n".join(lines) + "\n"


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows of words as lines with aligned columns; those in `right` end at one place instead of starting at one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.rjust(width) if number in right else word.ljust(width)
            for number, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(value: float) -> float:
    return round(value, _DIGITS)
