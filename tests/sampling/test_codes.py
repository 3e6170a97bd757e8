"""s's conditional: precision and slope against the Hessian and gradient of the log-joint, draws against both."""

import pytest
import torch
from torch import Tensor

from semisight.model.architecture import Architecture
from semisight.model.image_decoder import ImageDecoder
from semisight.model.image_encoder import flat_code, maps_of_code
from semisight.model.labels import BayesianSVM, one_versus_all
from semisight.sampling import codes as module
from semisight.sampling.codes import CodePrior, draw_code, label_prior, standard_prior
from tests.sampling.oracle import DEEP, TINY, draw_images, exact_posterior, generator, hot, random_places, tiny_decoder


def label_head(codes: int, bias: bool = True) -> BayesianSVM:
    head = BayesianSVM(codes, 3, gamma=[0.5, 1.0, 2.0], bias=bias).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(generator=generator(3))
    return head


def log_joint(
    decoder: ImageDecoder,
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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("block", [1024, 1], ids=["at once", "map by map"])
@pytest.mark.parametrize("architecture", [*TINY.values(), DEEP], ids=[*TINY, "deep"])
def test_precision_and_slope_are_those_of_the_log_joint(
    architecture: Architecture, block: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = tiny_decoder(architecture)
    x = draw_images(decoder, 2).permute(1, 2, 3, 0).contiguous()
    s = torch.randn(*architecture.code_shape, 2, generator=generator(1), dtype=torch.float64)
    places = random_places(architecture, 2, generator(2))
    head = label_head(architecture.code_size, bias)
    labels = torch.tensor([2, -1])
    lam = torch.rand(2, 3, generator=generator(4), dtype=torch.float64) + 0.1
    alpha0 = decoder.log_alpha0.detach().exp()
    with torch.no_grad():
        residual = x - decoder(s, hot(architecture, places)).mean
    seen: list[tuple[Tensor, Tensor]] = []

    def stay(root: Tensor, slope: Tensor, noise: Tensor) -> Tensor:
        seen.append((root @ root.transpose(1, 2), slope.clone()))
        return torch.zeros_like(slope)

    monkeypatch.setattr(module, "_draw", stay)
    prior = label_prior(decoder, head, labels, lam)
    same = draw_code(decoder, residual, s, places, prior, alpha0, generator(), largest_block=block)
    assert torch.equal(same, s)
    y = one_versus_all(labels, 3).double()
    for n in range(2):
        one = tuple(p[..., n : n + 1] for p in places)

        def value(code: Tensor, n: int = n, one: tuple[Tensor, ...] = one) -> Tensor:
            return log_joint(decoder, x[..., n : n + 1], code, one, head, y[n], lam[n])

        code = flat_code(s)[n]
        gradient = torch.autograd.functional.jacobian(value, code)
        hessian = torch.autograd.functional.hessian(value, code)
        slope = torch.cat([part[1][n] for part in seen])
        torch.testing.assert_close(slope, gradient, rtol=1e-9, atol=1e-10)
        size = seen[0][0].shape[1]
        assert size == (architecture.code_size if block > 1 else architecture.code_size // architecture.code_shape[0])
        for number, (precision, _) in enumerate(seen):
            at = slice(number * size, (number + 1) * size)
            torch.testing.assert_close(precision[n], -hessian[at, at], rtol=1e-9, atol=1e-10)


def test_draws_have_the_mean_and_covariance_of_the_gaussian() -> None:
    """Exact, without sampling: a draw is affine in its noise, so unit noises spell out mean and covariance."""
    root = torch.randn(5, 5, generator=generator(1), dtype=torch.float64)
    precision = root @ root.T + torch.eye(5, dtype=torch.float64)
    slope = torch.randn(5, generator=generator(2), dtype=torch.float64)
    noise = torch.cat([torch.zeros(1, 5), torch.eye(5)]).double()
    drawn = module._draw(torch.linalg.cholesky(precision).expand(6, 5, 5), slope.expand(6, 5), noise)
    torch.testing.assert_close(drawn[0], torch.linalg.solve(precision, slope))
    moved = drawn[1:] - drawn[0]
    torch.testing.assert_close(moved.T @ moved, torch.linalg.inv(precision))


def test_float32_that_cannot_factor_the_precision_falls_back_to_float64() -> None:
    direction = torch.randn(1, 40, 1, generator=generator(1))
    a = direction @ torch.randn(1, 1, 30, generator=generator(2))  # all units paint the same picture
    prior, alpha0 = CodePrior(torch.ones(1, 30), torch.zeros(1, 30)), torch.tensor(1e7)
    _, failed = torch.linalg.cholesky_ex(alpha0 * a.transpose(1, 2) @ a + torch.eye(30))
    assert int(failed) != 0
    root = module._root(a, alpha0, prior, slice(0, 30))
    assert root.dtype == torch.float64
    drawn = module._draw(root, torch.ones(1, 30), torch.zeros(1, 30))
    exact = torch.linalg.solve(alpha0 * a[0].double().T @ a[0].double() + torch.eye(30), torch.ones(30).double())
    torch.testing.assert_close(drawn[0], exact.float(), rtol=1e-3, atol=1e-3)


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
    prior = CodePrior(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.5, 0.0], [1.0, -1.0]]))
    precision = torch.zeros(2, 2, 2)
    prior.add_to(precision, slice(0, 2))
    assert precision[1].tolist() == [[3.0, 0.0], [0.0, 4.0]]
    assert prior.rows(slice(1, 2)).times(torch.ones(1, 2)).tolist() == [[3.0, 4.0]]
