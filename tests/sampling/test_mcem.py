"""Exact EM on a toy never lowers the posterior; MCEM with many samples follows it; the MAP of s is the right one."""

import copy
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM
from semisight.model.posterior import flat_code, maps_of_code
from semisight.sampling import mcem as mcem_module
from semisight.sampling.dictionaries import Completed
from semisight.sampling.dictionaries_above import Solver
from semisight.sampling.latents import Latents, SweepOptions
from semisight.sampling.mcem import MCEM, Iteration, MCEMConfig
from semisight.sampling.parameters import Priors, maximise_parameters
from semisight.sampling.top_map import MapConfig, map_codes, map_decisions, sampled_gradient
from tests.sampling.oracle import (
    ONE_Z,
    TWO_Z,
    all_places,
    draw_images,
    exact_posterior,
    generator,
    hot,
    places_given_code,
    tiny_decoder,
)

PRIORS = Priors(dictionary_precision=0.5, bias_mean=0.2, bias_precision=1.5, alpha0_shape=1.5, alpha0_rate=0.5)
SOLVER = Solver(tolerance=1e-7)


def log_posterior(decoder: Decoder, images: Tensor) -> float:
    """log p(X | parameters) + log p(parameters), by enumeration."""
    value = sum(float(exact_posterior(decoder, image).log_evidence) for image in images)
    return value + float(PRIORS.log_density(decoder).detach())


@torch.no_grad()
def exact_expectation(decoder: Decoder, images: Tensor) -> list[Completed]:
    """E-step without sampling: every joint z with its probability, and for the Gaussian s the 2J points at the mean
    plus and minus sqrt(J) times the columns of the covariance's root. They have its mean and covariance, and the
    log-joint is quadratic in s."""
    places, batches = all_places(decoder.architecture), []
    for image in images:
        exact = exact_posterior(decoder, image)
        root = torch.linalg.cholesky(exact.covariance)  # [Z, J, J]
        size = root.shape[-1]
        offsets = torch.cat([root, -root], -1).transpose(1, 2) * size**0.5  # [Z, 2J, J]
        codes = (exact.mean[:, None] + offsets).flatten(0, 1)
        repeated = tuple(p.repeat_interleave(2 * size, -1) for p in places)
        weight = exact.probability.repeat_interleave(2 * size) / (2 * size)
        s = maps_of_code(codes, decoder.architecture)
        batches.append(Completed(image[..., None].expand(*image.shape, len(codes)), s, repeated, weight))
    return batches


def exact_em(decoder: Decoder, images: Tensor) -> None:
    expectation = exact_expectation(decoder, images)
    maximise_parameters(decoder, lambda: expectation, PRIORS, SOLVER)


@pytest.mark.parametrize("architecture", [ONE_Z, TWO_Z], ids=["one z", "two z"])
def test_exact_em_never_lowers_the_posterior(architecture: Architecture) -> None:
    images = draw_images(tiny_decoder(architecture, seed=1), 3)
    decoder = tiny_decoder(architecture, seed=2)
    values = [log_posterior(decoder, images)]
    for _ in range(6):
        exact_em(decoder, images)
        values.append(log_posterior(decoder, images))
    assert all(after >= before - 1e-8 for before, after in itertools.pairwise(values)), values
    assert values[-1] > values[0] + 5


def test_mcem_with_many_samples_follows_exact_em() -> None:
    images = draw_images(tiny_decoder(ONE_Z, seed=1), 3)
    exact, sampled = tiny_decoder(ONE_Z, seed=2), tiny_decoder(ONE_Z, seed=2)
    config = MCEMConfig(iterations=4, burn_in=10, n_samples=200, m_step="exact", priors=PRIORS, solver=SOLVER)
    mcem = MCEM(sampled, images, config)
    before = log_posterior(exact, images)
    for _ in range(4):
        exact_em(exact, images)
        mcem.iterate()
    reached, followed = log_posterior(exact, images), log_posterior(sampled, images)
    assert reached - before > 5
    assert followed == pytest.approx(reached, abs=0.1 * (reached - before))


def test_gradient_steps_raise_the_posterior() -> None:
    images = draw_images(tiny_decoder(ONE_Z, seed=1), 8)
    decoder = tiny_decoder(ONE_Z, seed=2)
    before = log_posterior(decoder, images)
    config = MCEMConfig(iterations=60, rate=0.03, priors=PRIORS, options=SweepOptions(batch_size=4))
    seen: list[Iteration] = []
    MCEM(decoder, images, config).run(progress=seen.append)
    assert log_posterior(decoder, images) > before + 5
    assert len(seen) == 60 and seen[-1].mean_square < seen[0].mean_square


