"""Beyond the paper: pseudo-labels. What the model believes of a weakly augmented image is learned on a strong one.

    p      = p(label | weakly augmented X), each class scaled so that over time classes come as often as their shares
    target = the likeliest class of p, where its probability is above `threshold`; else p itself

p is that of the averaged weights where the trainer keeps any: they vary less, and are more often right (Tarvainen and
Valpola, 2017). Where the model is sure it becomes surer (confident pseudo-labels, Lee, 2013, and Sohn et al., 2020;
class shares: Berthelot et al., 2020). Where it is not, augmented images are only to agree: p as it is makes no belief
stronger, so mistakes do not confirm themselves before they are corrected. What is assumed: augmentation keeps the
label, and the classes' shares are known (equal, or those of the labels).

The threshold is a number, or follows the model (FreeMatch, Wang et al., 2023): the running mean of how sure it is of
unlabelled images, lower for classes that it believes in more rarely.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

MEMORY = 0.99  # of the running mean of p, per step


@dataclass(frozen=True)
class PseudoLabels:
    """What is to be learned of the images of a batch: a distribution over labels each, [B, C], and which are sure."""

    label: Tensor
    sure: Tensor  # [B] of 0 and 1


@torch.no_grad()
def pseudo_labels(scores: Tensor, seen: Tensor, shares: Tensor, threshold: float | Tensor) -> PseudoLabels:
    """From log p(label | X) up to a constant per image, [B, C], and the running mean `seen` of p, [C]."""
    p = scores.softmax(1) * (shares / seen.clamp_min(1e-6))
    p = p / p.sum(1, keepdim=True)
    probability, likeliest = p.max(1)
    sure = probability > (threshold[likeliest] if isinstance(threshold, Tensor) else threshold)
    alone = torch.nn.functional.one_hot(likeliest, p.shape[1]).to(p)
    return PseudoLabels(torch.where(sure[:, None], alone, p), sure.to(p))


@torch.no_grad()
def adaptive(confidence: Tensor, seen: Tensor) -> Tensor:
    """The threshold of each class, [C], from the running means of the likeliest class's p and of p itself, [C]."""
    return confidence * seen / seen.max()


@torch.no_grad()
def beliefs(scores: Tensor) -> Tensor:
    """What `remember` needs of a batch, [C + 2]: the sums of p and of the likeliest one's p, and of how many images
    they are. Sums of parts add up."""
    p = scores.softmax(1)
    return torch.cat([p.sum(0), p.amax(1).sum()[None], scores.new_tensor([len(scores)])])


@torch.no_grad()
def remember(seen: Tensor, of_batch: Tensor, confidence: Tensor | None = None) -> None:
    """Brings the running means of p up to date, in place, by the `beliefs` of a batch."""
    if of_batch[-1] > 0:
        means = of_batch[:-1] / of_batch[-1]
        seen.lerp_(means[:-1].to(seen), 1 - MEMORY)
        if confidence is not None:
            confidence.lerp_(means[-1].to(confidence), 1 - MEMORY)
