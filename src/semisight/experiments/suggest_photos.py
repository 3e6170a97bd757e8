"""Beyond the paper: what `semisight suggest` is worth on photographs, as error against the number of labels.

    semisight reproduce suggest --data CALTECH101 --splits 0,1,2       features once, a few minutes of one core a split

CALTECH101 is a folder with one folder for each class. Of every class 20 images are for the test, drawn by the split's
number as in `photos`; the others are a pile without labels, some classes of it with 11 images and some with 780. The
first 100 labels are drawn at random, the same for all rows; then more are chosen with the help of the model that the
labels so far have made, 100 at first and up to 400 at a time.

    row         the next labels are
    random      drawn at random
    doubt       those in most doubt, near each other or not
    suggest     as `semisight suggest` chooses (inference/acquisition.py)

The model is that of `train --backbone` with the labels alone: the code in closed form, a softmax head on it. How
`suggest` chooses was itself chosen among eight ways on the splits 100 and 101 of these same photographs. Metrics:
`error` in percent over the test images, every class alike; `error_by_frequency`, every class by its share of the pile;
`classes` that have a label.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from semisight.experiments import results
from semisight.experiments.photos import PER_CLASS, photos_of, split_of
from semisight.experiments.table import Cell, Measured, Request, fill
from semisight.inference.acquisition import Seen, choose_next
from semisight.model.encoders.features import FeatureEncoder
from semisight.model.heads.labels import Softmax
from semisight.model.posterior import batch_last, flat_code
from semisight.random import Stream, random_order
from semisight.training.soft_em import SoftEM, mean_decision

ROWS = ("random", "doubt", "suggest")
COUNTS, SMOKE_COUNTS = (100, 200, 300, 400, 600, 800, 1200, 1600), (20, 40)
METRICS = ("error", "error_by_frequency", "classes")
LEARN = SoftEM(weight=0.0)  # the labels alone: seconds a round


@dataclass
class Curve:
    """Codes of the pile and of the test images (of each view), their labels, and which of the pile's are known."""

    seed: int
    codes: list[Tensor]
    labels: Tensor
    test: list[Tensor]
    truth: Tensor
    n_classes: int
    chosen: Tensor
    head: Softmax | None = field(default=None, repr=False)
    seconds: float = 0.0

    def learned(self) -> Softmax:
        if self.head is None:
            began = time.monotonic()
            known = torch.full_like(self.labels, -1)
            known[self.chosen] = self.labels[self.chosen]
            self.head = LEARN(self.codes, known, self.n_classes)
            self.seconds += time.monotonic() - began
        return self.head

    def measure(self) -> dict[str, float]:
        wrong = (mean_decision(self.learned(), self.test).argmax(1) != self.truth).double()
        per_class = torch.stack([wrong[self.truth == c].mean() for c in range(self.n_classes)])
        share = torch.bincount(self.labels, minlength=self.n_classes).double() / len(self.labels)
        classes = len(self.labels[self.chosen].unique())
        return dict(zip(METRICS, (100 * float(wrong.mean()), 100 * float(share @ per_class), classes), strict=True))

    def next_labels(self, row: str, n: int) -> list[int]:
        unknown = torch.ones(len(self.labels), dtype=torch.bool)
        unknown[self.chosen] = False
        if row == "random":
            order = random_order(len(self.labels), self.seed, Stream.SUGGEST_RANDOM, len(self.chosen))
            return order[unknown[order]][:n].tolist()
        # a head that saw few labels is far too unsure
        p = (mean_decision(self.learned(), self.codes) * LEARN.first_sharpening).softmax(1)
        seen = Seen(torch.stack(self.codes).mean(0), p)
        if row == "doubt":
            return seen.doubt.where(unknown, -1).topk(n).indices.tolist()
        return choose_next(seen.codes, seen.doubt, unknown, n)

    def ask(self, row: str, n: int) -> None:
        """n more labels, chosen as the row says."""
        began = time.monotonic()
        self.chosen, self.head = torch.cat([self.chosen, torch.tensor(self.next_labels(row, n))]), None
        self.seconds += time.monotonic() - began


def run(request: Request) -> list[results.Row]:
    """Every point of a curve that the results file does not hold yet."""
    photos, name = photos_of(request)
    counts = SMOKE_COUNTS if request.smoke else COUNTS
    cells = [
        Cell(f"{name}/{row}", seed, METRICS, str(n))
        for seed in request.splits
        for row in request.chosen(ROWS, "this experiment")
        for n in counts
    ]
    curves: dict[tuple[str, int], Curve] = {}

    def measured(cell: Cell, place: Path) -> Measured:
        began, key = time.monotonic(), (cell.row, cell.seed)
        if key not in curves:
            of = split_of(photos(), 0, cell.seed, 5 if request.smoke else PER_CLASS)
            curves[key] = begin(of.views, photos().images.labels, of.test, of.n_classes, cell.seed, counts[0])
        curve = curves[key]
        for n in counts:
            if len(curve.chosen) < n <= int(cell.N):
                curve.ask(cell.row.split("/")[1], n - len(curve.chosen))
        found = curve.measure()
        return Measured(found, max(0.0, curve.seconds - (time.monotonic() - began)))  # in other cells of the curve

    return fill("suggest", request, cells, measured)


def begin(views: list[Tensor], labels: Tensor | None, test: Tensor, n_classes: int, seed: int, first: int) -> Curve:
    """The first labels are drawn at random."""
    assert labels is not None
    pile = torch.ones(len(labels), dtype=torch.bool)
    pile[test] = False
    encoder = FeatureEncoder.fit(views[0][pile])
    codes = [flat_code(encoder.moments(batch_last(view[..., None, None]))[0]) for view in views]
    chosen = random_order(int(pile.sum()), seed, Stream.SUGGEST_FIRST)[:first]
    return Curve(
        seed,
        [code[pile] for code in codes],
        labels[pile],
        [code[test] for code in codes],
        labels[test],
        n_classes,
        chosen,
    )
