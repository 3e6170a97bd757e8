"""Section 3.1, (9), (12), (25)-(29): one label per image as a target, and what unlabelled images say about labels.

side      xi log p(label | s)                                        the paper's
gain      E_q(s|X') log p(label | s), X' strongly augmented          the mean in closed form (model/heads/labels.py)
learn     the same for pseudo-labels of the weakly augmented image   pseudo_labels.py
spread    sum_c r_c E_q(s|X') log p(c | s)                           r from label spreading, label_spreading.py
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.heads.labels import LabelHead
from semisight.model.posterior import Posterior
from semisight.objectives.label_spreading import LabelSpreading
from semisight.objectives.pseudo_labels import PseudoLabels, adaptive, beliefs, pseudo_labels, remember
from semisight.objectives.step import Rows, sum_over_processes
from semisight.objectives.targets import Learned, Side, Target, Xi


class Labels(nn.Module, Target):
    """One of C labels per image, -1 where unknown.

    Args:
        head: p(label | s), such as `BayesianSVM` or `Softmax`.
        values: int64 [N], the labels of the training images; -1 where unknown.
        xi: the weight of labels beside images; by default the paper's, N_X / (C rho).
        class_names: of the C classes, for people; by default their numbers.
        threshold: above this probability only the likeliest pseudo-label is learned; None: it follows how sure the
            model is of unlabelled images, class by class.
        smoothing: the share of a given label that is spread over all classes.

    Example:
        >>> import semisight as ss
        >>> images = ss.load("builtin:digits")
        >>> model = ss.ImageModel.suited_to(images)
        >>> labels = ss.Labels(ss.Softmax(model.code_size, 10), images.labels)
        >>> int(labels.present.sum())
        1797
    """

    values: Tensor
    shares: Tensor
    seen: Tensor
    confidence: Tensor
    responsibilities: Tensor

    def __init__(
        self,
        head: nn.Module,
        values: Any,
        *,
        xi: Xi | None = None,
        class_names: Sequence[str] | None = None,
        threshold: float | None = 0.95,
        smoothing: float = 0.0,
        name: str = "labels",
    ) -> None:
        super().__init__()
        self.name, self.head, self.xi, self.threshold, self.smoothing = name, head, xi or Xi(), threshold, smoothing
        self.values = torch.as_tensor(values, dtype=torch.int64)
        self.present = self.values >= 0
        n_classes = self.label_head.n_classes
        self.class_names = tuple(class_names or (str(c) for c in range(n_classes)))
        if len(self.values) and int(self.values.max()) >= n_classes:
            raise UserError(
                f"labels go up to {int(self.values.max())}, but the head has {n_classes} classes (0 to C-1)."
            )
        self.n_labelled = max(1, int(self.present.sum()))
        self.rho, self.n_pixels = float(self.present.float().mean()), 1
        self.shares = class_shares(self.values, n_classes)
        self.register_buffer("seen", self.shares.clone())  # the running mean of what is believed of unlabelled images
        self.register_buffer("confidence", torch.full((), 1 / n_classes))  # the running mean of the likeliest one's p
        self.register_buffer("responsibilities", torch.zeros(0, n_classes))
        self._beliefs: Tensor | None = None  # of this step, by this process

    @property
    def label_head(self) -> LabelHead:
        return cast(LabelHead, self.head)

    def strata(self) -> Tensor:
        return self.values

    def balance(self, n_pixels: int, rho: float) -> None:
        self.n_pixels, self.rho = n_pixels, rho

    def weight(self, step: int) -> float:
        """xi at a step."""
        if self.xi.value is not None:
            return self.xi.value * self.xi.ramp(step)
        if self.rho <= 0:
            raise UserError("xi needs at least one labelled image in a batch (rho > 0)")
        return self.xi.times / self.label_head.n_classes * (self.n_pixels / self.rho) * self.xi.ramp(step)

    def rows(self, index: Tensor, generator: torch.Generator, rows: Rows) -> Tensor:
        return self.values[index.to(self.values.device)].to(self.seen.device)

    def side(self, rows: Tensor, code: Tensor, step: int) -> Side:
        log_p = self.label_head.log_prob(rows, code)
        known = rows >= 0
        mean = log_p.detach()[known].mean() if bool(known.any()) else torch.zeros((), device=code.device)
        return Side(self.weight(step) * log_p, mean)

    def log_prior(self, step: int) -> Tensor:
        """N(0, I) on beta, counted once per data set in the units of the labels: N images make the whole of it."""
        return self.weight(step) * self.rho * self.label_head.log_prior(self.n_labelled)

    def scale(self, step: int) -> float:
        return self.weight(step) * self.rho

    def see(self, views: Sequence[Posterior]) -> list[Tensor]:
        """[B, C] for each view: E_q(s|X') log p(c | s) of every class c."""
        return [self.label_head.expected_log_prob_all(view.mean, view.log_spread) for view in views]

    def gain(self, rows: Tensor, seen: list[Tensor], step: int) -> tuple[Tensor, Tensor]:
        """Sums over images divided by what is expected of a batch, not by what this process has of it: several
        processes then add up to one, though the labelled images of a batch are all with the first of them."""
        known = rows >= 0
        if self.rho <= 0:
            return torch.zeros((), device=rows.device), torch.zeros((), device=rows.device)
        right = [self._given(scores[known], rows[known]) for scores in seen]
        gain = torch.stack(right).mean() / (self.rho * len(rows))
        return gain, gain

    def _given(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The sum over images of log p of their labels, some of it spread over all classes."""
        alone = scores.gather(1, labels[:, None]).sum()
        return alone if not self.smoothing else torch.lerp(alone, scores.mean(1).sum(), self.smoothing)

    @torch.no_grad()
    def believe(self, code: Tensor) -> PseudoLabels:
        scores = self.label_head.log_prob_all(code)
        self._beliefs = beliefs(scores)
        threshold = adaptive(self.confidence, self.seen) if self.threshold is None else self.threshold
        return pseudo_labels(scores, self.seen, self.shares.to(self.seen), threshold)

    def learn(self, pseudo: PseudoLabels, rows: Tensor, which: Tensor, seen: list[Tensor], step: int) -> Learned:
        n = len(which)
        # A distribution, not (25): hinges would draw all decision values of an image that is not sure to -1.
        log_p = [self.label_head.normalised(scores[which]) for scores in seen]
        total = torch.stack([(pseudo.label * scores).sum() for scores in log_p]).mean()
        gain = total / (max(self.rho, 1 - self.rho) * n)  # none weighs more than a labelled image
        return Learned(gain, {"sure": pseudo.sure.sum() / ((1 - self.rho) * n), "pseudo": gain})

    @torch.no_grad()
    def refresh(self, codes: Tensor, spread: LabelSpreading, generator: torch.Generator) -> None:
        """What the classifier itself says is left out on purpose: multiplied in, its mistakes confirmed themselves
        (docs/experiments.md)."""
        self.responsibilities = spread(codes, self.values, self.shares, generator).to(self.seen.device)

    def spread_gain(self, index: Tensor, seen: list[Tensor]) -> Tensor | None:
        if not len(self.responsibilities):
            return None
        r = self.responsibilities[index.to(self.responsibilities.device)]
        return torch.stack([(r * self.label_head.normalised(score)).sum(1).mean() for score in seen]).mean()

    @torch.no_grad()
    def after_step(self) -> None:
        if self._beliefs is not None:
            remember(self.seen, sum_over_processes(self._beliefs), self.confidence)
            self._beliefs = None


def class_shares(labels: Tensor, n_classes: int) -> Tensor:
    """How frequent the classes are among the labels, one imagined image of each added: few labels say little."""
    counts = torch.bincount(labels[labels >= 0], minlength=n_classes).float() + 1
    return counts / counts.sum()
