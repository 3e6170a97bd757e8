"""Conditional of s: Gaussian, because X is linear in s given z and (28) is Gaussian in s given lambda and beta.

    s | rest ~ N(s' + Q^-1 slope, Q^-1),    Q = prior precision + alpha0 A(z)'A(z)

with the slope of the log-posterior taken at the current s': the same formula serves the whole code at once and, with
Q and the slope restricted to some of its maps, a part of it given the rest. z differs between images, and so Q does.

Labels: in s, (28) is an observation y (1 + lambda) - bias of beta's with variance lambda / gamma. lambda may be as
small as 1e-12, and gamma / lambda in Q would drown everything else; so a draw without labels is made first and then
moved by what the observations say against it (Matheron's rule), which is exact and only solves a C x C system.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.model.decoder import Decoder
from semisight.model.heads.labels import SMALLEST_LAMBDA, BayesianSVM, one_versus_all
from semisight.model.posterior import flat_code, maps_of_code
from semisight.sampling.decoder_matrix import paint_code

LARGEST_BLOCK = 1024  # codes up to this size are drawn at once, larger ones by groups of maps
_MATRIX_ELEMENTS = 8_000_000  # of A(z) for the images worked on at a time


@dataclass(frozen=True)
class Observed:
    """beta's seen as `target` with noise of that variance, where `known`: what labels say of the codes."""

    beta: Tensor  # [J, C]
    target: Tensor  # [B, C]
    variance: Tensor  # [B, C]
    known: Tensor  # [B], bool

    def rows(self, images: slice) -> "Observed":
        return Observed(self.beta, self.target[images], self.variance[images], self.known[images])


@dataclass(frozen=True)
class CodePrior:
    """log p(s) = -sum_j diagonal_j s_j^2 / 2 + linear's, image by image, and labels where there are any."""

    diagonal: Tensor  # [B, J]
    linear: Tensor  # [B, J]
    labels: Observed | None = None

    def rows(self, images: slice) -> "CodePrior":
        labels = None if self.labels is None else self.labels.rows(images)
        return CodePrior(self.diagonal[images], self.linear[images], labels)


def standard_prior(decoder: Decoder, batch: int) -> CodePrior:
    """p(s) = N(0, I)."""
    diagonal = decoder.log_alpha0.new_ones(batch, decoder.architecture.code_size)
    return CodePrior(diagonal, torch.zeros_like(diagonal))


@torch.no_grad()
def label_prior(decoder: Decoder, head: BayesianSVM, labels: Tensor, lam: Tensor) -> CodePrior:
    """p(s) p(y, lambda | s) with (28) = exp(-gamma/lambda (1 + lambda - y (beta's + bias))^2 / 2) but for a constant.

    A label of -1 adds nothing.
    """
    plain = standard_prior(decoder, len(labels))
    y = one_versus_all(labels, head.n_classes).to(lam.dtype)
    bias = torch.zeros_like(head.gamma) if head.scores.bias is None else head.scores.bias
    observed = Observed(head.scores.beta.detach(), y * (1 + lam) - bias, lam / head.gamma_of(y), labels >= 0)
    return CodePrior(plain.diagonal, plain.linear, observed)


@torch.no_grad()
def draw_code(
    decoder: Decoder,
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
    noise = _normal(code, generator)
    maps, h, w = decoder.architecture.code_shape
    group = max(1, largest_block // (h * w))
    for first in range(0, maps, group):
        chosen = slice(first, min(first + group, maps))
        units = slice(chosen.start * h * w, chosen.stop * h * w)
        label_noise = None if prior.labels is None else _normal(prior.labels.target, generator)
        step = max(1, _MATRIX_ELEMENTS // (left.shape[1] * (units.stop - units.start)))
        for start in range(0, len(code), step):
            images = slice(start, min(start + step, len(code)))
            a = paint_code(decoder, tuple(p[..., images] for p in places), chosen)
            a = a.expand(images.stop - start, -1, -1)  # without z all images share A
            here = prior.rows(images)
            slope = (here.linear - here.diagonal * code[images])[:, units]
            slope = slope + alpha0 * torch.bmm(left[images, None], a)[:, 0]
            root = _root(a, alpha0, here.diagonal[:, units])
            columns = torch.linalg.solve_triangular(root, slope[..., None].to(root.dtype), upper=False)
            columns = columns + noise[images, units, None]
            if here.labels is not None and label_noise is not None:
                columns = _condition(columns, root, here.labels, code[images], units, label_noise[images])
            change = torch.linalg.solve_triangular(root.transpose(1, 2), columns, upper=True)[..., 0].to(code.dtype)
            code[images, units] += change
            left[images] -= torch.bmm(a, change[..., None])[..., 0]
    residual.copy_(left.T.view(residual.shape))
    return maps_of_code(code, decoder.architecture)


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.zeros_like(like)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype).to(like.device)


def _root(a: Tensor, alpha0: Tensor, diagonal: Tensor) -> Tensor:
    """The Cholesky factor of diag + alpha0 A'A, [B, J, J]."""
    root, failed = torch.linalg.cholesky_ex(_lower_precision(a, alpha0, diagonal))
    if not bool(failed.any()):
        return root
    return torch.linalg.cholesky(_lower_precision(a.double(), alpha0, diagonal))  # float32 lost the smallest directions


def _lower_precision(a: Tensor, alpha0: Tensor, diagonal: Tensor) -> Tensor:
    """diag + alpha0 A'A on and below the diagonal, all that Cholesky reads; above it, not to be used.

    Strip by strip: four of them leave out three eighths of the products.
    """
    size = a.shape[2]
    precision = a.new_zeros(len(a), size, size)
    for strip in torch.arange(size).tensor_split(4):
        if len(strip):
            start, stop = int(strip[0]), int(strip[-1]) + 1
            precision[:, start:stop, :stop] = torch.bmm(a[..., start:stop].transpose(1, 2), a[..., :stop])
    precision.mul_(alpha0).diagonal(dim1=1, dim2=2).add_(diagonal)
    return precision


def _condition(columns: Tensor, root: Tensor, labels: Observed, code: Tensor, units: slice, noise: Tensor) -> Tensor:
    """Moves a draw that saw no labels to one that did; columns [B, J, 1] are the change of s times root'."""
    beta = labels.beta[units].to(root.dtype).expand(len(code), -1, -1)
    v = torch.linalg.solve_triangular(root, beta, upper=False).double()  # beta'Q^-1 beta = v'v
    variance = labels.variance.clamp_min(SMALLEST_LAMBDA).double()
    expected = (code @ labels.beta).double() + torch.bmm(columns.double().transpose(1, 2), v)[:, 0]
    surprise = (labels.target - expected - variance.sqrt() * noise) * labels.known[:, None]
    system = torch.bmm(v.transpose(1, 2), v)
    system.diagonal(dim1=1, dim2=2).add_(variance)
    return columns + torch.bmm(v, torch.linalg.solve(system, surprise)[..., None]).to(columns.dtype)
