"""Conditional of s: Gaussian, because X is linear in s given z and (28) is Gaussian in s given lambda and beta.

    s | rest ~ N(s' + Q^-1 gradient, Q^-1),    Q = prior precision + alpha0 A(z)'A(z)

with the gradient of the log-posterior taken at the current s': the same formula serves the whole code at once and, with
Q and the gradient restricted to some of its maps, a part of it given the rest. z differs between images, and so Q does.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.model.image_decoder import ImageDecoder
from semisight.model.image_encoder import flat_code, maps_of_code
from semisight.model.labels import SMALLEST_LAMBDA, BayesianSVM, one_versus_all
from semisight.sampling.painting import paint_code

LARGEST_BLOCK = 1024  # codes up to this size are drawn at once, larger ones by groups of maps
_MATRIX_ELEMENTS = 8_000_000  # of A(z) for the images worked on at a time


@dataclass(frozen=True)
class CodePrior:
    """log p(s) = -s'Ps/2 + linear's, P = diag(diagonal) + beta diag(weight) beta': a Gaussian for every image.

    Without labels P is the identity; with them weight = gamma / lambda, image by image.
    """

    diagonal: Tensor  # [B, J]
    linear: Tensor  # [B, J]
    weight: Tensor | None = None  # [B, C]
    beta: Tensor | None = None  # [J, C]

    def times(self, s: Tensor) -> Tensor:
        """P s for codes [B, J]."""
        out = self.diagonal * s
        if self.weight is not None and self.beta is not None:
            out = out + (self.weight * (s @ self.beta)) @ self.beta.T
        return out

    def add_to(self, precision: Tensor, units: slice) -> None:
        """Adds the rows and columns `units` of P to precisions [B, J, J]."""
        precision.diagonal(dim1=1, dim2=2).add_(self.diagonal[:, units])
        if self.weight is not None and self.beta is not None:
            beta = self.beta[units]
            precision += (beta * self.weight[:, None, :]) @ beta.T

    def rows(self, images: slice) -> "CodePrior":
        weight = None if self.weight is None else self.weight[images]
        return CodePrior(self.diagonal[images], self.linear[images], weight, self.beta)


def standard_prior(decoder: ImageDecoder, batch: int) -> CodePrior:
    """p(s) = N(0, I)."""
    diagonal = decoder.log_alpha0.new_ones(batch, decoder.architecture.code_size)
    return CodePrior(diagonal, torch.zeros_like(diagonal))


@torch.no_grad()
def label_prior(decoder: ImageDecoder, head: BayesianSVM, labels: Tensor, lam: Tensor) -> CodePrior:
    """p(s) p(y, lambda | s) with (28) = exp(-gamma/lambda (1 + lambda - y (beta's + bias))^2 / 2) but for a constant.

    A label of -1 adds nothing.
    """
    plain = standard_prior(decoder, len(labels))
    y = one_versus_all(labels, head.n_classes).to(lam.dtype)
    weight = head.gamma * y.abs() / lam.clamp_min(SMALLEST_LAMBDA)
    bias = torch.zeros_like(head.gamma) if head.scores.bias is None else head.scores.bias
    beta = head.scores.beta.detach()
    return CodePrior(plain.diagonal, (weight * (y * (1 + lam) - bias)) @ beta.T, weight, beta)


@torch.no_grad()
def draw_code(
    decoder: ImageDecoder,
    residual: Tensor,
    s: Tensor,
    places: tuple[Tensor, ...],
    prior: CodePrior,
    alpha0: Tensor,
    generator: torch.Generator | None,
    largest_block: int = LARGEST_BLOCK,
) -> Tensor:
    """A new s [K_L, h, w, B] given z; `residual` [C, H, W, B] is X - X^ at the old one and is kept up to date.

    Without a generator: the conditional mean (by groups of maps, one step towards it).
    """
    code = flat_code(s).clone(memory_format=torch.contiguous_format)  # [B, J]
    left = residual.flatten(0, 2).T.clone(memory_format=torch.contiguous_format)  # [B, pixels]
    noise = torch.zeros_like(code)
    if generator is not None:
        noise = torch.randn(code.shape, generator=generator, dtype=code.dtype).to(code.device)
    maps, h, w = decoder.architecture.code_shape
    group = max(1, largest_block // (h * w))
    for first in range(0, maps, group):
        chosen = slice(first, min(first + group, maps))
        units = slice(chosen.start * h * w, chosen.stop * h * w)
        step = max(1, _MATRIX_ELEMENTS // (left.shape[1] * (units.stop - units.start)))
        for start in range(0, len(code), step):
            images = slice(start, min(start + step, len(code)))
            a = paint_code(decoder, tuple(p[..., images] for p in places), chosen)
            a = a.expand(images.stop - start, -1, -1)  # without z all images share A
            here = prior.rows(images)
            slope = (here.linear - here.times(code[images]))[:, units]
            slope = slope + alpha0 * torch.bmm(left[images, None], a)[:, 0]
            change = _draw(_root(a, alpha0, here, units), slope, noise[images, units])
            code[images, units] += change
            left[images] -= torch.bmm(a, change[..., None])[..., 0]
    residual.copy_(left.T.view(residual.shape))
    return maps_of_code(code, decoder.architecture)


def _root(a: Tensor, alpha0: Tensor, prior: CodePrior, units: slice) -> Tensor:
    """The Cholesky factor of Q, [B, J, J]."""
    precision = torch.bmm(a.transpose(1, 2), a).mul_(alpha0)
    prior.add_to(precision, units)
    root, failed = torch.linalg.cholesky_ex(precision)
    if not bool(failed.any()):
        return root
    precision = torch.bmm(a.double().transpose(1, 2), a.double()).mul_(alpha0)  # float32 lost the smallest directions
    prior.add_to(precision, units)
    return torch.linalg.cholesky(precision)


def _draw(root: Tensor, slope: Tensor, noise: Tensor) -> Tensor:
    """N(Q^-1 slope, Q^-1) from standard normal noise, image by image: [B, J]."""
    columns = torch.linalg.solve_triangular(root, slope[..., None].to(root.dtype), upper=False)
    columns = columns + noise[..., None].to(root.dtype)
    return torch.linalg.solve_triangular(root.transpose(1, 2), columns, upper=True)[..., 0].to(slope.dtype)
