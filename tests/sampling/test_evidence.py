"""Estimates of log p(X) against exact enumeration over z and the Gaussian integral over s."""

import math
from typing import cast

import pytest
import torch

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Nonlinearity
from semisight.model.encoders.paper import Pooling, PoolingMLP
from semisight.model.image_model import ImageModel
from semisight.model.posterior import batch_last
from semisight.sampling.evidence import (
    AnnealingConfig,
    annealed,
    encoder_base,
    importance_weighted,
    log_joint,
    prior_base,
)
from semisight.sampling.latents import SweepOptions
from tests.sampling.oracle import ONE_Z, SAME, TWO_Z, draw_images, exact_posterior, generator, hot, tiny_model

COPIES = 400  # of one image: as many independent estimates


def case(architecture: Architecture, pooling: Pooling = "expected") -> tuple[ImageModel, torch.Tensor, float]:
    model = tiny_model(architecture, alpha0=2.0)
    if pooling != "expected":
        other = ImageModel.of(architecture, pooling).double()
        other.load_state_dict(model.state_dict())
        model = other
    encoder = model.encoder
    with torch.no_grad():  # an encoder that is no good but covers the posterior: weights then have a finite variance
        encoder.code_mlp.mu.mul_(0.2)
        encoder.code_mlp.log_sigma.mul_(0.2)
        encoder.code_mlp.log_sigma_bias.fill_(0.0)
        for mlp in encoder.pooling_mlps:
            cast(PoolingMLP, mlp).outer.mul_(0.1)
    image = draw_images(model.decoder, 1, seed=2)
    exact = exact_posterior(model.decoder, image[0])
    return model, image.expand(COPIES, -1, -1, -1).contiguous(), float(exact.log_evidence)


def check_mean(estimates: torch.Tensor, exact: float) -> float:
    """exp of an estimate has mean p(X); returns the spread of the ratio."""
    ratio = (estimates - exact).exp()
    error = float(ratio.std()) / len(ratio) ** 0.5
    assert abs(float(ratio.mean()) - 1) < 4 * error
    return error


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
@pytest.mark.parametrize("architecture", [ONE_Z, TWO_Z, SAME], ids=["one z", "two z", "same"])
def test_importance_weights_average_to_the_evidence(architecture: Architecture, pooling: Pooling) -> None:
    model, images, exact = case(architecture, pooling)
    error = check_mean(importance_weighted(model, images, 200, generator(1)), exact)
    assert error < 0.1  # sharp enough to mean something


def test_more_draws_bring_the_bound_nearer() -> None:
    model, images, exact = case(ONE_Z)
    one, ten, many = (float(importance_weighted(model, images, n, generator(1), 100).mean()) for n in (1, 10, 200))
    assert one < ten < many < exact + 0.05
    assert exact - many < 0.2 * (exact - one)


def test_the_single_draw_is_the_bound_of_the_paper() -> None:
    """E_q[log p(X, s, z) - log q(s, z | X)], (10), with q's own terms by hand."""
    model, images, _ = case(ONE_Z)
    posterior = model.encoder(batch_last(images), model.noise(COPIES, generator(1)), through=False)
    with torch.no_grad():
        mean = model.decoder(posterior.s, posterior.z).mean
        value = model.decoder.log_prob(batch_last(images), mean)
        q = torch.distributions.Normal(posterior.mu, posterior.log_sigma.exp())
        p = torch.distributions.Normal(0.0, 1.0)
        value = value + (p.log_prob(posterior.s) - q.log_prob(posterior.s)).sum((0, 1, 2))
        value = value - (math.log(4) + posterior.chosen[0].log_q_z).sum((0, 1, 2))
    torch.testing.assert_close(importance_weighted(model, images, 1, generator(1), COPIES), value)


@pytest.mark.parametrize(
    ("architecture", "base", "power"), [(ONE_Z, "encoder", 1.0), (TWO_Z, "encoder", 1.0), (SAME, "prior", 3.0)]
)
def test_annealing_averages_to_the_evidence_with_less_spread(
    architecture: Architecture, base: str, power: float
) -> None:
    model, images, exact = case(architecture)
    estimates = {}
    for steps in (1, 16):
        config = AnnealingConfig(steps, 1, base, power, seed=3)  # type: ignore[arg-type]
        estimates[steps] = annealed(model, images, config).log_evidence
        check_mean(estimates[steps], exact)
    # With one temperature there is no sweep: plain importance weighting with one draw. Sweeps tighten it.
    assert exact - float(estimates[16].mean()) < 0.4 * (exact - float(estimates[1].mean()))
    assert float(estimates[16].std()) < float(estimates[1].std())


def test_chains_are_averaged_image_by_image() -> None:
    model, images, exact = case(ONE_Z)
    seen: list[tuple[int, int]] = []
    config = AnnealingConfig(8, 5, options=SweepOptions(batch_size=7))
    result = annealed(model, images[:10], config, progress=lambda *n: seen.append(n))
    assert result.log_evidence.shape == result.effective_chains.shape == (10,)
    assert bool((result.effective_chains >= 1).all()) and bool((result.effective_chains <= 5 + 1e-9).all())
    assert seen[-1] == (50, 50)
    assert float(result.log_evidence.mean()) == pytest.approx(exact, abs=1.0)


def test_the_encoder_s_base_is_the_posterior_the_encoder_gives() -> None:
    nonlinearities: tuple[Nonlinearity, ...] = ("none", "relu", "norm-relu")
    for nonlinearity in nonlinearities:
        architecture = Architecture(TWO_Z.image_shape, TWO_Z.layers, nonlinearity)
        model, images, _ = case(architecture)
        x = batch_last(images[:3])
        base = encoder_base(model, x)
        posterior = model.encoder(x, model.noise(3, generator()), through=False)
        torch.testing.assert_close(base.mu, posterior.mu)
        torch.testing.assert_close(base.log_sigma, posterior.log_sigma)
        for log_q, chosen in zip(base.log_q, posterior.chosen, strict=True):
            torch.testing.assert_close((log_q.exp() * log_q).sum(0), chosen.negative_entropy)
            torch.testing.assert_close((log_q * chosen.z).sum(0), chosen.log_q_z)


def test_the_prior_s_density_cancels_in_the_joint() -> None:
    model, images, _ = case(TWO_Z)
    x = batch_last(images[:4])
    base = prior_base(model.decoder, 4)
    latents = base.draw(generator(3))
    with torch.no_grad():
        likelihood = model.decoder.log_prob(x, model.decoder(latents.s, hot(TWO_Z, latents.places)).mean)
    torch.testing.assert_close(log_joint(model.decoder, x, latents) - base.log_density(latents), likelihood)


def test_bad_input_is_refused_with_a_reason() -> None:
    model, images, _ = case(ONE_Z)
    with pytest.raises(UserError, match="at least 1 draw"):
        importance_weighted(model, images, 0, generator())
    with pytest.raises(UserError, match="at least 1 temperature"):
        AnnealingConfig(n_temperatures=0)
    with pytest.raises(UserError, match="base"):
        AnnealingConfig(base="nothing")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="power"):
        AnnealingConfig(power=0.0)
    with pytest.raises(UserError, match="pooling='expected'"):
        annealed(case(ONE_Z, "sampled")[0], images[:2], AnnealingConfig(2, 1))
    with pytest.raises(UserError, match="importance_weighted"):
        annealed(ImageModel.of(ONE_Z, "max").double(), images[:2], AnnealingConfig(2, 1, "prior"))
    assert importance_weighted(ImageModel.of(ONE_Z, "max").double(), images[:2], 2, generator()).shape == (2,)
