"""Section 5: Adam (or SGD), its rate by parameter and step, and gradients clipped by their common norm."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.training.config import TrainConfig

_BEHIND = 0.02  # share of the way by which steps may lag behind the clock
_BETWEEN = "/"  # `exp_avg/decoder.dictionary`: parameter names hold dots, never slashes


def build_optimiser(
    parameters: Mapping[str, nn.Parameter], multipliers: Mapping[str, float], config: TrainConfig
) -> torch.optim.Optimizer:
    """Adam or SGD over groups that share a rate multiplier and a weight decay; each group keeps its own `multiplier`.

    A multiplier is for the few parameters on another scale: at 2e-4 a step, log alpha0 would need epochs to get
    from its start to where it belongs.
    """
    for name in multipliers:
        if name not in parameters:
            raise UserError(f"a learning-rate multiplier names {name!r}, which is no parameter of the model.")
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        decay = config.weight_decay if parameter.ndim >= 2 else 0.0  # biases and scalars are not pulled to 0
        groups.setdefault((multipliers.get(name, 1.0), decay), []).append(parameter)
    every = [{"params": group, "weight_decay": decay, "multiplier": by} for (by, decay), group in groups.items()]
    if config.optimiser == "sgd":
        return torch.optim.SGD(
            every, lr=config.learning_rate, momentum=config.beta1, nesterov=config.beta1 > 0, fused=True
        )
    kind = torch.optim.AdamW if config.weight_decay > 0 else torch.optim.Adam
    return kind(
        every,
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        fused=True,  # one kernel per step: three times faster than the loop over parameters, on CPUs too
    )


RISE = 0.2  # of a cycle
LOWEST = 0.05  # where a cycle begins, as a share of its highest rate


def rate_at(step: int, config: TrainConfig, total_steps: int | None, time_gone: float = 0.0) -> float:
    """The learning rate of a step: a straight rise over the warm-up, then constant or half a cosine down; or one cycle
    (Smith, 2018), a straight rise and a straight fall over the whole training.

    `time_gone` is the share of the minutes that are over: cosine and cycle end with the steps or with the time,
    whichever comes first. While the steps are about to come first, the clock has no say, and a run can be repeated.
    """
    if config.schedule == "one-cycle":
        way = min(1.0, max(time_gone, 0.0 if total_steps is None else step / max(1, total_steps)))
        if way < RISE:
            return config.learning_rate * (LOWEST + (1 - LOWEST) * way / RISE)
        return config.learning_rate * (config.final_rate + (1 - config.final_rate) * (1 - way) / (1 - RISE))
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    gone = 0.0 if total_steps is None else (step - config.warmup_steps) / max(1, total_steps - config.warmup_steps)
    way = min(1.0, time_gone if time_gone > gone + _BEHIND or total_steps is None else gone)
    return config.learning_rate * (config.final_rate + (1 - config.final_rate) * (1 + math.cos(math.pi * way)) / 2)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * group["multiplier"]


def clip(parameters: list[nn.Parameter], norm: Tensor, clip_norm: float | None) -> None:
    """Scales all gradients so that their common norm, which is `norm`, is at most `clip_norm`."""
    if clip_norm is not None and float(norm) > clip_norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, norm)


def optimiser_tensors(optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimiser's averages and step counts by parameter name, for a checkpoint."""
    return {
        f"{what}{_BETWEEN}{name}": value
        for name, parameter in parameters.items()
        for what, value in optimiser.state.get(parameter, {}).items()
        if value is not None
    }


def load_optimiser(
    optimiser: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """The inverse of `optimiser_tensors`; a parameter that had no step yet has no state."""
    optimiser.state.clear()
    for key, value in tensors.items():
        what, _, name = key.partition(_BETWEEN)
        parameter = parameters[name]
        like = value.shape == parameter.shape  # in memory as the parameter is: a fused step reads both in one order
        kept = torch.empty_like(parameter, dtype=value.dtype) if like else torch.empty_like(value).to(parameter.device)
        optimiser.state[parameter][what] = kept.detach().copy_(value)
