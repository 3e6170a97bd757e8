"""What a run can learn beside images, one kind of target each: labels, tags, captions. The list that everything reads.

A kind ties together a column of the images (data/columns.py), a target (objectives/), a head (model/heads/), a reader
(inference/) and its settings, and is all that training, loading, predicting, describing and calibrating a run know of
them. Another kind is one new file like labels.py and a line in `kinds`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from semisight.inference.encode import Codes
from semisight.inference.export import Answering
from semisight.model.image_model import ImageModel
from semisight.objectives.targets import Target
from semisight.runs.images import Sets
from semisight.runs.settings import Settings
from semisight.training.folder import RunFolder

Terms = Callable[[ImageModel, nn.Module], Mapping[str, float]]  # of held-out values, from the model and its head


class Reader(Answering, Protocol):
    """What a head says of codes, in words that people gave it."""

    @property
    def name(self) -> str: ...

    @property
    def n_learned(self) -> int:
        """Images that it was learned from."""
        ...

    @property
    def n_held_out(self) -> int: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    def __call__(self, codes: Codes, generator: torch.Generator | None = None) -> Any:
        """An answer for a batch of images."""
        ...

    def joined(self, parts: Sequence[Any]) -> Any:
        """The answers of batches as one."""
        ...

    def believable(self) -> str:
        """How far to believe it, for people."""
        ...


class Kind(Protocol):
    """See the head of this file. `name` is that of the column, the target, the head and the reader."""

    @property
    def name(self) -> str: ...

    def metric(self, settings: Settings) -> tuple[str, bool]:
        """The term of held-out values that picks the best weights, and whether it rises."""
        ...

    def defaults(self, settings: Settings, sets: Sets) -> dict[str, Any]:
        """Settings that suit what there is to learn, where nobody chose otherwise."""
        ...

    def target(self, settings: Settings, sets: Sets, model: ImageModel, seed: int) -> Target: ...

    def about(self, target: Target, held_out: int) -> dict[str, Any]:
        """What a checkpoint says of it: enough to build head and reader again, and to notice other data."""
        ...

    def terms(self, settings: Settings, sets: Sets, target: Target) -> Terms | None:
        """What is measured on held-out values while training; None where there are none."""
        ...

    def describe(self, settings: Settings, sets: Sets, target: Target) -> list[str]:
        """What is learned, in lines for people."""
        ...

    def head(self, about: Mapping[str, Any], code_size: int) -> nn.Module:
        """The untrained head that `about` describes."""
        ...

    def n_weights(self, about: Mapping[str, Any], code_size: int) -> int:
        """About how many numbers that head has; asked before it is built."""
        ...

    def reader(self, folder: RunFolder, about: Mapping[str, Any], head: nn.Module, step: int) -> Reader: ...

    def reader_of(self, target: Target) -> Reader:
        """The same of a target that was trained in Python."""
        ...

    def calibrate(self, reader: Any, model: ImageModel, sets: Sets, step: int, seed: int) -> Any:
        """The reader as it is once the training has come to its end."""
        ...

    def saved(self, reader: Any) -> dict[str, bytes]:
        """The files of a run that belong to the reader, by name."""
        ...

    def missing(self, folder: RunFolder) -> str:
        """The error for a run that has not learned it."""
        ...


def kinds() -> tuple[Kind, ...]:
    """In the order of data/columns.py."""
    from semisight.runs.captions import CaptionKind
    from semisight.runs.labels import LabelKind
    from semisight.runs.tags import TagKind

    return (LabelKind(), TagKind(), CaptionKind())


def kind_named(name: str) -> Kind:
    return next(kind for kind in kinds() if kind.name == name)


def kinds_in(sets: Sets) -> list[Kind]:
    """Those that there is something to learn of."""
    return [kind for kind in kinds() if sets.has(kind.name)]
