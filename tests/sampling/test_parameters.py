"""Conditionals of dictionaries, image bias and alpha0 against dense regression, and their draws against moments."""

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM
from semisight.sampling import dictionaries_above
from semisight.sampling.dictionaries import Completed, draw_nearest_dictionary, picture, unpooled_maps
from semisight.sampling.dictionaries_above import Solver, draw_dictionary_above, maximise_dictionary_above
from semisight.sampling.parameters import Priors, draw_alpha0, draw_bias, maximise_parameters
from tests.sampling.oracle import DEEP, NO_Z, ONE_Z, SAME, TWO_Z, draw_images, generator, random_places, tiny_decoder

EXACT = Solver(tolerance=1e-13, most_steps=2000)
# Filters larger than the maps they are convolved with: lags beyond the map's own size.
WIDE = Architecture((2, 5, 6), (Layer(2, 4, 1), Layer(2, 2)))
# 'same' layers above the first, one of them pooled: the maps below are cropped.
SAME_ABOVE = Architecture((1, 4, 4), (Layer(2, 2, 2, "same"), Layer(2, 3, 2, "same"), Layer(2, 2, 1, "same")))
NEAREST = [ONE_Z, TWO_Z, SAME, NO_Z, WIDE]
ABOVE = [(ONE_Z, 1), (TWO_Z, 1), (TWO_Z, 2), (SAME, 1), (SAME_ABOVE, 1), (SAME_ABOVE, 2), (WIDE, 1)]


class Set:
    """Some completed images in two batches, with or without weights."""

    def __init__(self, architecture: Architecture, weighted: bool, count: int = 5) -> None:
        self.decoder = tiny_decoder(architecture)
        self.x = draw_images(self.decoder, count).permute(1, 2, 3, 0).contiguous()
        self.s = torch.randn(*architecture.code_shape, count, generator=generator(1), dtype=torch.float64)
        self.places = random_places(architecture, count, generator(2))
        weight = torch.rand(count, generator=generator(3), dtype=torch.float64) + 0.2
        self.weight = weight if weighted else torch.ones(count, dtype=torch.float64)
        self.weighted, self.half = weighted, (count + 1) // 2

    def __call__(self) -> Iterator[Completed]:
        for n in (slice(0, self.half), slice(self.half, None)):
            places = tuple(p[..., n].to(torch.uint8) for p in self.places)
            weight = self.weight[n] if self.weighted else None
            yield Completed(self.x[..., n].contiguous(), self.s[..., n].contiguous(), places, weight)


