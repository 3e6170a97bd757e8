"""Everything that changes while training, and so everything a checkpoint must hold."""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.objectives.step import Objective
from semisight.training import old_format
from semisight.training.checkpoint import TRAINING, Checkpoint, check_finite, load_state
from semisight.training.ema import EMA
from semisight.training.logs import Meter
from semisight.training.optimiser import load_optimiser, optimiser_tensors


@dataclass(frozen=True)
class Counters:
    """Where a run is; random numbers and batches follow from `step` alone."""

    step: int = 0  # batches taken, the skipped ones included
    seconds: float = 0.0  # over all resumptions
    best: float | None = None  # the metric of best.safetensors
    best_step: int = 0
    ended_step: int = 0  # where the last epoch that is over with validation and hook ended
    validated_step: int = 0
    bad_steps: int = 0  # skipped because not finite
    bad_in_a_row: int = 0


@dataclass(frozen=True)
class TrainerState:
    """What the `on_epoch` hook is told: where the run is, and the terms of the last validation."""

    counters: Counters
    epoch: float
    rate: float
    validation: Mapping[str, float]


@dataclass
class LiveState:
    """The model, the optimiser, the averages and the counters of a run that is going on."""

    objective: Objective
    parameters: Mapping[str, nn.Parameter]
    optimiser: torch.optim.Optimizer
    average: EMA | None
    meter: Meter = field(default_factory=Meter)
    counters: Counters = field(default_factory=Counters)

    @property
    def module(self) -> nn.Module:
        assert isinstance(self.objective, nn.Module)
        return self.objective

    def checkpoint(self, meta: Mapping[str, Any]) -> Checkpoint:
        """The weights to use by part, and in the part `training` what only resuming needs."""
        with in_place(self.average):
            tensors = {name: _copy(part.state_dict()) for name, part in self.objective.parts().items()}
        of_parts = {id(value) for part in self.objective.parts().values() for value in _storages(part)}
        every = self.module.state_dict(keep_vars=True)
        training = {
            **{f"state/{name}": value.detach() for name, value in every.items() if id(value) not in of_parts},
            **{
                f"optimiser/{name}": value for name, value in optimiser_tensors(self.optimiser, self.parameters).items()
            },
            **{f"meter/{name}": value for name, value in self.meter.tensors().items()},
        }
        if self.average is not None:  # the parts hold the averages
            training |= {f"weights/{name}": value.detach() for name, value in self.parameters.items()}
            apart = {name for name, value in self.parameters.items() if id(value) not in of_parts}
            training |= {f"average/{name}": value for name, value in self.average.tensors().items() if name in apart}
        updates = 0 if self.average is None else self.average.updates
        counters = {"counters": asdict(self.counters), "average_updates": updates}
        return Checkpoint({**tensors, TRAINING: training}, {**meta, **counters})

    def load(self, checkpoint: Checkpoint, path: Path) -> None:
        """Goes back to where the checkpoint was taken, to the last bit."""
        if checkpoint.meta.get("format") == old_format.FORMAT:
            raise UserError(
                f"{path} was written by an earlier version: it can be used, but not resumed. Train it anew."
            )
        for name, part in self.objective.parts().items():
            load_state(part, checkpoint.part(name), path)
        for kind in ("weights", "average"):
            check_finite(checkpoint.training(kind), path)
        try:
            if self.average is not None:
                averages = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
                averages |= checkpoint.training("average")  # of what is of no part
                self.average.load(averages, int(checkpoint.meta["average_updates"]))
                for name, value in checkpoint.training("weights").items():
                    self.parameters[name].data.copy_(value)
            self._load_state(checkpoint.training("state"))
            load_optimiser(self.optimiser, self.parameters, checkpoint.training("optimiser"))
            self.counters = Counters(**checkpoint.meta["counters"])
        except (KeyError, TypeError, RuntimeError) as error:
            raise UserError(f"{path} cannot be resumed from: it lacks {error}.") from error
        self.meter.load(checkpoint.training("meter"), next(iter(self.parameters.values())).device)

    @torch.no_grad()
    def _load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Running means and the like. One that was empty at the start takes the size that it had grown to."""
        own = self.module.state_dict(keep_vars=True)
        for name, value in tensors.items():
            if own[name].shape == value.shape:
                own[name].data.copy_(value)
            else:
                *way, last = name.split(".")
                setattr(self.module.get_submodule(".".join(way)), last, value.to(own[name].device))


def in_place(average: EMA | None) -> contextlib.AbstractContextManager[None]:
    """Inside, the model holds its averages, if it has any."""
    return contextlib.nullcontext() if average is None else average.in_place()


def _storages(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in tensors.items()}
