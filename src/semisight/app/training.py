"""`semisight train` without its command line: images and settings in, a run folder out."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from semisight.app.runs import DataRecord, Run, build_objective, data_file, report_file
from semisight.app.settings import DataSettings, Settings
from semisight.data import load
from semisight.data.image_set import ImageSet, random_order, skipped_summary, split
from semisight.errors import UserError
from semisight.learning.config import TrainConfig
from semisight.learning.devices import choose_device
from semisight.learning.interrupts import Interrupted
from semisight.learning.objective import ImageObjective
from semisight.learning.runs import RunFolder
from semisight.learning.trainer import Fitted, Trainer
from semisight.model.architecture import Architecture

Say = Callable[[str], None]
Progress = Callable[[int, int], None]  # images read, images in all

_START_IMAGES = 2000  # enough for the mean and the variance that a model starts from
_START = 7  # a stream of the seed of its own


@dataclass(frozen=True)
class Sets:
    """Images to learn from, and those that decide when it is enough."""

    train: ImageSet
    valid: ImageSet | None


@dataclass(frozen=True)
class Trained:
    """A run that came to its end."""

    folder: RunFolder
    fitted: Fitted
    sets: Sets


def load_sets(data: DataSettings, seed: int, progress: Progress | None = None) -> Sets:
    """The images, parted by the seed. A set too small to spare one image is not parted."""
    images = load(data.source, size=data.size, channels=data.channels, limit=data.limit, seed=seed, progress=progress)
    n_valid = max(1, round(data.valid_fraction * len(images))) if data.valid_fraction > 0 else 0
    if n_valid == 0 or len(images) < 2:
        return Sets(images, None)
    return Sets(*split(images, n_valid, seed))


def reload_sets(run: Run, source: str | None = None, progress: Progress | None = None) -> Sets:
    """The images that a run learned from, parted as they were; `source` if they have moved."""
    data = run.data().settings
    try:
        return load_sets(
            data if source is None else dataclasses.replace(data, source=source), run.config.seed, progress
        )
    except UserError as error:
        if source is not None:
            raise
        raise UserError(
            f"the images that {run.folder.path} learned from cannot be read: {error}\nGive --data if they have moved."
        ) from error


def train_run(
    settings: Settings, path: Path, *, resume: bool, overwrite: bool, say: Say, progress: Progress | None = None
) -> Trained:
    """Trains in the folder `path`. Raises Interrupted after Ctrl-C or SIGTERM, once a checkpoint is saved."""
    folder = RunFolder(path)
    check_folder(folder, resume, overwrite)
    sets = load_sets(settings.data, settings.train.seed, progress)
    data = dataclasses.replace(settings.data, source=lasting(settings.data.source))
    architecture = settings.model.architecture(sets.train.shape)
    for line in describe_data(sets, data.source) + describe_architecture(architecture):
        say(line)
    for line in advice(settings.train):
        say(line)
    objective = build_objective(settings.model.about(architecture), settings.train.seed)
    start(objective, sets.train, settings.train.seed)
    # A small set has few steps in an epoch: its curves still get a point for each.
    per_epoch = max(1, len(sets.train) // settings.train.batch_size)
    trainer = Trainer(
        objective,
        sets.train,
        path,
        config=dataclasses.replace(settings.train, log_every=min(settings.train.log_every, per_epoch)),
        valid=sets.valid,
        about=settings.model.about(architecture),
    )
    record = DataRecord.of(data, sets.train, sets.valid)
    if is_first_process() and not resume:
        if overwrite:
            report_file(folder).unlink(missing_ok=True)  # it would show the former run
        record.write(data_file(folder))
    try:
        fitted = trainer.fit(resume=resume, overwrite=overwrite)
    except Interrupted:
        _write_if_resumed(record, folder, resume)
        raise
    _write_if_resumed(record, folder, resume)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # what follows (the report) is one process's work
    return Trained(folder, fitted, sets)


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


def describe_data(sets: Sets, source: str) -> list[str]:
    """What was found, for people."""
    train, valid = sets.train, sets.valid
    channels, height, width = train.shape
    colour = {1: "grey", 3: "colour"}.get(channels, f"{channels}-channel")
    n_valid = 0 if valid is None else len(valid)
    aside = f"; {n_valid:,} are set aside for validation" if n_valid else "; none are set aside for validation"
    lines = [f"{len(train) + n_valid:,} {colour} images of {width} x {height} pixels from {source}{aside}"]
    if train.skipped:
        lines.append(skipped_summary(train.skipped))
    return lines + [f"note: {note}" for note in train.notes]


def describe_architecture(architecture: Architecture) -> list[str]:
    def one(number: int) -> str:
        layer = architecture.layers[number]
        pooled = f", pooled by {layer.pool} x {layer.pool}" if layer.pool > 1 else ""
        return f"{layer.maps} maps of {layer.kernel} x {layer.kernel}{pooled}"

    layers = "; ".join(one(number) for number in range(len(architecture.layers)))
    return [f"{len(architecture.layers)} layers: {layers}; an image becomes {architecture.code_size} numbers"]