def test_a_gradient_step_follows_the_posterior_per_image() -> None:
    """Of the bias by hand: the mean over images of the log-joint, and the prior counted once for all of them."""
    images = draw_images(tiny_decoder(ONE_Z, seed=1), 8)
    decoder = tiny_decoder(ONE_Z, seed=2)
    chain = MCEM(decoder, images, MCEMConfig(iterations=5, priors=PRIORS))
    before = copy.deepcopy(decoder)
    chain._gradient_step(torch.arange(8))
    x, latents = images.movedim(0, -1), chain.latents
    rest = x - before(latents.s, Completed(x, latents.s, latents.places).z(before)).mean
    slope = float(before.log_alpha0.detach().exp()) * rest.mean(-1, keepdim=True)
    slope = slope - PRIORS.bias_precision * (before.image_bias - PRIORS.bias_mean) / 8
    assert decoder.image_bias.grad is not None
    torch.testing.assert_close(-decoder.image_bias.grad, slope.detach())


def toy_head(gamma: float = 1.5, precision: float = 1.0) -> BayesianSVM:
    return BayesianSVM(ONE_Z.code_size, 3, gamma=gamma, generator=generator(5), precision=precision).double()


@pytest.mark.parametrize("m_step", ["exact", "gradient"])
def test_an_image_counts_once_for_beta_however_often_it_is_drawn(m_step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(mcem_module, "maximise_beta", lambda head, labels, codes, w, seed: seen.append((labels, w)))
    config = MCEMConfig(iterations=1, n_samples=3, m_step=m_step, priors=PRIORS, solver=SOLVER)  # type: ignore[arg-type]
    labels = torch.tensor([0, 1, 2, -1])
    MCEM(tiny_decoder(ONE_Z, seed=2), draw_images(tiny_decoder(ONE_Z, seed=1), 4), config, labels, toy_head()).iterate()
    ((given, weight),) = seen
    for label in labels.tolist():
        assert float(weight[given == label].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize("m_step", ["exact", "gradient"])
def test_labels_are_learned_along(m_step: str) -> None:
    decoder, head = tiny_decoder(ONE_Z), toy_head()
    images = draw_images(decoder, 12)
    labels = torch.tensor([0, 1, 2, -1] * 3)
    untaught = copy.deepcopy(head)
    config = MCEMConfig(iterations=2, n_samples=2, m_step=m_step, options=SweepOptions(batch_size=5))  # type: ignore[arg-type]
    chain = MCEM(decoder, images, config, labels, head)
    chain.run()
    assert all(bool(torch.isfinite(p).all()) for p in [*head.parameters(), *decoder.parameters()])
    assert label_value(head, labels, chain.latents.codes) > label_value(untaught, labels, chain.latents.codes) + 1


def label_value(head: BayesianSVM, labels: Tensor, codes: Tensor) -> float:
    return float((head.log_prob(labels, codes).sum() + head.log_prior(1)).detach())


@pytest.mark.parametrize("m_step", ["exact", "gradient"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(m_step: str, tmp_path: Path) -> None:
    config = MCEMConfig(iterations=4, m_step=m_step, options=SweepOptions(batch_size=5))  # type: ignore[arg-type]
    images, labels = draw_images(tiny_decoder(ONE_Z), 8), torch.tensor([0, 1, 2, -1] * 2)

    def fresh() -> MCEM:
        return MCEM(tiny_decoder(ONE_Z, seed=2), images, config, labels, toy_head())

    whole = fresh()
    whole.run()
    first = fresh()
    for _ in range(2):
        first.iterate()
    first.save(tmp_path / "em.safetensors")
    second = fresh()
    second.resume(tmp_path / "em.safetensors")
    second.run(save_to=tmp_path / "em.safetensors")
    assert second.number == 4 and whole.head is not None and second.head is not None
    for a, b in zip(whole.decoder.parameters(), second.decoder.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(whole.head.scores.beta, second.head.scores.beta)
    assert torch.equal(whole.latents.s, second.latents.s)
    kept, again = whole.samples(), second.samples()  # the estimate after every pass, those before the stop too
    assert len(kept) == len(again) == 4 and kept.head is not None and again.head is not None
    assert torch.equal(kept.head["scores.beta"], again.head["scores.beta"])
    last = tiny_decoder(ONE_Z, seed=3)
    kept.part(slice(2, None)).load(-1, last)
    assert all(torch.equal(a, b) for a, b in zip(last.parameters(), whole.decoder.parameters(), strict=True))
    with pytest.raises(UserError, match="other images or labels"):
        MCEM(tiny_decoder(ONE_Z), images, config, labels.flip(0), toy_head()).resume(tmp_path / "em.safetensors")
    with pytest.raises(UserError, match="config"):
        other = replace(config, rate=1.0)
        MCEM(tiny_decoder(ONE_Z), images, other, labels, toy_head()).resume(tmp_path / "em.safetensors")


def log_code_posterior(decoder: Decoder, image: Tensor, code: Tensor) -> Tensor:
    """log p(X, s) by summing over all joint z, for codes [B, J]."""
    places = all_places(decoder.architecture)
    count = places[0].shape[-1]
    values = []
    for one in code:
        s = maps_of_code(one.expand(count, -1), decoder.architecture)
        mean = decoder(s, hot(decoder.architecture, places)).mean
        values.append(decoder.log_prob(image[..., None], mean).logsumexp(0) - 0.5 * one.square().sum())
    return torch.stack(values)


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_sampled_gradient_has_the_mean_that_summing_over_z_gives(share: float) -> None:
    """Fisher's identity, with z started from its exact conditional so that a sweep leaves it there."""
    decoder = tiny_decoder(ONE_Z)
    image = draw_images(decoder, 1, seed=3)[0]
    with torch.no_grad():
        decoder.log_alpha0.add_(math.log(share))  # what the gradient is to be that of; undone before it is asked for
    s = torch.randn(*ONE_Z.code_shape, 1, generator=generator(4), dtype=torch.float64)
    count = 20_000
    chosen = torch.multinomial(places_given_code(decoder, image, s), count, True, generator=generator(5))
    places = tuple(p[..., chosen].to(torch.uint8) for p in all_places(ONE_Z))
    x = image[..., None].expand(-1, -1, -1, count).contiguous()
    latents = Latents(s.expand(-1, -1, -1, count).contiguous(), places)
    code = flat_code(s).requires_grad_()
    (exact,) = torch.autograd.grad(log_code_posterior(decoder, image, code).sum(), code)
    with torch.no_grad():
        decoder.log_alpha0.sub_(math.log(share))
    gradients = flat_code(sampled_gradient(decoder, x, latents, generator(6), SweepOptions(), share))
    error = gradients.std(0) / count**0.5
    assert float(((gradients.mean(0) - exact[0]) / error).abs().max()) < 4


def test_the_map_estimate_is_a_maximum_of_the_summed_posterior() -> None:
    decoder = tiny_decoder(ONE_Z, alpha0=2.0)
    image = draw_images(decoder, 1, seed=3)
    found = map_codes(decoder, image.expand(8, -1, -1, -1), MapConfig(steps=400, rate=0.05))
    values = log_code_posterior(decoder, image[0], found)
    best = found[values.argmax()].clone().requires_grad_()
    optimiser = torch.optim.LBFGS([best], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = -log_code_posterior(decoder, image[0], best[None]).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        top = float(log_code_posterior(decoder, image[0], best[None]))
        away = float(log_code_posterior(decoder, image[0], torch.zeros_like(best)[None]))
        assert top - float(values.max()) < 0.05 * (top - away)


def test_bad_input_is_refused_with_a_reason() -> None:
    decoder = tiny_decoder(ONE_Z)
    images = draw_images(decoder, 2)
    with pytest.raises(UserError, match="at least 1 sample"):
        MCEMConfig(n_samples=0)
    with pytest.raises(UserError, match="at least 1 iteration"):
        MCEMConfig(iterations=0)
    with pytest.raises(UserError, match="m_step"):
        MCEMConfig(m_step="newton")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="rate"):
        MCEMConfig(rate=0.0)
    with pytest.raises(UserError, match="at least 1 step"):
        MapConfig(steps=0)
    with pytest.raises(UserError, match="rate"):
        MapConfig(rate=-1.0)
    with pytest.raises(UserError, match="share of 0 to 1"):
        MapConfig(anneal=1.5)
    with pytest.raises(UserError, match="label head"):
        MCEM(decoder, images, MCEMConfig(), labels=torch.tensor([0, 1]))
    with pytest.raises(UserError, match="channels, height, width"):
        map_codes(decoder, images[:, :, 1:], MapConfig(steps=1))
    with pytest.raises(UserError, match="without labels and cannot give any"):
        map_decisions(decoder, None, images, MapConfig(steps=1))


def test_the_decoder_of_a_map_estimate_is_left_alone() -> None:
    decoder = tiny_decoder(ONE_Z)
    before = copy.deepcopy(decoder.state_dict())
    seen: list[tuple[int, int]] = []
    codes = map_codes(
        decoder, draw_images(decoder, 3), MapConfig(2, options=SweepOptions(batch_size=2)), lambda *n: seen.append(n)
    )
    assert codes.shape == (3, ONE_Z.code_size) and seen == [(2, 3), (3, 3)]
    assert all(torch.equal(before[name], value) for name, value in decoder.state_dict().items())
    assert all(parameter.grad is None for parameter in decoder.parameters())
    head = toy_head()
    decisions = map_decisions(decoder, head, draw_images(decoder, 3), MapConfig(2, options=SweepOptions(batch_size=2)))
    torch.testing.assert_close(decisions, head.decision(codes))
