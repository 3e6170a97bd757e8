"""Section 5.1, Table 1: all labels; test error in percent and milliseconds per image.

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
    gibbs-chains       several chains on few images in which every conditional
                       moves, with R-hat (table1_chains.py)
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
                       layer more), a thousand times the paper's xi,
                       augmented images, softmax
    vae-d-ours         the same with deterministic pooling and unpooling
    deep               the deep encoder with the recipe that is the same on
                       every set (runs/deep.py), one cycle of as many minutes
                       as --minutes says, or steps as --steps says; on
                       CIFAR-10 with one and a half times the maps
    deep-no-bound      the same without the image model
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

The samplers are in table1_samplers.py, which says on how many images and how long they run. Caltech-101 is in
table1_caltech.py, with rows of its own for pretrained features.

Times are of the processor, not of the clock, and of validation images (samplers: test images): other work on the
machine does not count. `times_vae` is how many times
that of an encoder of the same architecture, the paper's, a sampler takes, both measured in the one run.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from semisight.errors import UserError
from semisight.experiments import results, table1_caltech
from semisight.experiments.label_rows import DEEP, LabelRow, Parts, compose, image_model, labels_of, train
from semisight.experiments.table import Cell, Measured, Request, fill
from semisight.experiments.table1_caltech import PRETRAINED
from semisight.experiments.table1_chains import CHAINS, measure_chains
from semisight.experiments.table1_samplers import (
    EM,
    EM_LONGER,
    ERROR,
    GIBBS,
    MS,
    label_head,
    learn_without_labels,
    measure_gibbs,
    measure_mcem,
    milliseconds,
    sets,
    some,
)
from semisight.inference.encode import mean_codes
from semisight.inference.validation import decision_values
from semisight.metrics.calibration import fit_temperature, negative_log_likelihood
from semisight.metrics.classification import error_rate
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.consistency import Consistency
from semisight.objectives.targets import Xi
from semisight.random import Stream
from semisight.runs.deep import BOUND
from semisight.sampling.beta_mode import maximise_beta
from semisight.training.devices import use_threads

TABLE = "table1"
VALID_ERROR, NATS = "valid_error", "nats"
GROUPS = {"supervised-mnist": ("vae-printed", "vae-local", "vae-ours")}
# error, ms
_VAE = {"mnist": ("0.38", "0.007"), "cifar-10": ("8.19", "0.02"), "caltech101": ("11.99", "0.3")}
_VAE_D = {"mnist": ("0.42", "0.007"), "cifar-10": ("10.74", "0.02"), "caltech101": ("14.79", "0.3")}
PAPER: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "gibbs": {"mnist": ("0.37", "3.1"), "cifar-10": ("8.21", "10.4")},
    **{row: {"mnist": ("0.45", "0.8"), "cifar-10": ("9.04", "1.1")} for row in ("mcem", "mcem-longer")},
    **{row: _VAE for row in ("vae", "vae-near", "vae-bound", "vae-ours", "deep", "vae-printed", "vae-local")},
    "vae-pretrained": {"caltech101": ("6.91", "0.9")},
    **{row: _VAE_D for row in ("vae-d", "vae-d-same-xi", "vae-d-bound", "vae-d-ours", "vae-d-local")},
}

FAR = 10 / 3  # at which large values are told apart, as max-pooling does
_CALTECH: Mapping[str, Mapping[str, Any]] = {table1_caltech.NAME: {"layers": table1_caltech.LAYERS}}
PRINTED = LabelRow(epochs=None, on_set=_CALTECH)
# as many epochs with places to choose as without
LOCAL = LabelRow(gradient="local", pooling="expected", epochs=10, on_set={"cifar-10": {"epochs": 5}, **_CALTECH})
AUGMENTED = Consistency(pseudo_labels=0, contrastive=0, spreading=0, bound_images=32)  # every image has its label
OURS = LabelRow(
    gradient="local",
    pooling="expected",
    nonlinearity="norm-relu",
    softmax=True,
    xi=Xi(times=1000),
    batch_size=128,
    consistency=AUGMENTED,
    learning_rate=2e-3,
    schedule="cosine",
    average=0.999,
    epochs=20,
    # augmented more, and not even the training images are learned (docs/experiments.md)
    on_set={"mnist": {"consistency": replace(AUGMENTED, strong=0.8)}, "cifar-10": {"epochs": 5}, **_CALTECH},
)
# Twice the epochs of LOCAL and ten times its rate: the training error is then well below that on new images. Each has
# the xi that suits it on validation images, of the paper's and 10 and 100 times that. On CIFAR-10, with a higher rate,
# three layers without a nonlinearity do not learn (docs/experiments.md).
PAPERS = replace(
    LOCAL,
    xi=Xi(times=10),
    reach=FAR,
    learning_rate=2e-3,
    schedule="cosine",
    average=0.999,
    epochs=20,
    on_set={"cifar-10": {"epochs": 5, "learning_rate": 5e-4}, **_CALTECH},
)
DEEP_ALL = replace(
    DEEP,
    beside=None,
    batch_size=256,
    consistency=replace(AUGMENTED, bound_weight=BOUND),
    on_set={"cifar-10": {"width": 1.5}},  # set beforehand; more epochs were not compared
)
NEAR = replace(PAPERS, reach=1.0)
PAPERS_D = replace(PAPERS, pooling="max", on_set={"cifar-10": {"epochs": 5, "learning_rate": 2e-4}, **_CALTECH})
LEARNED = {
    "vae-d": replace(PAPERS_D, xi=Xi(times=100)),
    "vae": PAPERS,
    "vae-d-same-xi": PAPERS_D,
    "vae-near": NEAR,
    "vae-d-bound": replace(PAPERS_D, xi=Xi(1.0)),
    "vae-bound": replace(NEAR, xi=Xi(1.0)),
    "vae-d-ours": replace(OURS, pooling="max"),
    "vae-ours": OURS,
    "deep": DEEP_ALL,
    "deep-no-bound": replace(DEEP_ALL, consistency=replace(AUGMENTED, bound_weight=0.0)),
    "vae-printed": PRINTED,
    "vae-local": LOCAL,
    "vae-d-local": replace(LOCAL, pooling="max"),
}
MAXIMISED = {"mcem": EM, "mcem-longer": EM_LONGER}
TWO_STEP: Mapping[str, Pooling] = {"vae-d-two-step": "max", "vae-two-step": "expected"}
TWO_STEP_EPOCHS = {"mnist": 10, "cifar-10": 3, "smoke": 1}
ROWS = ("gibbs", "gibbs-chains", *MAXIMISED, *LEARNED, *TWO_STEP, *PRETRAINED)


def run(request: Request) -> list[results.Row]:
    """Every row that the results file does not hold yet, one after the other; each is added once it is measured."""
    request.chosen((*ROWS, *GROUPS), "Table 1")
    wanted = dict.fromkeys(row for name in request.rows or ROWS for row in GROUPS.get(name, (name,)))
    use_threads(request.threads)
    added = []
    for seed in request.splits:
        name, of = sets(request.source(), seed, request.smoke, request.cache)
        if "supervised-mnist" in request.rows and name == "cifar-10":
            raise UserError(
                f"supervised-mnist is measured on MNIST, but {request.data} holds CIFAR-10: name its rows instead"
            )
        cells = []
        for row in wanted if request.rows else suitable(name):
            if row not in suitable(name):
                raise UserError(f"{row} is not measured on {name}. There: {', '.join(suitable(name))}")
            paper = dict(zip((ERROR, MS), PAPER.get(row, {}).get(name, ("", "")), strict=True))
            metrics = (ERROR,) if row in PRETRAINED else (ERROR, MS)
            cells.append(Cell(f"{name}/{row}", seed, metrics, str(images_of(row, name, of)), paper))
        added += fill(TABLE, request, cells, partial(measure, name=name, of=of, request=request))
    return added


def suitable(name: str) -> tuple[str, ...]:
    """The rows of a set of images: samplers would take weeks on photographs, features are for photographs alone."""
    if name == table1_caltech.NAME:
        return (*LEARNED, *PRETRAINED)
    return ROWS if name == "smoke" else tuple(row for row in ROWS if row not in PRETRAINED)


def images_of(row: str, name: str, of: Parts) -> int:
    """How many images a row learns from."""
    if row == "gibbs":
        return min(GIBBS[name].images, len(of.train))
    if row == "gibbs-chains":
        return min(CHAINS[name].each.images, len(of.train))
    if row in MAXIMISED:
        return min(MAXIMISED[row][name].images, len(of.train))
    return len(of.train) + (len(of.valid) if row in PRETRAINED and name == table1_caltech.NAME else 0)


def measure(cell: Cell, place: Path, name: str, of: Parts, request: Request) -> Measured:
    """Metrics of one row."""
    row, seed = cell.row.removeprefix(f"{name}/"), cell.seed
    if row == "gibbs":
        return measure_gibbs(GIBBS[name], of, seed, place, request)
    if row == "gibbs-chains":
        return measure_chains(CHAINS[name], of, seed, place, request)
    if row in MAXIMISED:
        return measure_mcem(MAXIMISED[row][name], of, seed, place, request)
    if row in TWO_STEP:
        return measure_two_step(TWO_STEP[row], TWO_STEP_EPOCHS[name], of, seed, place, request)
    if row in PRETRAINED:
        features = table1_caltech.features(request)
        per_class = 5 if request.smoke else table1_caltech.TRAINED
        return Measured({ERROR: table1_caltech.error_of(row, features, seed, per_class)})
    return measure_encoder(LEARNED[row].on(name), of, seed, place, request)


def measure_encoder(row: LabelRow, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """The weights with the least validation error."""
    trained = train(row, compose(row, of.train, seed), of, seed, place, request)
    return Measured(tested(*trained.weights(trained.best), of, seed), trained.before)


def measure_two_step(pooling: Pooling, epochs: int, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """All labels, but the image model never sees them: beta at its mode for the mean codes of the training images."""
    model = image_model(replace(LOCAL, pooling=pooling, reach=FAR), of.train, seed)
    _, before = learn_without_labels(model, of, epochs, seed, place, request)
    head, labels = label_head(model, of, torch.Generator().manual_seed(seed)), labels_of(of.train)
    maximise_beta(head, labels, mean_codes(model, of.train), torch.ones(len(labels)), seed)
    return Measured(tested(model, head, of, seed), before)


def tested(model: ImageModel, head: LabelHead, of: Parts, seed: int) -> dict[str, float]:
    """What is said of an encoder. The temperature is that of validation images; test images are passed once."""
    valid, test = (decision_values(model, head, images) for images in (of.valid, of.test))
    probabilities = fit_temperature(valid, labels_of(of.valid)).probabilities(test)
    images, _ = some(of.valid, 2000, seed, Stream.TABLE1_REST)
    return {
        ERROR: 100 * error_rate(test.argmax(1), labels_of(of.test)),
        MS: milliseconds(model, head, images),
        VALID_ERROR: 100 * error_rate(valid.argmax(1), labels_of(of.valid)),
        NATS: negative_log_likelihood(probabilities, labels_of(of.test)),
    }
