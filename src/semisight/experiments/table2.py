"""Section 5.2, Table 2: MNIST with N labelled images per class; and the same settings, unchanged, on CIFAR-10.

    semisight reproduce table2 --data MNIST --rows pull --n 10 --splits 0,1,2        at most 40 minutes a run
    semisight reproduce table2 --data CIFAR --rows pull,labelled-alone --n 400       4,000 labels

Other images than MNIST's have their rows named after them, as cifar-10/pull; of CIFAR-10's 50,000, 10,000 validate.

The 60,000 images are split 50,000/10,000 by the split's number, N labels per class are kept, and the standard 10,000
test images are looked at once a run. Two errors each: `error` has no label beyond the N per class (the last weights),
and `error_stopped` stops early on the 10,000 labelled validation images, as the paper does.

    row             what it is                                                                  paper (N = 10)
    tsvm            transductive SVM on pixels                                                  16.81
    xi0-tsvm        image model alone, its codes to a transductive SVM                          5.83
    printed         nvil, sampled pooling, xi = N_X/(C rho), Bayesian SVM                       1.49
    local           the same with the local gradient and expected pooling
    local-d         `local` with deterministic pooling and unpooling (VAE-d): what places are worth
    softmax         `local` with a softmax in the Bayesian SVM's place
    pull            ours: normalised maps and ReLU after pooling, one layer more, and unlabelled images pull (Pull)
    pull-no-bound   `pull` without the image model: what the bound is worth
    labelled-alone  the network of `pull`, as many steps and labelled images a step, without the others
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from semisight.baselines.tsvm import TransductiveSVM
from semisight.data import load
from semisight.data.columns import choose_labelled, hide_labels
from semisight.data.image_set import ImageSet, split
from semisight.errors import UserError
from semisight.experiments import results
from semisight.metrics.classification import error_rate
from semisight.model.architecture import Nonlinearity, preset, suggest_architecture
from semisight.model.encoders.paper import Pooling
from semisight.model.image_model import ImageModel
from semisight.objectives.gradients import EstimatorName
from semisight.objectives.image_objective import ImageObjective
from semisight.runs.label_training import (
    LabelSettings,
    build_label_objective,
    label_error,
    label_plan,
    label_validator,
    labelled_beside,
    refresher,
)
from semisight.training.checkpoint import load_weights
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer

TABLE = "table2"
STOPPED, LAST = "error_stopped", "error"
N_VALID = 10_000
PAPER = {("tsvm", 10): "16.81", ("tsvm", 60): "6.16", ("tsvm", 100): "5.38", ("tsvm", 300): "3.45"}
PAPER |= {("xi0-tsvm", 10): "5.83", ("xi0-tsvm", 60): "2.19", ("xi0-tsvm", 100): "1.75", ("xi0-tsvm", 300): "1.42"}
for _row in ("printed", "local", "pull"):
    PAPER |= {(_row, 10): "1.49", (_row, 60): "0.77", (_row, 100): "0.63", (_row, 300): "0.51"}


@dataclass(frozen=True)
class Setting:
    """What a row trains; the first five are the paper's up to the gradient, the pooling and the head."""

    labels: LabelSettings
    gradient: EstimatorName = "local"
    pooling: Pooling = "expected"
    nonlinearity: Nonlinearity = "none"
    batch_size: int = 64
    epochs: int = 25
    learning_rate: float = 2e-4
    schedule: str = "constant"
    average: float | None = None
    alone: bool = False  # without the unlabelled images
    beside: int | None = None  # unlabelled images of a batch; the labelled ones are then as many as suits their number


