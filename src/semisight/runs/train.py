"""`semisight train` without its command line: images and settings in, a run folder out."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semisight.data.augment import moves_for
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.inference.labels import predict_labels
from semisight.random import Stream, random_order, reseed
from semisight.runs.captioner import seen_file, vocabulary_file, write_files
from semisight.runs.classifier import fit_calibration, fit_to_moves
from semisight.runs.describe import describe_architecture, describe_captions, describe_data, describe_labels
from semisight.runs.images import BUILTIN, Progress, Sets, sets_of
from semisight.runs.model_card import model_card_file, write_model_card
from semisight.runs.recipe import recipe_for, vocabulary_of, with_model_of
from semisight.runs.run import (
    DataRecord,
    Run,
    calibration_file,
    comparison_file,
    data_file,
    load_run,
    report_file,
    unfinished_file,
)
from semisight.runs.settings import DataSettings, Settings
from semisight.training.config import TrainConfig
from semisight.training.devices import choose_device
from semisight.training.folder import RunFolder
from semisight.training.interrupts import Interrupted
from semisight.training.trainer import Fitted

Say = Callable[[str], None]

_ENOUGH_TO_MOVE, _MOST_MOVED = 50, 1000  # images
_MOVED_AT_A_TIME = 250


@dataclass(frozen=True)
class Trained:
    """A run that came to its end."""

    folder: RunFolder
    fitted: Fitted
    sets: Sets


def reload_sets(
    run: Run,
    source: str | None = None,
    labels: str | None = None,
    progress: Progress | None = None,
    captions: str | None = None,
) -> Sets:
    """The images that a run learned from, parted as they were; `source`, `labels`, `captions` if they have moved."""
    data = run.data().settings
    places = {"source": source, "labels": labels, "captions": captions}
    moved = {name: value for name, value in places.items() if value is not None}
    try:
        return sets_of(dataclasses.replace(data, **moved), run.config.seed, progress)  # type: ignore[arg-type]
    except UserError as error:
        if moved:
            raise
        raise UserError(
            f"what {run.folder.path} learned from cannot be read: {error}\nGive --data if the images have moved"
            f"{'' if data.labels is None else ', --labels if the labels have'}"
            f"{'' if data.captions in (None, BUILTIN) else ', --captions if the captions have'}."
        ) from error


def train_run(
    settings: Settings, path: Path, *, resume: bool, overwrite: bool, say: Say, progress: Progress | None = None
) -> Trained:
    """Trains in the folder `path`. Raises Interrupted after Ctrl-C or SIGTERM, once a checkpoint is saved."""
    folder = RunFolder(path)
    check_folder(folder, resume, overwrite)
    settings = settings if resume else with_model_of(settings)
    sets = sets_of(settings.data, settings.train.seed, progress)
    data = found_from_anywhere(settings.data)
    settings = suited(settings, sets)
    architecture = settings.model.architecture(sets.train.shape)
    for line in describe_data(sets, data.source):
        say(line)
    vocabulary = None
    if sets.has_captions:
        vocabulary = vocabulary_of(settings, sets)
        for line in describe_captions(sets, settings, len(vocabulary)):
            say(line)
    for line in describe_labels(sets, settings) if sets.has_labels or not sets.has_captions else []:
        say(line)
    for line in describe_architecture(architecture) + advice(settings.train):
        say(line)
    recipe = recipe_for(settings, sets, architecture, vocabulary, folder if resume else None)
    trainer = recipe.trainer(sets, folder.path)
    record = DataRecord.of(data, sets.train, sets.valid)
    if is_first_process() and not resume:
        if overwrite:  # they would show the former run
            for file in (report_file, model_card_file, calibration_file, comparison_file, vocabulary_file, seen_file):
                file(folder).unlink(missing_ok=True)
        record.write(data_file(folder))
        if vocabulary is not None:
            write_files(folder, vocabulary, sets.train.captions or ())
    with _unfinished(folder):
        try:
            fitted = trainer.fit(resume=resume, overwrite=overwrite)
        except Interrupted:
            _write_if_resumed(record, folder, resume)
            raise
        _write_if_resumed(record, folder, resume)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()  # what follows (the report) is one process's work
        if sets.has_labels and is_first_process():
            calibrate(load_run(path), sets)
        if is_first_process():
            write_model_card(load_run(path), sets)
    return Trained(folder, fitted, sets)


@contextlib.contextmanager
def _unfinished(folder: RunFolder) -> Iterator[None]:
    """Marks the run until all of it is there: whatever ends the training before, the mark stays."""
    if not is_first_process():
        yield
        return
    mark, before = unfinished_file(folder), _stamp(folder.newest)
    is_new = not mark.exists()
    write_atomic(mark, f"To go on: semisight train --out {folder.path.absolute()} --resume\n")
    try:
        yield
    except UserError:
        if is_new and _stamp(folder.newest) == before:  # refused before it began: what was whole still is
            mark.unlink(missing_ok=True)
        raise
    mark.unlink(missing_ok=True)


def _stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


def suited(settings: Settings, sets: Sets) -> Settings:
    """With the defaults for what there is to learn."""
    if not sets.has_captions:
        return settings.for_labels(sets.n_labelled, len(sets.train) - sets.n_labelled) if sets.has_labels else settings
    known = [bool(of_image) for of_image in sets.train.captions or ()]
    if sets.train.labels is not None:
        known = [has or label >= 0 for has, label in zip(known, sets.train.labels.tolist(), strict=True)]
        # the pull of unlabelled images is for labels alone (learning/label_objective.py)
        settings = dataclasses.replace(settings, labels=dataclasses.replace(settings.labels, pull=False))
    return settings.for_captions(sum(known), len(known) - sum(known), sets.n_captions)


def found_from_anywhere(data: DataSettings) -> DataSettings:
    """The same with paths that hold from any folder."""
    return dataclasses.replace(
        data,
        source=lasting(data.source),
        labels=None if data.labels is None else lasting(data.labels),
        captions=data.captions if data.captions in (None, BUILTIN) else lasting(data.captions),
        tags=data.tags if data.tags in (None, BUILTIN) else lasting(data.tags),
        images_from=None if data.images_from is None else lasting(data.images_from),
    )


def calibrate(run: Run, sets: Sets) -> None:
    """Fits probabilities to held-out labels, or to moved images where there are none, and keeps them with the run."""
    if not sets.n_held_out("labels"):
        calibrate_by_moves(run, sets)
        return
    assert sets.valid is not None and sets.valid.labels is not None
    held_out = sets.valid.subset(sets.valid.labels >= 0)
    assert held_out.labels is not None
    decisions = run.labels().decisions(held_out)
    fit_calibration(decisions, held_out.labels, run.step, run.config.seed).write(calibration_file(run.folder))


@torch.no_grad()
def calibrate_by_moves(run: Run, sets: Sets) -> None:
    """With unlabelled images that were learned from; if they are too few, the probabilities stay the model's own."""
    assert sets.train.labels is not None
    without = (sets.train.labels < 0).nonzero().squeeze(1)
    if len(without) < _ENOUGH_TO_MOVE:
        return
    chosen = without[random_order(len(without), run.config.seed, Stream.CALIBRATED)[:_MOST_MOVED].sort().values]
    classifier, generator = run.labels(), reseed(torch.Generator(), run.config.seed, Stream.AUGMENTED, 0)
    moves = moves_for(sets.train.shape[0], classifier.settings.moves)
    still: list[Tensor] = []
    moved: list[Tensor] = []
    for index in chosen.split(_MOVED_AT_A_TIME):
        images = sets.train.batch(index).to(run.device)
        for found, seen in ((still, images), (moved, moves(images, generator))):
            found.append(predict_labels(run.model, classifier.head, seen).decision.cpu())
    fit_to_moves(torch.cat(still), torch.cat(moved), run.step).write(calibration_file(run.folder))


def _write_if_resumed(record: DataRecord, folder: RunFolder, resume: bool) -> None:
    """Only now is it certain that these are the run's images: the trainer has compared them."""
    if resume and is_first_process():
        record.write(data_file(folder))


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
