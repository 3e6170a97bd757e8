"""Section 5.2: training with few labels and many unlabelled images, put together from its parts.

batches     32 labelled images, dealt evenly over the classes, beside unlabelled ones          data/batches.py
objective   the bound with labels, and (unless off) the pull of the unlabelled images          label_objective.py
every epoch the probable labels of the unlabelled images are worked out again                  propagation.py
held-out    labels that are not learned from say which weights to keep
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from semisight.data.augment import MovesName, moves_for
from semisight.data.batches import LabelledAndUnlabelled, Shuffled
from semisight.errors import UserError
from semisight.inference.labels import Prediction, in_batches
from semisight.metrics.calibration import fit_temperature, negative_log_likelihood
from semisight.metrics.classification import error_rate
from semisight.model.heads.labels import BayesianSVM, Softmax
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import LabelObjective, Pull, Xi, paper_xi
from semisight.objectives.step import Images, Plan
from semisight.random import Stream, reseed
from semisight.training.state import TrainerState
from semisight.training.validation import validate

HeadName = Literal["svm", "softmax"]
XiRule = Literal["paper", "pixels", "tenfold", "hundredfold"]
# Times N_X / rho; the paper's is N_X / (C rho).
SCALE: dict[XiRule, float] = {"pixels": 1.0, "tenfold": 10.0, "hundredfold": 100.0}
LEAST_LABELLED, PASSES = 32, 10  # of a batch; per epoch of the unlabelled images


@dataclass(frozen=True)
class LabelSettings:
    """How labels are learned. With pull=False, xi="paper" and a batch of 64 it is the paper's setting."""

    head: HeadName = "svm"
    gamma: float = 1.0
    xi: float | XiRule = "paper"
    xi_warmup: int = 0
    labelled_per_batch: int = 32
    pull: bool = True
    agreement: float = 1.0
    latent: float = 1.0
    confident: float = 1.0
    bound_images: int | None = 64
    moves: MovesName = "auto"  # of the pull
    move_strength: float = Pull.far  # of the images that are learned from

    def __post_init__(self) -> None:
        if self.head not in get_args(HeadName):
            raise UserError(f"head must be 'svm' or 'softmax', not {self.head!r}.")
        if self.moves not in get_args(MovesName):
            raise UserError(f"moves must be 'auto', 'drawings' or 'photos', not {self.moves!r}.")
        if not isinstance(self.pull, bool):
            raise UserError(f"pull must be true or false, not {self.pull!r}.")
        if self.xi not in get_args(XiRule):
            _check("xi", self.xi, float)
        for name in ("gamma", "agreement", "latent", "confident", "move_strength"):
            _check(name, getattr(self, name), float)
        for name in ("xi_warmup", "labelled_per_batch", "bound_images"):
            if name != "bound_images" or self.bound_images is not None:
                _check(name, getattr(self, name), int)
        for name in ("gamma", "labelled_per_batch"):
            if not getattr(self, name) > 0:
                raise UserError(f"{name} must be above 0, not {getattr(self, name)}.")

    def weight(self, n_pixels: int, n_classes: int, rho: float) -> float:
        """xi as a number."""
        if isinstance(self.xi, str):
            return SCALE.get(self.xi, 1 / n_classes) * paper_xi(n_pixels, 1, rho)
        return self.xi

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _check(name: str, value: Any, kind: type) -> None:
    number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise UserError(f"{name} must be a {'whole ' if kind is int else ''}number of at least 0, not {value!r}.")


def build_head(settings: LabelSettings, n_codes_dim: int, n_classes: int, seed: int) -> nn.Module:
    generator = reseed(torch.Generator(), seed, Stream.LABEL_HEAD, 0)
    if settings.head == "softmax":
        return Softmax(n_codes_dim, n_classes, generator=generator)
    return BayesianSVM(n_codes_dim, n_classes, settings.gamma, generator=generator)


def build_label_objective(
    images: ImageObjective, labels: Tensor, n_classes: int, settings: LabelSettings, batch_size: int, seed: int
) -> LabelObjective:
    """The objective for a training set with these labels (-1 where unknown)."""
    architecture = images.model.architecture
    head = build_head(settings, architecture.code_size, n_classes, seed)
    rho = labelled_share(labels, settings, batch_size)
    xi = settings.weight(architecture.n_pixels, n_classes, rho)
    weights = (settings.agreement, settings.latent, settings.confident)
    moves = moves_for(architecture.image_shape[0], settings.moves)
    pull = (
        Pull(*weights, far=settings.move_strength, bound_images=settings.bound_images, moves=moves)
        if settings.pull
        else None
    )
    return LabelObjective(images, head, labels, Xi(xi, settings.xi_warmup), pull, rho)


