"""Table 2, Ladder networks (Rasmus, Valpola, Honkala, Berglund and Raiko, "Semi-supervised learning with ladder
networks", 2015; settings of its authors' code for 100 labels of MNIST).

    encoder, l = 1..L   z(l) = batch norm(layer(h(l-1))) + noise,  h(l) = relu(z(l) + beta), softmax at the top
    decoder, from L     u(l) = batch norm(V(l) z^(l+1)), at the top of the corrupted h(L)
                        z^(l) = g(z~(l), u(l)) = (z~ - mu(u)) v(u) + mu(u)
                        mu(u) = a1 sigmoid(a2 u + a3) + a4 u + a5, and v(u) likewise, for each unit
    minimised           cross-entropy of the corrupted path, labelled images
                        + sum over l of lambda(l) mean square of z(l) - (z^(l) - m(l)) / s(l), the others

z~ is of the corrupted path (noise of deviation 0.3, at the image as well), z and its moments m and s are of the clean
one, which shares all weights. Labelled and other images are normalised apart. Answers come from the clean path with
running statistics, here of the unlabelled images, which are many. `full` has all costs; `gamma_conv` is the
convolutional Gamma-model, whose one cost is at the top.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines.network import BatchNorm, normalised, remember_all, statistics

FULL_UNITS = (1000, 500, 250, 250, 250)
FULL_COSTS = (1000.0, 10.0, 0.1, 0.1, 0.1, 0.1, 0.1)
WIDTHS = (32, 64, 128)  # of Conv-Small
LEAST = 1e-6  # of a variance
Moments = tuple[Tensor, Tensor]  # mean and variance of every unit or map


class Encoded(NamedTuple):
    """z(0)..z(L), their moments (None of the image), and h(L) before the softmax; of the same images."""

    z: list[Tensor]
    moments: list[Moments | None]
    logits: Tensor

    def rows(self, first: int) -> "Encoded":
        """From an image on; the moments stay."""
        return Encoded([z[first:] for z in self.z], self.moments, self.logits[first:])


class Rung(nn.Module):
    """A layer with its normalisation; `beta` is for those with a nonlinearity after them: not for pooling."""

    def __init__(self, layer: nn.Module, units: int, *, rectified: bool = True, beta: bool = True) -> None:
        super().__init__()
        self.layer, self.units, self.rectified = layer, units, rectified
        self.norm = BatchNorm(units, least=LEAST)
        self.beta = nn.Parameter(torch.zeros(units)) if beta else None

    def normalise(self, x: Tensor, n_apart: int, seen: bool) -> tuple[Tensor, Moments]:
        """The first images apart from the others, with the others' moments, which the running ones have `seen`."""
        if not self.training:
            return self.norm(x), (self.norm.mean, self.norm.variance + LEAST)
        parts = []
        for part in x.tensor_split([n_apart]) if 0 < n_apart < len(x) else [x]:
            z, mean, variance = normalised_by_itself(part)
            parts.append(z)
        if seen:
            self.norm.see(mean, variance - LEAST)
        return torch.cat(parts) if len(parts) > 1 else z, (mean, variance)

    def activate(self, z: Tensor) -> Tensor:
        h = z if self.beta is None else z + self.beta.view(1, -1, *(1,) * (z.dim() - 2))
        return torch.relu(h) if self.rectified else h


