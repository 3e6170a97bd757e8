"""Predictions averaged over codes: the closed form, the sampled form, and their spread."""

import pytest
import torch

from semisight.inference.labels import predict_labels
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.labels import BayesianSVM
from semisight.model.image_model import ImageModel

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)))


def model_and_head(pooling: Pooling) -> tuple[ImageModel, BayesianSVM]:
    model = ImageModel.of(TINY, pooling, seed=1)
    head = BayesianSVM(TINY.code_size, 3)
    torch.manual_seed(0)
    torch.nn.init.normal_(head.scores.beta)
    return model, head


def by_sampling(
    model: ImageModel, head: BayesianSVM, images: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 5.1 as printed: decision values of n codes drawn from q(s, z | X)."""
    generator = torch.Generator().manual_seed(7)
    values = torch.stack([head.scores(model.encode(images, generator).code) for _ in range(n)])
    return values.mean(0), values.std(0)


@pytest.mark.parametrize("pooling", ["expected", "sampled", "max"])
def test_the_average_and_spread_of_many_codes(pooling: Pooling) -> None:
    model, head = model_and_head(pooling)
    images = torch.rand(6, 1, 8, 8)
    n = 1000
    with torch.no_grad():
        mean, spread = by_sampling(model, head, images, n)
    prediction = predict_labels(model, head, images, n_codes=200)
    error = 5 * float(spread.max()) * (1 / n + (1 / 200 if pooling == "sampled" else 0)) ** 0.5
    torch.testing.assert_close(prediction.decision, mean, atol=error, rtol=0)
    torch.testing.assert_close(prediction.spread, spread, atol=0.0, rtol=0.15)


def test_expected_pooling_needs_no_sampling() -> None:
    model, head = model_and_head("expected")
    images = torch.rand(6, 1, 8, 8)
    one = predict_labels(model, head, images, n_codes=1, generator=torch.Generator().manual_seed(1))
    many = predict_labels(model, head, images, n_codes=50, generator=torch.Generator().manual_seed(2))
    assert torch.equal(one.decision, many.decision)
    assert torch.equal(one.label, one.decision.argmax(1))
