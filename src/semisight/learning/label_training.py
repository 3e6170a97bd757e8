"""Section 5.2: training with few labels and many unlabelled images, put together from its parts.

batches     32 labelled images, dealt evenly over the classes, beside unlabelled ones          data/batches.py
objective   the bound with labels, and (unless off) the pull of the unlabelled images          label_objective.py
every epoch the probable labels of the unlabelled images are worked out again                  propagation.py
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from semisight.data.batches import LabelledAndUnlabelled
from semisight.errors import UserError
from semisight.evaluation.classification import error_rate
from semisight.learning.label_objective import LabelObjective, Pull, Xi, paper_xi
from semisight.learning.objective import ImageObjective
from semisight.learning.predict import Prediction, in_batches
from semisight.learning.state import TrainerState
from semisight.learning.step import Images, reseed
from semisight.model.labels import BayesianSVM, Softmax

HeadName = Literal["svm", "softmax"]
_HEAD, _REFRESH = 11, 12  # streams of the seed


@dataclass(frozen=True)
class LabelSettings:
    """How labels are learned. With pull=False, xi=None and a batch of 64 it is the paper's setting."""

    head: HeadName = "svm"
    gamma: float = 1.0
    xi: float | None = None  # None: N_X / (C rho)
    xi_warmup: int = 0
    labelled_per_batch: int = 32
    pull: bool = True
    agreement: float = 1.0
    latent: float = 1.0
    bound_images: int | None = 64

    def __post_init__(self) -> None:
        if self.head not in ("svm", "softmax"):
            raise UserError(f"head must be 'svm' or 'softmax', not {self.head!r}.")
        for name in ("gamma", "labelled_per_batch"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be above 0, not {getattr(self, name)}.")
        for name in ("xi", "xi_warmup", "agreement", "latent", "bound_images"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(f"{name} must be 0 or above, not {value}.")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def build_head(settings: LabelSettings, n_codes_dim: int, n_classes: int, seed: int) -> nn.Module:
    generator = reseed(torch.Generator(), seed, _HEAD, 0)
    if settings.head == "softmax":
        return Softmax(n_codes_dim, n_classes, generator=generator)
    return BayesianSVM(n_codes_dim, n_classes, settings.gamma, generator=generator)


def build_label_objective(
    images: ImageObjective, labels: Tensor, n_classes: int, settings: LabelSettings, batch_size: int, seed: int
) -> LabelObjective:
    """The objective for a training set with these labels (-1 where unknown)."""
    architecture = images.model.architecture
    head = build_head(settings, architecture.code_size, n_classes, seed)
    rho = settings.labelled_per_batch / batch_size if bool((labels < 0).any()) else 1.0
    xi = paper_xi(architecture.n_pixels, n_classes, rho) if settings.xi is None else settings.xi
    pull = Pull(settings.agreement, settings.latent, bound_images=settings.bound_images) if settings.pull else None
    return LabelObjective(images, head, labels, Xi(xi, settings.xi_warmup), pull)


def label_plan(labels: Tensor, settings: LabelSettings, batch_size: int) -> LabelledAndUnlabelled:
    """Which images make up a batch; ordinary supervised epochs where every image has a label."""
    known = (labels >= 0).nonzero().squeeze(1)
    unknown = (labels < 0).nonzero().squeeze(1)
    if not len(known):
        raise UserError("no training image has a label: give labels for at least two classes, or train without them.")
    if len(labels[known].unique()) < 2:
        raise UserError("all labelled images are of one class: a classifier needs labels of at least two.")
    return LabelledAndUnlabelled(known, unknown, batch_size, settings.labelled_per_batch, labels[known])


def class_shares(labels: Tensor, n_classes: int) -> Tensor:
    """How frequent the classes are among the labels, one imagined image of each added: few labels say little."""
    counts = torch.bincount(labels[labels >= 0], minlength=n_classes).float() + 1
    return counts / counts.sum()


def refresher(objective: LabelObjective, train: Images, seed: int) -> Callable[[TrainerState], None]:
    """For `Trainer(on_epoch=...)`: the probable labels, anew after every epoch, from (seed, step) alone."""
    shares = class_shares(objective.train_labels, objective.responsibilities.shape[1])

    def refresh(state: TrainerState) -> None:
        generator = reseed(torch.Generator(), seed, _REFRESH, state.counters.step)
        objective.refresh(train, shares, generator)

    return refresh


def label_validator(valid: Images, batch_size: int = 500) -> Callable[[nn.Module], Mapping[str, float]]:
    """For `Trainer(validate=...)`: the error on labelled validation images, in percent."""

    def validate(objective: nn.Module) -> Mapping[str, float]:
        assert isinstance(objective, LabelObjective)
        return {"error": label_error(objective, valid, batch_size)}

    return validate


def label_error(objective: LabelObjective, images: Images, batch_size: int = 500) -> float:
    """Percent of the labelled images of a set that get another label."""
    assert images.labels is not None
    return 100 * error_rate(predict_set(objective, images, batch_size).label, images.labels)


def predict_set(objective: LabelObjective, images: Images, batch_size: int = 500, n_codes: int = 50) -> Prediction:
    return in_batches(objective.images.model, objective.label_head, images, n_codes, batch_size)