PRINTED = Setting(LabelSettings(pull=False), gradient="nvil", pooling="sampled")
PULL = Setting(
    LabelSettings(head="softmax", xi="hundredfold", agreement=0.0, latent=0.0, bound_images=32),
    nonlinearity="norm-relu",
    beside=128,
    epochs=15,
    learning_rate=2e-3,
    schedule="cosine",
    average=0.995,
)
SETTINGS = {
    "printed": PRINTED,
    "local": replace(PRINTED, gradient="local", pooling="expected"),
    "local-d": replace(PRINTED, gradient="local", pooling="max"),
    "softmax": replace(PRINTED, gradient="local", pooling="expected", labels=LabelSettings(head="softmax", pull=False)),
    "pull": PULL,
    "pull-no-bound": replace(PULL, labels=replace(PULL.labels, bound_images=0)),
    "labelled-alone": replace(PULL, labels=replace(PULL.labels, bound_images=0, confident=0.0), alone=True),
}
IMAGES_ALONE = Setting(LabelSettings(pull=False), epochs=25)
ROWS = ("tsvm", "xi0-tsvm", *SETTINGS)


@dataclass(frozen=True)
class Sets:
    train: ImageSet  # its labels hidden but for N per class
    valid: ImageSet
    test: ImageSet


def sets(data: str | Path, n: int, split_number: int, smoke: bool = False) -> Sets:
    """The protocol of section 5.2 for one split; at smoke size a built-in set stands in for MNIST."""
    if smoke:
        images = load(data)
        rest, test = split(images, 200, seed=99)
        train, valid = split(rest, 200, split_number)
        train = train.subset(list(range(300)))
    else:
        train, valid = split(load(data), N_VALID, split_number)
        test = load(data, part="test")
    assert train.labels is not None
    kept = choose_labelled(train.labels, n, split_number)
    return Sets(train.with_labels(hide_labels(train.labels, kept), train.class_names), valid, test)


def name_of_set(data: str | Path) -> str:
    """What a row's name begins with: nothing for MNIST (and what stands in for it), cifar-10/ for CIFAR-10."""
    shape = load(data).shape
    return next((f"{name}/" for name in ("cifar-10",) if preset(name).image_shape == shape), "")


