"""What the trainer is given, by what there is to learn: images alone, labels, or captions (with labels or without)."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from semisight.data.image_set import ImageSet
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.objectives.caption_objective import CaptionObjective, posteriors_of
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.step import Objective, Plan
from semisight.random import Stream, random_order
from semisight.runs.caption_training import (
    build_caption_objective,
    build_label_term,
    caption_plan,
    caption_validator,
)
from semisight.runs.captioner import checksum
from semisight.runs.images import Sets
from semisight.runs.label_training import (
    build_label_objective,
    held_out_validator,
    label_plan,
    refresher,
)
from semisight.runs.run import build_objective, load_run
from semisight.runs.settings import ModelSettings, Settings
from semisight.training.checkpoint import load_weights
from semisight.training.config import TrainConfig
from semisight.training.folder import RunFolder
from semisight.training.state import TrainerState
from semisight.training.trainer import Trainer
from semisight.training.validation import validate

_START_IMAGES = 2000  # enough for the mean and the variance that a model starts from
_VALIDATED = 500  # images at most whose bound is worked out beside the perplexity of captions
_LABEL_METRIC, _CAPTION_METRIC = "nll", "perplexity"  # of what was held out; both fall


@dataclass(frozen=True)
class Recipe:
    """With labels or captions another objective, other batches, and another validation."""

    objective: Objective
    about: Mapping[str, Any]
    config: TrainConfig
    plan: Plan | None = None
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None
    on_epoch: Callable[[TrainerState], None] | None = None

    def trainer(self, sets: Sets, folder: Path) -> Trainer:
        """That learns it from these images, in this folder."""
        return Trainer(
            self.objective,
            sets.train,
            folder,
            config=self.config,
            valid=sets.valid,
            plan=self.plan,
            validate=self.validate,
            on_epoch=self.on_epoch,
            about=self.about,
        )


def recipe_for(
    settings: Settings, sets: Sets, architecture: Architecture, vocabulary: Vocabulary | None, former: RunFolder | None
) -> Recipe:
    """What there is to learn decides; a `vocabulary` says captions, and `former` is the run that is gone on with."""
    if vocabulary is not None:
        return caption_recipe(settings, sets, architecture, vocabulary, former)
    return (label_recipe if sets.has_labels else image_recipe)(settings, sets, architecture)


def image_recipe(settings: Settings, sets: Sets, architecture: Architecture) -> Recipe:
    about = settings.model.about(architecture)
    objective = build_objective(about, settings.train.seed)
    start(objective, sets.train, settings.train.seed)
    config = settings.train
    if config.metric in (_LABEL_METRIC, _CAPTION_METRIC):  # settings taken over from a run with labels or captions
        config = dataclasses.replace(config, metric="bound", metric_rises=True)
    return Recipe(objective, about, _logged(config, max(1, len(sets.train) // config.batch_size)))


def start(objective: ImageObjective, train: ImageSet, seed: int) -> None:
    """Image bias, scale and precision from some of the training images."""
    chosen = random_order(len(train), seed, Stream.START)[:_START_IMAGES].sort().values
    objective.model.start_from(train.batch(chosen))


def _logged(config: TrainConfig, steps_per_epoch: int) -> TrainConfig:
    """A small set has few steps in an epoch: its curves still get a point for each."""
    steps = steps_per_epoch * config.validate_every
    return dataclasses.replace(config, log_every=min(config.log_every, steps))


# ---- labels ----


def label_recipe(settings: Settings, sets: Sets, architecture: Architecture) -> Recipe:
    """Which weights are best is decided by held-out labels; where there are none, the last ones are used."""
    _one_process(settings)
    seed, labels, train = settings.train.seed, sets.train.labels, sets.train
    assert labels is not None
    images = image_recipe(settings, sets, architecture)
    assert isinstance(images.objective, ImageObjective)
    about = {**images.about, "labels": _about_labels(settings, sets)}
    config = settings.train
    plan = label_plan(labels, settings.labels, config.batch_size)
    objective = build_label_objective(
        images.objective, labels, len(train.class_names), settings.labels, config.batch_size, seed
    )
    if sets.n_held_out("labels") and config.metric == "bound":
        config = dataclasses.replace(config, metric=_LABEL_METRIC, metric_rises=False)
    elif not sets.n_held_out("labels"):
        config = dataclasses.replace(config, metric="bound", metric_rises=True)
    return Recipe(
        objective,
        about,
        _logged(config, plan.steps_per_epoch),
        plan,
        None if sets.valid is None else held_out_validator(sets.valid, seed, config.validation_batch_size),
        refresher(objective, train, seed, config.validate_every) if settings.labels.pull else None,
    )


def _one_process(settings: Settings) -> None:
    if int(os.environ.get("WORLD_SIZE", settings.train.processes)) > 1:
        raise UserError("labels are learned in one process: start without torchrun and with processes 1.")


def _about_labels(settings: Settings, sets: Sets) -> dict[str, Any]:
    return {
        "class_names": list(sets.train.class_names),
        "n_train": len(sets.train),
        "n_labelled": sets.n_labelled,
        "held_out": sets.n_held_out("labels"),
        "settings": settings.labels.to_dict(),
    }


# ---- captions ----


def vocabulary_of(settings: Settings, sets: Sets) -> Vocabulary:
    """The words of the captions that are learned from."""
    assert sets.train.captions is not None
    words = (caption for of_image in sets.train.captions for caption in of_image)
    return Vocabulary.from_captions(words, settings.captions.min_count)


def caption_recipe(
    settings: Settings, sets: Sets, architecture: Architecture, vocabulary: Vocabulary, former: RunFolder | None
) -> Recipe:
    """Captions, and on the same code labels if there are any. `former` is the run that is resumed.

    Which weights are best is decided by the perplexity of held-out captions; where there are none, the last are used.
    """
    seed, train, labels, config = settings.train.seed, sets.train, sets.train.labels, settings.train
    assert train.captions is not None
    images = image_recipe(settings, sets, architecture)
    assert isinstance(images.objective, ImageObjective)
    captions = EncodedCaptions.encode(train.captions, vocabulary)
    plan = caption_plan(captions.present, settings.captions, config.batch_size, labels)
    about = {
        **images.about,
        "captions": {
            **captions.about(),
            "n_captioned": sets.n_captioned,
            "held_out": sets.n_captioned_held_out,
            "vocabulary": checksum(vocabulary),
            "settings": settings.captions.to_dict(),
        },
    }
    term = None
    if labels is not None:
        _one_process(settings)
        about["labels"] = _about_labels(settings, sets)
        term = build_label_term(images.objective, labels, len(train.class_names), settings.labels, plan, seed)
    objective = build_caption_objective(images.objective, captions, settings.captions, plan, seed, labels=term)
    if settings.captions.two_step:
        _take_images(objective, settings, former, train)
    if sets.n_captioned_held_out:
        config = dataclasses.replace(config, metric=_CAPTION_METRIC, metric_rises=False)
    else:  # nothing says when to stop
        config = dataclasses.replace(config, metric="bound", metric_rises=True, patience=None)
    terms = _caption_terms(sets.valid, vocabulary, config) if sets.n_captioned_held_out else None
    return Recipe(objective, about, _logged(config, plan.steps_per_epoch), plan, terms)


def _caption_terms(
    valid: ImageSet | None, vocabulary: Vocabulary, config: TrainConfig
) -> Callable[[nn.Module], Mapping[str, float]]:
    """The bound on some of the images set aside, and the perplexity of their captions."""
    assert valid is not None and valid.captions is not None
    perplexity = caption_validator(valid, valid.captions, vocabulary, seed=config.seed)
    some = valid if len(valid) <= _VALIDATED else valid.subset(torch.arange(_VALIDATED))

    def terms(objective: nn.Module) -> Mapping[str, float]:
        assert isinstance(objective, CaptionObjective)
        bound = validate(objective.images, some, batch_size=config.validation_batch_size, seed=config.seed)
        return {**bound, **perplexity(objective)}

    return terms


# ---- two steps ----


def with_model_of(settings: Settings) -> Settings:
    """The settings of the run whose image model is taken, where captions are learned in two steps."""
    source = settings.data.images_from
    if source is None:
        if settings.captions.two_step:
            raise UserError("two_step needs an image model to start from: give --two-step RUN, a run without captions.")
        return settings
    run = load_run(source)
    about, architecture = run.meta["about"], run.architecture
    channels, height, _ = architecture.image_shape
    model = ModelSettings(
        layers=architecture.layers,
        nonlinearity=architecture.nonlinearity,
        **{name: about[name] for name in ("pooling", "gradient", "alpha0")},
    )
    data = dataclasses.replace(
        settings.data, size=settings.data.size or height, channels=settings.data.channels or channels
    )
    return dataclasses.replace(
        settings, model=model, data=data, chosen=settings.chosen | {"nonlinearity", "pooling", "gradient", "alpha0"}
    )


def _take_images(objective: CaptionObjective, settings: Settings, former: RunFolder | None, train: ImageSet) -> None:
    """The first step's image model, from its run or, when resuming, from the checkpoint; its codes are kept."""
    if former is not None and former.newest.exists():
        load_weights(objective, former.newest)
    else:
        assert settings.data.images_from is not None
        objective.images.load_state_dict(load_run(settings.data.images_from).objective.state_dict())
        objective.images.requires_grad_(False)
    objective.posteriors = posteriors_of(objective.images.model, train)
