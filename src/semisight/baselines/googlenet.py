"""Table 4 and figure 1, GoogLeNet (Szegedy et al., "Going deeper with convolutions", 2015), trained on the labelled
images alone.

    inception     1 x 1;  1 x 1 then 3 x 3;  1 x 1 then 5 x 5;  3 x 3 pooling then 1 x 1: side by side
    the network   three convolutions, nine inception modules (3a 3b, 4a-4e, 5a 5b) with pooling between the groups, the
                  mean over places, dropout 0.4, one full layer; 22 layers with weights
    beside it     two small classifiers on 4a and 4d, their losses weighed 0.3, in training alone

Every convolution is followed by batch normalisation (Ioffe and Szegedy, 2015) in place of the published response
normalisation of the first two: from few labels and in few steps the network hardly learns without. Below 128 pixels the
first layer pools once less. `width` scales all layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines.alexnet import SMALL, dropout
from semisight.baselines.network import BatchNorm, remember_all

# 1 x 1, before 3 x 3, 3 x 3, before 5 x 5, 5 x 5, after pooling
MODULES = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
POOLED_BEFORE = ("4a", "5a")
BESIDE, WEIGHT_BESIDE = ("4a", "4d"), 0.3


class Convolution(nn.Module):
    def __init__(self, n_in: int, n_out: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.filters = nn.Conv2d(n_in, n_out, size, stride, size // 2, bias=False)
        self.norm = BatchNorm(n_out, memory=0.9, least=1e-5)
        self.scale, self.shift = nn.Parameter(torch.ones(n_out, 1, 1)), nn.Parameter(torch.zeros(n_out, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.filters(x)) * self.scale + self.shift)


class Inception(nn.Module):
    def __init__(self, n_in: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        one, before3, three, before5, five, pooled = sizes
        self.branches = nn.ModuleList(
            [
                Convolution(n_in, one, 1),
                nn.Sequential(Convolution(n_in, before3, 1), Convolution(before3, three, 3)),
                nn.Sequential(Convolution(n_in, before5, 1), Convolution(before5, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), Convolution(n_in, pooled, 1)),
            ]
        )
        self.n_out = one + three + five + pooled

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class GoogLeNet(nn.Module):
    def __init__(self, shape: tuple[int, int, int], n_classes: int, width: float = 1.0) -> None:
        super().__init__()

        def scaled(maps: int) -> int:
            return max(2, round(maps * width))

        a, b = scaled(64), scaled(192)
        pool = nn.MaxPool2d(3, 2, 1)
        small = min(shape[1:]) < SMALL
        self.start = nn.Sequential(
            Convolution(shape[0], a, 7, 2),
            *([] if small else [pool]),
            *(Convolution(a, a, 1), Convolution(a, b, 3), pool),
        )
        self.inception, self.beside = nn.ModuleDict(), nn.ModuleDict()
        n = b
        for name, sizes in MODULES.items():
            module = Inception(n, tuple(map(scaled, sizes)))
            n = module.n_out
            self.inception[name] = module
            if name in BESIDE:
                middle, hidden = scaled(128), scaled(1024)
                self.beside[name] = nn.Sequential(
                    *(nn.AdaptiveAvgPool2d(2), Convolution(n, middle, 1), nn.Flatten()),
                    *(nn.Linear(4 * middle, hidden), nn.ReLU(), nn.Linear(hidden, n_classes)),
                )
        self.last = nn.Linear(n, n_classes)

    def all_scores(self, images: Tensor, generator: torch.Generator | None) -> list[Tensor]:
        """Of the network itself, and in training of the small classifiers beside it."""
        h, beside = self.start(images - 0.5), []
        for name, module in self.inception.items():
            h = module(F.max_pool2d(h, 3, 2, 1) if name in POOLED_BEFORE else h)
            if self.training and name in BESIDE:
                beside.append(self.beside[name](h))
        h = h.mean((2, 3))
        return [self.last(dropout(h, 0.4, generator) if self.training else h), *beside]

    def scores(self, images: Tensor) -> Tensor:
        return self.all_scores(images, None)[0]

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        of_itself, *beside = (F.cross_entropy(scores, labels) for scores in self.all_scores(images, generator))
        return of_itself + WEIGHT_BESIDE * sum(beside, of_itself.new_zeros(())), {"label": -of_itself}

    def after_step(self) -> None:
        remember_all(self)
