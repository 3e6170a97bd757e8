"""How long a training would take here: a few images go through real steps, and the clock is scaled up.

The training is composed as `semisight train` composes it (recipe.py), with noise in place of the images.
"""

import dataclasses
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.objectives.step import Batch, Rows
from semisight.runs.images import parted
from semisight.runs.recipe import Recipe, compose, suited
from semisight.runs.settings import Settings

# Images of the batches that are timed: two sizes, because a step costs something even without images.
_BATCHES, _BATCHES_OF_LARGE, _LARGE = (4, 16), (1, 4), 64 * 64
_TIMED = 2  # steps of each, after one that is not; the fastest counts
_DIFFERENT, _AT_ONCE = 16, 600  # images of noise; at most so many start a model, or say which symmetries there are


@dataclass(frozen=True)
class Expected:
    """At most so many steps of a training with these settings, of so many seconds each if the machine is free."""

    steps: int
    seconds_per_step: float
    epochs: int

    @property
    def minutes(self) -> float:
        return self.steps * self.seconds_per_step / 60


@dataclass(frozen=True, eq=False)
class _Noise(ImageSet):
    """Images of noise, of the shape of `images`, whose storage is one byte."""

    def batch(self, index: Tensor) -> Tensor:
        noise = torch.rand(_DIFFERENT, *self.shape, generator=torch.Generator().manual_seed(0))
        return noise[index[:_AT_ONCE] % _DIFFERENT]


def recipe_without_pixels(settings: Settings, images: ImageSet, shape: tuple[int, int, int]) -> Recipe:
    """What train would compose for images of that shape, of which only names and columns are known."""
    if not settings.data.on_features:
        settings.model.architecture(shape)  # whether layers fit is known at once
    pixels = torch.empty(len(images), 1, 0, 0, dtype=torch.uint8)
    sets = parted(dataclasses.replace(images, images=pixels), settings.data, settings.train.seed)
    storage = torch.zeros(1, 1, 1, 1, dtype=torch.uint8).expand(len(sets.train), *shape)
    train = _Noise(storage, sets.train.names, sets.train.columns)
    sets = dataclasses.replace(sets, train=train)
    return compose(suited(settings, sets), sets)


def expected_time(recipe: Recipe) -> Expected | None:
    """None where nothing bounds it."""
    per_epoch = recipe.plan.steps_per_epoch
    steps = recipe.config.total_steps(per_epoch)
    if steps is None:
        return None
    few, more = _BATCHES_OF_LARGE if recipe.objective.model.architecture.n_pixels > _LARGE else _BATCHES
    index = recipe.plan.indices(0, recipe.config.seed)
    short, long = (_seconds(recipe, index, n) for n in (few, more))
    per_image = max((long - short) / (more - few), long / more / 10)  # clocks are coarse: never below nothing
    seconds = max(0.0, short - per_image * few) + per_image * len(index)
    return Expected(steps, seconds, -(-steps // per_epoch))


def _seconds(recipe: Recipe, index: Tensor, n: int) -> float:
    """Of a step on n images that stand for the batch `index`: what carries something, and what enters the bound, keeps
    its share."""
    chosen = index[torch.linspace(0, len(index) - 1, n).round().long()]
    objective, how, best = recipe.objective, recipe.objective.consistency, float("inf")
    batch, generator = Batch(recipe.sets.train.batch(chosen), chosen), torch.Generator().manual_seed(0)
    if how is not None and how.bound_images:
        bound_images = max(1, round(how.bound_images * min(1.0, n / len(index))))
        objective.consistency = dataclasses.replace(how, bound_images=bound_images)
    objective.train()
    for number in range(1 + _TIMED):
        # of this thread, which has its share of the work: the clock of a machine that does nothing else
        start = time.thread_time()
        objective(batch, generator, Rows(0, n, n)).loss.backward()
        if number:
            best = min(best, time.thread_time() - start)
    objective.consistency = how
    return best
