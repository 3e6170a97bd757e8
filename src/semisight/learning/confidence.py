"""Beyond the paper: what the model is sure of on an image moved a little is what it learns on the image moved far.

    p      = p(label | a little moved X), each class scaled so that over time classes come as often as their shares
    target = the likeliest class of p, where its probability is above `threshold`; else there is none

(confident pseudo-labels, Lee, 2013, and Sohn et al., 2020; shares: Berthelot et al., 2020). What is assumed: the moves
keep the label, and the classes' shares are known (equal, or those of the labels). An image of which the model is not
sure pulls on nothing, so that mistakes do not confirm themselves before they are corrected.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MEMORY = 0.99  # of the running mean of p, per step


@dataclass(frozen=True)
class Targets:
    """Probable labels of a batch: int64 [B], and which of them count, [B] of 0 and 1."""

    label: Tensor
    sure: Tensor


@torch.no_grad()
def confident_targets(scores: Tensor, seen: Tensor, shares: Tensor, threshold: float) -> Targets:
    """From log p(label | X) up to a constant per image, [B, C], and the running mean `seen` of p, [C]."""
    p = scores.softmax(1) * (shares / seen.clamp_min(1e-6))
    p = p / p.sum(1, keepdim=True)
    probability, label = p.max(1)
    return Targets(label, (probability > threshold).to(scores.dtype))


@torch.no_grad()
def said(scores: Tensor) -> Tensor:
    """What `remember` needs of a batch, [C + 1]: the sum of p, and of how many images it is. Sums of parts add up."""
    return torch.cat([scores.softmax(1).sum(0), scores.new_tensor([len(scores)])])


@torch.no_grad()
def remember(seen: Tensor, of_batch: Tensor) -> None:
    """Brings the running mean of p up to date, in place, by what was `said` of a batch."""
    if of_batch[-1] > 0:
        seen.lerp_((of_batch[:-1] / of_batch[-1]).to(seen), 1 - MEMORY)


def total_gain(scores: Tensor, targets: Targets) -> Tensor:
    """Sum over the images of log p(target | X), zero where there is no target."""
    chosen = scores.gather(1, targets.label[:, None]).squeeze(1)
    return (chosen * targets.sure).sum()
