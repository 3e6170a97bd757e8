"""What a training is composed from, by what there is to learn: model, targets, objective, batches, validation.

    settings + sets  ->  Recipe  ->  Trainer  ->  a run folder

The one place where settings become parts. Experiments and the estimator compose with it too.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.data.augment import CAPTION_AUGMENT, AugmentName, augment_for
from semisight.data.batches import LabelledAndUnlabelled, Shuffled, batches_for, share_of_batch
from semisight.data.columns import CAPTIONS, LABELS, LabelColumn
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.inference.encode import encode_set, mean_codes_of_all
from semisight.model.architecture import Architecture
from semisight.model.image_model import ImageModel
from semisight.objectives.consistency import Consistency
from semisight.objectives.gradients import gradient_named
from semisight.objectives.joint import Joint, Posteriors
from semisight.objectives.step import Images, copy_buffers_of_first, place_of_process
from semisight.objectives.targets import Target
from semisight.random import Stream, random_order, reseed
from semisight.runs import features
from semisight.runs.deep import BOUND, deep_consistency
from semisight.runs.features import DrawnViews, EveryView
from semisight.runs.images import Sets
from semisight.runs.kinds import Kind, Terms, kinds_in
from semisight.runs.run import MOST_WEIGHTS, load_run
from semisight.runs.settings import AugmentName as SettingName
from semisight.runs.settings import Settings
from semisight.setting import as_dict
from semisight.training.checkpoint import load_parts
from semisight.training.config import TrainConfig
from semisight.training.devices import bf16_pays, choose_device, job_size
from semisight.training.folder import RunFolder
from semisight.training.state import TrainerState
from semisight.training.trainer import Trainer
from semisight.training.validation import validate

_START_IMAGES = 2000  # enough for the mean and the variance that a model starts from
_LONG = 5.0  # minutes of training from which on it is worth measuring whether bfloat16 is faster
_VALIDATED = 500  # images at most whose bound is worked out where captions are scored, too
MOST_KEPT = 1 << 30  # bytes of posteriors of a frozen model that are worked out once instead of at every step


@dataclass(frozen=True)
class Recipe:
    """All that a training is given."""

    settings: Settings
    sets: Sets
    objective: Joint
    kinds: tuple[Kind, ...]
    about: Mapping[str, Any]
    config: TrainConfig
    plan: Shuffled | LabelledAndUnlabelled
    validate: Callable[[nn.Module], Mapping[str, float]] | None

    def target(self, kind: Kind) -> Target:
        return next(cast(Target, target) for target in self.objective.targets if cast(Target, target).name == kind.name)

    def trainer(self, folder: Path | None, files: Mapping[str, bytes] | None = None, epoch_length: int = 1) -> Trainer:
        """That learns it in this folder; `epoch_length` counts several passes over a small set as one epoch."""
        own = {
            name: body for kind in self.kinds for name, body in kind.saved(kind.reader_of(self.target(kind))).items()
        }
        train, plan = self.sets.train, Longer(self.plan, epoch_length) if epoch_length > 1 else self.plan
        return Trainer(
            self.objective,
            EveryView(train) if train.views else train,
            folder,
            config=self.config,
            valid=self.sets.valid,
            plan=DrawnViews(plan, len(train), 1 + len(train.views)) if train.views else plan,
            validate=self.validate,
            on_epoch=refresher(self.objective, self.sets.train, self.config.seed, self.config.validate_every),
            about=self.about,
            files={**own, **(files or {})},
        )

    def describe(self) -> list[str]:
        """What is learned, and from what, in lines for people."""
        lines = [line for kind in self.kinds for line in kind.describe(self.settings, self.sets, self.target(kind))]
        lines = lines or ["labels: none; learning from the images alone"]
        carried = [column.present for column in self.sets.train.columns.values()]
        n_others = int((~torch.stack(carried).any(0)).sum()) if carried else 0
        words = ""
        if n_others and self.objective.frozen:
            words = f"{n_others:,} images that carry nothing are not used; "
        elif n_others:
            how = "contribute by consistency" if self.objective.consistency else "enter the bound alone"
            words = f"{n_others:,} images that carry nothing {how}; "
        elif carried:
            words = "every image carries something; "
        return [*lines, f"  {words}batches of {self.config.batch_size}, {_length(self.config)}"]


@dataclass(frozen=True)
class Longer:
    """A plan whose epochs are counted several at a time: a small set would be saved and validated at every step."""

    plan: Shuffled | LabelledAndUnlabelled
    times: int

    @property
    def steps_per_epoch(self) -> int:
        return self.plan.steps_per_epoch * self.times

    def indices(self, step: int, seed: int) -> Tensor:
        return self.plan.indices(step, seed)


def suited(settings: Settings, sets: Sets) -> Settings:
    """With the defaults for what there is to learn; where kinds differ, the later one's count."""
    for kind in kinds_in(sets):
        settings = settings.suited(kind.defaults(settings, sets))
    return settings.suited(features.DEFAULTS) if settings.data.on_features else settings


