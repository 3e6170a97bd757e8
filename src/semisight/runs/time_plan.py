"""A training from pixels that ends within the time: size of the images, batches, and what is kept for the report.

Where nobody chose epochs or steps, `--minutes` (15 on a CPU) is the time of the whole command: reading, trying
(encoder_choice.py), training, measuring, the report. Images of a folder are scaled to the largest size at which the
time is enough for some hundred steps; before that, the deep encoder has half of its maps. Batches are made smaller
where nothing else is left. The learning rate comes down when the time ends (training/optimiser.py).
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import torch

from semisight.data.formats.folders import folder_labels, walk
from semisight.data.image_set import ImageSet
from semisight.data.sources import Kind, kind_of
from semisight.runs.expected_time import expected_time, recipe_without_pixels
from semisight.runs.images import Sets, shape_as_is, with_labels, with_tags
from semisight.runs.settings import Settings
from semisight.training.devices import choose_device

MINUTES = 15.0  # of `semisight train` on a CPU, unless something else is asked for
SIZES = (64, 48, 32)  # that larger images are scaled to: the largest that fits the time
LEAST_STEPS, LEAST_BATCH = 400, 96  # of a training worth its name
# The same of the deep encoder, and times how many maps it has: all of them where so many steps of whole batches fit.
# MNIST, five minutes: 2.0 % wrong after 284 steps with all, 1.3 after 769 with half of them (docs/experiments.md).
DEEP_STEPS, DEEP_WIDTHS = 1000, (1.0, 0.5)
_FOR_REPORT, _FOR_EACH = 12.0, 0.004  # seconds that measuring and the report take, in all and for each image
_MOST_MEASURED = 12_000  # images


def minutes_of(settings: Settings) -> float:
    """The time of the whole command, where something bounds it in minutes; else the default."""
    return settings.train.max_minutes or MINUTES


def timed(settings: Settings) -> bool:
    """Whether the time decides how long is trained: nobody chose epochs or steps."""
    if settings.chosen & {"max_epochs", "max_steps"}:
        return False
    return settings.train.max_minutes is not None or choose_device(settings.train.device).type == "cpu"


def training_minutes(settings: Settings, n_images: int, spent: float = 0.0) -> float | None:
    """Minutes for the training itself; None where epochs or steps alone bound it."""
    if not timed(settings):
        return settings.train.max_minutes
    whole = minutes_of(settings)
    after = (_FOR_REPORT + _FOR_EACH * min(n_images, _MOST_MEASURED)) / 60
    return float(f"{max(whole - spent - after, whole / 4):.3g}")


def fitted_to(
    settings: Settings, pixels: Sets | None, minutes: float, shape: tuple[int, int, int] | None = None
) -> Settings:
    """With a size of the images and batches that fit so many minutes of training, where nobody chose them.

    `pixels` are the images if they were read already; `shape` is theirs if they have no pixels.
    """
    if not timed(settings) or settings.data.captions is not None:  # captions have a size and batches of their own
        return settings
    found = _known(settings, pixels)
    if found is None:
        return settings
    images, (channels, height, wide) = found if shape is None else (found[0], shape)
    small = min(height, wide)
    sizes: list[int | None] = [None]
    if "size" not in settings.chosen and max(height, wide) > SIZES[-1]:
        sizes = [side for side in SIZES if side <= small] or [None]
    deep = settings.model.encoder == "deep"
    widths = DEEP_WIDTHS if deep and "width" not in settings.chosen else (settings.model.width,)
    changes: dict[str, Any] = {}
    for side, width in itertools.product(sizes, widths):
        shape = (channels, height, wide) if side is None else (channels, side, side)
        recipe = recipe_without_pixels(settings.replace({"width": width}), images, shape)
        expected = expected_time(recipe)
        changes = {} if side is None or height == wide == side else {"size": side}
        changes |= {"width": width} if len(widths) > 1 else {}
        if expected is None:
            break
        batch = recipe.config.batch_size
        steps = DEEP_STEPS if deep else LEAST_STEPS
        most = int(batch * minutes * 60 / (expected.seconds_per_step * steps))
        if most < batch and "batch_size" not in settings.chosen:
            changes["batch_size"] = min(batch, max(LEAST_BATCH, most))
        if most >= (LEAST_BATCH if width == widths[-1] else batch):
            break
    return dataclasses.replace(settings.replace(changes), chosen=settings.chosen | set(changes))


def _known(settings: Settings, pixels: Sets | None) -> tuple[ImageSet, tuple[int, int, int]] | None:
    """Names of the images with what they carry, without pixels, and their shape as they are."""
    data = settings.data
    if pixels is not None:
        return pixels.train, pixels.train.shape
    if kind_of(data.source) is not Kind.PICTURES:
        return None
    shape = shape_as_is(data, settings.train.seed)
    return None if shape is None else (with_their_labels(settings), shape)


def with_their_labels(settings: Settings) -> ImageSet:
    """The pictures of a folder by their names, with what they carry, without pixels."""
    data = settings.data
    folder = Path(data.source).expanduser()
    names = walk(folder).names
    names = names if data.limit is None else names[: data.limit]
    images = ImageSet(torch.empty(len(names), 1, 0, 0, dtype=torch.uint8), names, source=str(folder))
    if data.class_per_folder:
        images = images.with_labels(*folder_labels(names, folder))
    images = with_tags(with_labels(images, data), data)
    return dataclasses.replace(images, notes=())
