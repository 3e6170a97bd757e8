"""Section 4: one step of stochastic ascent, the same on every process.

loss, terms <- objective(batch, noise)      batch and noise from (seed, step)
gradient    <- sum over processes, each weighted by its rows
not finite  -> skipped and counted; too many in a row stop the training
else        -> clipped at the norm, Adam, averaged weights
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.ops.sync_batch_norm import synchronise
from semisight.objectives.step import Batch, Images, Objective, Plan, Rows, own_rows
from semisight.random import Stream, reseed
from semisight.training.config import TrainConfig
from semisight.training.optimiser import clip, rate_at, set_rate
from semisight.training.state import LiveState
from semisight.training.validation import load_batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True)
class Agreed:
    """What any process noticed during a step: all of them act on it."""

    bad: bool
    signal_number: int
    late: bool
    time_gone: float = 0.0  # share of the minutes


class _Forward(nn.Module):
    """The objective with plain tensors in and out: what Fabric and DDP hand through their wrappers."""

    def __init__(self, objective: nn.Module) -> None:
        super().__init__()
        self.objective = objective

    def forward(
        self, images: Tensor, index: Tensor, generator: torch.Generator, *rows: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        step = self.objective(Batch(images, index), generator, Rows(*rows))
        return step.loss, step.terms


class Stepper:
    """Takes steps; what a step changes lies in the `LiveState`."""

    def __init__(self, objective: Objective, images: Images, plan: Plan, config: TrainConfig, fabric: "Fabric") -> None:
        assert isinstance(objective, nn.Module)
        self.objective, self.images, self.plan, self.config, self.fabric = objective, images, plan, config, fabric
        self.total_steps = config.total_steps(plan.steps_per_epoch)
        if fabric.world_size > 1:
            synchronise(objective)
        self._forward = fabric.setup_module(_Forward(objective))
        self._dtype = torch.float64 if config.precision == "64" else torch.float32
        self._generator = torch.Generator()
        self.time_gone = 0.0  # share of the minutes; the trainer of the first process has the clock

    def rate(self, step: int) -> float:
        return rate_at(step, self.config, self.total_steps, self.time_gone)

    def take(self, live: LiveState, *, signal_number: int = 0, late: bool = False, time_gone: float = 0.0) -> Agreed:
        """One batch; what this process noticed comes back as what any did, the most of it."""
        counters, processes = live.counters, self.fabric.world_size
        step = counters.step
        index = self.plan.indices(step, self.config.seed)
        if len(index) < processes:
            raise UserError(f"a batch of {len(index)} images cannot be shared by {processes} processes.")
        rows = own_rows(len(index), self.fabric.global_rank, processes)
        batch = load_batch(self.images, index[rows.start : rows.stop], self.fabric.device, self._dtype)
        generator = reseed(self._generator, self.config.seed, Stream.TRAINING, step)
        place = (rows.start, rows.stop, rows.total)
        live.optimiser.zero_grad(set_to_none=True)
        # DDP's own sums run while gradients are worked out, in an order that depends on which of them there are: they
        # could meet those of the contrastive term or of a batch normalisation, and one process may lack a target
        with self.fabric.no_backward_sync(self._forward, enabled=processes > 1):
            with torch.random.fork_rng(devices=[]):  # dropout has no generator of its own: it draws from torch's
                torch.manual_seed(
                    reseed(
                        torch.Generator(), self.config.seed, Stream.DROPOUT, step * processes + self.fabric.global_rank
                    ).initial_seed()
                )
                loss, terms = self._forward(batch.images, batch.index, generator, *place)
            self.fabric.backward(loss * (rows.count / rows.total) if processes > 1 else loss)
        if processes > 1:
            _sum_gradients(list(live.parameters.values()))
        norm = torch.nn.utils.get_total_norm([p.grad for p in live.parameters.values() if p.grad is not None])
        finite = math.isfinite(float(loss.detach() + norm))  # the one wait for the device in a step
        agreed = self._agree(Agreed(not finite, signal_number, late, time_gone))
        self.time_gone = agreed.time_gone
        if agreed.bad:
            in_a_row = counters.bad_in_a_row + 1
            if in_a_row >= self.config.max_bad_steps:
                raise UserError(
                    f"{in_a_row} steps in a row, up to step {step}, were not finite: {self._culprit(live, terms)}. "
                    "Check the images, or start again with a lower learning_rate. The checkpoints are unchanged."
                )
            changed = {"bad_in_a_row": in_a_row, "bad_steps": counters.bad_steps + 1}
        else:
            clip(list(live.parameters.values()), norm, self.config.clip_norm)
            set_rate(live.optimiser, self.rate(step))
            live.optimiser.step()
            self.objective.after_step(step)
            if live.average is not None:
                live.average.update()
            live.meter.add(terms, rows.count)
            changed = {"bad_in_a_row": 0}
        live.counters = dataclasses.replace(counters, step=step + 1, **changed)
        return agreed

    def _agree(self, found: Agreed) -> Agreed:
        if self.fabric.world_size == 1:
            return found
        flags = torch.tensor([found.bad, found.signal_number, found.late, found.time_gone], dtype=torch.float64)
        bad, signal_number, late, time_gone = _most(flags.to(self.fabric.device)).tolist()
        return Agreed(bool(bad), int(signal_number), bool(late), time_gone)

    def _culprit(self, live: LiveState, terms: Mapping[str, Tensor]) -> str:
        flags = torch.stack([~torch.isfinite(value) for value in terms.values()]).int()
        if self.fabric.world_size > 1:
            flags = _most(flags)
        names = [name for name, flag in zip(terms, flags.tolist(), strict=True) if flag]
        if names:
            return f"the term{'s' * (len(names) > 1)} {', '.join(names)}"
        for name, parameter in live.parameters.items():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                return f"the gradient of {name}, though every term was finite"
        return "the loss, though every term was finite"


@torch.no_grad()
def _sum_gradients(parameters: list[nn.Parameter]) -> None:
    """Over all processes, at once. A parameter that no process has a gradient of keeps none, as in one process."""
    has = torch.tensor([float(parameter.grad is not None) for parameter in parameters]).to(parameters[0])
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([has, *(part.flatten() for part in parts)])
    torch.distributed.all_reduce(flat)
    has, *sums = flat.split([len(parameters), *(parameter.numel() for parameter in parameters)])
    for parameter, any_, total in zip(parameters, has.tolist(), sums, strict=True):
        # in memory as the parameter is (channels last, in the deep encoder): fused optimisers do not look at strides
        parameter.grad = torch.empty_like(parameter).copy_(total.view_as(parameter)) if any_ else None


def _most(flags: Tensor) -> Tensor:
    torch.distributed.all_reduce(flags, torch.distributed.ReduceOp.MAX)
    return flags
