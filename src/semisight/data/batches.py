"""Section 5.2: which images make up the batch of a given step.

A plan is stateless in the step: `indices(step, seed)` depends on its arguments alone, so that a resumed run sees
exactly the batches of an uninterrupted one. The permutation of the current epoch is kept, not stored with a checkpoint.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.random import Stream, random_order

Indices = npt.NDArray[np.int64]
LEAST_LABELLED, PASSES = 32, 10  # of a batch; per epoch of the unlabelled images


@dataclass(frozen=True, eq=False)
class _LastOrders:
    """The newest permutation of every stream: work saved between steps, never anything a step depends on.

    Kept as numpy arrays, whose single entries are read much faster than a tensor's.
    """

    kept: dict[tuple[Stream, tuple[int, ...]], tuple[tuple[int, ...], Indices]] = field(default_factory=dict)

    def get(self, n: int, seed: int, stream: Stream, *numbers: int) -> Indices:
        place, version = (stream, numbers[:-1]), (n, seed, numbers[-1])
        if place not in self.kept or self.kept[place][0] != version:
            self.kept[place] = (version, random_order(n, seed, stream, *numbers).numpy())
        return self.kept[place][1]


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Shuffled epochs over n images.

    The last, partial batch of an epoch is dropped (other images fall into it next time); with fewer than `batch_size`
    images every batch is the whole set, in a new order.
    """

    n: int
    batch_size: int = 64
    _orders: _LastOrders = field(default_factory=_LastOrders, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError("there are no images to make batches from")
        if self.batch_size < 1:
            raise UserError(f"a batch must hold at least 1 image, not {self.batch_size}")

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.n // self.batch_size)

    def indices(self, step: int, seed: int) -> Tensor:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = self._orders.get(self.n, seed, Stream.EPOCHS, epoch)
        return torch.from_numpy(order[place * self.batch_size : (place + 1) * self.batch_size].copy())


@dataclass(frozen=True, eq=False)
class LabelledAndUnlabelled:
    """Batches of `labelled_per_batch` labelled images followed by unlabelled ones (section 5.2: 32 and 32).

    The unlabelled images come in shuffled epochs, and one pass over them is the epoch of the plan. The labelled ones,
    usually few, are dealt in rounds: every round takes one image of each class, in random order, and every class goes
    through shuffled passes over its own images. So each class is seen equally often however unequal the classes are,
    and no image of a class comes again before all of that class have come.

    With no unlabelled images this is ordinary supervised training: shuffled epochs over the labelled ones in batches
    of `batch_size`, as often as they occur. With no labelled images, likewise over the unlabelled ones.

    labelled_index    positions in the image set, int64
    unlabelled_index  positions in the image set, int64; may include the labelled images
    labels            of the labelled images, in the order of `labelled_index`; without it they count as one class
    """

    labelled_index: Tensor
    unlabelled_index: Tensor
    batch_size: int = 64
    labelled_per_batch: int = 32
    labels: Tensor | None = None
    _orders: _LastOrders = field(default_factory=_LastOrders, init=False, repr=False)
    _classes: tuple[list[int], ...] = field(default=(), init=False, repr=False)
    _alone: Shuffled | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        n_labelled, n_unlabelled = len(self.labelled_index), len(self.unlabelled_index)
        if self.labels is not None and len(self.labels) != n_labelled:
            raise ValueError(f"{n_labelled} labelled images but {len(self.labels)} labels")
        if self.labels is not None and n_labelled and int(self.labels.min()) < 0:
            raise ValueError("an image in labelled_index has the label -1, which means unknown")
        if n_labelled and n_unlabelled and not 0 < self.labelled_per_batch < self.batch_size:
            raise UserError(
                f"a batch of {self.batch_size} cannot hold {self.labelled_per_batch} labelled images beside unlabelled "
                f"ones: choose labelled_per_batch from 1 to {self.batch_size - 1}"
            )
        labels = self.labels if self.labels is not None else torch.zeros(n_labelled, dtype=torch.int64)
        classes = tuple(self.labelled_index[labels == c].tolist() for c in labels.unique().tolist())
        object.__setattr__(self, "_classes", classes)  # frozen for its users, still being built here
        if not (n_labelled and n_unlabelled):
            object.__setattr__(self, "_alone", Shuffled(n_labelled + n_unlabelled, self.batch_size))

    @property
    def unlabelled_per_batch(self) -> int:
        return min(self.batch_size - self.labelled_per_batch, len(self.unlabelled_index))

    @property
    def steps_per_epoch(self) -> int:
        if self._alone is not None:
            return self._alone.steps_per_epoch
        return len(self.unlabelled_index) // self.unlabelled_per_batch

    def indices(self, step: int, seed: int) -> Tensor:
        if self._alone is not None:
            either = torch.cat([self.labelled_index, self.unlabelled_index])
            return either[self._alone.indices(step, seed)]
        return torch.cat([self._labelled(step, seed), self._unlabelled(step, seed)])

    def _labelled(self, step: int, seed: int) -> Tensor:
        n_classes = len(self._classes)
        first = step * self.labelled_per_batch
        dealt = []
        for place in range(first, first + self.labelled_per_batch):
            round_number, turn = divmod(place, n_classes)
            c = self._orders.get(n_classes, seed, Stream.ROUNDS, round_number)[turn].item()
            members = self._classes[c]
            class_pass, rank = divmod(round_number, len(members))
            dealt.append(members[self._orders.get(len(members), seed, Stream.CLASSES, c, class_pass)[rank]])
        return torch.tensor(dealt, dtype=torch.int64)

    def _unlabelled(self, step: int, seed: int) -> Tensor:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = self._orders.get(len(self.unlabelled_index), seed, Stream.EPOCHS, epoch)
        ranks = order[place * self.unlabelled_per_batch :][: self.unlabelled_per_batch]
        return self.unlabelled_index[torch.from_numpy(ranks)]


def batches_for(
    present: Tensor, batch_size: int, per_batch: int = 32, strata: Tensor | None = None, others: bool = True
) -> Shuffled | LabelledAndUnlabelled:
    """Batches for images of which some carry a target (a label, a caption, any).

    Where these are so many that any batch holds as many as asked for, ordinary shuffled epochs over all images; else
    `per_batch` of them beside others.

    present    bool [N]: which images carry something
    per_batch  how many of those a batch holds, where they must be dealt
    strata     int64 [N]: their classes, each dealt equally often; None deals them as they come
    others     False leaves images that carry nothing out
    """
    known, unknown = present.nonzero().squeeze(1), (~present).nonzero().squeeze(1)
    if not len(known):
        return Shuffled(len(present), batch_size)
    if not others:
        return LabelledAndUnlabelled(known, unknown[:0], batch_size, per_batch)
    per_batch = min(per_batch, max(1, batch_size - 1))
    if not is_dealt(len(known), len(present), per_batch, batch_size):
        return Shuffled(len(present), batch_size)
    of = None if strata is None else strata[known]
    return LabelledAndUnlabelled(known, unknown, batch_size, per_batch, of)


def is_dealt(n_present: int, n: int, per_batch: int, batch_size: int) -> bool:
    """Whether targets are so rare that batches must be dealt the images that carry them."""
    return n_present / n < per_batch / batch_size


def share_of_batch(has: Tensor, plan: Shuffled | LabelledAndUnlabelled) -> float:
    """rho: how much of a batch carries what `has` (bool [N]) says, on average over batches."""
    if isinstance(plan, Shuffled):
        return float(has.double().mean())
    known, others = plan.labelled_index, plan.unlabelled_index
    if not len(known) or not len(others):
        return float(has[torch.cat([known, others])].double().mean())
    n_known, n_others = plan.labelled_per_batch, plan.unlabelled_per_batch
    total = n_known * has[known].double().mean() + n_others * has[others].double().mean()
    return float(total / (n_known + n_others))


def labelled_beside(n_labelled: int, n_unlabelled: int, unlabelled_per_batch: int) -> int:
    """How many labelled images a batch has beside the unlabelled ones: 32, and more where there are many labels.

    While the unlabelled images pass once, the labelled ones are to pass PASSES times: with 4,000 labels of CIFAR-10 and
    32 a batch they passed so rarely that all images together lost to the labels alone (docs/experiments.md).
    """
    steps = max(1, n_unlabelled // max(1, unlabelled_per_batch))
    wanted = -(-PASSES * n_labelled // steps)
    return max(LEAST_LABELLED, min(wanted, n_labelled, unlabelled_per_batch))
