"""Sections 5.1 and 5.2: a row that learns labels, put together from its parts; Tables 1 and 2 list such rows.

    Parts     which images are for what, decided once
    compose   model, head, objective and batches of a row, for its training images
    train     steps on the training images; after every epoch the validation images, and no others, say which weights
              are the best so far

A table gets two checkpoints, the last weights and the best ones, and looks at the test images with either.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.data import load
from semisight.data.augment import augment_for
from semisight.data.batches import LabelledAndUnlabelled, Shuffled, batches_for, labelled_beside, share_of_batch
from semisight.data.image_set import ImageSet, split
from semisight.experiments.table import Request, fit
from semisight.inference.encode import mean_codes
from semisight.inference.validation import label_terms
from semisight.model.architecture import Architecture, Layer, Nonlinearity, suggest_architecture
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.labels import BayesianSVM, LabelHead, Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.consistency import Consistency
from semisight.objectives.gradients import GradientName, gradient_named
from semisight.objectives.joint import Joint
from semisight.objectives.labels import Labels
from semisight.objectives.targets import Xi
from semisight.random import Stream, reseed
from semisight.runs.deep import AVERAGE, BOUND, LEARNING_RATE, SMOOTHING, WEIGHT_DECAY, deep_consistency
from semisight.training.checkpoint import load_parts
from semisight.training.config import Schedule, TrainConfig
from semisight.training.devices import bf16_pays
from semisight.training.state import TrainerState
from semisight.training.trainer import Trainer

START_IMAGES = 5000  # that the first weights are fitted to
SMOKE_TRAIN, SMOKE_HELD_OUT = 300, 200


@dataclass(frozen=True)
class Parts:
    """Images to learn from, to pick weights by, and to report on; all of them with labels."""

    train: ImageSet
    valid: ImageSet
    test: ImageSet


def parts(data: str | Path, n_valid: int, seed: int, smoke: bool = False) -> Parts:
    """The seed parts the training images; test images are the standard ones. At smoke size a small set stands in."""
    if smoke:
        rest, test = split(load(data), SMOKE_HELD_OUT, seed=99)
        train, valid = split(rest, SMOKE_HELD_OUT, seed)
        return Parts(train.subset(torch.arange(SMOKE_TRAIN)), valid, test)
    train, valid = split(load(data), n_valid, seed)
    return Parts(train, valid, load(data, part="test"))


def labels_of(images: ImageSet) -> Tensor:
    assert images.labels is not None
    return images.labels


@dataclass(frozen=True)
class LabelRow:
    """How a row is trained; the defaults are section 5.2 as printed.

    reach        of the places' MLP at its start (`PoolingMLP`)
    labelled     images with a label in a batch, where they are too few to come by chance
    beside       images without one in a batch; the labelled ones are then as many as suits their number
    consistency  its augmentation is chosen by the colours of the images
    epochs       None: as long as there is time, or as many steps as are asked for
    layers       None: as suits the size of the images
    deep         the deep encoder with its recipe (runs/deep.py); of `consistency` only pseudo-labels and bound count
    width        of the deep encoder: times so many maps
    smoothing    of the given labels
    threshold    of pseudo-labels
    balanced     Bayesian SVM: an image's own class weighs as much as all others together
    on_set       by the name of a data set, what is different there
    """

    gradient: GradientName = "nvil"
    pooling: Pooling = "sampled"
    reach: float = 1.0
    nonlinearity: Nonlinearity = "none"
    softmax: bool = False
    xi: Xi = field(default_factory=Xi)
    labelled: int = 32
    batch_size: int = 64
    beside: int | None = None
    consistency: Consistency | None = None
    learning_rate: float = 2e-4
    schedule: Schedule = "constant"
    average: float | None = None
    epochs: int | None = 25
    layers: tuple[Layer, ...] | None = None
    deep: bool = False
    width: float = 1.0
    smoothing: float = 0.0
    threshold: float | None = 0.95
    weight_decay: float = 0.0
    balanced: bool = False
    on_set: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def on(self, name: str) -> "LabelRow":
        return replace(self, **self.on_set.get(name, {}))

    def plan(self, labels: Tensor) -> Shuffled | LabelledAndUnlabelled:
        """The batches, for labels int64 [N], -1 where unknown."""
        known, labelled, batch_size = labels >= 0, self.labelled, self.batch_size
        if self.beside is not None:
            n_known, n_others = int(known.sum()), int((~known).sum())
            labelled = labelled_beside(n_known, n_others, self.beside)
            batch_size = labelled + min(self.beside, n_others)
        return batches_for(known, batch_size, labelled, strata=labels)

    def training(self, request: Request, seed: int, **settings: Any) -> TrainConfig:
        limits: dict[str, Any] = {"max_epochs": 1 if request.smoke else self.epochs, "max_minutes": request.minutes}
        if limits["max_epochs"] is None and request.steps is not None:
            limits = {"max_epochs": None, "max_steps": request.steps}
        return request.training(
            seed=seed,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            average_decay=self.average,
            weight_decay=self.weight_decay,
            **{**limits, **settings},
        )


DEEP = LabelRow(
    gradient="local",
    pooling="expected",
    nonlinearity="norm-relu",
    softmax=True,
    beside=128,
    consistency=Consistency(bound_weight=BOUND),
    learning_rate=LEARNING_RATE,
    weight_decay=WEIGHT_DECAY,
    schedule="one-cycle",
    average=AVERAGE,
    epochs=None,  # the minutes say how long
    deep=True,
    smoothing=SMOOTHING,
    threshold=None,
)
DEEP_NO_BOUND = replace(DEEP, consistency=Consistency(bound_weight=0.0))
DEEP_ALONE = replace(DEEP, consistency=Consistency(0.0, bound_weight=0.0))


def image_model(row: LabelRow, images: ImageSet, seed: int) -> ImageModel:
    architecture = (
        suggest_architecture(images.shape, row.nonlinearity)
        if row.layers is None
        else Architecture(images.shape, row.layers, row.nonlinearity)
    )
    if row.deep:
        model = ImageModel.deep(architecture, seed, row.width, places=row.pooling != "max", bf16=bf16_pays())
    else:
        model = ImageModel.of(architecture, row.pooling, seed, reach=row.reach)
    model.start_from(images.batch(torch.arange(min(len(images), START_IMAGES))))
    return model


@dataclass(frozen=True)
class Learner:
    """What is trained, and on which batches."""

    joint: Joint
    plan: Shuffled | LabelledAndUnlabelled

    @property
    def model(self) -> ImageModel:
        return self.joint.model

    @property
    def labels(self) -> Labels:
        return cast(Labels, self.joint.targets[0])

    @property
    def head(self) -> LabelHead:
        return self.labels.label_head


def compose(row: LabelRow, images: ImageSet, seed: int) -> Learner:
    """For training images, of whose labels any may be hidden."""
    labels, n_classes = labels_of(images), len(images.class_names)
    model = image_model(row, images, seed)
    generator = reseed(torch.Generator(), seed, Stream.LABEL_HEAD, 0)
    head: nn.Module
    if row.softmax:
        head = Softmax(model.code_size, n_classes, generator=generator)
    else:
        head = BayesianSVM(model.code_size, n_classes, generator=generator, balanced=row.balanced)
    how = row.consistency
    if how is not None and row.deep:
        weight = how.bound_weight if how.bound_weight is not None else BOUND
        how = deep_consistency(images, labels, seed, how.pseudo_labels, weight)
    elif how is not None:
        how = replace(how, augment=augment_for(images.shape[0]))
    plan = row.plan(labels)
    joint = Joint(
        model,
        [Labels(head, labels, xi=row.xi, threshold=row.threshold, smoothing=row.smoothing)],
        gradient=gradient_named(row.gradient, seed),
        consistency=how,
        rho={"labels": share_of_batch(labels >= 0, plan)},
    )
    return Learner(joint, plan)


def refresher(joint: Joint, images: ImageSet, seed: int) -> Callable[[TrainerState], None] | None:
    """For `Trainer(on_epoch=...)`: labels spread anew after each epoch; what comes of it follows from (seed, step)."""
    if joint.consistency is None or not joint.consistency.spreading:
        return None

    def refresh(state: TrainerState) -> None:
        generator = reseed(torch.Generator(), seed, Stream.REFRESH, state.counters.step)
        joint.refresh(mean_codes(joint.model, images, seed=seed), generator)

    return refresh


@dataclass(frozen=True)
class Trained:
    """The checkpoints of the last step and of the least validation error, and the seconds spent before."""

    learner: Learner
    last: Path
    best: Path
    before: float

    def weights(self, checkpoint: Path) -> tuple[ImageModel, LabelHead]:
        """Model and head with the weights of one of them."""
        load_parts(self.learner.joint.parts(), checkpoint)
        return self.learner.model, self.learner.head


def train(
    row: LabelRow, learner: Learner, of: Parts, seed: int, place: Path, request: Request, **settings: Any
) -> Trained:
    """`settings` are those of the trainer that are not the row's. Test images are not looked at."""

    def validate(_: nn.Module) -> Mapping[str, float]:
        return label_terms(learner.model, learner.head, of.valid, labels_of(of.valid))

    config = row.training(
        request, seed, batch_size=learner.plan.batch_size, metric="error", metric_rises=False, **settings
    )
    trainer = Trainer(
        learner.joint,
        of.train,
        place,
        config=config,
        plan=learner.plan,
        validate=validate,
        on_epoch=refresher(learner.joint, of.train, seed),
        about={"row": asdict(row)},
    )
    fitted, before = fit(trainer)
    return Trained(learner, trainer.folder.newest, fitted.checkpoint, before)


def train_without_labels(
    model: ImageModel, of: Parts, place: Path, config: TrainConfig, gradient: GradientName = "local"
) -> tuple[float, float]:
    """(10) of the training images; the weights with the best bound of the validation images stay in the model.

    Gives the seconds that it took in all, and those of them that were spent before.
    """
    joint = Joint(model, gradient=gradient_named(gradient, config.seed))
    fitted, before = fit(Trainer(joint, of.train, place, config=config, valid=of.valid))
    load_parts(joint.parts(), fitted.checkpoint)
    return fitted.seconds, before