def compose(settings: Settings, sets: Sets, former: RunFolder | None = None) -> Recipe:
    """`settings` as `suited` gives them; `former` is the run that is gone on with."""
    seed, config, train = settings.train.seed, settings.train, sets.train
    on_features = settings.data.on_features
    of_shape = features.architecture_of if on_features else lambda how, shape: how.model.architecture(shape)
    architecture = of_shape(settings, train.shape)
    model = build_model(settings, architecture, train)
    found = tuple(kinds_in(sets))
    targets = [kind.target(settings, sets, model, seed) for kind in found]
    frozen = settings.data.images_from is not None
    plan = plan_of(targets, config.batch_size, settings.consistency.labelled_per_batch, len(train), not frozen)
    objective = Joint(
        model,
        targets,
        gradient=gradient_named(settings.model.gradient, seed),
        consistency=consistency_of(settings, sets) if targets and not frozen else None,
        alpha0=settings.model.alpha0,
        frozen=frozen,
        with_bound=settings.consistency.bound_images != 0 or not targets,
        rho={target.name: share_of_batch(target.present, plan) for target in targets},
    )
    if frozen:
        _take_model(objective, settings, former, train)
    about = {
        "model": settings.model.about(architecture)
        | ({"features": features.about(settings, architecture)} if on_features else {}),
        "targets": {
            kind.name: kind.about(target, sets.n_held_out(kind.name))
            for kind, target in zip(found, targets, strict=True)
        },
        "settings": {
            **as_dict(settings.labels),
            **as_dict(settings.tags),
            **as_dict(settings.captions),
            **as_dict(settings.consistency),
        },
        "frozen": frozen,
    }
    measured = [(kind, terms) for kind, target in zip(found, targets, strict=True)
                if (terms := kind.terms(settings, sets, target)) is not None]  # fmt: skip
    config = _with_metric(settings, measured, bool(found))
    if on_features and settings.data.captions is not None and _bf16(settings):
        config = dataclasses.replace(config, precision="bf16")
    # The curves of a small set get a point for each epoch.
    log_every = min(config.log_every, max(1, plan.steps_per_epoch * config.validate_every))
    config = dataclasses.replace(config, log_every=log_every)
    check = _validator(sets.valid, measured, config) if measured or (found and sets.valid is not None) else None
    return Recipe(settings, sets, objective, found, about, config, plan, check)


def build_model(settings: Settings, architecture: Architecture, train: ImageSet) -> ImageModel:
    """Untrained, started from the mean and variance of some of the images."""
    seed = settings.train.seed
    if architecture.n_weights > MOST_WEIGHTS:
        raise UserError(f"these layers make a model of {architecture.n_weights:,} numbers, which is beyond reason.")
    if settings.data.on_features:
        model = features.build(architecture, seed=seed)
    elif settings.model.encoder == "deep":
        places = settings.model.pooling != "max"
        model = ImageModel.deep(architecture, seed, settings.model.width, places, _bf16(settings))
    else:
        model = ImageModel.of(architecture, settings.model.pooling, seed)
    chosen = random_order(len(train), seed, Stream.START)[:_START_IMAGES].sort().values
    model.start_from(train.batch(chosen))
    return model


def _bf16(settings: Settings) -> bool:
    """Whether to multiply in bfloat16 on this CPU: not where nobody would notice, or each process might differ."""
    train = settings.train
    long = train.max_steps is None and (train.max_minutes or math.inf) >= _LONG
    alone = (job_size() or (train.processes,))[0] == 1
    on_cpu = train.precision == "auto" and choose_device().type == "cpu"
    return on_cpu and alone and long and bf16_pays()


def plan_of(
    targets: list[Target], batch_size: int, per_batch: int, n: int, others: bool
) -> Shuffled | LabelledAndUnlabelled:
    """Batches in which enough images carry a target; with a single target of classes, each class equally often."""
    if not targets:
        return Shuffled(n, batch_size)
    present = torch.stack([target.present for target in targets]).any(0)
    strata = targets[0].strata() if len(targets) == 1 else None
    return batches_for(present, batch_size, per_batch, strata, others)


