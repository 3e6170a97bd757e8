"""Section 5.1, Table 1: all labels; test error in percent and milliseconds per test image.

    semisight reproduce table1 --data MNIST --rows gibbs,mcem,vae-d,vae --minutes 100     the table, 100 minutes in all
    semisight reproduce table1 --data MNIST --rows vae-d,vae --splits 0,1,2               12 minutes a seed
    semisight reproduce table1 --compare mnist/vae,mnist/vae-d                            do they differ?
    semisight reproduce table1 --data MNIST --rows vae-d-two-step,vae-two-step            codes without labels
    semisight reproduce table1 --data MNIST --rows vae-d-bound,vae-bound                  the bound as it is
    semisight reproduce table1 --data MNIST --rows vae-d-ours,vae-ours                    our network
    semisight reproduce table1 --data MNIST --rows supervised-mnist                       three rows
    semisight reproduce table1 --data CIFAR-10 --rows gibbs,mcem,vae-d,vae                60 minutes in all

The training images are split by the seed, 10,000 (CIFAR-10: 5,000) of them for validation; the standard test images are
looked at once a row. The column N is how many images were learned from. Rows of encoders also have their error on the
validation images (`valid_error`) and -log p(label) per test image (`nats`), the probabilities' temperature being fitted
on validation images: it tells models apart that err on as many images.

    row                what it is                                               paper: MNIST       CIFAR-10
    gibbs              the full posterior by sampling, Bayesian SVM inside      0.37, 3.1 ms       8.21, 10.4 ms
    mcem               Monte Carlo EM, at test the MAP of the top map           0.45, 0.8 ms       9.04, 1.1 ms
    mcem-longer        the same with twice the passes
    vae-d              as vae, with deterministic pooling and unpooling,        0.42, 0.007 ms     10.74, 0.02 ms
                       and a hundred times the paper's xi
    vae                the paper's network, trained to the end: local           0.38, 0.007 ms     8.19, 0.02 ms
                       gradient, expected pooling, places that start
                       with a longer reach, ten times the paper's xi,
                       Bayesian SVM
    vae-near           vae with places that start with a reach of 1
    vae-d-same-xi      vae-d with the xi of vae: nothing but pooling and
                       unpooling differs
    vae-ours           maps normalised and ReLU after pooling (MNIST: one
                       layer more), a thousand times the paper's xi, moved
                       images, softmax
    vae-d-ours         the same with deterministic pooling and unpooling
    vae-printed        as printed: nvil, sampled pooling, the paper's xi
    vae-local          the same with the local gradient and expected pooling
    vae-d-local        vae-local with deterministic pooling and unpooling
    vae-bound          vae-near with xi = 1, the bound of images and labels as it
                       is: labels weigh as in the model
    vae-d-bound        the same with deterministic pooling and unpooling
    vae-two-step       the image model of `vae` learned without labels, then
                       the Bayesian SVM on its codes: what these are worth
    vae-d-two-step     the same with deterministic pooling and unpooling
    supervised-mnist   vae-printed, vae-local and vae-ours

The samplers are in table1_samplers.py, which says on how many images and how long they run.

Times are of the processor, not of the clock: other work on the machine does not count. `times_vae` is how many times
that of an encoder of the same architecture, the paper's, a sampler takes, both measured in the one run.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from semisight.errors import UserError
from semisight.experiments import results
from semisight.experiments.chains import Unfinished
from semisight.experiments.limits import Limits
from semisight.experiments.table1_samplers import (
    EM,
    EM_LONGER,
    GIBBS,
    label_head,
    learn_without_labels,
    measure_gibbs,
    measure_mcem,
)
from semisight.experiments.table1_sets import ERROR, MS, Sets, milliseconds, sets, some
from semisight.experiments.unfinished import forget, unfinished
from semisight.inference.labels import in_batches
from semisight.metrics.calibration import fit_temperature, negative_log_likelihood
from semisight.metrics.classification import error_rate
from semisight.model.architecture import Nonlinearity, suggest_architecture
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.gradients import EstimatorName
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import LabelObjective
from semisight.random import Stream
from semisight.runs.label_training import (
    LabelSettings,
    build_label_objective,
    label_plan,
    label_validator,
)
from semisight.sampling.beta_mode import maximise_beta
from semisight.training.checkpoint import load_weights
from semisight.training.config import Schedule
from semisight.training.devices import use_threads
from semisight.training.progress import ProgressBar
from semisight.training.trainer import Trainer

TABLE = "table1"
VALID_ERROR, NATS = "valid_error", "nats"
GROUPS = {"supervised-mnist": ("vae-printed", "vae-local", "vae-ours")}
_VAE = {"mnist": ("0.38", "0.007"), "cifar-10": ("8.19", "0.02")}  # error, ms
_VAE_D = {"mnist": ("0.42", "0.007"), "cifar-10": ("10.74", "0.02")}
PAPER: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "gibbs": {"mnist": ("0.37", "3.1"), "cifar-10": ("8.21", "10.4")},
    **{row: {"mnist": ("0.45", "0.8"), "cifar-10": ("9.04", "1.1")} for row in ("mcem", "mcem-longer")},
    **{row: _VAE for row in ("vae", "vae-near", "vae-bound", "vae-ours", "vae-printed", "vae-local")},
    **{row: _VAE_D for row in ("vae-d", "vae-d-same-xi", "vae-d-bound", "vae-d-ours", "vae-d-local")},
}


@dataclass(frozen=True)
class Learned:
    """How an encoder is trained; the first rows are the paper's settings up to gradient and pooling."""

    labels: LabelSettings
    gradient: EstimatorName = "local"
    pooling: Pooling = "expected"
    reach: float = 1.0  # of the places' MLP at its start
    nonlinearity: Nonlinearity = "none"
    batch_size: int = 64
    learning_rate: float = 2e-4
    rates: Mapping[str, float] = field(default_factory=dict)  # by data set, where it is another
    schedule: Schedule = "constant"
    average: float | None = None
    epochs: Mapping[str, int] | None = None  # by data set; None as long as there is time
    move_strength: Mapping[str, float] = field(default_factory=dict)  # by data set, where it is not as usual


