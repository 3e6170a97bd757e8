"""The encoder against the truth, where the truth is known by enumeration."""

from dataclasses import replace

import pytest
import torch

from semisight.errors import UserError
from semisight.model.image_model import ImageModel
from semisight.sampling.encoder_truth import (
    Moments,
    TruthConfig,
    distance,
    encoder_against_truth,
    encoder_moments,
)
from semisight.sampling.evidence import AnnealingConfig
from semisight.sampling.inference import InferenceConfig
from tests.sampling.oracle import ONE_Z, TWO_Z, all_places, draw_images, exact_posterior, tiny_model

SMALL = TruthConfig(
    n_draws=30, annealing=AnnealingConfig(n_temperatures=20, n_chains=3), gibbs=InferenceConfig(10, 100), seed=2
)


def test_the_gap_and_the_posterior_are_those_of_enumeration() -> None:
    model = tiny_model(ONE_Z, alpha0=2.0)
    image = draw_images(model.decoder, 1, seed=2)
    exact = exact_posterior(model.decoder, image[0])
    copies = image.expand(60, -1, -1, -1).contiguous()
    truth = encoder_against_truth(model, copies, SMALL)
    assert truth.annealed is not None and truth.code is not None and truth.encoder is not None
    log_p = float(exact.log_evidence)
    assert abs(float((truth.annealed - log_p).exp().mean()) - 1) < 0.25
    assert float(truth.bound.mean()) < float(truth.weighted.mean()) < log_p + 0.05
    assert float(truth.gap.mean()) == pytest.approx(log_p - float(truth.bound.mean()), rel=0.1)
    torch.testing.assert_close(truth.code.mean(0), exact.code_mean, atol=0.05, rtol=0)

    # q against the exact posterior is what q against Gibbs samples must say
    variance = exact.code_second_moment.diagonal() - exact.code_mean.square()
    places = all_places(ONE_Z)[0]
    shares = torch.stack([(places == a).double() @ exact.probability for a in range(4)])
    moments = Moments(exact.code_mean[None], variance.sqrt()[None], (shares[..., None],))
    known = distance(encoder_moments(model, image, SMALL), moments)
    assert truth.encoder.code == pytest.approx(known.code, rel=0.1)
    assert truth.encoder.spread == pytest.approx(known.spread, rel=0.1)
    assert truth.encoder.places == pytest.approx(known.places, abs=0.03)
    # and two chains agree up to the noise of their hundred samples
    assert truth.chains is not None
    assert truth.chains.code < 0.4 and truth.chains.places < 0.15 and truth.chains.spread == pytest.approx(1, abs=0.1)
    assert truth.encoder.code > 1.5 * truth.chains.code


def test_distances_by_hand() -> None:
    half = torch.tensor([0.75, 0.25]).view(2, 1, 1, 1, 1)
    one = Moments(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]]), (half,))
    same = distance(one, one)
    assert (same.code, same.spread, same.places, same.same_place) == (0, 1, 0, 1)
    other = Moments(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 0.5]]), (half.flip(0),))
    found = distance(one, other)
    assert found.code == pytest.approx((9 / 2) ** 0.5)
    assert found.spread == pytest.approx(2.0)
    assert found.places == pytest.approx(0.5) and found.same_place == 0


def test_sampled_pooling_counts_how_s_spreads_with_z() -> None:
    model = tiny_model(TWO_Z)
    other = ImageModel.of(TWO_Z, "sampled").double()
    other.load_state_dict(model.state_dict())
    images = draw_images(model.decoder, 3)
    seen: list[tuple[int, int]] = []
    quick = replace(SMALL, gibbs=InferenceConfig(2, 3))
    truth = encoder_against_truth(other, images, quick, lambda done, total: seen.append((done, total)))
    assert truth.annealed is not None and bool((truth.weighted >= truth.bound).all())
    assert truth.encoder is not None and len(truth.places) == 2
    assert seen[-1] == (3 * (2 * 5 + 60), 3 * (2 * 5 + 60))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    many = encoder_moments(other, images, replace(SMALL, n_draws=300))
    assert all(torch.allclose(p.sum(0), torch.ones_like(p[0])) for p in many.places)
    expected = encoder_moments(model, images, SMALL)
    # z nearest the image has the same probabilities in both, drawn here
    torch.testing.assert_close(many.places[0], expected.places[0], atol=0.12, rtol=0)


def test_a_model_without_places_has_its_weighted_bound_only() -> None:
    model = ImageModel.of(ONE_Z, "max").double()
    truth = encoder_against_truth(model, draw_images(model.decoder, 4), SMALL)
    assert truth.annealed is None and truth.encoder is None and truth.chains is None
    assert torch.equal(truth.log_evidence, truth.weighted) and bool((truth.gap >= 0).all())


def test_bad_input_is_refused() -> None:
    with pytest.raises(UserError, match="at least 2"):
        TruthConfig(n_draws=1)
    with pytest.raises(UserError, match="no images"):
        encoder_against_truth(tiny_model(ONE_Z), torch.zeros(0, 1, 3, 5), SMALL)
