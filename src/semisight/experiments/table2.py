"""Section 5.2, Table 2: MNIST with N labelled images per class; and the same settings, unchanged, on CIFAR-10.

    semisight reproduce table2 --data MNIST --rows consistency --n 10 --splits 0,1,2        at most 40 minutes a run
    semisight reproduce table2 --data CIFAR --rows consistency,labelled-alone --n 400       4,000 labels

Other images than MNIST's have their rows named after them, as cifar-10/consistency; of CIFAR-10's 50,000, 10,000
validate.

The 60,000 images are split 50,000/10,000 by the split's number, N labels per class are kept, and the standard 10,000
test images are looked at once by each of two weights: `error` has no label beyond the N per class (the last weights),
and `error_stopped` stops early on the 10,000 labelled validation images, as the paper does.

    row                   what it is                                                            paper (N = 10)
    tsvm                  transductive SVM on pixels                                            16.81
    m1-tsvm               autoencoder of pixels (baselines/m1.py), its codes to the same SVM    11.82
    m1-m2                 the same codes to a generative model of labels (baselines/m2.py)      3.33
    ladder-full           Ladder network, all denoising costs (baselines/ladder.py)             1.06
    ladder-gamma-conv     its convolutional Gamma-model                                         0.89
    xi0-tsvm              image model alone, its codes to a transductive SVM                    5.83
    printed               nvil, sampled pooling, xi = N_X/(C rho), Bayesian SVM                 1.49
    local                 the same with the local gradient and expected pooling
    local-d               `local` with deterministic pooling and unpooling (VAE-d): what places are worth
    softmax               `local` with a softmax in the Bayesian SVM's place
    consistency           ours: normalised maps and ReLU after pooling, one layer more, augmented images, and
                          pseudo-labels of the unlabelled ones (objectives/consistency.py)
    consistency-no-bound  `consistency` without the image model: what the bound is worth
    labelled-alone        the network of `consistency`, as many steps and labelled images a step, without the others
    deep                  the deep encoder with the recipe that is the same on every set (runs/deep.py); one cycle of as
                          many minutes as --minutes says, or steps as --steps says; convolves in bfloat16 where the
                          processor gains from it
    deep-no-bound         `deep` without the image model
    deep-labelled-alone   `deep` on the labelled images alone, as many minutes or steps
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semisight.baselines import ladder
from semisight.baselines.m1 import M1
from semisight.baselines.m2 import M2
from semisight.baselines.network import Learning
from semisight.baselines.tsvm import TransductiveSVM
from semisight.data import load
from semisight.data.batches import LabelledAndUnlabelled
from semisight.data.columns import choose_labelled, hide_labels
from semisight.data.image_set import ImageSet
from semisight.experiments import results
from semisight.experiments.label_rows import (
    DEEP,
    DEEP_ALONE,
    DEEP_NO_BOUND,
    LabelRow,
    Parts,
    compose,
    image_model,
    labels_of,
    parts,
    train,
    train_without_labels,
)
from semisight.experiments.network_rows import NetworkRow, TrainedNetwork, started, train_network
from semisight.experiments.table import Cell, Measured, Request, fill, fit, forget, unfinished
from semisight.inference.encode import mean_codes
from semisight.inference.validation import label_error
from semisight.metrics.classification import error_rate
from semisight.model.architecture import preset
from semisight.objectives.consistency import Consistency
from semisight.objectives.targets import Xi
from semisight.training.checkpoint import load_parts
from semisight.training.trainer import Trainer

TABLE = "table2"
STOPPED, LAST = "error_stopped", "error"
N_VALID = 10_000
ALONE, DEEP_ONES = "labelled-alone", "deep-labelled-alone"
PRINTED = LabelRow()
LOCAL = replace(PRINTED, gradient="local", pooling="expected")
CONSISTENCY = LabelRow(
    gradient="local",
    pooling="expected",
    nonlinearity="norm-relu",
    softmax=True,
    xi=Xi(times=1000),
    beside=128,
    consistency=Consistency(contrastive=0, spreading=0, bound_images=32),
    learning_rate=2e-3,
    schedule="cosine",
    average=0.995,
    epochs=15,
)
SETTINGS = {
    "printed": PRINTED,
    "local": LOCAL,
    "local-d": replace(LOCAL, pooling="max"),
    "softmax": replace(LOCAL, softmax=True),
    "consistency": CONSISTENCY,
    "consistency-no-bound": replace(CONSISTENCY, consistency=Consistency(contrastive=0, spreading=0, bound_images=0)),
    "deep": DEEP,
    "deep-no-bound": DEEP_NO_BOUND,
    DEEP_ONES: DEEP_ALONE,
    ALONE: replace(CONSISTENCY, consistency=Consistency(0, contrastive=0, spreading=0, bound_images=0)),
}
NETWORKS = {
    "ladder-full": NetworkRow(
        lambda of, smoke: ladder.full(of.shape, len(of.class_names), (60, 30) if smoke else ladder.FULL_UNITS),
        epochs=50,
    ),
    "ladder-gamma-conv": NetworkRow(
        lambda of, smoke: ladder.gamma_conv(of.shape, len(of.class_names), (8, 8, 8) if smoke else ladder.WIDTHS),
        epochs=18,
    ),
}
M1_EPOCHS, M1_BATCH, M1_RATE = 30, 200, 1e-3
M2_ROW = NetworkRow(
    lambda codes, smoke: M2(
        codes.shape[0] // 2, len(codes.class_names), share_known(codes), hidden=50 if smoke else 500
    ),
    batch_size=300,
    learning_rate=1e-3,
    epochs=150,
)
ROWS = ("tsvm", "m1-tsvm", "m1-m2", *NETWORKS, "xi0-tsvm", *SETTINGS)
STOPPED_EARLY = ("m1-m2", *NETWORKS, *SETTINGS)
_OURS = {10: "1.49", 60: "0.77", 100: "0.63", 300: "0.51"}
PAPER = {
    "tsvm": {10: "16.81", 60: "6.16", 100: "5.38", 300: "3.45"},
    "m1-tsvm": {10: "11.82", 60: "5.72", 100: "4.24", 300: "3.49"},
    "m1-m2": {10: "3.33", 60: "2.59", 100: "2.40", 300: "2.18"},
    "ladder-full": {10: "1.06", 100: "0.84"},
    "ladder-gamma-conv": {10: "0.89", 60: "0.82", 100: "0.74", 300: "0.63"},
    "xi0-tsvm": {10: "5.83", 60: "2.19", 100: "1.75", 300: "1.42"},
    **{row: _OURS for row in ("printed", "local", "consistency", "deep")},
}


def run(request: Request) -> list[results.Row]:
    """Every cell that the results file does not hold yet, one after the other; each is added once it is measured."""
    request = replace(request, rows=tuple(results.RENAMED.get(row, row) for row in request.rows))
    rows = request.chosen(ROWS, "Table 2")
    of_set = name_of_set(request.source())

    def cell(row: str, n: int, number: int) -> Cell:
        metrics = (LAST, STOPPED) if row in STOPPED_EARLY else (LAST,)
        paper = "" if of_set else PAPER.get(row, {}).get(n, "")
        return Cell(of_set + row, number, metrics, str(n), dict.fromkeys(metrics, paper))

    def measured(cell: Cell, place: Path) -> Measured:
        of = sets(request.source(), int(cell.N), cell.seed, request.smoke)
        return measure(cell.row.removeprefix(of_set), of, cell.seed, place, request)

    cells = [cell(row, n, number) for row in rows for n in request.n for number in request.splits]
    added = fill(TABLE, request, cells, measured)
    forget(m1_place(unfinished(request.file(TABLE)), number) for number in request.splits)
    return added


def sets(data: str | Path, n: int, split_number: int, smoke: bool = False) -> Parts:
    """The protocol of section 5.2 for one split: of the labels to learn from, all but N per class are hidden."""
    of = parts(data, N_VALID, split_number, smoke)
    labels = labels_of(of.train)
    hidden = hide_labels(labels, choose_labelled(labels, n, split_number))
    return replace(of, train=of.train.with_labels(hidden, of.train.class_names))


def name_of_set(data: str | Path) -> str:
    """What a row's name begins with: nothing for MNIST (and what stands in for it), cifar-10/ for CIFAR-10."""
    return "cifar-10/" if load(data).shape == preset("cifar-10").image_shape else ""


