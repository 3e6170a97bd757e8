"""(10), (17): both KLs against enumeration or quadrature, the likelihood, and the signs of the bound."""

import math

import pytest
import torch

from semisight.model.architecture import Architecture, Layer, Nonlinearity
from semisight.model.decoder import Decoder, maximising_alpha0
from semisight.model.encoders.paper import POOLINGS, Pooling
from semisight.model.image_model import ImageModel
from semisight.model.ops.places import Chosen, PoolingWeights, choose_places
from semisight.objectives.bound import Bound, kl_code, kl_places
from semisight.objectives.gradients import gradient_named
from semisight.objectives.joint import Joint
from semisight.objectives.step import Batch, Rows
from tests.objectives.cases import place_probabilities

TINY = Architecture((2, 6, 6), (Layer(3, 3, 2), Layer(4, 2)))


def test_kl_of_s_against_quadrature() -> None:
    mu = torch.tensor([0.3, -1.2, 0.0], dtype=torch.float64)
    log_sigma = torch.tensor([-0.5, 0.2, 0.0], dtype=torch.float64)
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    expected = 0.0
    for m, ls in zip(mu, log_sigma, strict=True):
        q, p = torch.distributions.Normal(m, ls.exp()), torch.distributions.Normal(0.0, 1.0)
        integrand = q.log_prob(x).exp() * (q.log_prob(x) - p.log_prob(x))
        expected += float(torch.trapezoid(integrand, x))
    value = kl_code(mu[:, None, None, None], log_sigma[:, None, None, None])
    assert value.shape == (1,)
    assert float(value) == pytest.approx(expected, abs=1e-9)


