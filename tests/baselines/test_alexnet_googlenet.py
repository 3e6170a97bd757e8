"""AlexNet and GoogLeNet: the published layers at the published size, and both learn a toy at a small one."""

import pytest
import torch
from torch import Tensor, nn

from semisight.baselines.alexnet import AlexNet, dropout
from semisight.baselines.googlenet import MODULES, Convolution, GoogLeNet


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def convolutions(network: nn.Module) -> list[nn.Conv2d]:
    return [module for module in network.modules() if isinstance(module, nn.Conv2d)]


def test_alexnet_has_the_published_layers() -> None:
    """At an eighth of the width."""
    network = AlexNet((3, 224, 224), 1000, 1 / 8)
    assert [(8 * c.out_channels, c.kernel_size[0], c.stride[0], c.groups) for c in convolutions(network)] == [
        *((96, 11, 4, 1), (256, 5, 1, 2), (384, 3, 1, 1), (384, 3, 1, 2), (256, 3, 1, 2)),
    ]
    full = [(8 * layer.in_features, 8 * layer.out_features) for layer in network.full]  # type: ignore[operator]
    assert full == [(256 * 6 * 6, 4096), (4096, 4096)]


def test_googlenet_has_the_published_layers() -> None:
    """At an eighth of the width."""
    network = GoogLeNet((3, 224, 224), 10, 1 / 8)
    places: dict[str, tuple[int, ...]] = {}
    for name, module in network.inception.items():
        module.register_forward_hook(lambda _, __, out, name=name: places.update({name: tuple(out.shape[1:])}))
    with torch.no_grad():
        assert network.eval().scores(torch.zeros(1, 3, 224, 224)).shape == (1, 10)
    assert places["3a"] == (32, 28, 28) and places["4a"] == (64, 14, 14) and places["5b"] == (128, 7, 7)
    deepest = 2 * len(MODULES) + len(convolutions(network.start)) + 1  # a path through every module, and the last layer
    assert deepest == 22


def bars(n: int) -> tuple[Tensor, Tensor]:
    """Bars that lie or stand, anywhere, in noise."""
    labels = torch.arange(n) % 2
    images = torch.rand(n, 3, 16, 16, generator=generator()) * 0.3
    places = torch.randint(0, 14, (n,), generator=generator(1)).tolist()
    for i, place in enumerate(places):
        bar = (
            (slice(None), slice(place, place + 2)) if labels[i] else (slice(None), slice(None), slice(place, place + 2))
        )
        images[(i, *bar)] += 0.6
    return images, labels


@pytest.mark.parametrize("kind", [AlexNet, GoogLeNet])
def test_it_learns_which_way_a_bar_lies(kind: type[AlexNet] | type[GoogLeNet]) -> None:
    torch.manual_seed(0)
    images, labels = bars(160)
    network = kind((3, 16, 16), 2, width=1 / 16)
    optimiser, noise = torch.optim.Adam(network.parameters(), 3e-3), generator()
    for step in range(50 if kind is AlexNet else 30):
        index = torch.randperm(96, generator=generator(step))[:32]
        loss, _ = network.loss(images[index], labels[index], noise)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        network.after_step()
    assert all(p.grad is not None for p in network.parameters())
    network.eval()
    with torch.no_grad():
        right = float((network.scores(images[96:]).argmax(1) == labels[96:]).float().mean())
    assert right > 0.9


def test_small_classifiers_beside_it_count_in_training_alone() -> None:
    torch.manual_seed(0)
    network = GoogLeNet((1, 16, 16), 3, width=1 / 32)
    images, labels = torch.rand(4, 1, 16, 16), torch.tensor([0, 1, 2, 0])
    loss, terms = network.loss(images, labels, generator())
    itself, *beside = network.all_scores(images, generator())
    each = [nn.functional.cross_entropy(scores, labels) for scores in (itself, *beside)]
    assert len(beside) == 2 and torch.allclose(loss, each[0] + 0.3 * (each[1] + each[2]))
    assert torch.allclose(terms["label"], -each[0])
    assert len(network.eval().all_scores(images, None)) == 1
    norms = [module.norm for module in network.modules() if isinstance(module, Convolution)]
    assert not norms[0].mean.any()
    network.after_step()
    assert norms[0].mean.any()


def test_dropout_keeps_the_mean_and_follows_the_generator() -> None:
    x = torch.ones(10_000)
    one, two = dropout(x, 0.4, generator(3)), dropout(x, 0.4, generator(3))
    assert torch.equal(one, two) and not torch.equal(one, dropout(x, 0.4, generator(4)))
    assert float(one.mean()) == pytest.approx(1, abs=0.03) and float((one == 0).float().mean()) == pytest.approx(
        0.4, abs=0.02
    )
