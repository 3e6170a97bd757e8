"""Sections 2 and 4 on images alone: the bound that each gradient estimator for z reaches, pooling sampled and expected.

    semisight reproduce image-model --data FOLDER          about 6 minutes a row on one core, six rows
    semisight reproduce image-model --data FOLDER --rows local/expected

MNIST preset, 50,000 training and 10,000 validation images, 10 epochs of the paper's settings, one seed.
Expect local >= straight-through > nvil, whose q(z) stays nearly uniform (a KL of z of a few nats).
"""

from pathlib import Path
from typing import get_args

import torch

from semisight.data import load
from semisight.data.image_set import split
from semisight.experiments import results
from semisight.experiments.label_rows import LabelRow, image_model
from semisight.experiments.table import Cell, Measured, Request, fill, fit
from semisight.objectives.gradients import GradientName, gradient_named
from semisight.objectives.joint import Joint
from semisight.training.trainer import Trainer

TABLE = "image_model"
METRICS = ("bound", "reconstruction", "kl_s", "kl_z", "alpha0")
SETTINGS = {
    f"{gradient}/{pooling}": LabelRow(gradient=gradient, pooling=pooling, epochs=10)
    for gradient in get_args(GradientName)
    for pooling in ("sampled", "expected")
}
ROWS = tuple(SETTINGS)


def run(request: Request) -> list[results.Row]:
    """Trains every row that the results file does not hold yet and adds it there; returns what it added."""
    cells = [Cell(row, seed, METRICS) for seed in request.splits for row in request.chosen(ROWS, "this experiment")]
    return fill(TABLE, request, cells, lambda cell, place: measure(cell, place, request))


def measure(cell: Cell, place: Path, request: Request) -> Measured:
    row = SETTINGS[cell.row]
    train, valid = split(load(request.source()), 100 if request.smoke else 10_000, cell.seed)
    if request.smoke:
        train = train.subset(torch.arange(200))
    joint = Joint(image_model(row, train, cell.seed), gradient=gradient_named(row.gradient, cell.seed))
    config = row.training(request, cell.seed, max_minutes=None)
    fitted, before = fit(Trainer(joint, train, place, config=config, valid=valid, about={"row": cell.row}))
    return Measured({metric: float(fitted.validation[metric]) for metric in METRICS}, before)