def dense(case: Set, index: int, precision: float) -> tuple[Tensor, Tensor]:
    """Q and b by differentiating the decoder's picture, the dictionary flattened."""
    decoder, alpha0 = case.decoder, case.decoder.log_alpha0.detach().exp()
    size = decoder.dictionaries[index].numel()
    q, b = precision * torch.eye(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    for batch in case():
        z = batch.z(decoder)
        unpooled = unpooled_maps(decoder, index, batch, z)
        for n in range(batch.x.shape[-1]):
            one = tuple(p[..., n : n + 1] for p in z)

            def flat(d: Tensor, n: int = n, one: Any = one, unpooled: Tensor = unpooled) -> Tensor:
                return picture(decoder, index, d, unpooled[..., n : n + 1], one).flatten()

            j = torch.autograd.functional.jacobian(flat, decoder.dictionaries[index].detach()).flatten(1)
            weight = alpha0 * batch.weights()[n]
            q += weight * j.T @ j
            b += weight * j.T @ (batch.x[..., n : n + 1] - decoder.image_bias.detach()).flatten()
    return q, b


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("architecture", NEAREST)
def test_the_mean_nearest_the_image_is_that_of_the_dense_regression(architecture: Architecture, weighted: bool) -> None:
    case = Set(architecture, weighted)
    alpha0 = case.decoder.log_alpha0.detach().exp()
    q, b = dense(case, 0, precision=0.7)
    found = draw_nearest_dictionary(case.decoder, case, 0.7, alpha0, None)
    torch.testing.assert_close(found, torch.linalg.solve(q, b).view_as(found), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("architecture", [ONE_Z, SAME])
def test_draws_nearest_the_image_have_the_covariance_of_the_dense_regression(
    architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, without sampling: a draw is affine in its noise, so unit noises spell out the covariance."""
    case = Set(architecture, weighted=True)
    alpha0 = case.decoder.log_alpha0.detach().exp()
    q, _ = dense(case, 0, precision=0.7)
    mean = draw_nearest_dictionary(case.decoder, case, 0.7, alpha0, None)
    covariance = torch.zeros_like(q)
    for unit in range(len(q)):

        def one_unit(shape: torch.Size, unit: int = unit, **_: Any) -> Tensor:
            noise = torch.zeros(shape.numel(), dtype=torch.float64)
            noise[unit] = 1.0
            return noise.view(shape)

        monkeypatch.setattr(torch, "randn", one_unit)
        moved = (draw_nearest_dictionary(case.decoder, case, 0.7, alpha0, generator()) - mean).flatten()
        monkeypatch.undo()
        covariance += moved[:, None] * moved[None, :]
    torch.testing.assert_close(covariance, torch.linalg.inv(q), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("way", ["_by_pairs", "_by_patches"])
@pytest.mark.parametrize(("architecture", "index"), ABOVE)
def test_draws_above_are_those_of_dense_gibbs_sampling_element_by_element(
    architecture: Architecture, index: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise through the dense Q: every element given all others, channels outside, maps inside."""
    case = Set(architecture, weighted=False)
    decoder, alpha0 = case.decoder, case.decoder.log_alpha0.detach().exp()
    monkeypatch.setattr(dictionaries_above, "_systems", getattr(dictionaries_above, way))
    monkeypatch.setattr(dictionaries_above, "_WORK_ELEMENTS", 1)  # image by image: the parts must fit together
    drawn = draw_dictionary_above(decoder, index, case, 0.7, alpha0, generator(9))
    q, b = dense(case, index, precision=0.7)
    shape = decoder.dictionaries[index].shape
    noise = torch.randn(shape, generator=generator(9), dtype=torch.float64)
    expected = decoder.dictionaries[index].detach().clone().flatten()
    number = torch.arange(expected.numel()).view(shape)
    for c in range(shape[1]):
        for k in range(shape[0]):
            at = number[k, c].flatten()
            root = torch.linalg.cholesky(q[at][:, at])
            slope = (b - q @ expected)[at]
            mean = torch.cholesky_solve(slope[:, None], root)[:, 0]
            spread = torch.linalg.solve_triangular(root.T, noise[k, c].reshape(-1, 1), upper=True)[:, 0]
            expected[at] += mean + spread
    torch.testing.assert_close(drawn.flatten(), expected, rtol=1e-8, atol=1e-9)


def test_a_share_of_the_channels_is_drawn_and_the_others_stay() -> None:
    case = Set(ONE_Z, weighted=False)
    before = case.decoder.dictionaries[1].detach().clone()
    alpha0 = case.decoder.log_alpha0.detach().exp()
    drawn = draw_dictionary_above(case.decoder, 1, case, 0.7, alpha0, generator(), share=0.5)
    assert sorted((drawn != before).flatten(2).any(2).any(0).tolist()) == [False, True]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("architecture", "index"), ABOVE)
def test_the_maximiser_above_is_that_of_the_dense_regression(
    architecture: Architecture, index: int, weighted: bool
) -> None:
    case = Set(architecture, weighted)
    alpha0 = case.decoder.log_alpha0.detach().exp()
    q, b = dense(case, index, precision=0.7)
    found = maximise_dictionary_above(case.decoder, index, case, 0.7, alpha0, EXACT)
    torch.testing.assert_close(found, torch.linalg.solve(q, b).view_as(found), rtol=1e-7, atol=1e-9)


def test_every_step_of_the_maximiser_raises_the_quadratic() -> None:
    case = Set(DEEP, weighted=False)
    alpha0 = case.decoder.log_alpha0.detach().exp()
    q, b = dense(case, 2, precision=1.0)

    def value(dictionary: Tensor) -> float:
        d = dictionary.flatten()
        return float(b @ d - 0.5 * d @ q @ d)

    values = [value(case.decoder.dictionaries[2].detach())]
    for steps in (1, 2, 5, 20):
        solver = Solver(tolerance=1e-9, most_steps=steps)
        values.append(value(maximise_dictionary_above(case.decoder, 2, case, 1.0, alpha0, solver)))
    assert all(after > before for before, after in itertools.pairwise(values))
    with pytest.raises(UserError, match="tolerance"):
        Solver(tolerance=0.0)


def test_alpha0_is_drawn_from_its_gamma() -> None:
    priors = Priors(alpha0_shape=2.0, alpha0_rate=3.0)
    squares, n = torch.tensor(40.0, dtype=torch.float64), torch.tensor(30.0, dtype=torch.float64)
    random = generator(1)
    drawn = [float(draw_alpha0(squares, n, priors, random)) for _ in range(4000)]
    exact = stats.gamma(2.0 + 15.0, scale=1 / (3.0 + 20.0))
    assert stats.kstest(drawn, exact.cdf).pvalue > 1e-3
    mode = float(draw_alpha0(squares, n, priors, None))
    assert mode == pytest.approx(16.0 / 23.0)


def test_the_bias_is_drawn_from_its_gaussian() -> None:
    priors = Priors(bias_mean=0.5, bias_precision=2.0)
    total = torch.full((1, 100, 100, 1), 7.0, dtype=torch.float64)
    count, alpha0 = torch.tensor(10.0, dtype=torch.float64), torch.tensor(3.0, dtype=torch.float64)
    drawn = draw_bias(total, count, alpha0, priors, generator(1)).flatten()
    exact = stats.norm((2.0 * 0.5 + 3.0 * 7.0) / 32.0, 1 / math.sqrt(32.0))
    assert stats.kstest(drawn.numpy(), exact.cdf).pvalue > 1e-3
    assert float(draw_bias(total, count, alpha0, priors, None)[0, 0, 0, 0]) == pytest.approx(exact.mean())


def log_joint(decoder: Decoder, case: Set, priors: Priors) -> float:
    total = priors.log_density(decoder)
    for batch in case():
        mean = decoder(batch.s, batch.z(decoder)).mean
        total = total + (batch.weights() * decoder.log_prob(batch.x, mean)).sum()
    return float(total.detach())


@pytest.mark.parametrize("architecture", [ONE_Z, TWO_Z, SAME, WIDE])
def test_maximising_in_turn_only_rises(architecture: Architecture) -> None:
    case = Set(architecture, weighted=True)
    decoder, priors = case.decoder, Priors(0.5, 0.3, 2.0, 1.5, 0.7)
    values = [log_joint(decoder, case, priors)]
    for _ in range(5):
        maximise_parameters(decoder, case, priors, Solver(tolerance=1e-6, most_steps=5))
        values.append(log_joint(decoder, case, priors))
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert values[-1] > values[0] + 1


def test_bias_and_alpha0_end_where_the_gradient_of_the_log_joint_is_zero() -> None:
    """Of the density of alpha0, not of its logarithm: no Jacobian."""
    case = Set(ONE_Z, weighted=True)
    decoder, priors = case.decoder, Priors(0.5, 0.3, 2.0, 1.5, 0.7)
    for _ in range(15):
        maximise_parameters(decoder, case, priors, EXACT)
    total = priors.log_density(decoder)
    for batch in case():
        total = total + (batch.weights() * decoder.log_prob(batch.x, decoder(batch.s, batch.z(decoder)).mean)).sum()
    alpha0_gradient, *_ = torch.autograd.grad(total, [decoder.log_alpha0], retain_graph=True)
    assert abs(float(alpha0_gradient)) < 1e-9  # drawn last, given all others
    (bias_gradient,) = torch.autograd.grad(total, [decoder.image_bias])
    assert float(bias_gradient.abs().max()) < 1e-2  # drawn given the alpha0 before


@pytest.mark.parametrize("name", ["dictionary_precision", "bias_precision", "alpha0_shape", "alpha0_rate"])
def test_priors_must_be_proper(name: str) -> None:
    with pytest.raises(UserError, match=name):
        Priors(**{name: 0.0})


def test_the_documents_state_the_priors() -> None:
    """docs/symbols.md names N(0, 1), Gamma(1, 0.01), and xi as a factor of gamma."""
    assert Priors() == Priors(1.0, bias_mean=0.0, bias_precision=1.0, alpha0_shape=1.0, alpha0_rate=0.01)
    text = (Path(__file__).parents[2] / "docs" / "symbols.md").read_text()
    for words in ("every entry N(0, 1)", "every pixel N(0, 1)", "Gamma(1, 0.01)", "a head with `gamma` times xi"):
        assert words in text
    one, many = (BayesianSVM(4, 3, gamma, generator=generator(1)) for gamma in (1.5, 1.5 * 78.4))
    codes, labels = torch.randn(6, 4, generator=generator(2)), torch.tensor([0, 1, 2, 2, -1, 0])
    torch.testing.assert_close(many.log_prob(labels, codes), 78.4 * one.log_prob(labels, codes))
