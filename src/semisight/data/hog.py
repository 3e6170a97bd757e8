"""Histograms of oriented gradients (Dalal and Triggs, 2005): what classifiers of photographs used before networks.

Grey images, gradients by central differences, 9 unsigned directions (a gradient counts for the two nearest), cells of
8 x 8 pixels, blocks of 2 x 2 cells of unit length, clipped at 0.2 and of unit length again. A line to compare with,
not a way to learn.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CELL, DIRECTIONS, CLIP = 8, 9, 0.2


def hog(images: Tensor) -> Tensor:
    """[N, C, H, W] to [N, (H/8 - 1) (W/8 - 1) 36]; sides of at least 16 pixels, a rest of less than 8 is left out."""
    grey = images.float().mean(1, keepdim=True)
    height, width = (side // CELL * CELL for side in grey.shape[2:])
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    dx = (padded[:, 0, 1:-1, 2:] - padded[:, 0, 1:-1, :-2])[:, :height, :width]
    dy = (padded[:, 0, 2:, 1:-1] - padded[:, 0, :-2, 1:-1])[:, :height, :width]
    size = (dx.square() + dy.square()).sqrt()
    place = torch.remainder(torch.atan2(dy, dx), math.pi) * (DIRECTIONS / math.pi)  # 0 .. 9, a circle
    below = place.floor()
    above = place - below
    maps = torch.zeros(len(images), DIRECTIONS, height, width)
    first = below.long() % DIRECTIONS
    maps.scatter_add_(1, first[:, None], ((1 - above) * size)[:, None])
    maps.scatter_add_(1, ((first + 1) % DIRECTIONS)[:, None], (above * size)[:, None])
    cells = F.avg_pool2d(maps, CELL)  # [N, 9, h, w]
    corners = [cells[:, :, i : cells.shape[2] - 1 + i, j : cells.shape[3] - 1 + j] for i in (0, 1) for j in (0, 1)]
    blocks = F.normalize(torch.cat(corners, 1), dim=1, eps=1e-3)
    return F.normalize(blocks.clamp_max(CLIP), dim=1, eps=1e-3).flatten(1)
