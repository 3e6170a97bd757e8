"""Beyond the paper: a contrastive term. Two augmented views of one image have codes nearer than those of other images.

    contrast = mean over images of log [ exp(cos(s, s') / t) / sum over the other 2B - 1 codes of exp(cos(s, .) / t) ]

plus log(2B - 1): a lower bound on the mutual information I(s; s') of the two codes (van den Oord et al., 2018), which
cannot exceed log(2B - 1). What is assumed: augmentation changes nothing that a label could depend on.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.objectives.step import Rows, whole_batch


def contrastive(first: Tensor, second: Tensor, temperature: float = 0.2, rows: Rows | None = None) -> Tensor:
    """Codes [B, J] of two views of the same images; a scalar in nats, the mean over these images.

    They are compared with the codes of the whole batch, of which several processes have their `rows`.
    """
    n = len(first) if rows is None else rows.total
    codes = F.normalize(torch.cat([first, second]), dim=1)
    if rows is None or rows.count == rows.total:
        own, all_codes = torch.arange(2 * n, device=codes.device), codes
    else:
        here = torch.arange(rows.start, rows.stop, device=codes.device)
        own = torch.cat([here, here + n])
        all_codes = torch.cat([whole_batch(view, rows) for view in codes.chunk(2)])
    similarity = codes @ all_codes.T / temperature
    itself = own[:, None] == torch.arange(2 * n, device=codes.device)
    return math.log(2 * n - 1) - F.cross_entropy(similarity.masked_fill(itself, -math.inf), (own + n) % (2 * n))
