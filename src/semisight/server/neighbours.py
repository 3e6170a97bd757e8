"""Which of the run's images are like a new one: by the angle between codes, as the graph of codes measures it."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from semisight.objectives.label_spreading import nearest


@dataclass(frozen=True)
class Neighbour:
    """An image of the run; similarity is 1 for the same code and 0 for one at a right angle."""

    file: str
    similarity: float


class Neighbours:
    """Mean codes [N, J] of images, and the name of each."""

    def __init__(self, codes: Tensor, names: Sequence[str]) -> None:
        self._centre = codes.mean(0)
        self._directions = F.normalize(codes - self._centre, dim=1)
        self._names = tuple(names)

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, codes: Tensor, k: int) -> list[tuple[Neighbour, ...]]:
        """For each of the codes [B, J] the k nearest images, the nearest first."""
        queries = F.normalize(codes - self._centre, dim=1)
        values, places = nearest(queries, self._directions, min(k, len(self)))
        return [
            tuple(Neighbour(self._names[place], round(value, 4)) for value, place in zip(v, p, strict=True))
            for v, p in zip(values.tolist(), places.tolist(), strict=True)
        ]
