"""Section 5, the paper's settings as defaults: Adam at 2e-4, batches of 64, clipping at norm 5, early stopping."""

import contextlib
import dataclasses
import difflib
import json
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from semisight.errors import UserError

Schedule = Literal["constant", "cosine"]
Precision = Literal["auto", "32", "bf16", "64"]

# What may differ between a run and its resumption: limits and housekeeping, nothing that changes a step.
FREE_ON_RESUME = frozenset(
    (
        *("max_epochs", "max_steps", "max_minutes", "patience", "max_bad_steps", "log_every"),
        *("checkpoint_steps", "checkpoint_minutes", "device", "threads", "keep_memory", "progress", "tensorboard"),
    )
)


@dataclass(frozen=True)
class TrainConfig:
    """How to train; every field is checked on construction."""

    seed: int = 0
    learning_rate: float = 2e-4
    batch_size: int = 64  # per process
    clip_norm: float | None = 5.0
    weight_decay: float = 0.0  # of matrices and filters only, decoupled from the gradient
    beta1: float = 0.9
    beta2: float = 0.999
    schedule: Schedule = "constant"
    warmup_steps: int = 0  # the rate rises in a straight line from 0
    final_rate: float = 0.0  # where the cosine ends, as a fraction of learning_rate
    average_decay: float | None = None  # averaged weights: 0.999 remembers about 1000 steps

    max_epochs: int | None = 100
    max_steps: int | None = None
    max_minutes: float | None = None  # counted over all resumptions together
    metric: str = "bound"
    metric_rises: bool = True  # False where a lower metric is better, such as an error
    patience: int | None = 10  # epochs without a better metric before training stops
    validate_every: int = 1  # epochs
    validation_batch_size: int = 64
    max_bad_steps: int = 20  # steps in a row without a finite loss and gradient

    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    precision: Precision = "auto"
    processes: int = 1  # on this machine; under torchrun its number counts
    threads: int | None = None
    keep_memory: bool = False  # see allocator.py

    log_every: int = 50  # steps
    checkpoint_steps: int | None = None
    checkpoint_minutes: float | None = 10.0
    progress: bool = True
    tensorboard: bool = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field.name, getattr(self, field.name), field.type))
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} must be above 0, not {value}.")
        for name in ("weight_decay", "warmup_steps", "max_steps", "seed"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise UserError(f"{name} must be 0 or above, not {value}.")
        for name in ("beta1", "beta2", "average_decay"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise UserError(f"{name} must be at least 0 and below 1, not {value}.")
        if not 0 <= self.final_rate <= 1:
            raise UserError(f"final_rate is a fraction of learning_rate, between 0 and 1, not {self.final_rate}.")
        if self.max_epochs is None and self.max_steps is None:
            if self.schedule == "cosine":
                raise UserError("schedule cosine must know where it ends: give max_epochs or max_steps.")
            if self.max_minutes is None and self.patience is None:
                raise UserError("training would never end: give max_epochs, max_steps, max_minutes or patience.")

    def total_steps(self, steps_per_epoch: int) -> int | None:
        """The step at which training ends if nothing else ends it, or None."""
        epochs = None if self.max_epochs is None else self.max_epochs * steps_per_epoch
        limits = [limit for limit in (epochs, self.max_steps) if limit is not None]
        return min(limits) if limits else None

    def must_match_on_resume(self) -> dict[str, Any]:
        """The settings that a resumed run shares with the run it goes on with."""
        free = FREE_ON_RESUME
        if self.schedule == "cosine":
            free = free - {"max_epochs", "max_steps"}  # they say where the cosine ends
        return {name: value for name, value in self.to_dict().items() if name not in free}

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], where: str = "the training settings") -> "TrainConfig":
        """Settings by name; an unknown name is an error that says which known one is nearest."""
        known = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
                raise UserError(f"{where}: there is no setting {name!r}. Did you mean {near!r}?")
        try:
            return cls(**settings)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error

    @classmethod
    def from_file(cls, path: str | Path) -> "TrainConfig":
        """Settings from a JSON (.json) or YAML file."""
        return cls.from_dict(read_settings(path), where=str(path))


def read_settings(path: str | Path) -> dict[str, Any]:
    """The mapping that a JSON (.json) or YAML file holds; an empty file is an empty mapping."""
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        settings = json.loads(text) if path.suffix == ".json" and text.strip() else yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"could not read the settings {path}: {error.strerror or error}.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not valid {'JSON' if path.suffix == '.json' else 'YAML'}: {error}") from error
    if settings is None:
        return {}
    if not isinstance(settings, dict):
        raise UserError(f"{path} should hold settings as `name: value`, but holds a {type(settings).__name__}.")
    return settings


_POSITIVE = (
    *("learning_rate", "batch_size", "clip_norm", "max_epochs", "max_minutes", "patience", "validate_every"),
    *("validation_batch_size", "max_bad_steps", "processes", "threads", "log_every", "checkpoint_steps"),
    "checkpoint_minutes",
)


def _checked(name: str, value: Any, kind: Any) -> Any:
    """The value, brought to the type of its field: settings files and command lines know none of our types."""
    optional = isinstance(kind, types.UnionType)  # every union here is `something | None`
    if optional:
        if value is None:
            return None
        kind = get_args(kind)[0]
    choices = get_args(kind)
    if choices:
        if str(value) not in choices:  # a YAML file says precision: 32
            raise UserError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
        return str(value)
    if kind is float and isinstance(value, int | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):  # YAML 1.1 reads 2e-4 as text
            return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{name} must be {words[kind]}{' or null' if optional else ''}, not {value!r}.")
    return value
