"""How good tags are: average precision and F1 of each, and their means; only entries that are known count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True)
class TagScore:
    """Of one tag: entries known, how many images have it, average precision and F1 (nan where nothing can be said)."""

    name: str
    known: int
    positive: int
    average_precision: float
    f1: float


@dataclass(frozen=True)
class TagScores:
    """mean_average_precision and mean_f1 are over the tags that have images with and without them."""

    tags: tuple[TagScore, ...]
    mean_average_precision: float
    mean_f1: float
    accuracy: float  # share of the known entries that are right
    n: int


def score_tags(probabilities: Tensor, values: Tensor, names: Sequence[str], threshold: float = 0.5) -> TagScores:
    """From probabilities [N, C] and values [N, C] (1, 0, -1 unknown)."""
    from sklearn.metrics import average_precision_score, f1_score

    p: npt.NDArray[np.float64] = probabilities.double().numpy()
    y = values.numpy()
    found, right, known_in_all = [], 0, 0
    for c, name in enumerate(names):
        known = y[:, c] >= 0
        truth, said = y[known, c], p[known, c]
        both = len(np.unique(truth)) == 2
        right += int(((said >= threshold) == (truth == 1)).sum())
        known_in_all += int(known.sum())
        found.append(
            TagScore(
                name,
                int(known.sum()),
                int((truth == 1).sum()),
                float(average_precision_score(truth, said)) if both else float("nan"),
                float(f1_score(truth, said >= threshold, zero_division=0)) if both else float("nan"),
            )
        )
    scored = [one for one in found if not np.isnan(one.average_precision)]

    def mean(of: Sequence[float]) -> float:
        return float(np.mean(of)) if len(of) else float("nan")

    return TagScores(
        tuple(found),
        mean([one.average_precision for one in scored]),
        mean([one.f1 for one in scored]),
        right / max(1, known_in_all),
        len(values),
    )