FAR = 10 / 3  # at which large values are told apart, as max-pooling does
PRINTED = Learned(LabelSettings(pull=False), gradient="nvil", pooling="sampled")
EPOCHS = {"mnist": 10, "cifar-10": 5, "smoke": 1}  # as many with places to choose as without
LOCAL = replace(PRINTED, gradient="local", pooling="expected", epochs=EPOCHS)
OURS = Learned(
    # Moved images, but no unlabelled ones that could pull.
    LabelSettings(head="softmax", xi="hundredfold", agreement=0.0, latent=0.0, confident=0.0, bound_images=32),
    nonlinearity="norm-relu",
    batch_size=128,
    learning_rate=2e-3,
    schedule="cosine",
    average=0.999,
    epochs={"mnist": 20, "cifar-10": 5, "smoke": 1},
    move_strength={"mnist": 0.8},  # further, and not even the training images are learned (docs/experiments.md)
)
# Twice the epochs of LOCAL and ten times its rate: the training error is then well below that on new images. Each has
# the xi that suits it on validation images, of the paper's and 10 and 100 times that (docs/experiments.md).
PAPERS = replace(
    LOCAL,
    labels=LabelSettings(pull=False, xi="pixels"),
    reach=FAR,
    learning_rate=2e-3,
    schedule="cosine",
    average=0.999,
    epochs={"mnist": 20, "cifar-10": 5, "smoke": 1},
    rates={"cifar-10": 5e-4},  # with more, three layers without a nonlinearity do not learn (docs/experiments.md)
)
NEAR = replace(PAPERS, reach=1.0)
PAPERS_D = replace(PAPERS, pooling="max", rates={"cifar-10": 2e-4})
BOUND = LabelSettings(pull=False, xi=1.0)
LEARNED = {
    "vae-d": replace(PAPERS_D, labels=replace(PAPERS.labels, xi="tenfold")),
    "vae": PAPERS,
    "vae-d-same-xi": PAPERS_D,
    "vae-near": NEAR,
    "vae-d-bound": replace(PAPERS_D, labels=BOUND),
    "vae-bound": replace(NEAR, labels=BOUND),
    "vae-d-ours": replace(OURS, pooling="max"),
    "vae-ours": OURS,
    "vae-printed": PRINTED,
    "vae-local": LOCAL,
    "vae-d-local": replace(LOCAL, pooling="max"),
}
MAXIMISED = {"mcem": EM, "mcem-longer": EM_LONGER}
TWO_STEP: Mapping[str, Pooling] = {"vae-d-two-step": "max", "vae-two-step": "expected"}
TWO_STEP_EPOCHS = {"mnist": 10, "cifar-10": 3, "smoke": 1}
ROWS = ("gibbs", *MAXIMISED, *LEARNED, *TWO_STEP)


def run(
    data: str | Path,
    out: Path,
    rows: Sequence[str] = ROWS,
    seeds: Sequence[int] = (0,),
    minutes: float = 25.0,
    smoke: bool = False,
    threads: int = 1,
    progress: bool = True,
) -> list[results.Row]:
    """Every row that `out` does not hold yet, one after the other; each is added as soon as it is measured."""
    wanted = dict.fromkeys(row for name in rows for row in GROUPS.get(name, (name,)))
    unknown = [row for row in wanted if row not in ROWS]
    if unknown:
        raise UserError(f"no row {unknown[0]!r} in Table 1. There are: {', '.join((*ROWS, *GROUPS))}")
    limits = Limits(minutes, use_threads(threads), progress, smoke)
    added = []
    for seed in seeds:
        of = sets(data, seed, smoke)
        if "supervised-mnist" in rows and of.name == "cifar-10":
            raise UserError(f"supervised-mnist is measured on MNIST, but {data} holds CIFAR-10: name its rows instead")
        for row in wanted:
            name, n = f"{of.name}/{row}", str(images_of(row, of))
            if results.has(out, TABLE, name, n, (ERROR, MS), seed):
                continue
            place = unfinished(out) / f"{of.name}-{row}-{seed}"
            try:
                values, spent = measure(row, of, seed, place, limits)
            except Unfinished as pause:
                ProgressBar(False, None, 0, start_step=0).tell(f"{name}: {pause}. The same command goes on with it.")
                continue
            error, ms = PAPER.get(row, {}).get(of.name, ("", ""))
            paper = {ERROR: error, MS: ms}
            origin = {"commit": results.commit(), "hardware": results.hardware(threads)}
            cells = [
                results.Row(TABLE, name, n, metric, seed, value, paper.get(metric, ""), spent, **origin)
                for metric, value in values.items()
            ]
            results.add(out, cells)
            forget((place.with_suffix(".safetensors"), place))
            added += cells
    return added


