"""M1 and M2: bounds against integration and enumeration, and both learn a toy."""

import math

import pytest
import torch
from torch import Tensor

from semisight.baselines.m1 import M1, kl_to_normal, log_normal
from semisight.baselines.m2 import M2
from semisight.baselines.network import Network


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def certain(x: Tensor) -> Tensor:
    """Codes as M2 takes them: the mean, and the log sigma of a code that is all but known."""
    return torch.cat([x, torch.full_like(x, -40.0)], 1)


def descend(network: Network, x: Tensor, y: Tensor, steps: int, rate: float = 5e-3) -> list[dict[str, float]]:
    assert isinstance(network, torch.nn.Module)
    optimiser, noise, said = torch.optim.Adam(network.parameters(), rate), generator(1), []
    for _ in range(steps):
        loss, terms = network.loss(x, y, noise)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        network.after_step()
        said.append({name: float(term.detach()) for name, term in terms.items()})
    return said


@pytest.fixture
def m2() -> M2:
    torch.manual_seed(0)
    return M2(3, 4, labelled_share=0.25, code=1, hidden=8).double()


def test_the_sum_over_labels_is_that_of_every_label_by_itself(m2: M2) -> None:
    x = torch.randn(5, 3, dtype=torch.float64, generator=generator())
    eps = torch.randn(4, 5, 1, dtype=torch.float64, generator=generator(1))
    got = m2.bound_without(x, eps).detach()
    for i in range(5):
        q = m2.classifier(x[i]).softmax(0)
        expected = torch.zeros((), dtype=torch.float64)
        for c in range(4):
            one_hot = torch.zeros(4, dtype=torch.float64)
            one_hot[c] = 1
            expected += q[c] * (m2.bound_with(x[i], one_hot, eps[c, i]) - q[c].log())
        assert float(got[i]) == pytest.approx(float(expected.detach()), abs=1e-12)


def test_the_bounds_lie_below_the_likelihood_and_reach_it_with_the_true_posterior(m2: M2) -> None:
    """log p(x) by enumeration of the label and integration over the one number z."""
    x = torch.randn(6, 3, dtype=torch.float64, generator=generator())
    z = torch.linspace(-8, 8, 2001, dtype=torch.float64)[:, None]
    step = float(z[1, 0] - z[0, 0])
    joint = []  # log p(x, y)
    for c in range(4):
        y = torch.zeros(len(z), 4, dtype=torch.float64)
        y[:, c] = 1
        mean, log_spread = m2.decoder(torch.cat([z, y], 1)).chunk(2, -1)
        of_z = log_normal(x[:, None], mean, log_spread) + log_normal(z, torch.zeros_like(z), torch.zeros_like(z))
        joint.append(of_z.logsumexp(1) + math.log(step) - math.log(4))
    log_joint = torch.stack(joint, 1)
    evidence = log_joint.logsumexp(1)
    draws = 2000
    eps = torch.randn(4, 6 * draws, 1, dtype=torch.float64, generator=generator(2))
    repeated = x.repeat_interleave(draws, 0)
    with torch.no_grad():
        bound = m2.bound_without(repeated, eps).view(6, draws).mean(1)
        assert bool((bound < evidence + 0.02).all()) and bool((bound > evidence - 20).all())
        # a decoder that does not look at z, and the prior as q(z|x,y): given y nothing is lost
        m2.decoder[0].weight[:, :1] = 0
        m2.encoder[2].weight.zero_()
        m2.encoder[2].bias.zero_()
        y = torch.eye(4, dtype=torch.float64)
        given = torch.stack([m2.bound_with(x, y[c].expand(6, 4), eps[c, :6]) for c in range(4)], 1)
        gap = given.logsumexp(1) - m2.bound_without(x, eps[:, :6])
        q = m2.classifier(x).log_softmax(1)
        posterior = given.log_softmax(1)
    assert torch.allclose(gap, (q.exp() * (q - posterior)).sum(1))  # KL(q(y|x) || p(y|x))


def test_labels_weigh_as_in_the_whole_set(m2: M2) -> None:
    x = torch.randn(6, 3, dtype=torch.float64, generator=generator())
    y = torch.tensor([0, 1, -1, -1, -1, -1])
    loss, terms = m2.loss(certain(x), y, generator(3))
    noise = generator(3)
    torch.randn(6, 3, generator=noise)  # of the codes, which are certain
    eps = torch.randn(4, 6, 1, generator=noise).double()
    known = m2.bound_with(x[:2], torch.eye(4, dtype=torch.float64)[:2], eps[0, :2]).mean()
    unknown = m2.bound_without(x[2:], eps[:, 2:]).mean()
    label = m2.classifier(x[:2]).log_softmax(1)[[0, 1], [0, 1]].mean()
    assert torch.allclose(loss, -0.25 * known - 0.75 * unknown - 0.1 * label)
    assert torch.allclose(terms["label"], label)


def test_m2_learns_from_drawn_codes_and_answers_by_their_means(m2: M2) -> None:
    x = torch.randn(6, 3, dtype=torch.float64, generator=generator())
    y = torch.tensor([0, 1, -1, -1, -1, -1])
    spread = torch.cat([x, torch.zeros_like(x)], 1)
    first, again = (float(m2.loss(spread, y, generator(seed))[1]["label"].detach()) for seed in (1, 2))
    assert first != again  # the classifier saw other codes
    assert torch.equal(m2.scores(spread), m2.classifier(x))


def test_m2_learns_two_clouds_from_one_label_of_each() -> None:
    torch.manual_seed(0)
    truth = torch.arange(200) % 2
    x = torch.randn(200, 2, generator=generator()) * 0.3 + torch.stack([2.0 * truth - 1, 0 * truth], 1)
    x[:, 1] *= 3
    labels = torch.full((200,), -1)
    labels[:2] = truth[:2]
    m2 = M2(2, 2, labelled_share=0.01, code=2, hidden=16)
    said = descend(m2, certain(x), labels, 120, rate=1e-2)
    assert said[-1]["bound"] > said[0]["bound"] + 0.5
    assert float((m2.scores(certain(x)).argmax(1) == truth).float().mean()) > 0.97


def test_m1_learns_bars_and_its_bound_is_that_of_bernoulli_pixels() -> None:
    torch.manual_seed(0)
    kind = torch.arange(64) % 4
    images = torch.zeros(64, 1, 4, 4)
    images[torch.arange(64), 0, kind] = 1.0
    m1 = M1(16, code=2, hidden=32)
    said = descend(m1, images, torch.full((64,), -1), 250)
    assert said[-1]["bound"] > -5 > said[0]["bound"]  # log 4 nats say which bar it is; at first 16 bits of noise

    class Images:
        def __len__(self) -> int:
            return 64

        def batch(self, index: Tensor) -> Tensor:
            return images[index]

    m1.eval()
    codes = m1.codes(Images())
    assert torch.equal(codes, m1.moments(images)[0]) and codes.shape == (64, 2)
    within = (codes[kind == 0] - codes[kind == 0].mean(0)).norm()
    assert within < 1e-4 and (codes[kind == 0].mean(0) - codes[kind == 1].mean(0)).norm() > 0.5
    mu, log_sigma = m1.moments(images)
    z = mu + log_sigma.exp() * torch.randn(mu.shape, generator=generator(5))
    p = torch.sigmoid(m1.decoder(z))
    by_pixel = torch.where(images.flatten(1) > 0, p, 1 - p).log().sum(1)
    assert torch.allclose(m1.bound(images, generator(5)), by_pixel - kl_to_normal(mu, log_sigma), atol=1e-4)
