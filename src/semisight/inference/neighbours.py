"""Which images are like a given one: by the angle between centred codes, as the graph of codes measures it.

The search is scikit-learn's, exact: one product of matrices. Up to hundreds of thousands of codes an index that
approximates it takes longer to build than all the questions of a page or a session (docs/experiments.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from sklearn.neighbors import NearestNeighbors
from torch import Tensor


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
        # on unit vectors the nearest by distance are the nearest by angle, and nothing is scaled anew for a question
        self._search = NearestNeighbors(metric="euclidean", algorithm="brute").fit(self._directions(codes))

    def _directions(self, codes: Tensor) -> npt.NDArray[np.float32]:
        return F.normalize(codes.float() - self._centre, dim=1).numpy()

    def __len__(self) -> int:
        return len(self._names)

    def nearest(self, codes: Tensor, k: int) -> list[tuple[Neighbour, ...]]:
        """For each of the codes [B, J] the k nearest images, the nearest first."""
        distances, places = self._search.kneighbors(self._directions(codes), min(k, len(self)))
        similar = 1 - np.square(distances) / 2
        return [
            tuple(Neighbour(self._names[i], round(float(s), 4), int(i)) for s, i in zip(row, at, strict=True))
            for row, at in zip(similar, places, strict=True)
        ]
