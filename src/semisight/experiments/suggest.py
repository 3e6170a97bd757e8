"""Beyond the paper: what `semisight suggest` is worth, as error against the number of labels.

    semisight reproduce suggest --splits 0,1,2                       about three minutes on one core

1,797 handwritten digits of 8 x 8 pixels, 500 of them to measure on. A model learns from ten labels drawn at random;
then, four times, ten more are chosen with its help, and it goes on learning from all of them.

    row         the next ten labels are
    random      drawn at random
    doubt       those in most doubt, near each other or not
    suggest     doubt times distance from what has a label or was chosen before (learning/choosing.py)

Expect 4 to 7 percent of error with 50 labels where they are suggested, and 5 to 16 where they are drawn.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semisight.data import load
from semisight.data.columns import hide_labels
from semisight.data.image_set import ImageSet, split
from semisight.errors import UserError
from semisight.experiments import results
from semisight.inference.acquisition import choose_next, see
from semisight.model.architecture import suggest_architecture
from semisight.model.image_model import ImageModel
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import LabelObjective
from semisight.random import Stream, random_order
from semisight.runs.label_training import (
    LabelSettings,
    build_label_objective,
    label_error,
    label_plan,
    refresher,
)
from semisight.training.checkpoint import load_weights
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer

TABLE, METRIC = "suggest", "error"
ROWS = ("random", "doubt", "suggest")
DATA = "builtin:digits"
N_TEST = 500
FIRST, MORE, ROUNDS = 10, 10, 4  # labels at the start, labels added, how often
STEPS_AT_FIRST, STEPS = 240, 60
SETTINGS = LabelSettings(head="softmax", xi="pixels", labelled_per_batch=32)
BATCH = 128


def run(
    data: str | Path,
    out: Path,
    rows: Sequence[str] = ROWS,
    splits: Sequence[int] = (0,),
    smoke: bool = False,
    threads: int = 1,
    progress: bool = True,
) -> list[results.Row]:
    """Every curve that `out` does not hold yet, one after the other; each is added as soon as it is measured."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise UserError(f"no row {unknown[0]!r} in this experiment. There are: {', '.join(ROWS)}")
    rounds = 1 if smoke else ROUNDS
    counts = [FIRST + MORE * number for number in range(rounds + 1)]
    added = []
    for number in splits:
        missing = [
            row for row in rows if not all(results.has(out, TABLE, row, str(n), (METRIC,), number) for n in counts)
        ]
        start = None
        for row in missing:
            origin = {"commit": results.commit(), "hardware": results.hardware(threads)}
            start = start or first(data, number, smoke, threads, progress)
            curve = [
                results.Row(TABLE, row, str(n), METRIC, number, error, "", minutes, **origin)
                for n, error, minutes in measure(row, start, rounds, smoke, threads, progress)
            ]
            results.add(out, curve)
            added += curve
    return added


@dataclass(frozen=True)
class Start:
    """What all rows of a split begin with: the same images, the same ten labels, the same model."""

    seed: int
    train: ImageSet
    test: ImageSet
    chosen: Tensor
    objective: LabelObjective
    minutes: float


def first(data: str | Path, seed: int, smoke: bool, threads: int, progress: bool) -> Start:
    started = time.monotonic()
    train, test = split(load(data), N_TEST, seed=99)
    assert train.labels is not None
    chosen = random_order(len(train), seed, Stream.SUGGEST_FIRST)[:FIRST]
    labels = hide_labels(train.labels, chosen)
    objective = learn(train, labels, None, seed, 5 if smoke else STEPS_AT_FIRST, threads, progress)
    return Start(seed, train, test, chosen, objective, (time.monotonic() - started) / 60)


def measure(
    row: str, start: Start, rounds: int, smoke: bool, threads: int, progress: bool
) -> list[tuple[int, float, float]]:
    """(number of labels, error in percent, minutes since the start) of one curve."""
    began, train, truth = time.monotonic(), start.train, start.train.labels
    assert truth is not None
    chosen, objective = start.chosen, start.objective
    curve = [(len(chosen), label_error(objective, start.test), start.minutes)]
    for number in range(rounds):
        new = next_labels(row, objective, train, hide_labels(truth, chosen), start.seed, number)
        chosen = torch.cat([chosen, torch.tensor(new)])
        labels = hide_labels(truth, chosen)
        objective = learn(train, labels, objective, start.seed, 5 if smoke else STEPS, threads, progress)
        error = label_error(objective, start.test)
        curve.append((len(chosen), error, start.minutes + (time.monotonic() - began) / 60))
    return curve


def next_labels(
    row: str, objective: LabelObjective, train: ImageSet, labels: Tensor, seed: int, number: int
) -> list[int]:
    open_ = labels < 0
    if row == "random":
        order = random_order(len(train), seed, Stream.SUGGEST_RANDOM, number + 1)
        return [i for i in order.tolist() if bool(open_[i])][:MORE]
    seen = see(objective.images.model, objective.label_head, train, lambda f: f.softmax(1))
    if row == "doubt":
        return torch.where(open_, seen.doubt, -torch.ones(())).topk(MORE).indices.tolist()
    return choose_next(seen.codes, seen.doubt, open_, MORE)


def learn(
    train: ImageSet, labels: Tensor, former: LabelObjective | None, seed: int, steps: int, threads: int, progress: bool
) -> LabelObjective:
    """A short training with all labels known so far, from where the former one ended."""
    model = ImageModel.of(suggest_architecture(train.shape, "relu"), "expected", seed)
    model.start_from(train.batch(torch.arange(len(train))))
    n_classes = len(train.class_names)
    objective = build_label_objective(ImageObjective(model, seed=seed), labels, n_classes, SETTINGS, BATCH, seed)
    if former is not None:
        objective.load_state_dict(former.state_dict())
    images = train.with_labels(labels, train.class_names)
    config = TrainConfig(
        seed=seed,
        learning_rate=1e-3,
        batch_size=BATCH,
        schedule="cosine",
        average_decay=0.95,
        max_epochs=None,
        max_steps=steps,
        patience=None,
        threads=threads,
        keep_memory=True,
        progress=progress,
        tensorboard=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            objective,
            images,
            folder,
            config=config,
            plan=label_plan(labels, SETTINGS, BATCH),
            on_epoch=refresher(objective, images, seed),
        )
        trainer.fit(overwrite=True)
        load_weights(objective, trainer.run.newest)
    objective.eval()
    return objective
