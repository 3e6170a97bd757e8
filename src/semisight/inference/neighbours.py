"""Which images are like a given one: by the angle between centred codes, as the graph of codes measures it.

The search is exact: one product of matrices. Up to hundreds of thousands of codes an index that approximates it takes
longer to build than all the questions of a page or a session (docs/experiments.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

_AT_ONCE = 500  # codes that are compared with all others


@dataclass(frozen=True)
class Neighbour:
    """An image; similarity is 1 for the same code and 0 for one at a right angle. `place`: its number in the set."""

    file: str
    similarity: float
    place: int = -1


class Neighbours:
    """Mean codes [N, J] of images, and the name of each."""

    def __init__(self, codes: Tensor, names: Sequence[str], centre: Tensor | None = None) -> None:
        self._centre = codes.mean(0) if centre is None else centre
        self._names = tuple(names)
        self._directions = F.normalize(codes.float() - self._centre, dim=1)

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, codes: Tensor, k: int) -> list[tuple[Neighbour, ...]]:
        """For each of the codes [B, J] the k nearest images, the nearest first."""
        asked = F.normalize(codes.float() - self._centre, dim=1)
        found = [(part @ self._directions.T).topk(min(k, len(self))) for part in asked.split(_AT_ONCE)]
        return [
            tuple(Neighbour(self._names[i], round(s, 4), i) for s, i in zip(row, at, strict=True))
            for part in found
            for row, at in zip(part.values.tolist(), part.indices.tolist(), strict=True)
        ]
