"""Pictures of a model whose X are features: what images with such a code look like, small and blurred.

    pixels = W s + bias + noise        least squares with a ridge, in closed form, once the model is learned
    s ~ N(centre, spread^2)            for samples: the codes of images lie where these do, not all over N(0, I)

It is learned beside the model and has no say in its codes: nothing of it enters the bound.
"""

from typing import Self

import torch
from torch import Tensor, nn

_RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # as shares of the mean variance of a number of the code
_HELD_OUT = 5  # every fifth image says which ridge


class PixelDecoder(nn.Module):
    """From codes [B, J] to pictures [B, C, H, W] in [0, 1]; `explained` is the share of the variance of pictures that
    it had not seen, as the ridge was chosen."""

    weights: Tensor
    bias: Tensor
    centre: Tensor
    spread: Tensor
    explained: Tensor

    def __init__(self, code_size: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("weights", torch.zeros(code_size, shape[0] * shape[1] * shape[2]))
        self.register_buffer("bias", torch.zeros(self.weights.shape[1]))
        self.register_buffer("centre", torch.zeros(code_size))
        self.register_buffer("spread", torch.ones(code_size))
        self.register_buffer("explained", torch.zeros(()))

    @classmethod
    @torch.no_grad()
    def fit(cls, codes: Tensor, images: Tensor) -> Self:
        """From codes [N, J] of images [N, C, H, W] in [0, 1], at least two of them."""
        found = cls(codes.shape[1], (images.shape[1], images.shape[2], images.shape[3]))
        s, x = codes.double(), images.flatten(1).double()
        ridge = _RIDGES[-1]
        aside = torch.arange(len(s)) % _HELD_OUT == _HELD_OUT - 1
        if bool(aside.any()):
            fits = [(_solve(s[~aside], x[~aside], one), one) for one in _RIDGES]
            errors = [float((x[aside] - _mean(s[aside], *fit)).square().sum()) for fit, _ in fits]
            best = min(range(len(fits)), key=errors.__getitem__)
            ridge = fits[best][1]
            variance = float((x[aside] - x[~aside].mean(0)).square().sum())
            found.explained.fill_(1 - errors[best] / max(variance, 1e-12))
        weights, bias = _solve(s, x, ridge)
        found.weights.copy_(weights)
        found.bias.copy_(bias)
        found.centre.copy_(s.mean(0))
        found.spread.copy_(s.std(0, correction=0))
        return found

    def forward(self, codes: Tensor) -> Tensor:
        return (codes @ self.weights + self.bias).clamp(0, 1).view(-1, *self.shape)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n pictures of codes that are drawn as those of images lie."""
        eps = torch.randn(n, len(self.centre), generator=generator).to(self.centre)
        return self(self.centre + self.spread * eps)


def _solve(s: Tensor, x: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    centre, mean = s.mean(0), x.mean(0)
    inputs = s - centre
    gram = inputs.T @ inputs
    gram.diagonal().add_(ridge * float(gram.diagonal().mean()) + 1e-9)
    weights = torch.linalg.solve(gram, inputs.T @ (x - mean))  # [J, pixels]
    return weights, mean - centre @ weights


def _mean(s: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    return s @ weights + bias
