"""Section 5: the mean of every term of the bound over images that were not trained on.

Fixed batches and a fixed seed, so that two validations of the same weights agree to the last bit, and a difference
between two epochs is a difference of the weights.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.evaluating import evaluating
from semisight.objectives.step import Batch, Images, Objective, Rows, sum_over_processes
from semisight.random import Stream, reseed


class ValidationStopped(Exception):
    """`stop` said so between two batches."""


def load_batch(images: Images, index: Tensor, device: torch.device, dtype: torch.dtype) -> Batch:
    """The images at `index`, on the device. An index beyond the set is another view of an image (runs/features.py)."""
    return Batch(images.batch(index).to(device, dtype, non_blocking=True), index % len(images))


@torch.no_grad()
def validate(
    objective: Objective,
    images: Images,
    *,
    batch_size: int = 64,
    seed: int = 0,
    rank: int = 0,
    processes: int = 1,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    stop: Callable[[], bool] = lambda: False,
) -> dict[str, float]:
    """Mean of every term over `images`, the objective in eval mode; every process takes each `processes`-th batch."""
    if len(images) == 0:
        raise UserError("the validation set is empty: give it at least one image, or train without one.")
    assert isinstance(objective, nn.Module)
    weight = next(objective.parameters())
    generator = torch.Generator()
    names: tuple[str, ...] = ()
    sums = torch.zeros(0, dtype=torch.float64)
    with evaluating(objective):
        # the first batch is evaluated by all, because all must know the names of the terms, and counted once
        for number, start in enumerate(range(0, len(images), batch_size)):
            own = number % processes == rank
            if not own and number > 0:
                continue
            if stop():
                raise ValidationStopped
            index = torch.arange(start, min(start + batch_size, len(images)))
            batch = load_batch(images, index, weight.device, weight.dtype)
            with autocast():
                step = objective(
                    batch, reseed(generator, seed, Stream.VALIDATION, number), Rows(0, len(index), len(index))
                )
            if number == 0:
                names = tuple(step.terms)
                sums = torch.zeros(len(names), dtype=torch.float64)
            if own:
                sums += len(index) * torch.stack([step.terms[name].detach() for name in names]).cpu().double()
    sums = sums.float().to(weight.device) if weight.device.type == "mps" else sums.to(weight.device)
    sums = sum_over_processes(sums) if processes > 1 else sums  # one of several may be asked alone, as by a recipe
    return dict(zip(names, (sums / len(images)).tolist(), strict=True))
