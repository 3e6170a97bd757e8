"""Several labels per image for new images: the probability of every tag, by decision values averaged over q(s, z | X).

Probabilities are sigmoid(scale f + offset): one scale and one offset, fitted on held-out entries (Platt, 1999), or the
head's own where there are too few.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semisight.inference.encode import Codes, check_answer
from semisight.inference.labels import decide
from semisight.model.heads.tags import TagHead

ENOUGH = 50  # held-out entries of each kind, 1 and 0
_MOST = 1e12  # of a scale or an offset


@dataclass(frozen=True)
class TagCalibration:
    """p(y_l = 1 | X) = sigmoid(scale f_l + offset), of the weights of one step, from `n` entries."""

    scale: float
    offset: float
    step: int
    n: int

    def to_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "offset": self.offset, "step": self.step, "n": self.n}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "TagCalibration":
        scale, offset = float(values["scale"]), float(values["offset"])
        if not abs(scale) < _MOST or not abs(offset) < _MOST:  # "nan" is a text that float takes
            raise ValueError("scale and offset must be finite numbers")
        return TagCalibration(scale, offset, int(values["step"]), int(values["n"]))


def fit_tags(decision: Tensor, values: Tensor, step: int) -> TagCalibration | None:
    """From decision values [N, C] and held-out entries [N, C] (-1 unknown); None where these are too few."""
    from sklearn.linear_model import LogisticRegression

    known = values >= 0
    f, y = decision[known].double()[:, None].numpy(), values[known].numpy()
    if min(int((y == 1).sum()), int((y == 0).sum())) < ENOUGH:
        return None
    fitted = LogisticRegression(C=1e6).fit(f, y)
    return TagCalibration(float(fitted.coef_[0, 0]), float(fitted.intercept_[0]), step, len(y))


@dataclass(frozen=True)
class TagAnswer:
    """Probabilities [N, C] of every tag, and the spread [N, C] of their decision values over codes."""

    probabilities: Tensor
    spreads: Tensor
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.probabilities)

    def tags(self, i: int, threshold: float = 0.5) -> tuple[tuple[str, float], ...]:
        """The tags that image i has, the most probable first."""
        p = self.probabilities[i]
        order = p.argsort(descending=True).tolist()
        return tuple((self.names[c], float(p[c])) for c in order if float(p[c]) >= threshold)


@dataclass(frozen=True)
class TagReader:
    """The tags of a run."""

    head: TagHead
    names: tuple[str, ...]
    fitted: TagCalibration | None = None
    n_learned: int = 0
    n_held_out: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "tags"

    @property
    def calibrated(self) -> bool:
        return self.fitted is not None

    @property
    def scale_and_offset(self) -> tuple[float, float]:
        return (self.head.probability_scale(), 0.0) if self.fitted is None else (self.fitted.scale, self.fitted.offset)

    def __call__(self, codes: Codes, generator: torch.Generator | None = None) -> TagAnswer:
        found = decide(self.head, codes)
        check_answer(found.value, found.spread)
        scale, offset = self.scale_and_offset
        return TagAnswer(torch.sigmoid(scale * found.value + offset).cpu(), found.spread.cpu(), self.names)

    def joined(self, parts: Sequence[TagAnswer]) -> TagAnswer:
        return TagAnswer(
            torch.cat([part.probabilities for part in parts]), torch.cat([part.spreads for part in parts]), self.names
        )

    export_name = "tag_probabilities"

    def exported(self, code: Tensor, max_words: int) -> Tensor:
        scale, offset = self.scale_and_offset
        return torch.sigmoid(scale * self.head.decision(code) + offset)

    def export_about(self) -> dict[str, Any]:
        return {"tags": list(self.names)}

    def believable(self) -> str:
        if self.fitted is None:
            return "Probabilities of tags are the model's own and not calibrated: take them as an order, not as odds."
        return f"Probabilities of tags are calibrated on {self.fitted.n:,} held-out entries."
