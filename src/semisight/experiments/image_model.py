"""Sections 2 and 4 on images alone: the bound that each gradient estimator for z reaches, pooling sampled and expected.

    semisight reproduce image-model --data FOLDER          about 6 minutes a row on one core, six rows
    semisight reproduce image-model --data FOLDER --rows local/expected

MNIST preset, 50,000 training and 10,000 validation images, 10 epochs of the paper's settings, one seed.
Expect local >= straight-through > nvil, whose q(z) stays nearly uniform (a KL of z of a few nats).
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from semisight.data import load
from semisight.data.image_set import ImageSet, split
from semisight.errors import UserError
from semisight.experiments import results
from semisight.model.architecture import suggest_architecture
from semisight.model.encoders.paper import Pooling
from semisight.model.image_model import ImageModel
from semisight.objectives.gradients import EstimatorName
from semisight.objectives.image_objective import ImageObjective
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer

TABLE = "image_model"
METRICS = ("bound", "reconstruction", "kl_s", "kl_z", "alpha0")
GRADIENTS: tuple[EstimatorName, ...] = ("nvil", "straight-through", "local")
POOLINGS: tuple[Pooling, ...] = ("sampled", "expected")
ROWS = tuple(f"{gradient}/{pooling}" for gradient in GRADIENTS for pooling in POOLINGS)


@dataclass(frozen=True)
class Size:
    valid: int
    epochs: int
    train: int | None = None  # all


FULL = Size(valid=10_000, epochs=10)
SMOKE = Size(valid=100, epochs=1, train=200)


def run(
    data: str | Path,
    out: Path,
    rows: Sequence[str] = ROWS,
    seed: int = 0,
    smoke: bool = False,
    threads: int = 1,
    progress: bool = True,
) -> list[results.Row]:
    """Trains every row that `out` does not hold yet and adds it there; returns what it added."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise UserError(f"no row {unknown[0]!r} in this experiment. There are: {', '.join(ROWS)}")
    size = SMOKE if smoke else FULL
    train, valid = split(load(data), size.valid, seed)
    if size.train is not None:
        train = train.subset(list(range(min(size.train, len(train)))))
    added = []
    for row in rows:
        if not results.has(out, TABLE, row, "", METRICS, seed):
            new = _train_row(row, train, valid, size, seed, threads, progress)
            results.add(out, new)
            added += new
    return added


def _train_row(
    row: str, train: ImageSet, valid: ImageSet, size: Size, seed: int, threads: int, progress: bool
) -> list[results.Row]:
    gradient, pooling = row.rsplit("/", 1)
    model = ImageModel.of(suggest_architecture(train.shape), pooling, seed)  # type: ignore[arg-type]
    model.start_from(train.batch(torch.arange(min(len(train), 5000))))
    objective = ImageObjective(model, gradient, seed=seed)  # type: ignore[arg-type]
    config = TrainConfig(
        seed=seed,
        max_epochs=size.epochs,
        patience=None,
        validation_batch_size=500,
        threads=threads,
        keep_memory=True,
        progress=progress,
        tensorboard=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        fitted = Trainer(objective, train, folder, config=config, valid=valid).fit(overwrite=True)
    origin = {"minutes": fitted.seconds / 60, "commit": results.commit(), "hardware": results.hardware(threads)}
    return [
        results.Row(TABLE, row, "", metric, seed, float(fitted.validation[metric]), "", **origin)  # type: ignore[arg-type]
        for metric in METRICS
    ]
