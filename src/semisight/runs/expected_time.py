"""How long a training would take here: a few images go through real steps, and the clock is scaled up."""

import dataclasses
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.data.batches import Shuffled
from semisight.model.architecture import Architecture
from semisight.objectives.step import Batch, Objective, Plan, Rows
from semisight.runs.label_training import build_label_objective, label_plan
from semisight.runs.run import build_objective
from semisight.runs.settings import Settings

# Images of the batches that are timed: two sizes, because a step costs something even without images.
_BATCHES, _BATCHES_OF_LARGE, _LARGE = (4, 16), (1, 4), 64 * 64
_TIMED = 2  # steps of each, after one that is not; the fastest counts


@dataclass(frozen=True)
class Expected:
    """At most so many steps of a training with these settings, of so many seconds each if the machine is free."""

    steps: int
    seconds_per_step: float
    epochs: int

    @property
    def minutes(self) -> float:
        return self.steps * self.seconds_per_step / 60


def expected_time(settings: Settings, architecture: Architecture, labels: Tensor, n_classes: int) -> Expected | None:
    """For images of the architecture's shape with these labels (-1 where unknown); None where nothing bounds it."""
    n_labelled = int((labels >= 0).sum())
    batch_size = settings.train.batch_size
    plan: Plan = Shuffled(max(1, len(labels)), batch_size)
    if n_labelled and len(labels[labels >= 0].unique()) > 1:
        plan = label_plan(labels, settings.labels, batch_size)
    steps = settings.train.total_steps(plan.steps_per_epoch)
    if steps is None:
        return None
    few, more = _BATCHES_OF_LARGE if architecture.n_pixels > _LARGE else _BATCHES
    short, long = (_seconds(settings, architecture, n_labelled > 0, n_classes, n) for n in (few, more))
    per_image = max((long - short) / (more - few), long / more / 10)  # clocks are coarse: never below nothing
    seconds = max(0.0, short - per_image * few) + per_image * min(batch_size, len(labels))
    return Expected(steps, seconds, -(-steps // plan.steps_per_epoch))


def _seconds(settings: Settings, architecture: Architecture, labelled: bool, n_classes: int, n: int) -> float:
    """Of a step on n images."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(n, *architecture.image_shape, generator=generator)
    images = build_objective(settings.model.about(architecture), 0)
    images.model.start_from(pixels)
    objective: Objective = images
    labels = None
    if labelled:
        share = min(1.0, n / settings.train.batch_size)  # what a batch is made of keeps its proportions
        bound_images = settings.labels.bound_images
        scaled = dataclasses.replace(
            settings.labels,
            bound_images=None if bound_images is None else max(1, round(share * bound_images)),
        )
        labels = torch.full((n,), -1)
        labels[: max(1, round(share * settings.labels.labelled_per_batch))] = 0
        objective = build_label_objective(images, labels, max(2, n_classes), scaled, n, 0)
    batch, best = Batch(pixels, torch.arange(n), labels), float("inf")
    for number in range(1 + _TIMED):
        # of this thread, which has its share of the work: the clock of a machine that does nothing else
        start = time.thread_time()
        objective(batch, generator, Rows(0, n, n)).loss.backward()
        if number:
            best = min(best, time.thread_time() - start)
    return best
