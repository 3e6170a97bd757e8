"""What a benchmark says: one figure, one JSON line."""

import json
import os
import platform
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch

from semisight.experiments.results import commit
from semisight.model.ops import kernels


@dataclass(frozen=True)
class Goal:
    """Where the figure should be; `must` is the least that is acceptable, where that is something else."""

    direction: Literal[">=", "<="]
    value: float
    must: float | None = None

    def met_by(self, value: float) -> bool:
        return value >= self.value if self.direction == ">=" else value <= self.value

    def __str__(self) -> str:
        return f"{self.direction} {self.value:g}" + ("" if self.must is None else f" (at least {self.must:g})")


@dataclass(frozen=True)
class Figure:
    figure: str
    value: float
    unit: str
    goal: Goal | None = None
    details: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """One line of JSON; numbers are cut to four digits, which is more than they are worth."""
        row = {
            "figure": self.figure,
            "value": self.value,
            "goal": None if self.goal is None else str(self.goal),
            "met": None if self.goal is None else self.goal.met_by(self.value),
            "unit": self.unit,
            **self.details,
            "threads": torch.get_num_threads(),
            "load": os.getloadavg()[0],
            "machine": machine(),
            "commit": commit(),
        }
        return json.dumps(_cut(row))


def _cut(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _cut(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(entry) for entry in value]
    return value


@lru_cache
def machine() -> str:
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    compiled = "compiled kernels" if kernels.library() is not None else "no compiled kernels"
    return f"{model}, {os.cpu_count()} cores, torch {torch.__version__}, {compiled}"