def consistency_of(settings: Settings, sets: Sets) -> Consistency | None:
    """Captions say where things are and what colour they have: with them, images are augmented gently."""
    how = settings.consistency
    if not how.consistency:
        return None
    gently = sets.has(CAPTIONS)
    if how.augment == "any" and sets.has(LABELS) and not gently:
        column = sets.train.columns[LABELS]
        assert isinstance(column, LabelColumn)
        weight = BOUND if how.bound_weight is None else how.bound_weight
        found = deep_consistency(sets.train, column.values, settings.train.seed, how.pseudo_labels, weight)
        return dataclasses.replace(found, contrastive=how.contrastive or 0.0, spreading=how.spreading)
    contrastive = how.contrastive if how.contrastive is not None else float(sets.has(LABELS))
    bound_images = how.bound_images if how.bound_images != -1 else 16 if gently and not sets.has(LABELS) else 64
    return Consistency(
        pseudo_labels=how.pseudo_labels,
        contrastive=contrastive,
        spreading=how.spreading,
        augment=CAPTION_AUGMENT if gently else augment_for(sets.train.shape[0], _named(how.augment)),
        weak=0.3 if gently else 0.4,
        strong=how.augment_strength if how.augment_strength is not None else 1.0 if gently else 1.3,
        bound_images=bound_images,
        bound_weight=how.bound_weight,
    )


def _named(augment: SettingName) -> AugmentName:
    """Without labels nothing says which symmetries there are."""
    return "auto" if augment == "any" else augment


def refresher(joint: Joint, train: Images, seed: int, every: int = 1) -> Callable[[TrainerState], None] | None:
    """For `Trainer(on_epoch=...)`: labels spread anew after each `every`-th epoch, from (seed, step) alone.

    Several processes encode a part of the images each; the first spreads, and the others take what it found.
    """
    how = joint.consistency
    if how is None or how.spreading == 0 or not len(joint.targets):
        return None

    def refresh(state: TrainerState) -> None:
        if round(state.epoch) % every == 0:
            generator = reseed(torch.Generator(), seed, Stream.REFRESH, state.counters.step)
            codes = mean_codes_of_all(joint.model, train, seed=seed)
            if place_of_process()[0] == 0:
                joint.refresh(codes, generator)
            copy_buffers_of_first(joint.targets)

    return refresh


# ---- validation ----


def _with_metric(settings: Settings, measured: list[tuple[Kind, Terms]], has_targets: bool) -> TrainConfig:
    """Held-out values pick the weights: those of the last kind that has any. Without, the last weights are used, and
    nothing says when to stop."""
    config = settings.train
    if measured:
        name, rises = measured[-1][0].metric(settings)
        return dataclasses.replace(config, metric=name, metric_rises=rises)
    config = dataclasses.replace(config, metric="bound", metric_rises=True)
    return dataclasses.replace(config, patience=None) if has_targets else config


def _validator(
    valid: ImageSet | None, measured: list[tuple[Kind, Terms]], config: TrainConfig
) -> Callable[[nn.Module], Mapping[str, float]]:
    """The terms of the bound on images set aside, and what each kind measures on its held-out values."""
    assert valid is not None
    some = valid if len(valid) <= _VALIDATED or not measured else valid.subset(torch.arange(_VALIDATED))

    def terms(objective: nn.Module) -> Mapping[str, float]:
        assert isinstance(objective, Joint)
        found = validate(objective, some, batch_size=config.validation_batch_size, seed=config.seed)
        for kind, measure in measured:
            found |= measure(objective.model, objective.parts()[f"head.{kind.name}"])
        return found

    return terms


# ---- two steps ----


def _take_model(objective: Joint, settings: Settings, former: RunFolder | None, train: ImageSet) -> None:
    """The first step's image model, from its run or, when resuming, from the checkpoint; its codes are kept."""
    if former is not None and former.newest.exists():
        load_parts({"model": objective.model}, former.newest)
    else:
        assert settings.data.images_from is not None
        objective.model.load_state_dict(load_run(settings.data.images_from).model.state_dict())
    if objective.model.encoder.mean_is_exact and 8 * len(train) * objective.model.code_size <= MOST_KEPT:
        parts = [codes.cpu() for _, codes, _ in encode_set(objective.model, train)]
        objective.posteriors = Posteriors(
            torch.cat([part.mu[0] for part in parts]), torch.cat([part.log_sigma[0] for part in parts])
        )


def with_model_of(settings: Settings) -> Settings:
    """The settings of the run whose image model is taken, where targets are learned in two steps."""
    if settings.data.images_from is None:
        return settings
    run = load_run(settings.data.images_from)
    about, architecture = run.about["model"], run.architecture
    channels, height, _ = architecture.image_shape
    taken = {name: about[name] for name in ("pooling", "gradient", "alpha0", "encoder", "width") if name in about}
    model = {"layers": architecture.layers, "preset": None, "nonlinearity": architecture.nonlinearity, **taken}
    data = {"size": settings.data.size or height, "channels": settings.data.channels or channels}
    changed = settings.replace({**model, **data})
    return dataclasses.replace(changed, chosen=settings.chosen | set(model))


def _length(train: TrainConfig) -> str:
    limits = [
        (train.max_epochs, f"{train.max_epochs} epochs"),
        (train.max_steps, f"{train.max_steps} steps"),
        (train.max_minutes, f"{train.max_minutes} minutes"),
    ]
    return "at most " + " or ".join(words for limit, words in limits if limit is not None)
