"""Section 5, the paper's settings as defaults: Adam at 2e-4, batches of 64, clipping at norm 5, early stopping."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from semisight.errors import UserError
from semisight.setting import fields, group, setting, unknown_name
from semisight.untrusted import MOST_SETTINGS, parse_json, parse_yaml, read_text

Schedule = Literal["constant", "cosine", "one-cycle"]
Optimiser = Literal["adam", "sgd"]
Precision = Literal["auto", "32", "bf16", "64"]
_LEARNING, _MACHINE = "Learning", "Machine"

# What may differ between a run and its resumption: limits and housekeeping, nothing that changes a step.
FREE_ON_RESUME = frozenset(
    (
        *("max_epochs", "max_steps", "max_minutes", "patience", "max_bad_steps", "log_every"),
        *("checkpoint_steps", "checkpoint_minutes", "device", "threads", "processes"),
        *("keep_memory", "progress", "tensorboard"),
    )
)


@group
class TrainConfig:
    """How to train; every field is checked on construction."""

    seed: int = setting(default=0, help="The same seed gives the same run.", panel=_LEARNING, ge=0)
    learning_rate: float = setting(
        default=2e-4, help="Of Adam.", panel=_LEARNING, shown="0.0002; with targets: 0.001", gt=0, allow_inf_nan=False
    )
    optimiser: Optimiser = setting(default="adam", help="Adam, or SGD with Nesterov's momentum beta1.")
    batch_size: int = setting(
        default=64, help="Images per step.", panel=_LEARNING, shown="64; with labels: 288, or 128 if many", ge=1
    )  # of all processes together
    clip_norm: float | None = setting(default=5.0, help="Gradients are clipped at this norm.", gt=0)
    weight_decay: float = setting(default=0.0, help="Of matrices and filters only, decoupled from the gradient.", ge=0)
    beta1: float = setting(default=0.9, help="Of Adam.", ge=0, lt=1)
    beta2: float = setting(default=0.999, help="Of Adam.", ge=0, lt=1)
    schedule: Schedule = setting(
        default="constant",
        help="Of the learning rate; one-cycle rises and falls within the steps, epochs or minutes given.",
        panel=_LEARNING,
        shown="constant; with targets: cosine",
    )
    warmup_steps: int = setting(default=0, help="The rate rises in a straight line from 0.", ge=0)
    final_rate: float = setting(default=0.0, help="Where the cosine ends, as a fraction of learning_rate.", ge=0, le=1)
    average_decay: float | None = setting(
        default=None,
        help="Average the weights over steps (EMA): 0.999 remembers about 1000.",
        panel=_LEARNING,
        flag="--average",
        shown="off; with targets: 0.99",
        ge=0,
        lt=1,
    )

    max_epochs: int | None = setting(
        default=100,
        help="At most so many passes over the images.",
        panel=_LEARNING,
        flag="--epochs",
        shown="100; with targets: 20 or more",
        ge=1,
    )
    max_steps: int | None = setting(default=None, help="At most so many steps.", panel=_LEARNING, flag="--steps", ge=0)
    max_minutes: float | None = setting(
        default=None,
        help="At most so long. Without a limit in epochs or steps it is the time of the whole command, report "
        "included. A cosine ends when the time does.",
        panel=_LEARNING,
        flag="--minutes",
        shown="15 on a CPU; with --epochs or --steps no limit",
        gt=0,
        allow_inf_nan=False,
    )
    metric: str = setting(default="bound", help="Which validation term picks the best weights.")
    metric_rises: bool = setting(default=True, help="False where a lower metric is better, such as an error.")
    patience: int | None = setting(default=10, help="Epochs without a better metric before training stops.", ge=1)
    validate_every: int = setting(default=1, help="Epochs between validations.", ge=1)
    validation_batch_size: int = setting(default=64, help="Images validated at a time.", ge=1)
    max_bad_steps: int = setting(default=20, help="Steps in a row without a finite loss and gradient.", ge=1)

    device: str = setting(default="auto", help="auto, cpu, cuda, cuda:1 or mps.", panel=_MACHINE)
    precision: Precision = setting(default="auto", help="Of numbers, in bits.", panel=_MACHINE)
    processes: int = setting(
        default=1,
        help="Processes on this machine that share each batch; under torchrun and SLURM theirs count.",
        panel=_MACHINE,
        ge=1,
    )
    threads: int | None = setting(
        default=None, help="CPU threads; 1 is best on a busy machine.", panel=_MACHINE, shown="torch's choice", ge=1
    )
    keep_memory: bool = setting(default=False, help="Keep freed memory in the process (allocator.py).")

    log_every: int = setting(default=50, help="Steps between rows of the log.", ge=1)
    checkpoint_steps: int | None = setting(default=None, help="Steps between checkpoints.", ge=1)
    checkpoint_minutes: float | None = setting(default=10.0, help="Minutes between checkpoints.", gt=0)
    progress: bool = setting(default=True, help="Show a bar.")
    tensorboard: bool = setting(default=True, help="Write a TensorBoard log, if it is installed.")

    def __post_init__(self) -> None:
        if self.max_epochs is None and self.max_steps is None:
            if self.schedule != "constant" and self.max_minutes is None:
                raise UserError(
                    f"schedule {self.schedule} must know where it ends: give max_epochs, max_steps or max_minutes."
                )
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
        if self.schedule != "constant":
            free = free - {"max_epochs", "max_steps"}  # they say where it ends
        return {name: value for name, value in self.to_dict().items() if name not in free}

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], where: str = "the training settings") -> "TrainConfig":
        """Settings by name; an unknown name is an error that says which known one is nearest."""
        for name in settings:
            if name not in fields(cls):
                raise unknown_name(name, fields(cls), where)
        try:
            return cls(**settings)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error


def read_settings(path: str | Path) -> dict[str, Any]:
    """The mapping that a JSON (.json) or YAML file holds; an empty file is an empty mapping."""
    text = read_text(path, MOST_SETTINGS)
    if Path(path).suffix == ".json" and text.strip():
        return parse_json(text, str(path))
    return parse_yaml(text, str(path))
