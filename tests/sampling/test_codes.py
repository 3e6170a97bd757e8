"""s's conditional: precision and slope against the Hessian and gradient of the log-joint, draws against both."""

import pytest
import torch
from torch import Tensor

from semisight.model.architecture import Architecture
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM, one_versus_all
from semisight.model.posterior import flat_code, maps_of_code
from semisight.sampling import codes as module
from semisight.sampling.codes import CodePrior, draw_code, label_prior, standard_prior
from tests.sampling.oracle import (
    DEEP,
    ONE_Z,
    TINY,
    draw_images,
    exact_posterior,
    generator,
    hot,
    random_places,
    tiny_decoder,
)


def label_head(codes: int, bias: bool = True) -> BayesianSVM:
    head = BayesianSVM(codes, 3, gamma=[0.5, 1.0, 2.0], bias=bias).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(generator=generator(3))
    return head


def log_joint(
    decoder: Decoder,
    x: Tensor,
    code: Tensor,
    places: tuple[Tensor, ...],
    head: BayesianSVM,
    y: Tensor,
    lam: Tensor,
) -> Tensor:
    """log p(X | s, z) + log p(s) + log of (28) as it is printed, for one image: code [J]."""
    s = maps_of_code(code[None], decoder.architecture)
    value = decoder.log_prob(x, decoder(s, hot(decoder.architecture, places)).mean).sum() - 0.5 * code.square().sum()
    f = head.scores(code[None])
    return value - (head.gamma * y.abs() * (1 + lam - y * f).square() / (2 * lam)).sum()


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("architecture", [*TINY.values(), DEEP], ids=[*TINY, "deep"])
def test_mean_and_covariance_are_those_of_the_log_joint(
    architecture: Architecture, bias: bool, labelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, without sampling: a draw is affine in its noise, so the same image with unit noises spells out both."""
    decoder, head = tiny_decoder(architecture), label_head(architecture.code_size, bias)
    size, classes = architecture.code_size, 3
    copies = 1 + size + classes
    x = draw_images(decoder, 1).permute(1, 2, 3, 0)
    s = torch.randn(*architecture.code_shape, 1, generator=generator(1), dtype=torch.float64)
    places = random_places(architecture, 1, generator(2))
    labels = torch.tensor([2 if labelled else -1])
    lam = torch.rand(1, classes, generator=generator(4), dtype=torch.float64) + 0.1
    alpha0 = decoder.log_alpha0.detach().exp()
    units = torch.eye(copies, dtype=torch.float64)
    noises = iter([units[:, 1 : 1 + size], units[:, 1 + size :]])
    monkeypatch.setattr(torch, "randn", lambda shape, **_: next(noises).clone())
    with torch.no_grad():
        residual = (x - decoder(s, hot(architecture, places)).mean).repeat(1, 1, 1, copies)
    prior = label_prior(decoder, head, labels.repeat(copies), lam.repeat(copies, 1))
    many = tuple(p.repeat(1, 1, 1, copies) for p in places)
    drawn = flat_code(draw_code(decoder, residual, s.repeat(1, 1, 1, copies), many, prior, alpha0, generator()))
    monkeypatch.undo()

    y = one_versus_all(labels, classes).double()
    code = flat_code(s)[0]
    arguments = (places, head, y[0], lam[0])
    slope = torch.autograd.functional.jacobian(lambda c: log_joint(decoder, x, c, *arguments), code)
    precision = -torch.autograd.functional.hessian(lambda c: log_joint(decoder, x, c, *arguments), code)
    torch.testing.assert_close(drawn[0], code + torch.linalg.solve(precision, slope), rtol=1e-8, atol=1e-9)
    moved = drawn[1:] - drawn[0]
    torch.testing.assert_close(moved.T @ moved, torch.linalg.inv(precision), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        residual, x - decoder(maps_of_code(drawn, architecture), hot(architecture, many)).mean.detach()
    )


@pytest.mark.parametrize("architecture", list(TINY.values()), ids=list(TINY))
def test_map_by_map_goes_to_the_same_mean(architecture: Architecture) -> None:
    """Without noise, drawing in parts is the Gauss-Seidel method: its limit is the mean of the whole."""
    decoder, head = tiny_decoder(architecture), label_head(architecture.code_size)
    x = draw_images(decoder, 2).permute(1, 2, 3, 0).contiguous()
    places = random_places(architecture, 2, generator(2))
    lam = torch.rand(2, 3, generator=generator(4), dtype=torch.float64) + 0.1
    prior = label_prior(decoder, head, torch.tensor([1, -1]), lam)
    alpha0 = decoder.log_alpha0.detach().exp()
    results = []
    for block, steps in ((1024, 1), (1, 500)):
        s = torch.zeros(*architecture.code_shape, 2, dtype=torch.float64)
        with torch.no_grad():
            residual = x - decoder(s, hot(architecture, places)).mean
        for _ in range(steps):
            s = draw_code(decoder, residual, s, places, prior, alpha0, None, largest_block=block)
        results.append(s)
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_a_label_that_pins_the_code_does_so_in_float32() -> None:
    """lambda of 1e-12: beta's must come out as observed, and the draw must stay finite."""
    decoder, head = tiny_decoder(ONE_Z).float(), label_head(ONE_Z.code_size).float()
    x = draw_images(tiny_decoder(ONE_Z), 50).permute(1, 2, 3, 0).float().contiguous()
    places = random_places(ONE_Z, 50, generator(2))
    lam = torch.full((50, 3), 1e-12)
    s = torch.randn(*ONE_Z.code_shape, 50, generator=generator(1))
    with torch.no_grad():
        residual = x - decoder(s, tuple(z.float() for z in hot(ONE_Z, places))).mean
        prior = label_prior(decoder, head, torch.zeros(50, dtype=torch.int64), lam)
        drawn = draw_code(decoder, residual, s, places, prior, decoder.log_alpha0.exp(), generator(3))
        f = head.scores(flat_code(drawn))
    expected = one_versus_all(torch.zeros(50, dtype=torch.int64), 3).float()
    torch.testing.assert_close(f, expected, rtol=1e-3, atol=1e-3)


def test_float32_that_cannot_factor_the_precision_falls_back_to_float64() -> None:
    direction = torch.randn(1, 40, 1, generator=generator(1))
    a = direction @ torch.randn(1, 1, 30, generator=generator(2))  # all units paint the same picture
    alpha0 = torch.tensor(1e7)
    _, failed = torch.linalg.cholesky_ex(alpha0 * a.transpose(1, 2) @ a + torch.eye(30))
    assert int(failed) != 0
    root = module._root(a, alpha0, torch.ones(1, 30))
    assert root.dtype == torch.float64
    exact = alpha0 * a[0].double().T @ a[0].double() + torch.eye(30)
    torch.testing.assert_close(root[0] @ root[0].T, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("architecture", list(TINY.values()), ids=list(TINY))
def test_the_conditional_mean_is_that_of_the_enumerated_posterior(architecture: Architecture) -> None:
    """Given z, straight from s = 0 in one step, and the residual follows."""
    decoder = tiny_decoder(architecture)
    image = draw_images(decoder, 1)[0]
    exact = exact_posterior(decoder, image)
    zero = tuple(torch.zeros_like(p) for p in random_places(architecture, 1, generator()))  # the first joint z
    x, s = image[..., None], torch.zeros(*architecture.code_shape, 1, dtype=torch.float64)
    with torch.no_grad():
        residual = x - decoder(s, hot(architecture, zero)).mean
        alpha0 = decoder.log_alpha0.exp()
        drawn = draw_code(decoder, residual, s, zero, standard_prior(decoder, 1), alpha0, None)
        torch.testing.assert_close(flat_code(drawn)[0], exact.mean[0], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(residual, x - decoder(drawn, hot(architecture, zero)).mean, rtol=1e-9, atol=1e-11)


def test_another_gaussian_prior_for_every_image() -> None:
    """What annealing needs: diagonal and linear terms that differ between images."""
    decoder = tiny_decoder(ONE_Z, alpha0=1e-12)  # the image says nothing
    diagonal = torch.rand(4, ONE_Z.code_size, generator=generator(1), dtype=torch.float64) + 0.5
    linear = torch.randn(4, ONE_Z.code_size, generator=generator(2), dtype=torch.float64)
    s = torch.zeros(*ONE_Z.code_shape, 4, dtype=torch.float64)
    places, residual = random_places(ONE_Z, 4, generator(3)), torch.zeros(*ONE_Z.image_shape, 4, dtype=torch.float64)
    alpha0 = decoder.log_alpha0.detach().exp()
    drawn = draw_code(decoder, residual, s, places, CodePrior(diagonal, linear), alpha0, None)
    torch.testing.assert_close(flat_code(drawn), linear / diagonal)