def labelled_beside(n_labelled: int, n_unlabelled: int, unlabelled_per_batch: int) -> int:
    """How many labelled images a batch has beside the unlabelled ones: 32, and more where there are many labels.

    While the unlabelled images pass once, the labelled ones are to pass PASSES times: with 4,000 labels of CIFAR-10 and
    32 a batch they passed so rarely that the pull lost to training on the labels alone (docs/experiments.md).
    """
    steps = max(1, n_unlabelled // max(1, unlabelled_per_batch))
    wanted = -(-PASSES * n_labelled // steps)
    return max(LEAST_LABELLED, min(wanted, n_labelled, unlabelled_per_batch))


def labelled_share(labels: Tensor, settings: LabelSettings, batch_size: int) -> float:
    """rho: how much of a batch of `label_plan` has a label, on average."""
    labelled, n_unknown = settings.labelled_per_batch, int((labels < 0).sum())
    if not is_dealt(len(labels) - n_unknown, len(labels), labelled, batch_size):
        return 1 - n_unknown / len(labels)
    return labelled / (labelled + min(batch_size - labelled, n_unknown))


def is_dealt(n_labelled: int, n: int, labelled_per_batch: int, batch_size: int) -> bool:
    """Whether labels are so few that batches must be dealt their labelled images, `labelled_per_batch` of them."""
    return n_labelled / n < labelled_per_batch / batch_size


def label_plan(labels: Tensor, settings: LabelSettings, batch_size: int) -> Plan:
    """Which images make up a batch. Where labels are so many that any batch holds as many as asked for (and so where
    every image has one), ordinary shuffled epochs."""
    known = (labels >= 0).nonzero().squeeze(1)
    unknown = (labels < 0).nonzero().squeeze(1)
    if not len(known):
        raise UserError("no training image has a label: give labels for at least two classes, or train without them.")
    if len(labels[known].unique()) < 2:
        raise UserError("all labelled images are of one class: a classifier needs labels of at least two.")
    if is_dealt(len(known), len(labels), settings.labelled_per_batch, batch_size):
        return LabelledAndUnlabelled(known, unknown, batch_size, settings.labelled_per_batch, labels[known])
    return Shuffled(len(labels), batch_size)


def refresher(objective: LabelObjective, train: Images, seed: int, every: int = 1) -> Callable[[TrainerState], None]:
    """For `Trainer(on_epoch=...)`: the probable labels, anew after each `every`-th epoch, from (seed, step) alone."""

    def refresh(state: TrainerState) -> None:
        if round(state.epoch) % every:
            return
        generator = reseed(torch.Generator(), seed, Stream.REFRESH, state.counters.step)
        objective.refresh(train, objective.shares, generator)

    return refresh


def label_validator(valid: Images, batch_size: int = 500) -> Callable[[nn.Module], Mapping[str, float]]:
    """For `Trainer(validate=...)`: the error on labelled validation images, in percent."""

    def validate(objective: nn.Module) -> Mapping[str, float]:
        assert isinstance(objective, LabelObjective)
        return {"error": label_error(objective, valid, batch_size)}

    return validate


def held_out_validator(valid: Images, seed: int, batch_size: int = 500) -> Callable[[nn.Module], Mapping[str, float]]:
    """For `Trainer(validate=...)`: the terms of the bound on images alone, and from those that have a label the
    error in percent and `nll`, the mean of -log p(label) in nats at the temperature that suits these labels best.

    A few held-out labels tell two epochs apart by nll long before they do by the error, which moves in steps.
    """
    labels = torch.full((len(valid),), -1) if valid.labels is None else valid.labels
    known = (labels >= 0).nonzero().squeeze(1)

    def terms(objective: nn.Module) -> Mapping[str, float]:
        assert isinstance(objective, LabelObjective)
        bound = validate(objective.images, valid, batch_size=batch_size, seed=seed)
        if not len(known):
            return bound
        decision = predict_set(objective, _Part(valid, known), batch_size).decision.cpu()
        probabilities = fit_temperature(decision, labels[known]).probabilities(decision)
        nll = negative_log_likelihood(probabilities, labels[known])
        return {**bound, "error": 100 * error_rate(decision.argmax(1), labels[known]), "nll": nll}

    return terms


@dataclass(frozen=True)
class _Part:
    """Some images of a set."""

    images: Images
    index: Tensor

    @property
    def labels(self) -> Tensor | None:
        return None if self.images.labels is None else self.images.labels[self.index]

    def __len__(self) -> int:
        return len(self.index)

    def batch(self, index: Tensor) -> Tensor:
        return self.images.batch(self.index[index])


def label_error(objective: LabelObjective, images: Images, batch_size: int = 500) -> float:
    """Percent of the labelled images of a set that get another label."""
    assert images.labels is not None
    return 100 * error_rate(predict_set(objective, images, batch_size).label, images.labels)


def predict_set(objective: LabelObjective, images: Images, batch_size: int = 500, n_codes: int = 50) -> Prediction:
    return in_batches(objective.images.model, objective.label_head, images, n_codes, batch_size)
