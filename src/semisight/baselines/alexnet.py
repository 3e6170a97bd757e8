"""Table 4 and figure 1, AlexNet (Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional
neural networks", 2012), trained on the labelled images alone.

    convolutions  96 of 11 x 11 in steps of 4, 256 of 5 x 5, 384, 384 and 256 of 3 x 3; ReLU; the second, fourth and
                  fifth in two groups; response normalisation and overlapping pooling after the first two, pooling last
    full layers   4,096, 4,096, classes; dropout of one half before the first two

Below 128 pixels the first layer is 7 x 7 in steps of 2, so that as many places are left for the others. `width` scales
all layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALL = 128  # pixels below which the first layer steps by 2


class AlexNet(nn.Module):
    def __init__(self, shape: tuple[int, int, int], n_classes: int, width: float = 1.0) -> None:
        super().__init__()

        def scaled(maps: int) -> int:
            return max(2, 2 * round(maps * width / 2))  # two groups

        a, b, c, d = map(scaled, (96, 256, 384, 4096))
        small = min(shape[1:]) < SMALL
        first = nn.Conv2d(shape[0], a, 7, 2, 3) if small else nn.Conv2d(shape[0], a, 11, 4, 2)
        pool = nn.MaxPool2d(3, 2, int(small))
        self.layers = nn.Sequential(
            *(first, nn.ReLU(), nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0), pool),
            *(nn.Conv2d(a, b, 5, padding=2, groups=2), nn.ReLU()),
            *(nn.LocalResponseNorm(5, 1e-4, 0.75, 1.0), pool),
            *(nn.Conv2d(b, c, 3, padding=1), nn.ReLU(), nn.Conv2d(c, c, 3, padding=1, groups=2), nn.ReLU()),
            *(nn.Conv2d(c, b, 3, padding=1, groups=2), nn.ReLU(), pool, nn.Flatten()),
        )
        with torch.no_grad():
            flat = self.layers(torch.zeros(1, *shape)).shape[1]
        self.full = nn.ModuleList([nn.Linear(flat, d), nn.Linear(d, d)])
        self.last = nn.Linear(d, n_classes)

    def scores(self, images: Tensor, generator: torch.Generator | None = None) -> Tensor:
        h = self.layers(images - 0.5)
        for layer in self.full:
            if self.training:
                h = dropout(h, 0.5, generator)
            h = torch.relu(layer(h))
        return self.last(h)

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        loss = F.cross_entropy(self.scores(images, generator), labels)
        return loss, {"label": -loss}

    def after_step(self) -> None:
        return


def dropout(x: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """By the step's own random numbers, so that a resumed run is the same."""
    kept = torch.rand(x.shape, generator=generator).to(x) >= share
    return x * kept / (1 - share)
