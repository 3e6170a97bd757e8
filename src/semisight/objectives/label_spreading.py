"""Beyond the paper: label spreading. Labels of unlabelled images, from the labelled ones over a graph of codes.

    w_ij   = exp((cos(s_i, s_j) - the best of row i) / width) between each code and its k nearest, made symmetric
    Z      <- alpha D^-1/2 W D^-1/2 Z + (1 - alpha) Y          label spreading (Zhou et al., 2004) from known labels Y
    r_n    = Z_n, scaled in turns until rows sum to one and columns to the classes' shares

What is assumed: images whose codes are near each other mostly share a label, and the classes' shares are known (equal,
or those of the labels). The graph is built on a random part of the images, with all labelled ones, and the rest take
the labels of their nearest in that part: cost grows with images x part, not with images squared.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class LabelSpreading:
    """How labels spread: nearest neighbours per code, weight of the neighbours, size of the part with a graph."""

    neighbours: int = 10
    alpha: float = 0.99
    width: float = 0.1
    iterations: int = 100
    part: int = 15_000

    def __call__(self, codes: Tensor, labels: Tensor, shares: Tensor, generator: torch.Generator) -> Tensor:
        """Codes [N, J], labels [N] (-1 where unknown), the classes' shares [C]; gives r, [N, C]."""
        directions = F.normalize(codes - codes.mean(0), dim=1)
        known = (labels >= 0).nonzero().squeeze(1)
        others = (labels < 0).nonzero().squeeze(1)
        drawn = others[torch.randperm(len(others), generator=generator)[: max(0, self.part - len(known))]]
        part = torch.cat([known, drawn])
        inside = self._spread(directions[part], labels[part], len(shares))
        rest = torch.ones(len(labels), dtype=torch.bool)
        rest[part] = False
        outside = rest.nonzero().squeeze(1)
        result = torch.zeros(len(labels), len(shares))
        result[part] = inside
        if len(outside):
            weights, index = nearest(directions[outside], directions[part], min(self.neighbours, len(part)))
            weights = torch.softmax(weights / self.width, 1)
            result[outside] = (weights[:, :, None] * inside[index]).sum(1)
        result = balanced(result, shares)
        result[known] = F.one_hot(labels[known], len(shares)).to(result)
        return result

    def _spread(self, directions: Tensor, labels: Tensor, n_classes: int) -> Tensor:
        from scipy import sparse  # here: few trainings spread labels, and all would wait for its import

        n, k = len(labels), min(self.neighbours, len(labels) - 1)
        weights, index = nearest(directions, directions, k + 1)
        weights, index = weights[:, 1:], index[:, 1:]  # without itself
        weights = torch.exp((weights - weights[:, :1]) / self.width)
        rows = np.repeat(np.arange(n), k)
        graph = sparse.csr_matrix((weights.numpy().ravel(), (rows, index.numpy().ravel())), shape=(n, n))
        graph = graph.maximum(graph.T)
        scale = sparse.diags(1 / np.sqrt(np.asarray(graph.sum(1)).ravel() + 1e-12))
        graph = (scale @ graph @ scale).tocsr()
        known = np.zeros((n, n_classes), np.float32)
        labelled = (labels >= 0).numpy()
        known[labelled, labels.numpy()[labelled]] = 1
        z = known
        for _ in range(self.iterations):
            z = self.alpha * (graph @ z) + (1 - self.alpha) * known
        return torch.from_numpy(np.asarray(z, np.float32))


def nearest(queries: Tensor, among: Tensor, k: int, rows: int = 500) -> tuple[Tensor, Tensor]:
    """The k largest inner products of each query, and where they are, [n, k] each; a few rows at a time."""
    parts = [torch.topk(chunk @ among.T, k, dim=1) for chunk in queries.split(rows)]
    return torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])


def balanced(z: Tensor, shares: Tensor, turns: int = 30) -> Tensor:
    """Rows that sum to one and columns that sum to n times the classes' shares, by scaling in turns (Sinkhorn)."""
    z = z.clamp_min(1e-12)
    for _ in range(turns):
        z = z * (len(z) * shares / z.sum(0))
        z = z / z.sum(1, keepdim=True)
    return z
