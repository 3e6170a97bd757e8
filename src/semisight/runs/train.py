"""Training a run: images and settings in, a run folder out; and `train`, the same for parts composed in Python."""

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from semisight.data.batches import share_of_batch
from semisight.data.columns import LABELS
from semisight.data.features import MARK
from semisight.data.image_set import skipped_summary
from semisight.data.remote import is_url
from semisight.data.sources import Kind as SourceKind
from semisight.data.sources import kind_of
from semisight.errors import UserError
from semisight.files import bundle, json_bytes, locked, remove, write_atomic, write_json
from semisight.inference.labels import FittedCalibration
from semisight.model.architecture import Architecture
from semisight.model.encoders.deep import DeepEncoder
from semisight.model.encoders.paper import PaperEncoder
from semisight.objectives.joint import Joint
from semisight.objectives.step import Images
from semisight.objectives.targets import Target
from semisight.runs.encoder_choice import Decision, choose_encoder, reference
from semisight.runs.images import BUILTIN, Progress, Sets, sets_of
from semisight.runs.kinds import Kind, kind_named, kinds
from semisight.runs.model_card import write_model_card
from semisight.runs.on_features import judge
from semisight.runs.pixels import keep_pixels, learn_pixels
from semisight.runs.recipe import Recipe, compose, plan_of, refresher, suited, with_model_of
from semisight.runs.references import Way, table
from semisight.runs.run import DATA, UNFINISHED, WAYS, DataRecord, Run, load_run
from semisight.runs.settings import DataSettings, Settings
from semisight.runs.time_plan import fitted_to, training_minutes
from semisight.training.checkpoint import Checkpoint, load_parts, write_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.devices import choose_device, is_first_process, job_size
from semisight.training.folder import FILES, NEWEST, RunFolder, check_folder, describe
from semisight.training.state import Counters
from semisight.training.trainer import Fitted, Trainer
from semisight.untrusted import MOST_SETTINGS, read_text

Say = Callable[[str], None]
_WORTH_A_REFERENCE = 20.0  # seconds of training


@dataclass(frozen=True)
class Trained:
    """A run that came to its end."""

    folder: RunFolder
    fitted: Fitted
    sets: Sets


def train_run(
    settings: Settings, path: Path, *, resume: bool, overwrite: bool, say: Say, progress: Progress | None = None
) -> Trained:
    """Trains in the folder `path`. Raises Interrupted after Ctrl-C or SIGTERM, once a checkpoint is saved."""
    folder = RunFolder(path)
    if is_first_process():
        check_folder(folder, resume=resume, overwrite=overwrite)
    choose_device(settings.train.device)  # one that is not there is told now, not once the images are read
    started = time.monotonic()
    decision = Decision(settings)
    if not resume:
        decision = choose_encoder(with_model_of(settings), say, progress)
        settings = decision.settings
        for line in decision.lines:
            say(line)
        if not decision.on_features and kind_of(settings.data.source) is SourceKind.PICTURES:
            spent = (time.monotonic() - started) / 60
            settings = fitted_to(settings, None, training_minutes(settings, 0, spent) or math.inf)
    judged = decision.judged
    sets = judged.sets if judged is not None else sets_of(settings.data, settings.train.seed, progress)
    on_features = decision.on_features and list(sets.train.columns) == [LABELS]
    if not (resume or on_features):
        minutes = training_minutes(settings, len(sets.train), (time.monotonic() - started) / 60)
        own_size = kind_of(settings.data.source) is not SourceKind.PICTURES and not decision.on_features
        if own_size and minutes is not None:
            settings = fitted_to(settings, sets, minutes)
            sets = sets_of(settings.data, settings.train.seed) if settings.data.size is not None else sets
        settings = settings.replace({"max_minutes": minutes})
    # before anything is written: a mistake leaves no folder behind
    recipe = None if on_features else compose(suited(settings, sets), sets, folder if resume else None)
    data = found_from_anywhere(settings.data)
    for line in (
        () if recipe is None else (*describe_data(sets, data.source), *recipe.describe(), *describe_model(recipe))
    ):
        say(line)
    if recipe is not None and decision.fitted is not None and not sets.n_held_out(LABELS):
        say("what cross-validation said of given labels, above, calibrates the probabilities")
    with locked(path, "training") if is_first_process() else contextlib.nullcontext():
        if recipe is None:
            return _train_on_features(decision, sets, folder, say)
        record = DataRecord.of(data, sets.train, sets.valid)
        with _unfinished(folder):
            fitted = _fit(recipe, record, folder, resume, overwrite)
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()  # what follows (the report) is one process's work
            if is_first_process():
                finish(folder, sets, decision.fitted)
                keep_ways(folder, decision.ways or _reference(settings, sets, fitted), say)
                if settings.data.on_features:
                    keep_pixels(folder, learn_pixels(load_run(path), settings.data.source, sets.train))
                write_model_card(load_run(path), sets)
    return Trained(folder, fitted, sets)


