"""Beyond the paper: a contrastive term. Two augmented views of one image have codes nearer than those of other images.

    contrast = mean over images of log [ exp(cos(s, s') / t) / sum over the other 2B - 1 codes of exp(cos(s, .) / t) ]

plus log(2B - 1): a lower bound on the mutual information I(s; s') of the two codes (van den Oord et al., 2018), which
cannot exceed log(2B - 1). What is assumed: augmentation changes nothing that a label could depend on.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive(first: Tensor, second: Tensor, temperature: float = 0.2) -> Tensor:
    """Codes [B, J] of two views of the same images; a scalar in nats."""
    n = len(first)
    codes = F.normalize(torch.cat([first, second]), dim=1)
    similarity = codes @ codes.T / temperature
    similarity = similarity.masked_fill(torch.eye(2 * n, dtype=torch.bool, device=codes.device), -math.inf)
    partner = torch.arange(2 * n, device=codes.device).roll(n)
    return math.log(2 * n - 1) - F.cross_entropy(similarity, partner)
