"""Ladder networks: the clean path is a plain network, the decoder is as published, both kinds learn."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines import ladder
from semisight.baselines.ladder import Combinator, Ladder, Rung
from semisight.baselines.network import BatchNorm, Learning, scores_of
from semisight.data import load
from semisight.objectives.step import Batch, Rows


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def small() -> Ladder:
    torch.manual_seed(0)
    return ladder.full((1, 3, 3), 4, (8, 6))


def test_the_clean_path_is_a_plain_network_with_batch_normalisation(small: Ladder) -> None:
    plain = nn.Sequential(nn.Flatten())
    sizes = [9, 8, 6, 4]
    for rung, n_in, n_out in zip(small.rungs, sizes, sizes[1:], strict=False):
        assert isinstance(rung, Rung) and rung.beta is not None
        nn.init.normal_(rung.beta, generator=generator(n_out))
        linear, norm = nn.Linear(n_in, n_out, bias=False), nn.BatchNorm1d(n_out, eps=ladder.LEAST)
        linear.weight.data.copy_(rung.layer[1].weight)  # type: ignore[index]
        norm.bias.data.copy_(rung.beta)
        plain.extend([linear, norm, nn.ReLU()])
    plain = plain[:-1]
    images = torch.rand(20, 1, 3, 3, generator=generator())
    labels = torch.full((20,), -1)
    assert torch.allclose(small.encode(images, 0, 0.0, None).logits, plain(images), atol=1e-5)
    small.loss(images, labels, generator(1))
    small.after_step()  # the first running statistics are the batch's own
    for rung, norm in zip(small.rungs, (m for m in plain if isinstance(m, nn.BatchNorm1d)), strict=True):
        assert isinstance(rung, Rung)
        norm.running_mean, norm.running_var = rung.norm.mean.clone(), rung.norm.variance.clone()
    others = torch.rand(7, 1, 3, 3, generator=generator(2))
    assert torch.allclose(small.eval().scores(others), plain.eval()(others), atol=1e-5)


def test_running_statistics_change_after_a_step_alone_and_are_of_clean_unlabelled_images(small: Ladder) -> None:
    images, labels = torch.rand(20, 1, 3, 3, generator=generator()), torch.full((20,), -1)
    labels[:8] = torch.arange(8) % 4
    rung = small.rungs[0]
    assert isinstance(rung, Rung)
    small.loss(images, labels, generator(1))
    assert not rung.norm.mean.any()
    small.after_step()
    assert torch.allclose(rung.norm.mean, rung.layer(images[8:]).mean(0), atol=1e-6)
    before = rung.norm.mean.clone()
    small.after_step()  # no step between
    assert torch.equal(rung.norm.mean, before)


def test_labelled_images_are_normalised_apart(small: Ladder) -> None:
    images = torch.rand(20, 1, 3, 3, generator=generator())
    other = images.clone()
    other[8:] = torch.rand(12, 1, 3, 3, generator=generator(1)) * 5
    one, two = (small.encode(x, 8, 0.0, None).logits[:8] for x in (images, other))
    assert torch.allclose(one, two, atol=1e-6)
    z = small.encode(images, 8, 0.0, None).z[1]
    assert torch.allclose(z[:8].mean(0), torch.zeros(8), atol=1e-5)
    assert torch.allclose(z[8:].var(0, correction=0), torch.ones(8), atol=1e-3)


def test_the_combinator_is_the_published_one() -> None:
    g = Combinator(3).double()
    nn.init.normal_(g.a, generator=generator())
    z, u = (torch.randn(5, 3, dtype=torch.float64, generator=generator(seed)) for seed in (1, 2))
    got = g(z, u).detach()
    for i in range(5):
        for j in range(3):
            a = g.a[:, j].detach()
            mu = a[0] / (1 + (-(a[1] * u[i, j] + a[2])).exp()) + a[3] * u[i, j] + a[4]
            v = a[5] / (1 + (-(a[6] * u[i, j] + a[7])).exp()) + a[8] * u[i, j] + a[9]
            assert float((z[i, j] - mu) * v + mu) == pytest.approx(float(got[i, j]), abs=1e-12)


def test_costs_are_those_of_clean_codes_rescaled_and_weighed(small: Ladder) -> None:
    images, labels = torch.rand(20, 1, 3, 3, generator=generator()), torch.full((20,), -1)
    labels[:4] = torch.arange(4)
    loss, terms = small.loss(images, labels, generator(1))
    noisy, clean = small.encode(images, 4, 0.3, generator(1)), small.encode(images, 4, 0.0, None)
    # by hand, for the top: z^ = g(z~, normalised softmax), then in the scale of the clean z
    top = noisy.logits[4:].softmax(1)
    u = (top - top.mean(0)) / (top.var(0, correction=0) + ladder.LEAST).sqrt()
    pre = small.rungs[2].layer(clean_h(small, clean, 2))[4:]
    estimate = (small.g["3"](noisy.z[3][4:], u) - pre.mean(0)) / (pre.var(0, correction=0) + ladder.LEAST).sqrt()
    assert torch.allclose(terms["denoising 3"], F.mse_loss(estimate, clean.z[3][4:]), atol=1e-5)
    label = F.cross_entropy(noisy.logits[:4], labels[:4])
    costs = sum(cost * terms[f"denoising {l}"] for l, cost in enumerate((1000.0, 10.0, 0.1, 0.1)))
    assert torch.allclose(loss, label + costs) and torch.allclose(terms["label"], -label)
    # the image itself is not normalised: with g at 0, what is missing is all of it
    assert torch.allclose(terms["denoising 0"], images[4:].square().mean(), atol=1e-6)


def clean_h(network: Ladder, encoded: ladder.Encoded, layer: int) -> Tensor:
    rung = network.rungs[layer - 1]
    assert isinstance(rung, Rung)
    return rung.activate(encoded.z[layer])


@pytest.mark.parametrize("kind", ["full", "gamma-conv"])
def test_it_learns_digits_from_few_labels_and_denoising_costs_fall(kind: str) -> None:
    torch.manual_seed(0)
    images = load("builtin:digits")
    assert images.labels is not None
    some = torch.arange(1000)
    labels = torch.full((len(images),), -1)
    labels[:100] = images.labels[:100]
    full = kind == "full"
    network = ladder.full(images.shape, 10, (64, 32)) if full else ladder.gamma_conv(images.shape, 10, (8, 8, 16))
    learning = Learning(network, labels)
    optimiser, noise = torch.optim.Adam(learning.parameters(), 1e-2), generator()
    said: list[dict[str, Tensor]] = []
    for step in range(100 if full else 40):
        others = 100 + torch.randperm(900, generator=generator(step))[:100]
        index = torch.cat([some[:100], others])
        found = learning(Batch(images.batch(index), index), noise, Rows(0, 200, 200))
        optimiser.zero_grad()
        found.loss.backward()
        optimiser.step()
        learning.after_step(step)
        said.append(found.terms)
    first, last = (
        {l: sum(float(terms[f"denoising {l}"]) for terms in part) for l, cost in enumerate(network.costs) if cost}
        for part in (said[:5], said[-5:])
    )
    assert all(last[l] < first[l] for l in first), (first, last)
    assert min(last[l] / first[l] for l in first) < 0.7
    held_out = images.subset(torch.arange(1000, 1500))
    assert held_out.labels is not None
    right = float((scores_of(network, held_out).argmax(1) == held_out.labels).float().mean())
    assert right > (0.8 if full else 0.6)
    assert network.training  # as it was


def test_the_gamma_model_has_one_cost_and_the_authors_sizes() -> None:
    network = ladder.gamma_conv((1, 28, 28), 10)
    encoded = network.eval().encode(torch.rand(2, 1, 28, 28), 0, 0.0, None)
    shapes = [tuple(z.shape[1:]) for z in encoded.z]
    assert shapes[1:] == [
        *((32, 32, 32), (32, 16, 16), (64, 14, 14), (64, 16, 16), (64, 8, 8)),
        *((128, 6, 6), (10, 6, 6), (10, 1, 1), (10,)),
    ]
    assert list(network.g) == ["9"] and not len(network.V)
    full = ladder.full((1, 28, 28), 10)
    assert [rung.units for rung in full.rungs] == [1000, 500, 250, 250, 250, 10]
    assert full.costs == (1000, 10, 0.1, 0.1, 0.1, 0.1, 0.1) and len(full.V) == 6


def test_batch_normalisation_is_torchs() -> None:
    own, torchs = BatchNorm(3, memory=0.9, least=1e-5), nn.BatchNorm2d(3, affine=False)
    x = torch.randn(6, 3, 4, 4, generator=generator()) * 2 + 1
    assert torch.allclose(own(x), torchs(x), atol=1e-6)
    own.remember()
    assert torch.allclose(own.mean, x.mean((0, 2, 3)), atol=1e-6)
    more = x + 1
    own(more)
    own.remember()
    assert torch.allclose(own.mean, x.mean((0, 2, 3)) + 0.5, atol=1e-5)  # two steps: their plain mean
    for _ in range(30):
        own(more)
        own.remember()
    assert torch.allclose(own.mean, more.mean((0, 2, 3)), atol=0.05)
    own.eval()
    expected = (x - own.mean.view(1, 3, 1, 1)) / (own.variance.view(1, 3, 1, 1) + 1e-5).sqrt()
    assert torch.allclose(own(x), expected, atol=1e-6)