def _train_on_features(decision: Decision, sets: Sets, folder: RunFolder, say: Say) -> Trained:
    """Labels on features are learned in closed form, in seconds: there is nothing to resume."""
    settings = decision.settings
    data = found_from_anywhere(settings.data)
    for line in describe_data(sets, data.source):
        say(line)
    judged, ways = decision.judged, decision.ways
    if judged is None:
        judged = judge(settings, sets)
        beside = reference(settings.data, sets.train, settings.train.seed) if judged.ways else None
        ways = judged.ways if beside is None else (*judged.ways, beside)
    run = judged.learn(ways)
    for line in table(ways):
        say(line)
    if is_first_process():  # all that were started have learned the same
        save_run(run, folder.path, DataRecord.of(data, sets.train, sets.valid))
        keep_ways(folder, ways)
        keep_pixels(folder, learn_pixels(run, settings.data.source, sets.train))
        write_model_card(load_run(folder.path), sets)
    seconds = float(run.meta["counters"]["seconds"])
    fitted = Fitted("the head has converged", 1, 1.0, seconds, None, 0, 0, {}, folder.newest)
    return Trained(folder, fitted, sets)


def _fit(recipe: Recipe, record: DataRecord, folder: RunFolder, resume: bool, overwrite: bool) -> Fitted:
    text = json_bytes(record.to_dict())
    trainer = recipe.trainer(folder.path, {DATA: text, UNFINISHED: _how_to_go_on(folder)})
    try:
        return trainer.fit(resume=resume, overwrite=overwrite, lock=False)
    finally:
        # A resumed run's images may lie elsewhere now. Only the trainer knows that they are the same: it has compared.
        if resume and trainer.opened and is_first_process():
            write_atomic(folder.file(DATA), text)


def _reference(settings: Settings, sets: Sets, fitted: Fitted) -> tuple[Way, ...]:
    """What a result from pixels is held against; not where the training was over sooner than that would take."""
    if not sets.has(LABELS) or fitted.seconds < _WORTH_A_REFERENCE:
        return ()
    found = reference(settings.data, sets.train, settings.train.seed)
    return () if found is None else (found,)


def keep_ways(folder: RunFolder, ways: Sequence[Way], say: Say | None = None) -> None:
    """RUN/ways.json: what cross-validation said of all that was tried."""
    if ways:
        write_json(folder.file(WAYS), {"ways": [dataclasses.asdict(way) for way in ways]})
        if say is not None:
            for line in table(ways):
                say(line)


def finish(folder: RunFolder, sets: Sets, fitted: FittedCalibration | None = None) -> None:
    """Calibrates what has been learned; `fitted` by cross-validation, for labels of which none could be held out."""
    run = calibrated(load_run(folder.path), sets)
    if fitted is not None and not sets.n_held_out(LABELS):
        fitted = dataclasses.replace(fitted, step=run.step)
        readers = {**run.readers, LABELS: dataclasses.replace(run.labels, fitted=fitted)}
        run = dataclasses.replace(run, readers=readers)
    for name, reader in run.readers.items():
        for file, content in kind_named(name).saved(reader).items():
            write_atomic(folder.file(file), content)


def calibrated(run: Run, sets: Sets) -> Run:
    """The run with readers as they are once the training has come to its end."""
    readers = {
        name: kind_named(name).calibrate(reader, run.model, sets, run.step, run.config.seed)
        for name, reader in run.readers.items()
    }
    return dataclasses.replace(run, readers=readers)


def train_in_memory(recipe: Recipe, epoch_length: int = 1) -> Run:
    """Trains without a folder; `save_run` can write it to one."""
    fitted = recipe.trainer(None, epoch_length=epoch_length).fit()
    parts = recipe.objective.parts()
    for name, weights in fitted.weights.items():
        parts[name].load_state_dict(dict(weights))
    recipe.objective.eval()
    readers = {kind.name: kind.reader_of(recipe.target(kind)) for kind in recipe.kinds}
    held_out = {kind.name: recipe.sets.n_held_out(kind.name) for kind in recipe.kinds}
    readers = {name: dataclasses.replace(cast(Any, one), n_held_out=held_out[name]) for name, one in readers.items()}
    threads, device = torch.get_num_threads(), str(recipe.objective.model.device)
    meta = {
        **describe(recipe.config, recipe.about, recipe.sets.train, recipe.sets.valid, threads, device),
        "counters": dataclasses.asdict(Counters(step=fitted.step, seconds=fitted.seconds)),
    }
    return calibrated(Run(recipe.objective.model, readers, meta=meta), recipe.sets)