def images_of(row: str, of: Sets) -> int:
    """How many images a row learns from."""
    if row == "gibbs":
        return min(GIBBS[of.name].images, len(of.train))
    if row in MAXIMISED:
        return min(MAXIMISED[row][of.name].images, len(of.train))
    return len(of.train)


def measure(row: str, of: Sets, seed: int, place: Path, limits: Limits) -> tuple[dict[str, float], float]:
    """Metrics of one row, and the minutes it took."""
    if row == "gibbs":
        return measure_gibbs(GIBBS[of.name], of, seed, place, limits)
    if row in MAXIMISED:
        return measure_mcem(MAXIMISED[row][of.name], of, seed, place, limits)
    if row in TWO_STEP:
        return measure_two_step(TWO_STEP[row], of, seed, place, limits)
    return measure_encoder(LEARNED[row], of, seed, place, limits)


def measure_encoder(
    setting: Learned, of: Sets, seed: int, folder: Path, limits: Limits
) -> tuple[dict[str, float], float]:
    """The weights with the least validation error, on all test images."""
    objective = learner(setting, of, seed)
    assert of.train.labels is not None
    epochs = None if setting.epochs is None else setting.epochs[of.name]
    config = limits.training(
        seed=seed,
        learning_rate=setting.rates.get(of.name, setting.learning_rate),
        batch_size=setting.batch_size,
        schedule=setting.schedule,
        average_decay=setting.average,
        max_epochs=1 if limits.smoke else epochs,
        max_minutes=limits.minutes,
        metric="error",
        metric_rises=False,
    )
    plan = label_plan(of.train.labels, setting.labels, setting.batch_size)
    trainer = Trainer(objective, of.train, folder, config=config, plan=plan, validate=label_validator(of.valid))
    fitted = trainer.fit(resume=trainer.run.newest.exists())
    load_weights(objective, fitted.checkpoint)
    return tested(objective.images.model, objective.label_head, of, seed, fitted.seconds)


def measure_two_step(
    pooling: Pooling, of: Sets, seed: int, folder: Path, limits: Limits
) -> tuple[dict[str, float], float]:
    """All labels, but the image model never sees them: beta at its mode for the mean codes of the training images."""
    model = ImageModel.of(suggest_architecture(of.train.shape), pooling, seed, reach=FAR)
    seconds = learn_without_labels(model, of, TWO_STEP_EPOCHS[of.name], seed, folder, limits)
    began = time.monotonic()
    generator = torch.Generator().manual_seed(seed)
    head, labels = label_head(model, of, generator), of.train.labels
    assert labels is not None
    parts = [model.mean_code(of.train.batch(index), generator) for index in torch.arange(len(of.train)).split(1000)]
    maximise_beta(head, labels, torch.cat(parts), torch.ones(len(labels)), seed)
    return tested(model, head, of, seed, seconds + time.monotonic() - began)


def tested(model: ImageModel, head: LabelHead, of: Sets, seed: int, seconds: float) -> tuple[dict[str, float], float]:
    """What is said of an encoder, and the minutes of it all; `seconds` were spent before."""
    began = time.monotonic()
    assert of.test.labels is not None and of.valid.labels is not None
    test, valid = in_batches(model, head, of.test), in_batches(model, head, of.valid)
    probabilities = fit_temperature(valid.decision, of.valid.labels).probabilities(test.decision)
    images, _ = some(of.test, 2000, seed, Stream.TABLE1_TESTS)
    values = {
        ERROR: 100 * error_rate(test.label, of.test.labels),
        MS: milliseconds(model, head, images),
        VALID_ERROR: 100 * error_rate(valid.label, of.valid.labels),
        NATS: negative_log_likelihood(probabilities, of.test.labels),
    }
    return values, (seconds + time.monotonic() - began) / 60


def learner(setting: Learned, of: Sets, seed: int) -> LabelObjective:
    architecture = suggest_architecture(of.train.shape, setting.nonlinearity)
    model = ImageModel.of(architecture, setting.pooling, seed, reach=setting.reach)
    model.start_from(of.train.batch(torch.arange(min(len(of.train), 5000))))
    images = ImageObjective(model, setting.gradient, seed=seed)
    assert of.train.labels is not None
    n_classes = len(of.train.class_names)
    labels = replace(setting.labels, move_strength=setting.move_strength.get(of.name, setting.labels.move_strength))
    return build_label_objective(images, of.train.labels, n_classes, labels, setting.batch_size, seed)
