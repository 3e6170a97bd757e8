"""Sections 5.1 and 5.2: rows of baselines that are networks (baselines/network.py), trained as our own rows are.

    NetworkRow     how a baseline is built and trained; a table has one line for each
    train_network  steps on the training images; the validation images, and no others, say which weights are the best

A table gets the last weights and the best ones, and looks at the test images with either.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from semisight.baselines.network import Classifier, Learning, scores_of
from semisight.data.augment import augment_for
from semisight.data.batches import batches_for
from semisight.data.image_set import ImageSet
from semisight.experiments.label_rows import labels_of
from semisight.experiments.table import Request, fit
from semisight.metrics.classification import error_rate
from semisight.objectives.step import Images
from semisight.training.checkpoint import load_parts
from semisight.training.config import Schedule
from semisight.training.trainer import Trainer

T = TypeVar("T")


@dataclass(frozen=True)
class NetworkRow:
    """How a baseline is trained.

    build     the network for these training images; small at smoke size
    labelled  images with a label in a batch, where they are too few to come by chance
    alone     learn from the labelled images and no others
    augment   images, as suits their colours
    steps     in place of epochs, with ten validations on the way
    """

    build: Callable[[ImageSet, bool], Classifier]
    labelled: int = 100
    batch_size: int = 200
    alone: bool = False
    augment: bool = False
    learning_rate: float = 2e-3
    schedule: Schedule = "cosine"
    weight_decay: float = 0.0
    average: float | None = None
    epochs: int = 10
    steps: int | None = None


@dataclass(frozen=True)
class TrainedNetwork:
    """The checkpoints of the last step and of the least validation error, and the seconds spent before."""

    network: Classifier
    last: Path
    best: Path
    before: float

    def scores(self, checkpoint: Path, images: Images) -> Tensor:
        """[N, C] by the weights of one of them."""
        assert isinstance(self.network, nn.Module)
        load_parts({"model": self.network}, checkpoint)
        return scores_of(self.network, images)


def network_terms(network: Classifier, images: Images, labels: Tensor) -> dict[str, float]:
    """What a validation says of a network."""
    return {"error": 100 * error_rate(scores_of(network, images).argmax(1), labels)}


def started(build: Callable[[], T], seed: int) -> T:
    """A network whose first weights follow from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def train_network(
    row: NetworkRow, network: Classifier, train: ImageSet, valid: ImageSet, seed: int, place: Path, request: Request
) -> TrainedNetwork:
    """Labels of the training images are -1 where they are hidden. Test images are not looked at."""
    labels = labels_of(train)
    if row.alone:
        train = train.subset(labels >= 0)
        labels = labels_of(train)
    assert isinstance(network, nn.Module)
    plan = batches_for(labels >= 0, row.batch_size, row.labelled, strata=labels)

    def validate(_: nn.Module) -> Mapping[str, float]:
        return network_terms(network, valid, labels_of(valid))

    steps = 2 if request.smoke and row.steps is not None else row.steps
    config = request.training(
        seed=seed,
        learning_rate=row.learning_rate,
        schedule=row.schedule,
        weight_decay=row.weight_decay,
        average_decay=row.average,
        batch_size=plan.batch_size,
        max_epochs=None if steps is not None else 1 if request.smoke else row.epochs,
        max_steps=steps,
        validate_every=1 if steps is None else max(1, round(steps / 10 / plan.steps_per_epoch)),
        max_minutes=request.minutes,
        metric="error",
        metric_rises=False,
    )
    learning = Learning(network, labels, augment_for(train.shape[0]) if row.augment else None)
    trainer = Trainer(learning, train, place, config=config, plan=plan, validate=validate)
    fitted, before = fit(trainer)
    return TrainedNetwork(network, trainer.folder.newest, fitted.checkpoint, before)
