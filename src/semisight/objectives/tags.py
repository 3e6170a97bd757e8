"""Several labels per image as a target: any of C tags, each known or unknown. Written on the seam of targets.py alone.

    side     xi sum over known tags of log p(y_l | s)
    gain     its mean over q(s | X') in closed form, X' strongly augmented
    learn    tags that the averaged model is sure of on the weakly augmented image, one by one: also of an image of
             which some tags are known and others not

rho is the share of a batch's entries that are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.heads.tags import TagHead, pick_tags
from semisight.model.posterior import Posterior
from semisight.objectives.step import Rows
from semisight.objectives.targets import Learned, Side, Target, Xi, per_other


@dataclass(frozen=True)
class PseudoTags:
    """int8 [B, C]: 1 or 0 where the model is sure, else -1."""

    values: Tensor


class Tags(nn.Module, Target):
    """Any of C tags per image.

    Args:
        head: p(y | s), a `TagHead`.
        values: [N, C], 1 (has it), 0 (has it not) or -1 (unknown) for the training images.
        xi: the weight of tags beside images; by default the paper's for C numbers, N_X / (C rho).
        names: of the tags, for people; by default their numbers.
        threshold: a pseudo-tag's probability, of having it or not, above which it is learned.

    Example:
        >>> import torch
        >>> import semisight as ss
        >>> tags = ss.Tags(ss.TagHead(8, 2), [[1, 0], [-1, -1], [0, -1]])
        >>> tags.present.tolist()
        [True, False, True]
    """

    def __init__(
        self,
        head: TagHead,
        values: Any,
        *,
        xi: Xi | None = None,
        names: Sequence[str] | None = None,
        threshold: float = 0.95,
        name: str = "tags",
    ) -> None:
        super().__init__()
        self.name, self.head, self.xi, self.threshold = name, head, xi or Xi(), threshold
        self.values = torch.as_tensor(values).to(torch.int8)
        self.names = tuple(names or (str(c) for c in range(head.n_tags)))
        if self.values.dim() != 2 or self.values.shape[1] != head.n_tags:
            raise UserError(f"tags must be [N, {head.n_tags}], one column for each tag, not {list(self.values.shape)}.")
        self.present = (self.values >= 0).any(1)
        n_known = int((self.values >= 0).sum())
        self.n_tagged = max(1.0, n_known / head.n_tags)  # as many images with all their tags would know as much
        self.share = n_known / max(1, int(self.present.sum()) * head.n_tags)  # of the entries of images with any
        self.rho, self.n_pixels = float(self.present.float().mean()) * self.share, 1

    def lacking(self) -> Tensor:
        return (self.values < 0).any(1)

    def balance(self, n_pixels: int, rho: float) -> None:
        self.n_pixels, self.rho = n_pixels, rho * self.share

    def weight(self, step: int) -> float:
        if self.xi.value is not None:
            return self.xi.value * self.xi.ramp(step)
        return self.xi.times / self.head.n_tags * (self.n_pixels / self.rho) * self.xi.ramp(step)

    def rows(self, index: Tensor, generator: torch.Generator, rows: Rows) -> Tensor:
        return self.values[index.cpu()].to(self.head.scores.beta.device)

    def side(self, rows: Tensor, code: Tensor, step: int) -> Side:
        log_p = self.head.log_prob(rows, code)
        n_known = (rows >= 0).sum().clamp_min(1)
        return Side(self.weight(step) * log_p, log_p.detach().sum() / n_known)

    def log_prior(self, step: int) -> Tensor:
        return self.weight(step) * self.rho / self.n_tagged * self.head.log_prior(1)

    def see(self, views: Sequence[Posterior]) -> list[tuple[Tensor, Tensor]]:
        return [self.head.expected_log_prob_each(view.mean, view.log_spread) for view in views]

    def gain(self, rows: Tensor, seen: list[tuple[Tensor, Tensor]], step: int) -> tuple[Tensor, Tensor]:
        total = torch.stack([pick_tags(rows, has, has_not).sum() for has, has_not in seen]).mean()
        return self.weight(step) * total / len(rows), total.detach() / (rows >= 0).sum().clamp_min(1)

    @torch.no_grad()
    def believe(self, code: Tensor) -> PseudoTags:
        p = self.head.probability(self.head.decision(code))
        sure = torch.where(p > self.threshold, 1, torch.where(p < 1 - self.threshold, 0, -1))
        return PseudoTags(sure.to(torch.int8))

    def learn(
        self, pseudo: PseudoTags, rows: Tensor, which: Tensor, seen: list[tuple[Tensor, Tensor]], step: int
    ) -> Learned:
        values = torch.where(rows[which] < 0, pseudo.values, -1)  # what is known is learned by `gain`
        total = torch.stack([pick_tags(values, has[which], has_not[which]).sum() for has, has_not in seen]).mean()
        sure = (values >= 0).float().sum()
        terms = {"sure": sure / max(1, values.numel()), "pseudo": total.detach() / sure.clamp_min(1)}
        return Learned(self.weight(step) * per_other(self.rho) * total / len(which), terms)
