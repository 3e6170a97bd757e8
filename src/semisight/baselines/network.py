"""What a baseline that is a network gives, and how the trainer of section 4 takes it.

    loss   of a batch of images and their labels, -1 where unknown: a scalar to descend, and its terms for the logs
    scores of images for each class, [B, C]; the largest is the answer

A baseline is one file with such a network and one line in its table. Batches, validation, checkpoints and resuming are
those of our own model, so that a comparison is one of methods.
"""

from collections.abc import Mapping
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from semisight.data.augment import Augment
from semisight.model.evaluating import evaluating
from semisight.objectives.step import Batch, Images, Rows, Step, Teacher

AT_A_TIME = 500  # images


class Network(Protocol):
    """An `nn.Module` with these methods. Running statistics change in `after_step` alone: a step may be thrown away."""

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]: ...

    def after_step(self) -> None: ...


class Classifier(Network, Protocol):
    def scores(self, images: Tensor) -> Tensor: ...


class Learning(nn.Module):
    """The `Objective` of a network: in training labels are looked up and images augmented, if asked; in validation none
    are known."""

    labels: Tensor

    def __init__(self, network: Network, labels: Tensor, augment: Augment | None = None) -> None:
        super().__init__()
        assert isinstance(network, nn.Module)
        self.augment = augment
        self.network: nn.Module = network
        self.register_buffer("labels", labels, persistent=False)
        self.teacher: Teacher | None = None

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        images, known = batch.images, torch.full_like(batch.index, -1)
        if self.training:
            known = self.labels[batch.index]
            images = images if self.augment is None else self.augment(images, generator)
        loss, terms = cast(Network, self.network).loss(images, known.to(images.device), generator)
        return Step(loss, {name: term.detach() for name, term in terms.items()})

    def after_step(self, global_step: int) -> None:
        cast(Network, self.network).after_step()

    def rate_multipliers(self) -> Mapping[str, float]:
        return {}

    def parts(self) -> Mapping[str, nn.Module]:
        return {"model": self.network}


@torch.no_grad()
def scores_of(network: Classifier, images: Images) -> Tensor:
    """Of every image of a set, [N, C] on the CPU, by the network as it is used: not in training mode."""
    assert isinstance(network, nn.Module)
    weight = next(network.parameters())
    with evaluating(network):
        index = torch.arange(len(images)).split(AT_A_TIME)
        return torch.cat([network.scores(images.batch(some).to(weight)).cpu() for some in index])


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy, 2015) over all axes but `axis` 1, without scale and shift.

    In training by the batch's own statistics, which join the running ones when the step has been taken.
    """

    mean: Tensor
    variance: Tensor
    steps: Tensor

    def __init__(self, channels: int, memory: float = 0.99, least: float = 1e-6) -> None:
        super().__init__()
        self.memory, self.least = memory, least
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self._seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return normalised(x, self.mean, self.variance + self.least)
        mean, variance = statistics(x)
        self.see(mean, variance)
        return normalised(x, mean, variance + self.least)

    def see(self, mean: Tensor, variance: Tensor) -> None:
        """What `remember` will take in."""
        self._seen = (mean.detach(), variance.detach())

    @torch.no_grad()
    def remember(self) -> None:
        """The first steps are a plain mean, so that statistics of untrained weights are soon forgotten."""
        if self._seen is None:
            return
        self.steps += 1
        new = max(1 - self.memory, 1 / int(self.steps))
        for kept, seen in zip((self.mean, self.variance), self._seen, strict=True):
            kept.lerp_(seen, new)
        self._seen = None


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel (axis 1)."""
    axes = [axis for axis in range(x.dim()) if axis != 1]
    variance, mean = torch.var_mean(x, axes, correction=0)
    return mean, variance


def normalised(x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    shape = (1, -1, *(1,) * (x.dim() - 2))
    return (x - mean.view(shape)) * variance.rsqrt().view(shape)


def remember_all(network: nn.Module) -> None:
    """`after_step` of a network with batch normalisation."""
    for module in network.modules():
        if isinstance(module, BatchNorm):
            module.remember()
