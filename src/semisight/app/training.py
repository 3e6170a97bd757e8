"""`semisight train` without its command line: images and settings in, a run folder out."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from semisight.app.classifier import fit_calibration
from semisight.app.describe import describe_architecture, describe_data, describe_labels
from semisight.app.runs import (
    DataRecord,
    Run,
    build_objective,
    calibration_file,
    comparison_file,
    data_file,
    load_run,
    report_file,
)
from semisight.app.sets import Progress, Sets, load_sets
from semisight.app.settings import Settings
from semisight.data.image_set import ImageSet, random_order
from semisight.errors import UserError
from semisight.learning.config import TrainConfig
from semisight.learning.devices import choose_device
from semisight.learning.interrupts import Interrupted
from semisight.learning.label_training import (
    build_label_objective,
    held_out_validator,
    label_plan,
    refresher,
)
from semisight.learning.objective import ImageObjective
from semisight.learning.runs import RunFolder
from semisight.learning.state import TrainerState
from semisight.learning.step import Objective, Plan
from semisight.learning.trainer import Fitted, Trainer
from semisight.model.architecture import Architecture

Say = Callable[[str], None]

_START_IMAGES = 2000  # enough for the mean and the variance that a model starts from
_START = 7  # a stream of the seed of its own
_HELD_OUT_METRIC = "nll"


@dataclass(frozen=True)
class Trained:
    """A run that came to its end."""

    folder: RunFolder
    fitted: Fitted
    sets: Sets


@dataclass(frozen=True)
class Recipe:
    """What the trainer is given: with labels another objective, other batches, and another validation."""

    objective: Objective
    about: Mapping[str, Any]
    config: TrainConfig
    plan: Plan | None = None
    validate: Callable[[nn.Module], Mapping[str, float]] | None = None
    on_epoch: Callable[[TrainerState], None] | None = None


def reload_sets(
    run: Run, source: str | None = None, labels: str | None = None, progress: Progress | None = None
) -> Sets:
    """The images that a run learned from, parted as they were; `source` and `labels` if they have moved."""
    data = run.data().settings
    moved = {name: value for name, value in (("source", source), ("labels", labels)) if value is not None}
    try:
        return load_sets(dataclasses.replace(data, **moved), run.config.seed, progress)  # type: ignore[arg-type]
    except UserError as error:
        if moved:
            raise
        raise UserError(
            f"what {run.folder.path} learned from cannot be read: {error}\nGive --data if the images have moved"
            f"{'' if data.labels is None else ', --labels if the labels have'}."
        ) from error


def train_run(
    settings: Settings, path: Path, *, resume: bool, overwrite: bool, say: Say, progress: Progress | None = None
) -> Trained:
    """Trains in the folder `path`. Raises Interrupted after Ctrl-C or SIGTERM, once a checkpoint is saved."""
    folder = RunFolder(path)
    check_folder(folder, resume, overwrite)
    sets = load_sets(settings.data, settings.train.seed, progress)
    data = dataclasses.replace(
        settings.data,
        source=lasting(settings.data.source),
        labels=None if settings.data.labels is None else lasting(settings.data.labels),
    )
    if sets.has_labels:
        settings = settings.for_labels(sets.n_labelled, len(sets.train) - sets.n_labelled)
    architecture = settings.model.architecture(sets.train.shape)
    for line in describe_data(sets, data.source) + describe_labels(sets, settings):
        say(line)
    for line in describe_architecture(architecture) + advice(settings.train):
        say(line)
    recipe = (label_recipe if sets.has_labels else image_recipe)(settings, sets, architecture)
    trainer = Trainer(
        recipe.objective,
        sets.train,
        path,
        config=recipe.config,
        valid=sets.valid,
        plan=recipe.plan,
        validate=recipe.validate,
        on_epoch=recipe.on_epoch,
        about=recipe.about,
    )
    record = DataRecord.of(data, sets.train, sets.valid)
    if is_first_process() and not resume:
        if overwrite:  # they would show the former run
            for file in (report_file(folder), calibration_file(folder), comparison_file(folder)):
                file.unlink(missing_ok=True)
        record.write(data_file(folder))
    try:
        fitted = trainer.fit(resume=resume, overwrite=overwrite)
    except Interrupted:
        _write_if_resumed(record, folder, resume)
        raise
    _write_if_resumed(record, folder, resume)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # what follows (the report) is one process's work
    if sets.n_held_out and is_first_process():
        calibrate(load_run(path), sets)
    return Trained(folder, fitted, sets)


def image_recipe(settings: Settings, sets: Sets, architecture: Architecture) -> Recipe:
    about = settings.model.about(architecture)
    objective = build_objective(about, settings.train.seed)
    start(objective, sets.train, settings.train.seed)
    config = settings.train
    if config.metric == _HELD_OUT_METRIC:  # settings taken over from a run with labels
        config = dataclasses.replace(config, metric="bound", metric_rises=True)
    return Recipe(objective, about, _logged(config, max(1, len(sets.train) // config.batch_size)))


def label_recipe(settings: Settings, sets: Sets, architecture: Architecture) -> Recipe:
    """Which weights are best is decided by held-out labels; where there are none, the last ones are used."""
    if int(os.environ.get("WORLD_SIZE", settings.train.processes)) > 1:
        raise UserError("labels are learned in one process: start without torchrun and with processes 1.")
    seed, labels, train = settings.train.seed, sets.train.labels, sets.train
    assert labels is not None
    images = image_recipe(settings, sets, architecture)
    assert isinstance(images.objective, ImageObjective)
    about = {
        **images.about,
        "labels": {
            "class_names": list(train.class_names),
            "n_train": len(train),
            "n_labelled": sets.n_labelled,
            "held_out": sets.n_held_out,
            "settings": settings.labels.to_dict(),
        },
    }
    config = settings.train
    plan = label_plan(labels, settings.labels, config.batch_size)
    objective = build_label_objective(
        images.objective, labels, len(train.class_names), settings.labels, config.batch_size, seed
    )
    if sets.n_held_out and config.metric == "bound":
        config = dataclasses.replace(config, metric=_HELD_OUT_METRIC, metric_rises=False)
    elif not sets.n_held_out:
        config = dataclasses.replace(config, metric="bound", metric_rises=True)
    return Recipe(
        objective,
        about,
        _logged(config, plan.steps_per_epoch),
        plan,
        None if sets.valid is None else held_out_validator(sets.valid, seed, config.validation_batch_size),
        refresher(objective, train, seed, config.validate_every) if settings.labels.pull else None,
    )


def _logged(config: TrainConfig, steps_per_epoch: int) -> TrainConfig:
    """A small set has few steps in an epoch: its curves still get a point for each."""
    steps = steps_per_epoch * config.validate_every
    return dataclasses.replace(config, log_every=min(config.log_every, steps))


def calibrate(run: Run, sets: Sets) -> None:
    """Fits probabilities to the held-out labels and keeps them with the run."""
    assert sets.valid is not None and sets.valid.labels is not None
    held_out = sets.valid.subset(sets.valid.labels >= 0)
    assert held_out.labels is not None
    decisions = run.labels().decisions(held_out)
    fit_calibration(decisions, held_out.labels, run.step, run.config.seed).write(calibration_file(run.folder))


def _write_if_resumed(record: DataRecord, folder: RunFolder, resume: bool) -> None:
    """Only now is it certain that these are the run's images: the trainer has compared them."""
    if resume and is_first_process():
        record.write(data_file(folder))