def test_kl_of_z_against_enumeration() -> None:
    torch.manual_seed(0)
    blocks = torch.randn(4, 2, 1, 2, 3, dtype=torch.float64)
    weights = PoolingWeights(*(torch.randn(4, n, dtype=torch.float64) for n in (4, 1, 4, 1)))
    chosen = choose_places(blocks, weights, torch.rand(2, 1, 2, 3, dtype=torch.float64), True, True)
    q = place_probabilities(blocks, weights).flatten(1, 3)  # [P, blocks, B]
    for image in range(3):
        total = 0.0
        for code in range(4**4):  # all joint places of the image's four blocks
            places = [(code // 4**block) % 4 for block in range(4)]
            probability = math.prod(float(q[place, block, image]) for block, place in enumerate(places))
            total += probability * (math.log(probability) - 4 * math.log(1 / 4))
        assert float(kl_places(chosen)[image]) == pytest.approx(total, abs=1e-10)


def test_kl_of_z_is_zero_when_uniform_and_counts_places_when_certain() -> None:
    z = torch.zeros(9, 2, 3, 3, 1)
    uniform = Chosen(z, z[0], torch.full((2, 3, 3, 1), -math.log(9)), z[0])
    certain = Chosen(z, z[0], torch.zeros(2, 3, 3, 1), z[0])
    assert float(kl_places(uniform)) == pytest.approx(0.0, abs=1e-5)
    assert float(kl_places(certain)) == pytest.approx(18 * math.log(9), rel=1e-6)


def test_the_likelihood_is_the_gaussian_of_4() -> None:
    decoder = Decoder(TINY, torch.Generator().manual_seed(0)).double()
    decoder.log_alpha0.data.fill_(1.3)
    x, mean = torch.rand(2, 6, 6, 3, dtype=torch.float64), torch.rand(2, 6, 6, 3, dtype=torch.float64)
    normal = torch.distributions.Normal(mean, math.exp(-1.3 / 2))
    torch.testing.assert_close(decoder.log_prob(x, mean), normal.log_prob(x).sum((0, 1, 2)))


def test_alpha0_s_exact_maximiser() -> None:
    decoder = Decoder(TINY, torch.Generator().manual_seed(0)).double()
    x, mean = torch.rand(2, 6, 6, 5, dtype=torch.float64), torch.rand(2, 6, 6, 5, dtype=torch.float64)
    best = maximising_alpha0((x - mean).square(), x.numel()).log()
    values = []
    for shift in (-0.01, 0.0, 0.01):
        decoder.log_alpha0.data.copy_(best + shift)
        values.append(float(decoder.log_prob(x, mean).sum().detach()))
    assert values[1] > values[0]
    assert values[1] > values[2]
    decoder.log_alpha0.data.copy_(best)
    (gradient,) = torch.autograd.grad(decoder.log_prob(x, mean).sum(), decoder.log_alpha0)
    assert abs(float(gradient)) < 1e-9


def test_the_bound_rises_with_the_reconstruction_and_falls_with_the_kls() -> None:
    one = torch.ones(1)
    bound = Bound(reconstruction=5 * one, kl_s=1 * one, kl_z=2 * one, side=3 * one)
    assert float(bound.value) == 5 - 1 - 2 + 3
    assert {k: float(v) for k, v in bound.means().items()} == {
        "bound": 5.0, "reconstruction": 5.0, "kl_s": 1.0, "kl_z": 2.0, "side": 3.0
    }  # fmt: skip


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("gradient", ["nvil", "straight-through", "local"])
@pytest.mark.parametrize("nonlinearity", ["relu", "norm-relu"])
def test_every_parameter_receives_a_gradient(pooling: Pooling, gradient: str, nonlinearity: Nonlinearity) -> None:
    architecture = Architecture((2, 14, 14), (Layer(3, 3, 2), Layer(3, 3, 2), Layer(4, 2)), nonlinearity)
    objective = Joint(ImageModel.of(architecture, pooling), gradient=gradient_named(gradient))
    if gradient == "nvil":  # its baseline starts at zero, where the inner weights have no gradient yet
        torch.nn.init.normal_(objective.gradient.outer)  # type: ignore[attr-defined]
    step = objective(Batch(torch.rand(5, 2, 14, 14), torch.arange(5)), torch.Generator(), Rows(0, 5, 5))
    step.loss.backward()
    for name, parameter in objective.named_parameters():
        if not (pooling == "max" and name.startswith("gradient.")):
            assert parameter.grad is not None, name
            assert float(parameter.grad.abs().sum()) > 0, name


TWO_Z = Architecture((2, 14, 14), (Layer(3, 3, 2), Layer(3, 3, 2), Layer(4, 2)))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("architecture", [TINY, TWO_Z], ids=["one z", "two z"])
def test_the_loss_is_minus_the_bound_of_one_draw(pooling: Pooling, architecture: Architecture) -> None:
    """Put together by hand from one draw: the decoder gets the very s and z that the encoder drew, no others."""
    model = ImageModel.of(architecture, pooling, seed=1)
    model.start_from(images := torch.rand(8, *architecture.image_shape, generator=torch.Generator().manual_seed(0)))
    result = Joint(model)(Batch(images, torch.arange(8)), torch.Generator().manual_seed(5), Rows(0, 8, 8))
    posterior = model.encode(images, torch.Generator().manual_seed(5))
    mean = model.decode(posterior.code, posterior.z)
    spread = math.exp(-float(model.decoder.log_alpha0.detach()) / 2)
    reconstruction = torch.distributions.Normal(mean, spread).log_prob(images).sum((1, 2, 3))
    normal = torch.distributions.Normal(posterior.mean, posterior.log_spread.exp())
    kl_s = torch.distributions.kl_divergence(normal, torch.distributions.Normal(0.0, 1.0)).sum(1)
    kl_z = sum((kl_places(chosen) for chosen in posterior.chosen), torch.zeros(8))
    torch.testing.assert_close(result.loss, -(reconstruction - kl_s - kl_z).mean(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(result.terms["reconstruction"], reconstruction.mean(), rtol=1e-5, atol=1e-4)
    assert (float(result.terms["kl_z"]) > 0) == (pooling != "max")


def test_alpha0_exact_follows_the_residual() -> None:
    torch.manual_seed(0)
    objective = Joint(ImageModel.of(TINY), alpha0="exact")
    images = torch.rand(8, 2, 6, 6)
    for step in range(400):
        objective(Batch(images, torch.arange(8)), torch.Generator().manual_seed(step), Rows(0, 8, 8))
        objective.after_step(step)
    x, _, decoded = objective.infer(images, torch.Generator().manual_seed(0), Rows(0, 8, 8))
    best = maximising_alpha0((x - decoded.mean).square(), x.numel())
    assert float(objective.model.decoder.log_alpha0.detach().exp()) == pytest.approx(float(best.detach()), rel=0.25)
    assert not objective.model.decoder.log_alpha0.requires_grad
