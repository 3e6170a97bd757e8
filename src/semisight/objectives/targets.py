"""Section 3, (11), (12): what some images carry, whatever it is, as the objective sees it.

A **target** is an `nn.Module` with a head p(target | s) and its values for the training images, of which any may be
missing. Labels, several labels per image and captions are three of them; another is a class like these, and no other
line of code asks which one it has.

    side(rows, code, step)       xi E_q log p(target | s), [B], exactly 0 where it is missing           the paper's (12)
    gain(rows, seen, step)       the same on augmented images, a scalar in units of `scale`             consistency.py
    believe(code)                what the averaged model makes of images without it: pseudo-targets
    learn(pseudo, seen, step)    log p of these on augmented images, a scalar in units of `scale`

xi weighs a target against the image. The paper's is N_X / (size rho): N_X numbers of the image, `size` of the target,
rho the share of a batch that carries it, so that every number that is observed has the same weight.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.posterior import Posterior
from semisight.objectives.step import Rows


@dataclass(frozen=True)
class Xi:
    """The weight of a target: `value`, or `times` the paper's where there is none; reached over `warmup` steps.

    Args:
        value: the weight itself.
        times: without a value, so many times the paper's weight.
        warmup: steps over which the weight rises.

    Example:
        >>> import semisight as ss
        >>> ss.Xi(times=10, warmup=4).ramp(0)
        0.25
    """

    value: float | None = None
    times: float = 1.0
    warmup: int = 0

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), ("times", self.times), ("warmup", self.warmup)):
            if number is not None and not 0 <= number < float("inf"):
                raise UserError(f"{name} of xi must be a number of at least 0, not {number!r}.")

    def ramp(self, step: int) -> float:
        """The share of its full value at a step: 1, or less while it warms up."""
        return min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0


@dataclass(frozen=True)
class Side:
    """xi log p(target | s) per image, [B], and the mean of log p itself over what is there, for the logs."""

    value: Tensor
    log_prob: Tensor


@dataclass(frozen=True)
class Learned:
    """What pseudo-targets gave: log p in units of `scale`, and terms for the logs."""

    gain: Tensor
    terms: Mapping[str, Tensor]


class Target(Protocol):
    """The seam. Methods with a body are defaults that a class takes by naming Target among its bases.

    name     of its term in the logs and of its part of a checkpoint, `head.<name>`
    head     an `nn.Module`, p(target | s)
    present  bool [N]: which training images carry it
    rho      the share of a batch that carries it, on average
    """

    name: str
    head: Any
    present: Tensor
    rho: float

    def lacking(self) -> Tensor:
        """bool [N]: training images that lack it, or some of it; pseudo-targets are for these."""
        return ~self.present

    def strata(self) -> Tensor | None:
        """int64 [N]: classes that batches should hold equally often; None if there are none."""
        return None

    def balance(self, n_pixels: int, rho: float) -> None:
        """Told how many numbers an image has, and rho, before the first step: xi follows from them."""
        ...

    def rows(self, index: Tensor, generator: torch.Generator, rows: Rows) -> Any:
        """The values of the images at `index`, drawn where there are several; random numbers for the whole batch."""
        ...

    def side(self, rows: Any, code: Tensor, step: int) -> Side:
        """For codes [B, J] drawn from q(s | X)."""
        ...

    def log_prior(self, step: int) -> Tensor:
        """One image's share of the log-prior of the head's weights, in the same units as `side`; 0 without one."""
        return torch.zeros(())

    def scale(self, step: int) -> float:
        """What `gain` and `learn` are multiplied by."""
        return 1.0

    def see(self, views: Sequence[Posterior]) -> Any:
        """What the head makes of q(s | X') for each augmented view, worked out once for all that follows."""
        return [view.code for view in views]

    def gain(self, rows: Any, seen: Any, step: int) -> tuple[Tensor, Tensor]:
        """Mean over views and images of `side`, in units of `scale`; and what the log shows. Where the expectation
        over q(s | X') is known in closed form, a target uses that instead of the drawn codes."""
        sides = [self.side(rows, code, step) for code in seen]
        gain = torch.stack([side.value.mean() for side in sides]).mean()
        return gain, torch.stack([side.log_prob for side in sides]).mean()

    def believe(self, code: Tensor) -> Any | None:
        """Pseudo-targets for mean codes [B, J] of weakly augmented images that lack it; None if it has none."""
        return None

    def learn(self, pseudo: Any, rows: Any, which: Tensor, seen: Any, step: int) -> Learned:
        """log p of pseudo-targets for the images `which` (bool [B]) of a batch, from its strongly augmented views.
        `rows` are the batch's own values: what is known of an image is not learned from a pseudo-target."""
        ...

    def refresh(self, codes: Tensor, spread: Any, generator: torch.Generator) -> None:
        """Told the mean codes [N, J] of all training images once an epoch, for label spreading."""
        return None

    def spread_gain(self, index: Tensor, seen: Any) -> Tensor | None:
        """log p of the labels that spreading found for these images; None if there are none."""
        return None

    def after_step(self) -> None:
        """Brings running means up to date, on every process."""
        return None

    def rate_multipliers(self) -> Mapping[str, float]:
        """Learning rates of the head's parameters, by name, where they are not 1."""
        return {}


def per_other(rho: float) -> float:
    """How much an image with a pseudo-target weighs beside one that carries the target: as much together, never more
    each."""
    return rho / max(rho, 1 - rho)


def as_module(target: Target) -> nn.Module:
    if not isinstance(target, nn.Module):
        raise TypeError(f"a target must be an nn.Module, not {type(target).__name__}")
    return target
