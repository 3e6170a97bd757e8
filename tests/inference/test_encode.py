"""Codes of whole sets: the same whatever the batches, the mixture over draws of z, and its spread."""

import math

import pytest
import torch

from semisight.inference.encode import Codes, encode, encode_set, joined, mean_codes
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling
from semisight.model.image_model import ImageModel
from tests.training.toy import ToyImages

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
IMAGES = ToyImages(torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def test_the_spread_is_that_of_the_mixture_within_and_between_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    codes = Codes(3 * torch.randn(4, 2, 3, generator=generator), torch.randn(4, 2, 3, generator=generator))
    drawn = codes.draw(40_000, generator)
    torch.testing.assert_close(drawn.mean(0), codes.mean, atol=0.15, rtol=0)
    torch.testing.assert_close(drawn.std(0), codes.spread, rtol=0.03, atol=0)
    certain = Codes(torch.tensor([[[0.0]], [[2.0]]]), torch.full((2, 1, 1), -40.0))
    assert float(certain.spread) == pytest.approx(1.0)
    alike = Codes(torch.zeros(2, 1, 1), torch.full((2, 1, 1), math.log(3.0)))
    assert float(alike.spread) == pytest.approx(3.0)


def test_draws_of_z_are_taken_in_turn() -> None:
    codes = Codes(torch.arange(3.0)[:, None, None], torch.full((3, 1, 1), -40.0))
    torch.testing.assert_close(codes.draw(7, torch.Generator()).flatten(), torch.tensor([0.0, 1, 2, 0, 1, 2, 0]))


@pytest.mark.parametrize("pooling", ["expected", "sampled", "max"])
def test_codes_are_those_of_q(pooling: Pooling) -> None:
    model = ImageModel.of(TINY, pooling, seed=1)
    codes = encode(model, IMAGES.images[:3], torch.Generator().manual_seed(0), n_draws=200)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        drawn = torch.stack([model.encode(IMAGES.images[:3], generator).code for _ in range(600)])
    assert codes.mu.shape == (200 if pooling == "sampled" else 1, 3, TINY.code_size)
    torch.testing.assert_close(codes.mean, drawn.mean(0), atol=0.15, rtol=0)
    torch.testing.assert_close(codes.spread, drawn.std(0), rtol=0.2, atol=0)


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
def test_a_set_in_batches(pooling: Pooling) -> None:
    model, told = ImageModel.of(TINY, pooling, seed=1).train(), list[tuple[int, int]]()
    batches = list(encode_set(model, IMAGES, n_draws=3, batch_size=5, progress=lambda *done: told.append(done)))
    assert [place.tolist() for place, _, _ in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    assert told == [(5, 12), (10, 12), (12, 12)] and model.training, "it is put back into training mode"
    whole = joined([codes for _, codes, _ in batches])
    assert len(whole) == 12
    again = joined([codes for _, codes, _ in encode_set(model, IMAGES, n_draws=3, batch_size=5)])
    assert torch.equal(whole.mu, again.mu)
    other = joined([codes for _, codes, _ in encode_set(model, IMAGES, n_draws=3, batch_size=5, seed=1)])
    assert torch.equal(whole.mu, other.mu) == (pooling == "expected")
    some = mean_codes(model, IMAGES, index=torch.tensor([7, 2]))
    assert some.shape == (2, TINY.code_size) and mean_codes(model, IMAGES, index=torch.arange(0)).shape[0] == 0
    if pooling == "expected":
        torch.testing.assert_close(some, whole.mean[[7, 2]])
        torch.testing.assert_close(mean_codes(model, IMAGES), whole.mean)


def test_the_model_is_in_eval_mode_while_it_encodes_and_back_even_if_stopped() -> None:
    model = ImageModel.of(TINY).train()
    batches = encode_set(model, IMAGES, batch_size=5)
    next(batches)
    assert not model.training
    batches.close()
    assert model.training
