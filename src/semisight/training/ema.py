"""Averaged weights: an exponential moving average (EMA) of every parameter, used for validation and for prediction.

    average <- average + (1 - d) * (weight - average),   d = min(decay, (1 + n) / (10 + n)) after n updates

The smaller d of the first updates keeps the random start from weighing on the average for thousands of steps.
"""

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel


class EMA:
    """Keeps the averages beside the parameters; buffers are not averaged."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], decay: float) -> None:
        self.decay, self.names = decay, list(parameters)
        self._weights = nn.ParameterList(parameters.values())

        def average(averages: list[Tensor], weights: list[Tensor], n: Tensor | int) -> None:
            d = min(decay, int(n) / (9 + int(n)))  # torch has counted one more: the copy that it starts from
            torch._foreach_lerp_(averages, weights, 1 - d)

        self._averaged = AveragedModel(self._weights, multi_avg_fn=average)  # type: ignore[arg-type]
        self._averaged.update_parameters(self._weights)

    @property
    def updates(self) -> int:
        return int(self._averaged.n_averaged) - 1

    def update(self) -> None:
        self._averaged.update_parameters(self._weights)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model holds the averages; afterwards its own weights again."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for weight, average in zip(self._weights, self._averaged.parameters(), strict=True):
            weight.data, average.data = average.data, weight.data

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, (average.data for average in self._averaged.parameters()), strict=True))

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor], updates: int) -> None:
        for name, average in self.tensors().items():
            average.copy_(tensors[name])
        self._averaged.n_averaged.fill_(updates + 1)
