"""Section 2.2 with X the feature map of a pretrained network: a small network in place of the paper's layers.

    U     = W1 (X - centre) / scale                        1 x 1 filters: features need no further looking around
    z     ~ q(z | X), C = E_q[U_z]                         as the paper's (5), (6), where X is a grid; else C = U
    mu, log sigma = W2 gelu(C) + W3 mean over places of X  the second term is linear: with few images it carries most

A code may keep the places of a grid (`place_architecture`): then all of this is done at each place by itself, with X
there in the mean's place and no z, and a caption head attends to the places (heads/captions.py).

Dropout before every matrix, in training alone. What is learned on features by gradient (captions, tags, and labels
beside them) has this encoder; labels alone have a closed form (features.py).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import PoolingMLP
from semisight.model.ops.places import Chosen, pool_expected
from semisight.model.ops.pooling import FAST, Operators
from semisight.model.posterior import Noise, Posterior

GRID_MAPS = 256  # of the layer below the code, where X is a grid


class FeatureNetwork(nn.Module):
    """q(s, z | X) of feature maps [C, H, W, B].

    Args:
        architecture: as `grid_architecture` makes it: no pooled layer, or one with 1 x 1 filters.
        hidden_size: units between features and code, where there are no places.
        dropout: the share of numbers that is left out in training.
        generator: of the start.
        operators: fast or naive ones.
    """

    mean_is_exact = True
    centre: Tensor
    scale: Tensor

    def __init__(
        self,
        architecture: Architecture,
        hidden_size: int = 512,
        dropout: float = 0.2,
        generator: torch.Generator | None = None,
        operators: Operators = FAST,
    ) -> None:
        super().__init__()
        generator = generator or torch.Generator().manual_seed(0)
        below = architecture.layers[:-1]
        self.keeps_places = architecture.code_shape[1:] != (1, 1)
        if self.keeps_places and architecture.code_shape[1:] != architecture.image_shape[1:]:
            raise UserError("the code of a network of features is flat, or has the places of its grid.")
        if len(below) > (0 if self.keeps_places else 1) or any(layer.kernel != 1 for layer in below):
            raise UserError("a network of features has at most one pooled layer, of 1 x 1 filters, below a flat code.")
        self.architecture, self.operators, self.hidden_size = architecture, operators, hidden_size
        self.has_places, self.code_shape = bool(below), architecture.code_shape  # places z, not those of the code
        channels, n_code = architecture.image_shape[0], self.code_shape[0]
        maps = below[0].maps if below else hidden_size
        n_blocks = architecture.shapes[0].pooled[0] * architecture.shapes[0].pooled[1] if below else 1
        self.register_buffer("centre", torch.zeros(*architecture.image_shape, 1))
        self.register_buffer("scale", torch.ones(()))
        self.first, self.top = nn.Linear(channels, maps), nn.Linear(maps * n_blocks, 2 * n_code)
        self.direct = nn.Linear(channels, 2 * n_code, bias=False)
        self.dropout = nn.Dropout(dropout)
        if below:
            self.places = PoolingMLP(below[0].pool ** 2, 5.0, 1.0, generator)
        with torch.no_grad():
            for layer in (self.first, self.top, self.direct):
                layer.weight.normal_(0, layer.in_features**-0.5, generator=generator)
            self.first.bias.zero_()
            for layer in (self.top, self.direct):
                layer.weight[n_code:] *= 0.1
            self.top.bias.zero_()
            self.top.bias[n_code:] = -1.0  # a start that lets the image through

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        """`through` lets the gradient pass through the drawn z to q."""
        scaled = self.dropout((x - self.centre) / self.scale)
        blocks = self._blocks(scaled)
        chosen: tuple[Chosen, ...] = ()
        if self.has_places:
            found: Chosen = self.operators.choose(blocks, self.places.weights(), noise.uniform[0], True, through)
            blocks, chosen = found.pooled[None], (found,)
        mu, log_sigma = self._moments(scaled, blocks[0])
        return Posterior(mu, log_sigma, mu + noise.eps * log_sigma.exp(), chosen)

    @torch.no_grad()
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scaled = (x - self.centre) / self.scale
        blocks = self._blocks(scaled)
        return self._moments(scaled, pool_expected(blocks, self.places.weights()) if self.has_places else blocks[0])

    def _blocks(self, scaled: Tensor) -> Tensor:
        """U as [P, K, h, w, B]: the places of every block first."""
        channels, height, width, n = scaled.shape
        maps = torch.addmm(self.first.bias[:, None], self.first.weight, scaled.reshape(channels, -1))
        p = self.architecture.layers[0].pool
        split = maps.view(-1, height // p, p, width // p, p, n).permute(2, 4, 0, 1, 3, 5)
        return split.reshape(p * p, -1, height // p, width // p, n)

    def _moments(self, scaled: Tensor, pooled: Tensor) -> tuple[Tensor, Tensor]:
        if self.keeps_places:
            pooled, seen = pooled.flatten(1), scaled.flatten(1)  # [K, h w B], [C, h w B]
        else:
            pooled, seen = pooled.flatten(0, 2), scaled.mean((1, 2))  # [K h w, B], [C, B]
        maps = (self.top(self.dropout(F.gelu(pooled.T))) + self.direct(seen.T)).T
        mu, log_sigma = maps.reshape(2, *self.code_shape, -1)
        return mu, log_sigma

    @torch.no_grad()
    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        self.centre.copy_(mean)
        self.scale.copy_(variance.sqrt())


def grid_architecture(feature_shape: tuple[int, int, int], code_size: int) -> Architecture:
    """The decoder's layers for features [C, h, w]: 1 x 1 alone is a linear map; a grid has one layer with places.

    7 x 7: one block of 49 places for each map; 9 x 9: 3 x 3 blocks of 9.
    """
    _, height, width = feature_shape
    if (height, width) == (1, 1):
        return Architecture(feature_shape, (Layer(code_size, 1),))
    if height != width:
        raise UserError(f"a grid of features is square, not {height} x {width}.")
    pool = next(p for p in range(2, height + 1) if height % p == 0)
    return Architecture(feature_shape, (Layer(GRID_MAPS, 1, pool), Layer(code_size, height // pool)))


def place_architecture(feature_shape: tuple[int, int, int], maps: int) -> Architecture:
    """The decoder's layer for features [C, h, w] whose code keeps their places: the same linear map at each."""
    return Architecture(feature_shape, (Layer(maps, 1),))