def save_run(run: Run, path: Path, record: DataRecord) -> None:
    """Writes a run that is in memory to a folder that every command reads, all of it or nothing."""
    parts = {"model": run.model, **{f"head.{name}": reader.head for name, reader in run.readers.items()}}
    with bundle(path, remove=FILES) as new:
        tensors = {name: module.state_dict() for name, module in parts.items()}
        write_checkpoint(new / NEWEST, Checkpoint(tensors, {key: run.meta[key] for key in run.meta if key != "format"}))
        write_json(new / "config.json", run.meta)
        write_json(new / DATA, record.to_dict())
        for name, reader in run.readers.items():
            for file, content in kind_named(name).saved(reader).items():
                write_atomic(new / file, content)


@contextlib.contextmanager
def _unfinished(folder: RunFolder) -> Iterator[None]:
    """Marks the run until all of it is there: whatever ends the training before, the mark stays."""
    if not is_first_process():
        yield
        return
    mark, before = folder.file(UNFINISHED), _stamp(folder.newest)
    is_new = not mark.exists()
    write_atomic(mark, _how_to_go_on(folder))
    try:
        yield
    except UserError:
        if is_new and _stamp(folder.newest) == before:  # refused before it began: what was whole still is
            with contextlib.suppress(UserError):  # the first error says more
                remove(mark)
        raise
    remove(mark)


def _how_to_go_on(folder: RunFolder) -> bytes:
    return f"To go on: semisight train --out {folder.path.absolute()} --resume\n{_job()}".encode()


