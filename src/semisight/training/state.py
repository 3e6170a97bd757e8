"""Everything that changes while training, and so everything a checkpoint must hold."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from semisight.errors import UserError
from semisight.training.checkpoint import Checkpoint, load_state
from semisight.training.ema import AveragedWeights
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

    objective: nn.Module
    parameters: Mapping[str, nn.Parameter]
    optimiser: torch.optim.Optimizer
    average: AveragedWeights | None
    meter: Meter = field(default_factory=Meter)
    counters: Counters = field(default_factory=Counters)

    def checkpoint(self, meta: Mapping[str, Any]) -> Checkpoint:
        tensors = {
            "model": self.objective.state_dict(),
            "optimiser": optimiser_tensors(self.optimiser, self.parameters),
            "meter": self.meter.tensors(),
        }
        if self.average is not None:
            tensors["averaged"] = self.average.tensors()
        updates = 0 if self.average is None else self.average.updates
        return Checkpoint(tensors, {**meta, "counters": asdict(self.counters), "average_updates": updates})

    def load(self, checkpoint: Checkpoint, path: Path) -> None:
        """Goes back to where the checkpoint was taken, to the last bit."""
        load_state(self.objective, checkpoint.part("model"), path)
        try:
            load_optimiser(self.optimiser, self.parameters, checkpoint.part("optimiser"))
            if self.average is not None:
                self.average.load(checkpoint.part("averaged"), int(checkpoint.meta["average_updates"]))
            self.counters = Counters(**checkpoint.meta["counters"])
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} cannot be resumed from: it lacks {error}.") from error
        self.meter.load(checkpoint.part("meter"), next(iter(self.parameters.values())).device)