def measure(row: str, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """Test errors in percent of one cell."""
    if row in SETTINGS:
        return measure_row(row, of, seed, place, request)
    if row in NETWORKS:
        return measure_network(NETWORKS[row], of, seed, place, request)
    if row == "m1-m2":
        return measure_m2(of, seed, place, request)
    before = 0.0
    if row == "tsvm":
        features = [images.batch(torch.arange(len(images))).flatten(1) for images in (of.train, of.test)]
    elif row == "m1-tsvm":
        m1, before = learn_m1(of, seed, place, request)
        features = [m1.codes(images) for images in (of.train, of.test)]
    else:
        model = image_model(LOCAL, of.train, seed)
        _, before = train_without_labels(model, of, place, LOCAL.training(request, seed))
        features = [mean_codes(model, images) for images in (of.train, of.test)]
    return Measured({LAST: transductive(of, features[0], features[1], seed, request.smoke)}, before)


def measure_row(row: str, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """The error of the last weights, and of those with the least validation error."""
    setting = SETTINGS[row]
    settings: dict[str, Any] = {}
    if row in (ALONE, DEEP_ONES):
        setting, of, settings = without_the_others(setting, of, request.smoke)
    trained = train(setting, compose(setting, of.train, seed), of, seed, place, request, **settings)
    values = {
        metric: label_error(*trained.weights(checkpoint), of.test, labels_of(of.test))
        for metric, checkpoint in ((LAST, trained.last), (STOPPED, trained.best))
    }
    return Measured(values, trained.before)


def measure_network(row: NetworkRow, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    network = started(lambda: row.build(of.train, request.smoke), seed)
    trained = train_network(row, network, of.train, of.valid, seed, place, request)
    return Measured(errors(trained, of.test), trained.before)


def errors(trained: TrainedNetwork, test: ImageSet) -> dict[str, float]:
    """Of the last weights, and of those with the least validation error."""
    return {
        metric: 100 * error_rate(trained.scores(checkpoint, test).argmax(1), labels_of(test))
        for metric, checkpoint in ((LAST, trained.last), (STOPPED, trained.best))
    }


def learn_m1(of: Parts, seed: int, place: Path, request: Request) -> tuple[M1, float]:
    """The autoencoder with the best bound of the validation images, shared by rows and numbers of labels of a split."""
    n_pixels = of.train.images[0].numel()
    m1 = started(lambda: M1(n_pixels, hidden=60 if request.smoke else 600), seed)
    learning = Learning(m1, torch.full((len(of.train),), -1))
    config = request.training(
        seed=seed,
        batch_size=M1_BATCH,
        learning_rate=M1_RATE,
        schedule="cosine",
        max_epochs=1 if request.smoke else M1_EPOCHS,
        max_minutes=request.minutes,
    )
    fitted, before = fit(Trainer(learning, of.train, m1_place(place.parent, seed), config=config, valid=of.valid))
    load_parts(learning.parts(), fitted.checkpoint)
    return m1.eval(), before


def share_known(images: ImageSet) -> float:
    return float((labels_of(images) >= 0).double().mean())


def m1_place(folder: Path, seed: int) -> Path:
    return folder / f"m1-of-split-{seed}"


def measure_m2(of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """On codes of M1."""
    m1, before = learn_m1(of, seed, place, request)

    def coded(images: ImageSet) -> ImageSet:
        codes = m1.posteriors(images)
        return ImageSet.of(codes[..., None, None], images.names, labels_of(images), images.class_names)

    train, valid = coded(of.train), coded(of.valid)
    network = started(lambda: M2_ROW.build(train, request.smoke), seed)
    trained = train_network(M2_ROW, network, train, valid, seed, place, request)
    return Measured(errors(trained, coded(of.test)), before + trained.before)


def without_the_others(row: LabelRow, of: Parts, smoke: bool) -> tuple[LabelRow, Parts, dict[str, Any]]:
    """The labelled images alone: as many of them a step, as many steps, validated as often, as with the others."""
    labels = labels_of(of.train)
    whole = row.plan(labels)
    per_batch = whole.labelled_per_batch if isinstance(whole, LabelledAndUnlabelled) else whole.batch_size
    row = replace(row, beside=None, labelled=per_batch, batch_size=per_batch)
    of = replace(of, train=of.train.subset(labels >= 0))
    if smoke:
        return row, of, {}
    every = max(1, round(whole.steps_per_epoch / row.plan(labels_of(of.train)).steps_per_epoch))
    settings: dict[str, Any] = {"validate_every": every}
    if row.epochs is not None:
        settings |= {"max_epochs": None, "max_steps": row.epochs * whole.steps_per_epoch}
    return row, of, settings


def transductive(of: Parts, train: Tensor, test: Tensor, seed: int, smoke: bool) -> float:
    labels = labels_of(of.train)
    known = labels >= 0
    svm = TransductiveSVM(seed=seed, n_components=50) if smoke else TransductiveSVM(seed=seed)
    svm.fit(train[known].numpy(), labels[known].numpy(), train[~known].numpy())
    return 100 * error_rate(svm.predict(test.numpy()), labels_of(of.test))