def _stamp(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


# ---- words ----


def describe_data(sets: Sets, source: str) -> list[str]:
    train, valid = sets.train, sets.valid
    channels, height, width = train.shape
    n_valid = 0 if valid is None else len(valid)
    aside = f"; {n_valid:,} are set aside for validation" if n_valid else "; none are set aside for validation"
    n = f"{len(train) + n_valid:,}"
    if train.are_features:
        lines = [f"{n} images as features of {channels} x {height} x {width} numbers from {source}{aside}"]
    else:
        colour = {1: "grey", 3: "colour"}.get(channels, f"{channels}-channel")
        lines = [f"{n} {colour} images of {width} x {height} pixels from {source}{aside}"]
    if train.skipped:
        lines.append(skipped_summary(train.skipped))
    return lines + [f"note: {note}" for note in train.notes]


def describe_model(recipe: Recipe) -> list[str]:
    return [describe_architecture(recipe.objective.model.architecture), *advice(recipe.config)]


def describe_architecture(architecture: Architecture) -> str:
    def one(number: int) -> str:
        layer = architecture.layers[number]
        pooled = f", pooled by {layer.pool} x {layer.pool}" if layer.pool > 1 else ""
        return f"{layer.maps} maps of {layer.kernel} x {layer.kernel}{pooled}"

    layers = "; ".join(one(number) for number in range(len(architecture.layers)))
    return f"{len(architecture.layers)} layers: {layers}; an image becomes {architecture.code_size} numbers"


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


def found_from_anywhere(data: DataSettings) -> DataSettings:
    """The same with paths that hold from any folder."""
    return dataclasses.replace(
        data,
        source=lasting(data.source),
        labels=None if data.labels is None else lasting(data.labels),
        tags=data.tags if data.tags in (None, BUILTIN) else lasting(data.tags),
        captions=data.captions if data.captions in (None, BUILTIN) else lasting(data.captions),
        images_from=None if data.images_from is None else lasting(data.images_from),
    )


def lasting(source: str) -> str:
    """The source as it can be found from any folder."""
    if source.startswith(MARK):
        return f"{MARK}{Path(source.removeprefix(MARK)).expanduser().absolute()}"
    return source if source.startswith("builtin:") or is_url(source) else str(Path(source).expanduser().absolute())


def is_restarted(path: Path) -> bool:
    """Whether torchrun has started this process again after a failure, with the job's run in the folder to go on with.

    A machine that is replaced starts as if for the first time: a job with a name (--rdzv-id, --standalone) is known by
    it. Without one, only a restart goes on, and a run that has come to its end is never taken up.
    """
    mark = RunFolder(path).file(UNFINISHED)
    if job_size() is None or not RunFolder(path).newest.exists() or not mark.exists():
        return False
    if _job():
        return _job() in read_text(mark, MOST_SETTINGS)
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def _job() -> str:
    name = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return "" if name == "none" else f"Job of torchrun: {name}\n"


# ---- parts composed in Python ----


def train(
    objective: Joint,
    images: Images,
    *,
    valid: Images | None = None,
    out: str | Path | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    learning_rate: float = 1e-3,
    batch_size: int = 64,
    labelled_per_batch: int = 32,
    average: float | None = 0.99,
    seed: int = 0,
    device: str = "auto",
    threads: int | None = None,
    progress: bool = False,
    resume: bool = False,
    overwrite: bool = False,
) -> Run:
    """Trains a model with its targets and gives it back as a run that can be asked.

    Args:
        objective: the model with its targets; afterwards it holds the weights of the last step.
        images: the training images, in the order of the targets' values.
        valid: images that decide which weights are best, by the bound; without, the last are used.
        out: a folder to keep the run in; without, it is kept in memory.
        minutes: at most so long.
        steps: at most so many steps; without any limit, 1000.
        epochs: at most so many passes over the images.
        learning_rate: of Adam; with a limit in steps or epochs it comes down in half a cosine.
        batch_size: images per step.
        labelled_per_batch: of these, so many carry a target where few do.
        average: decay of the averaged weights (EMA); None for none.
        seed: the same seed gives the same run.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: CPU threads.
        progress: show a bar.
        resume: go on with the run in `out`.
        overwrite: replace the run in `out`.

    Returns:
        A `Run` with the best weights: `run.predict`, `run.encode`, `run.caption`, `run.tag`.

    Example:
        >>> import semisight as ss
        >>> images = ss.load("builtin:digits", limit=60)
        >>> run = ss.train(ss.Joint(ss.ImageModel.suited_to(images)), images, steps=2)
        >>> len(run.encode(images))
        60
    """
    if minutes is None and steps is None and epochs is None:
        steps = 1000
    targets = [cast(Target, target) for target in objective.targets]
    plan = plan_of(targets, batch_size, labelled_per_batch, len(images), not objective.frozen)
    for target in targets:
        objective.balance(target, share_of_batch(target.present, plan))
    config = TrainConfig(
        seed=seed, learning_rate=learning_rate, batch_size=batch_size, average_decay=average, max_minutes=minutes,
        max_steps=steps, max_epochs=epochs, patience=None, device=device, threads=threads, progress=progress,
        schedule="constant" if steps is None and epochs is None else "cosine", tensorboard=False,
    )  # fmt: skip
    trainer = Trainer(
        objective,
        images,
        out,
        config=config,
        valid=valid,
        plan=plan,
        on_epoch=refresher(objective, images, seed),
        about=about_parts(objective),
        files={
            name: body for target, kind in _known(targets) for name, body in kind.saved(kind.reader_of(target)).items()
        },
    )
    fitted = trainer.fit(resume=resume, overwrite=overwrite)
    parts = objective.parts()
    if out is not None:
        load_parts(parts, fitted.checkpoint)
    for name, weights in fitted.weights.items():
        parts[name].load_state_dict(dict(weights))
    objective.eval()
    readers = {target.name: kind.reader_of(target) for target, kind in _known(targets)}
    meta = {"about": about_parts(objective), "config": config.to_dict(), "counters": {"step": fitted.step}}
    folder = RunFolder(Path("." if out is None else out))
    return Run(objective.model, readers, folder, fitted.checkpoint, meta)


def about_parts(objective: Joint) -> dict[str, Any]:
    """What a checkpoint says of a model composed in Python; parts of a user's own are named only."""
    model, targets = objective.model, [cast(Target, target) for target in objective.targets]
    encoder: dict[str, Any] = {"encoder": type(model.encoder).__name__}
    if isinstance(model.encoder, PaperEncoder):
        encoder = {"architecture": model.architecture.to_dict(), "pooling": model.encoder.pooling}
    if isinstance(model.encoder, DeepEncoder):
        encoder = {
            **{"encoder": "deep", "width": model.encoder.width, "architecture": model.architecture.to_dict()},
            "pooling": "expected" if model.encoder.has_places else "max",
        }
    about = {"gradient": type(objective.gradient).__name__.lower(), "alpha0": objective.alpha0}
    return {
        "model": {**encoder, **about},
        "targets": {target.name: kind.about(target, 0) for target, kind in _known(targets)},
        "settings": {},
        "frozen": objective.frozen,
    }


def _known(targets: list[Target]) -> list[tuple[Target, Kind]]:
    """Targets of a kind that runs know, with it; not those of a user's own."""
    known = {kind.name: kind for kind in kinds()}
    return [(target, known[target.name]) for target in targets if target.name in known]
