"""Averaged weights: an exponential moving average of every parameter, used for validation and kept with the best.

    average <- average + (1 - d) * (weight - average),   d = min(decay, (1 + n) / (10 + n)) after n updates

The smaller d of the first updates keeps the random start from weighing on the average for thousands of steps.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class AveragedWeights:
    """Keeps the averages beside the parameters; buffers are not averaged."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.updates = 0
        self.names = list(parameters)
        self._weights: list[Tensor] = list(parameters.values())
        self._averages = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        # one call for all parameters: a Python loop over them would cost as much as the optimiser
        torch._foreach_lerp_(self._averages, self._weights, 1 - decay)
        self.updates += 1

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model holds the averages; afterwards its own weights again."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for i, weight in enumerate(self._weights):
            weight.data, self._averages[i] = self._averages[i], weight.data

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self._averages, strict=True))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        for name, average in self.tensors().items():
            average.copy_(tensors[name])
        self.updates = updates


def in_place_of_weights(averages: AveragedWeights | None) -> contextlib.AbstractContextManager[None]:
    """Inside, the model holds its averages, if it has any."""
    return contextlib.nullcontext() if averages is None else averages.in_place()
