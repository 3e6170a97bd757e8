"""Sections 3.1, 4 and 5.2, (11), (12), (29): the bound with labels, and how unlabelled images pull on them.

The paper's:      bound + xi log p(label | s)      for a labelled image, and the bound alone for the others.

Beyond it (`Pull`), images are moved (data/moving.py), and in units of xi

    label       E_q(s|moved X) log p(label | s)                    for the labelled images
    confident   the same for what the model believes of the        learning/confidence.py
                image moved only a little
    agreement   codes of one image moved in two ways agree         learning/agreement.py
    latent      sum_c r_c E_q(s|moved X) log p(c | s)              r: probable labels, learning/propagation.py

r is brought up to date once an epoch (`refresh`), as the expectation step of EM, from a graph of the codes and the
classes' shares. The parts are separate and named; with pull=None what is left is the paper's objective.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from semisight.data.augment import Moves
from semisight.errors import UserError
from semisight.model.heads.labels import LabelHead
from semisight.objectives.bound import image_bound
from semisight.objectives.contrastive import code_agreement
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_spreading import Propagation
from semisight.objectives.pseudo_labels import Targets, remember, said, targets_from, total_gain
from semisight.objectives.step import Batch, Images, Rows, Step, sum_over_processes
from semisight.training.ema import AveragedWeights, in_place_of_weights


def paper_xi(n_pixels: int, n_targets: float, rho: float) -> float:
    """xi = N_X / (C rho) for labels, N_X / (T rho) for captions: every data point has the same weight."""
    if rho <= 0:
        raise UserError("xi needs at least one labelled image in a batch (rho > 0)")
    return n_pixels / (n_targets * rho)


@dataclass(frozen=True)
class Xi:
    """The weight of the labels: `value`, reached in a straight line over the first `warmup` steps."""

    value: float
    warmup: int = 0

    def at(self, step: int) -> float:
        return self.value * min(1.0, (step + 1) / self.warmup) if self.warmup else self.value


@dataclass(frozen=True)
class Pull:
    """How unlabelled images pull on the labels. The first three are weights in units of xi."""

    agreement: float = 1.0
    latent: float = 1.0
    confident: float = 1.0
    temperature: float = 0.2  # of agreement
    threshold: float = 0.95  # above it, only the likeliest label is learned
    little: float = 0.4  # strength of the move under which the model is asked
    far: float = 1.3  # strength of the moves that it learns from
    bound_images: int | None = 64  # how many of a batch enter the bound; 0 leaves the image model out, None takes all
    moves: Moves = field(default_factory=Moves)
    propagation: Propagation = field(default_factory=Propagation)


class LabelObjective(nn.Module):
    """(11). `labels` are those of the whole training set, -1 where unknown."""

    responsibilities: Tensor
    step: Tensor
    refreshed: Tensor
    seen: Tensor

    def __init__(
        self,
        images: ImageObjective,
        head: nn.Module,
        labels: Tensor,
        xi: Xi,
        pull: Pull | None = None,
        rho: float | None = None,
    ) -> None:
        """`rho` is how much of a batch has a label, on average; None where that is as much as of all images."""
        super().__init__()
        self.images, self.head, self.xi, self.pull = images, head, xi, pull
        n_classes = cast(LabelHead, head).n_classes
        self.train_labels = labels
        self.rho = float((labels >= 0).float().mean()) if rho is None else rho
        self.averages: AveragedWeights | None = None  # from the trainer
        self._said: Tensor | None = None  # of this step, by this process
        n_rows = len(labels) if pull is not None and pull.latent > 0 else 0
        self.register_buffer("responsibilities", torch.zeros(n_rows, n_classes))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.register_buffer("refreshed", torch.zeros((), dtype=torch.int64))
        self.shares = class_shares(labels, n_classes)
        self.register_buffer("seen", self.shares.clone())

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        weight = self.xi.at(int(self.step))
        if self.pull is None or not self.training:
            return self._paper(batch, generator, rows, weight)
        return self._pulled(batch, generator, rows, weight, self.pull)

    def _paper(self, batch: Batch, generator: torch.Generator, rows: Rows, weight: float) -> Step:
        x, posterior, decoded = self.images.infer(batch.images, generator, rows)
        bound = image_bound(x, posterior, decoded, self.images.model.decoder)
        labels = _labels(batch)
        label = self.label_head.log_prob(labels, posterior.code)
        bound = bound.with_side(weight * label)
        loss = -(bound.value + self.images.surrogate(x, posterior, decoded, bound)).mean()
        terms = self.images.terms(bound) | {"label": _mean_of_labelled(label, labels)}
        return Step(loss - self._prior(weight * self.rho), terms)

    def _pulled(self, batch: Batch, generator: torch.Generator, rows: Rows, weight: float, pull: Pull) -> Step:
        """Every term is a sum over images, each with a weight that does not depend on the rows at hand: several
        processes then add up to one, though the labelled images of a batch are all with the first of them."""
        labels = _labels(batch)
        known, n = labels >= 0, len(labels)
        moved = [self.images.encode(self._moved(batch, generator, rows, pull, pull.far), generator, rows)]
        if pull.agreement > 0:
            moved.append(self.images.encode(self._moved(batch, generator, rows, pull, pull.far), generator, rows))
        scores = [self.label_head.expected_log_prob_all(p.mean, p.log_spread) for p in moved]
        terms, gain = {}, torch.zeros((), device=batch.images.device)
        if self.rho > 0:
            right = [score[known].gather(1, labels[known][:, None]).sum() for score in scores]
            terms["label"] = torch.stack(right).mean() / (self.rho * n)
            gain = gain + terms["label"]
        if pull.confident > 0 and self.rho < 1:
            targets = self._targets(batch, ~known, generator, rows, pull)
            terms["sure"] = targets.sure.sum() / ((1 - self.rho) * n)
            total = torch.stack([total_gain(s[~known], targets) for s in scores]).mean()
            terms["confident"] = total / (max(self.rho, 1 - self.rho) * n)  # none weighs more than a labelled image
            gain = gain + pull.confident * terms["confident"]
        if pull.agreement > 0:
            terms["agreement"] = code_agreement(moved[0].mean, moved[1].mean, pull.temperature)
            gain = gain + pull.agreement * terms["agreement"]
        if pull.latent > 0 and int(self.refreshed) > 0:
            r = self.responsibilities[batch.index.to(self.responsibilities.device)]
            terms["latent"] = torch.stack([(r * score).sum(1).mean() for score in scores]).mean()
            gain = gain + pull.latent * terms["latent"]
        loss = -weight * self.rho * gain - self._prior(weight * self.rho)
        if pull.bound_images != 0:
            bound_loss, bound_terms = self.images.bound_of_last(pull.bound_images, batch.images, generator, rows)
            loss, terms = loss + bound_loss, bound_terms | terms
        return Step(loss, {name: term.detach() for name, term in terms.items()})

    def _moved(self, batch: Batch, generator: torch.Generator, rows: Rows, pull: Pull, strength: float) -> Tensor:
        return pull.moves.of_rows(batch.images, generator, strength, rows.total, rows.start)

    @torch.no_grad()
    def _targets(self, batch: Batch, of: Tensor, generator: torch.Generator, rows: Rows, pull: Pull) -> Targets:
        """What is believed of the images `of` the batch; nothing is learned on the image moved a little itself."""
        images = self._moved(batch, generator, rows, pull, pull.little)[of]
        with in_place_of_weights(self.averages):
            scores = self.label_head.log_prob_all(self.images.model.mean_code(images, generator))
        self._said = said(scores)
        return targets_from(scores, self.seen, self.shares.to(self.seen), pull.threshold)

    def _prior(self, weight: float) -> Tensor:
        """One image's share of log p(beta), in the same units as the labels."""
        return weight * self.label_head.log_prior(max(1, int((self.train_labels >= 0).sum())))

    @property
    def label_head(self) -> LabelHead:
        return cast(LabelHead, self.head)

    @torch.no_grad()
    def refresh(self, train: Images, shares: Tensor, generator: torch.Generator) -> None:
        """Works out r for every training image, from the codes of them all. What the classifier itself says is left
        out on purpose: multiplied in, its mistakes confirmed themselves (docs/experiments.md)."""
        if self.pull is None or self.pull.latent == 0:
            return
        model, parts = self.images.model, []
        for index in torch.arange(len(train)).split(1000):
            images = train.batch(index).to(model.decoder.log_alpha0.device)
            parts.append(model.encode(images, generator).mean.cpu())
        r = self.pull.propagation(torch.cat(parts), self.train_labels, shares, generator)
        self.responsibilities.copy_(r)
        self.refreshed += 1

    def after_step(self, global_step: int) -> None:
        self.images.after_step(global_step)
        if self._said is not None:
            remember(self.seen, sum_over_processes(self._said))
            self._said = None
        self.step.fill_(global_step)

    def rate_multipliers(self) -> Mapping[str, float]:
        return {f"images.{name}": rate for name, rate in self.images.rate_multipliers().items()}


def class_shares(labels: Tensor, n_classes: int) -> Tensor:
    """How frequent the classes are among the labels, one imagined image of each added: few labels say little."""
    counts = torch.bincount(labels[labels >= 0], minlength=n_classes).float() + 1
    return counts / counts.sum()


def _labels(batch: Batch) -> Tensor:
    if batch.labels is None:
        return torch.full((len(batch.images),), -1, device=batch.images.device)
    return batch.labels


def _mean_of_labelled(value: Tensor, labels: Tensor) -> Tensor:
    known = labels >= 0
    return value.detach()[known].mean() if bool(known.any()) else torch.zeros((), device=value.device)