def normalised_by_itself(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Batch-normalised, with the mean and the variance (LEAST added) that did it. Maps, which have no denoising cost of
    their own, are normalised in one fused pass, whose moments carry no gradient; units keep theirs."""
    if x.dim() > 2:
        z, mean, inverse = torch.native_batch_norm(x, None, None, None, None, True, 0.0, LEAST)
        return z, mean, inverse**-2
    variance, mean = torch.var_mean(x, 0, correction=0)
    return normalised(x, mean, variance + LEAST), mean, variance + LEAST


class Combinator(nn.Module):
    """g of one layer."""

    def __init__(self, units: int) -> None:
        super().__init__()
        start = torch.zeros(10, units)
        start[1] = start[6] = 1.0  # inside the sigmoids
        self.a = nn.Parameter(start)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        a = self.a
        mu = a[0] * torch.sigmoid(a[1] * u + a[2]) + a[3] * u + a[4]
        v = a[5] * torch.sigmoid(a[6] * u + a[7]) + a[8] * u + a[9]
        return (z - mu) * v + mu


class Ladder(nn.Module):
    """`costs` are lambda(0)..lambda(L). The decoder goes down to the lowest that is not zero, through full layers."""

    def __init__(self, n_inputs: int, rungs: Sequence[Rung], costs: Sequence[float], noise: float = 0.3) -> None:
        super().__init__()
        assert len(rungs) == len(costs) - 1 and costs[-1] > 0
        self.costs, self.noise = tuple(costs), noise
        self.rungs = nn.ModuleList(rungs)
        self.lowest = next(l for l, cost in enumerate(costs) if cost > 0)
        sizes = [n_inputs, *(rung.units for rung in rungs)]
        self.g = nn.ModuleDict({str(l): Combinator(sizes[l]) for l in range(self.lowest, len(sizes))})
        self.V = nn.ModuleDict(
            {str(l): nn.Linear(sizes[l + 1], sizes[l], bias=False) for l in range(self.lowest, len(sizes) - 1)}
        )

    def encode(self, images: Tensor, n_labelled: int, noise: float, generator: torch.Generator | None) -> Encoded:
        """Of images of which the first are labelled."""

        def corrupted(x: Tensor) -> Tensor:
            if not noise:
                return x
            drawn = torch.empty_like(x, device="cpu").normal_(generator=generator)  # maps first or last, as in x
            return x + noise * drawn.to(x.device)

        h = corrupted(images)
        kept: list[Tensor] = [h]
        moments: list[Moments | None] = [None]
        for rung in self.rungs:
            assert isinstance(rung, Rung)
            z, of = rung.normalise(rung.layer(h), n_labelled, seen=not noise)
            z = corrupted(z)
            kept.append(z)
            moments.append(of)
            h = rung.activate(z)
        return Encoded(kept, moments, h)

    def denoising(self, corrupted: Encoded, clean: Encoded) -> dict[int, Tensor]:
        """The mean square of every layer that has a cost, by layer, before the cost."""
        found: dict[int, Tensor] = {}
        u = corrupted.logits.softmax(1)
        for l in range(len(self.rungs), self.lowest - 1, -1):
            mean, variance = statistics(u)
            z = self.g[str(l)](corrupted.z[l].flatten(1), normalised(u, mean, variance + LEAST))
            if self.costs[l] > 0:
                moments = clean.moments[l]
                estimate = z if moments is None else normalised(z, *moments)
                found[l] = F.mse_loss(estimate, clean.z[l].flatten(1))
            if l > self.lowest:
                u = self.V[str(l - 1)](z)
        return found

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        order = (labels < 0).to(torch.int8).argsort(stable=True)  # the labelled first
        images, labels = images[order], labels[order]
        n = int((labels >= 0).sum())
        noisy = self.encode(images, n, self.noise, generator)
        others = n if n < len(images) else 0  # where all have a label, these are denoised
        clean = self.encode(images[others:], 0, 0.0, None)
        loss = F.cross_entropy(noisy.logits[:n], labels[:n]) if n else images.new_zeros(())
        terms = {"label": -loss}
        for l, cost in self.denoising(noisy.rows(others), clean).items():
            loss = loss + self.costs[l] * cost
            terms[f"denoising {l}"] = cost
        return loss, terms

    def after_step(self) -> None:
        remember_all(self)

    def scores(self, images: Tensor) -> Tensor:
        return self.encode(images, 0, 0.0, None).logits


def full(shape: tuple[int, int, int], n_classes: int, units: Sequence[int] = FULL_UNITS) -> Ladder:
    """Fully connected, with a denoising cost at every layer."""
    n_inputs = shape[0] * shape[1] * shape[2]
    sizes = [n_inputs, *units, n_classes]
    rungs = [
        Rung(nn.Sequential(nn.Flatten(), nn.Linear(n_in, n_out, bias=False)), n_out, rectified=l < len(units))
        for l, (n_in, n_out) in enumerate(itertools.pairwise(sizes))
    ]
    return Ladder(n_inputs, rungs, FULL_COSTS[: len(sizes)])


def gamma_conv(shape: tuple[int, int, int], n_classes: int, widths: tuple[int, int, int] = WIDTHS) -> Ladder:
    """Conv-Small of the authors: convolutions that widen ("full") or narrow ("valid") the map, pooled twice."""
    a, b, c = widths

    def convolution(n_in: int, n_out: int, size: int, padding: int = 0) -> Rung:
        return Rung(nn.Conv2d(n_in, n_out, size, padding=padding, bias=False), n_out)

    def pooled(by: nn.Module, units: int) -> Rung:
        return Rung(by, units, rectified=False, beta=False)

    rungs = [
        convolution(shape[0], a, 5, padding=4),
        pooled(nn.MaxPool2d(2), a),
        convolution(a, b, 3),
        convolution(b, b, 3, padding=2),
        pooled(nn.MaxPool2d(2), b),
        convolution(b, c, 3),
        convolution(c, n_classes, 1),
        pooled(nn.AdaptiveAvgPool2d(1), n_classes),
        Rung(nn.Sequential(nn.Flatten(), nn.Linear(n_classes, n_classes, bias=False)), n_classes, rectified=False),
    ]
    # The maps last in memory, as library convolutions and pooling like it.
    network: nn.Module = Ladder(n_classes, rungs, (*(0.0,) * len(rungs), 1.0))
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