def run(
    data: str | Path,
    out: Path,
    rows: Sequence[str] = ROWS,
    n: Sequence[int] = (10,),
    splits: Sequence[int] = (0,),
    minutes: float = 40.0,
    smoke: bool = False,
    threads: int = 2,
    progress: bool = True,
) -> list[results.Row]:
    """Every cell that `out` does not hold yet, one after the other; each is added as soon as it is measured."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise UserError(f"no row {unknown[0]!r} in Table 2. There are: {', '.join(ROWS)}")
    added = []
    of_set = name_of_set(data)
    for row in rows:
        for per_class in n:
            for number in splits:
                metrics = (LAST, STOPPED) if row in SETTINGS else (LAST,)
                if results.has(out, TABLE, of_set + row, str(per_class), metrics, number):
                    continue
                new = measure(row, sets(data, per_class, number, smoke), number, minutes, smoke, threads, progress)
                paper = "" if of_set else PAPER.get((row, per_class), "")
                origin = {"commit": results.commit(), "hardware": results.hardware(threads)}
                cells = [
                    results.Row(TABLE, of_set + row, str(per_class), metric, number, value, paper, spent, **origin)
                    for metric, value, spent in new
                ]
                results.add(out, cells)
                added += cells
    return added


def measure(
    row: str, of: Sets, seed: int, minutes: float, smoke: bool, threads: int, progress: bool
) -> list[tuple[str, float, float]]:
    """(metric, test error in percent, minutes) of one cell."""
    started = time.monotonic()
    if row in SETTINGS:
        last, stopped = train_labels(SETTINGS[row], of, seed, minutes, smoke, threads, progress)
        spent = (time.monotonic() - started) / 60
        return [(LAST, last, spent), (STOPPED, stopped, spent)]
    if row == "tsvm":
        features = [images.batch(torch.arange(len(images))).flatten(1) for images in (of.train, of.test)]
    else:
        features = codes_of_images_alone(of, seed, minutes, smoke, threads, progress)
    error = transductive(of, features[0], features[1], seed, smoke)
    return [(LAST, error, (time.monotonic() - started) / 60)]


def transductive(of: Sets, train: torch.Tensor, test: torch.Tensor, seed: int, smoke: bool) -> float:
    labels = of.train.labels
    assert labels is not None and of.test.labels is not None
    known = labels >= 0
    svm = TransductiveSVM(seed=seed, n_components=50) if smoke else TransductiveSVM(seed=seed)
    svm.fit(train[known].numpy(), labels[known].numpy(), train[~known].numpy())
    return 100 * error_rate(svm.predict(test.numpy()), of.test.labels)


def config(setting: Setting, seed: int, minutes: float, smoke: bool, threads: int, progress: bool) -> TrainConfig:
    return TrainConfig(
        seed=seed,
        learning_rate=setting.learning_rate,
        batch_size=setting.batch_size,
        schedule=setting.schedule,  # type: ignore[arg-type]
        average_decay=setting.average,
        max_epochs=1 if smoke else setting.epochs,
        max_minutes=minutes,
        patience=None,
        validation_batch_size=500,
        threads=threads,
        keep_memory=True,
        progress=progress,
        tensorboard=False,
    )


def image_objective(setting: Setting, train: ImageSet, seed: int) -> ImageObjective:
    model = ImageModel.of(suggest_architecture(train.shape, setting.nonlinearity), setting.pooling, seed)
    model.start_from(train.batch(torch.arange(min(len(train), 5000))))
    return ImageObjective(model, setting.gradient, seed=seed)


def with_batches(setting: Setting, labels: torch.Tensor) -> Setting:
    """The setting with batches as `beside` asks for them."""
    if setting.beside is None:
        return setting
    n_known, n_others = int((labels >= 0).sum()), int((labels < 0).sum())
    beside = min(setting.beside, n_others)
    labelled = labelled_beside(n_known, n_others, beside)
    return replace(setting, labels=replace(setting.labels, labelled_per_batch=labelled), batch_size=labelled + beside)


def train_labels(
    setting: Setting, of: Sets, seed: int, minutes: float, smoke: bool, threads: int, progress: bool
) -> tuple[float, float]:
    """Test error of the last weights, and of those with the least validation error."""
    labels = of.train.labels
    assert labels is not None
    setting = with_batches(setting, labels)
    settings = setting.labels
    steps = setting.epochs * label_plan(labels, settings, setting.batch_size).steps_per_epoch
    if setting.alone:
        of = replace(of, train=of.train.subset((labels >= 0).nonzero().squeeze(1).tolist()))
        setting = replace(setting, batch_size=settings.labelled_per_batch)
        labels = of.train.labels
        assert labels is not None
    objective = build_label_objective(
        image_objective(setting, of.train, seed), labels, len(of.train.class_names), settings, setting.batch_size, seed
    )
    training = replace(config(setting, seed, minutes, smoke, threads, progress), metric="error", metric_rises=False)
    plan = label_plan(labels, settings, setting.batch_size)
    if setting.alone and not smoke:  # as many steps, validated as often, as with the unlabelled images
        every = max(1, round(steps / setting.epochs / plan.steps_per_epoch))
        training = replace(training, max_epochs=None, max_steps=steps, validate_every=every)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            objective,
            of.train,
            folder,
            config=training,
            plan=plan,
            validate=label_validator(of.valid),
            on_epoch=refresher(objective, of.train, seed) if settings.pull else None,
        )
        fitted = trainer.fit(overwrite=True)
        load_weights(objective, trainer.run.newest)
        last = label_error(objective, of.test)
        load_weights(objective, fitted.checkpoint)
        return last, label_error(objective, of.test)


def codes_of_images_alone(
    of: Sets, seed: int, minutes: float, smoke: bool, threads: int, progress: bool
) -> list[torch.Tensor]:
    """xi = 0: the bound alone, and then the mean codes of training and test images."""
    objective = image_objective(IMAGES_ALONE, of.train, seed)
    training = config(IMAGES_ALONE, seed, minutes, smoke, threads, progress)
    with tempfile.TemporaryDirectory() as folder:
        fitted = Trainer(objective, of.train, folder, config=training, valid=of.valid).fit(overwrite=True)
        load_weights(objective, fitted.checkpoint)
    objective.eval()
    with torch.no_grad():
        return [
            torch.cat(
                [
                    objective.model.encode(images.batch(index), torch.Generator().manual_seed(0)).mean
                    for index in torch.arange(len(images)).split(1000)
                ]
            )
            for images in (of.train, of.test)
        ]