def start(objective: ImageObjective, train: ImageSet, seed: int) -> None:
    """Image bias, scale and precision from some of the training images."""
    chosen = random_order(len(train), seed, _START)[:_START_IMAGES].sort().values
    objective.model.start_from(train.batch(chosen))


def check_folder(folder: RunFolder, resume: bool, overwrite: bool) -> None:
    """Before any image is read: may a run be written here?"""
    if not is_first_process():
        return
    if resume and overwrite:
        raise UserError("--resume goes on with a run and --overwrite throws it away: give one of them.")
    if folder.path.exists() and not folder.path.is_dir():
        raise UserError(f"{folder.path} is a file; a run needs a folder. Choose another name for --out.")
    if resume and not folder.holds_a_run:
        raise UserError(f"there is no run in {folder.path} to resume; leave out --resume to start one.")
    if folder.holds_a_run and not (resume or overwrite):
        raise UserError(
            f"{folder.path} already holds a run: go on with it (--resume), replace it (--overwrite), "
            "or choose another folder (--out)."
        )


def advice(config: TrainConfig) -> list[str]:
    """Threads that wait for each other on a busy machine can be ten times slower than one."""
    cores = os.cpu_count() or 1
    on_cpu = choose_device(config.device).type == "cpu"
    try:
        busy = os.getloadavg()[0]
    except OSError:  # not known on this system
        return []
    if config.threads is not None or not on_cpu or torch.get_num_threads() == 1 or busy < 0.75 * cores:
        return []
    return [f"note: this machine is busy (load {busy:.1f} on {cores} cores); --threads 1 may be much faster"]


def lasting(source: str) -> str:
    """The source as it can be found from any folder."""
    return source if source.startswith("builtin:") else str(Path(source).expanduser().absolute())


def is_first_process() -> bool:
    """Whether this process may write; further ones are started by torchrun or by the trainer itself."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0
