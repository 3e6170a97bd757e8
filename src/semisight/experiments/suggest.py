"""Beyond the paper: what `semisight suggest` is worth, as error against the number of labels.

    semisight reproduce suggest --splits 0,1,2                       about three minutes on one core

With --data CALTECH101 photographs are measured instead (suggest_photos.py).

1,797 handwritten digits of 8 x 8 pixels, 500 of them to measure on. A model learns from ten labels drawn at random;
then, four times, ten more are chosen with its help, and it goes on learning from all of them.

    row         the next ten labels are
    random      drawn at random
    doubt       those in most doubt, near each other or not
    suggest     doubt times distance from what has a label or was chosen before (inference/acquisition.py)

Expect 4 to 7 percent of error with 50 labels where they are suggested, and 5 to 16 where they are drawn.
"""

import copy
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semisight.data import load
from semisight.data.columns import hide_labels
from semisight.data.image_set import ImageSet, split
from semisight.experiments import results, suggest_photos
from semisight.experiments.label_rows import LabelRow, Learner, compose, labels_of, refresher
from semisight.experiments.table import Cell, Measured, Request, fill
from semisight.inference.acquisition import choose_next, see
from semisight.inference.validation import label_error
from semisight.objectives.consistency import Consistency
from semisight.objectives.targets import Xi
from semisight.random import Stream, random_order
from semisight.training.checkpoint import load_parts
from semisight.training.trainer import Trainer

TABLE, METRIC = "suggest", "error"
ROWS = ("random", "doubt", "suggest")
DATA = "builtin:digits"
N_TEST = 500
FIRST, MORE, ROUNDS = 10, 10, 4  # labels at the start, labels added, how often
STEPS_AT_FIRST, STEPS, SMOKE_STEPS = 240, 60, 5
ROW = LabelRow(
    gradient="local",
    pooling="expected",
    nonlinearity="relu",
    softmax=True,
    xi=Xi(times=10),
    batch_size=128,
    consistency=Consistency(),
    learning_rate=1e-3,
    schedule="cosine",
    average=0.95,
)


def run(request: Request) -> list[results.Row]:
    """Every point of a curve that the results file does not hold yet; each is added once it is measured."""
    if request.data is not None and not str(request.data).startswith("builtin:"):
        return suggest_photos.run(request)
    counts = [FIRST + MORE * number for number in range(1 + (1 if request.smoke else ROUNDS))]
    cells = [
        Cell(row, seed, (METRIC,), str(n))
        for seed in request.splits
        for row in request.chosen(ROWS, "this experiment")
        for n in counts
    ]
    starts: dict[int, Curve] = {}
    curves: dict[tuple[str, int], Curve] = {}

    def measured(cell: Cell, place: Path) -> Measured:
        began, key = time.monotonic(), (cell.row, cell.seed)
        if cell.seed not in starts:
            starts[cell.seed] = first(request, cell.seed)
        if key not in curves:
            curves[key] = replace(starts[cell.seed], learner=copy.deepcopy(starts[cell.seed].learner))
        curve = curves[key]
        while len(curve.chosen) < int(cell.N):
            curve.ask(cell.row, request)
        before = max(0.0, curve.seconds - (time.monotonic() - began))  # in other cells of the curve
        return Measured({METRIC: curve.error()}, before)

    return fill(TABLE, request, cells, measured)


@dataclass
class Curve:
    """A model and the labels it has learned from so far; those of a split begin with the same."""

    seed: int
    train: ImageSet
    test: ImageSet
    chosen: Tensor  # positions of the labels that are known
    learner: Learner
    seconds: float = 0.0
    rounds: int = 0

    def error(self) -> float:
        return label_error(self.learner.model, self.learner.head, self.test, labels_of(self.test))

    def ask(self, row: str, request: Request) -> None:
        """More labels, chosen as the row says, and some steps with all that are known."""
        began = time.monotonic()
        new = self.next_labels(row)
        self.chosen = torch.cat([self.chosen, torch.tensor(new)])
        self.learner = learn(self.train, self.chosen, self.learner, self.seed, STEPS, request)
        self.rounds += 1
        self.seconds += time.monotonic() - began

    def next_labels(self, row: str) -> list[int]:
        unknown = torch.ones(len(self.train), dtype=torch.bool)
        unknown[self.chosen] = False
        if row == "random":
            order = random_order(len(self.train), self.seed, Stream.SUGGEST_RANDOM, self.rounds + 1)
            return order[unknown[order]][:MORE].tolist()
        seen = see(self.learner.model, self.learner.head, self.train, lambda f: f.softmax(1))
        if row == "doubt":
            return seen.doubt.where(unknown, -1).topk(MORE).indices.tolist()
        return choose_next(seen.codes, seen.doubt, unknown, MORE)


def first(request: Request, seed: int) -> Curve:
    """Ten labels, drawn at random, and a model that has learned from them."""
    began = time.monotonic()
    train, test = split(load(request.data or DATA), N_TEST, seed=99)
    chosen = random_order(len(train), seed, Stream.SUGGEST_FIRST)[:FIRST]
    learner = learn(train, chosen, None, seed, STEPS_AT_FIRST, request)
    return Curve(seed, train, test, chosen, learner, time.monotonic() - began)


def learn(train: ImageSet, chosen: Tensor, former: Learner | None, seed: int, steps: int, request: Request) -> Learner:
    """A short training with all labels known so far, from where the former one ended."""
    images = train.with_labels(hide_labels(labels_of(train), chosen), train.class_names)
    learner = compose(ROW, images, seed)
    if former is not None:
        parts = former.joint.parts()
        for name, part in learner.joint.parts().items():
            part.load_state_dict(parts[name].state_dict())
        learner.labels.seen.copy_(former.labels.seen)
        learner.labels.responsibilities = former.labels.responsibilities
    config = ROW.training(
        request,
        seed,
        batch_size=learner.plan.batch_size,
        max_epochs=None,
        max_minutes=None,
        max_steps=SMOKE_STEPS if request.smoke else steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        on_epoch = refresher(learner.joint, images, seed)
        trainer = Trainer(learner.joint, images, folder, config=config, plan=learner.plan, on_epoch=on_epoch)
        trainer.fit()
        load_parts(learner.joint.parts(), trainer.folder.newest)  # averaged
    return learner
