"""Between pooling and the next layer: nothing (the paper), a ReLU, or normalised maps and a ReLU. How places start."""

import math

import pytest
import torch
import torch.nn.functional as F

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling, PoolingMLP, after_pooling, normalised
from semisight.model.image_model import ImageModel
from semisight.model.posterior import batch_last

DEEP = Architecture((2, 14, 14), (Layer(3, 3, 2), Layer(4, 3, 2), Layer(5, 2)), "norm-relu")


def test_normalised_maps_equal_torch_s_layer_norm() -> None:
    maps = 3 + 2 * torch.randn(4, 5, 6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images_first = maps.permute(3, 0, 1, 2)
    twin = torch.nn.functional.layer_norm(images_first, images_first.shape[1:])
    torch.testing.assert_close(normalised(maps), twin.permute(1, 2, 3, 0), atol=1e-10, rtol=0)
    torch.testing.assert_close(after_pooling(maps, "norm-relu"), twin.permute(1, 2, 3, 0).relu(), atol=1e-10, rtol=0)
    assert after_pooling(maps, "none") is maps
    assert bool((after_pooling(-maps, "relu") >= 0).all())


def test_a_code_depends_on_its_image_alone() -> None:
    model = ImageModel.of(DEEP)
    images = torch.rand(6, 2, 14, 14, generator=torch.Generator().manual_seed(1))
    codes = model.mean_code(images, torch.Generator())
    torch.testing.assert_close(model.mean_code(images[:2], torch.Generator()), codes[:2])
    top = model.encoder(batch_last(images), model.noise(6, torch.Generator())).mu
    torch.testing.assert_close(top, model.encoder.moments(batch_last(images))[0])


@pytest.mark.parametrize("reach", [1.0, 10 / 3])
def test_a_longer_reach_tells_large_values_apart(reach: float) -> None:
    gain = 5.0
    weights = PoolingMLP(4, gain, reach, torch.Generator().manual_seed(0)).weights()
    small, large = torch.tensor([[0.02], [0.01], [0.0], [0.0]]), torch.tensor([[4.0], [3.0], [0.0], [0.0]])
    eta = weights.logits(torch.cat([small, large], 1))[1]
    # small values count by the gain, whatever the reach; 0.01 is the size of the random part of each weight
    assert float(eta[0, 0] - eta[1, 0]) == pytest.approx(gain * 0.01, abs=0.02)
    exact = gain * reach * (math.tanh(4 / reach) - math.tanh(3 / reach))
    assert (exact < 0.1) if reach == 1 else (exact > 1.9)
    assert float(eta[0, 1] - eta[1, 1]) == pytest.approx(exact, abs=0.5)


def test_the_reach_changes_nothing_but_the_start_of_the_places() -> None:
    near, far = ImageModel.of(DEEP), ImageModel.of(DEEP, reach=2.0)
    for (name, a), b in zip(near.named_parameters(), far.parameters(), strict=True):
        factor = {"inner": 0.5, "outer": 2.0}.get(name.rpartition(".")[2], 1.0)
        torch.testing.assert_close(b, factor * a, msg=name)
    with pytest.raises(UserError, match="reach must be above 0, not 0"):
        ImageModel.of(DEEP, reach=0)


@pytest.mark.parametrize("pooling", ["sampled", "expected", "max"])
def test_how_the_code_sees_the_drawn_places(pooling: Pooling) -> None:
    """The paper's code is that of the drawn z, another for another draw; the others' mean does not depend on it."""
    model = ImageModel.of(DEEP, pooling)
    images = torch.rand(4, 2, 14, 14, generator=torch.Generator().manual_seed(1))
    one, other = (model.encode(images, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert torch.equal(one.mean, other.mean) == (pooling != "sampled") == model.encoder.mean_is_exact
    assert (len(one.z) == 2) == (pooling != "max") == model.encoder.has_places
    if pooling != "max":
        assert not torch.equal(one.z[0], other.z[0])
    if pooling == "sampled":
        with pytest.raises(UserError, match="depends on the drawn z"):
            model.code_moments(images)


def test_images_from_the_prior_have_places_drawn_evenly() -> None:
    model = ImageModel.of(DEEP)
    for z in model.prior_places(400, torch.Generator().manual_seed(0)):
        assert bool((z.sum(0) == 1).all())
        torch.testing.assert_close(z.mean((1, 2, 3, 4)), torch.full((4,), 0.25), atol=0.03, rtol=0)
    drawn = model.generate(300, torch.Generator().manual_seed(0))
    assert drawn.shape == (300, 2, 14, 14) and torch.isfinite(drawn).all()


def test_a_code_drawn_from_q_has_its_mean_and_spread() -> None:
    model = ImageModel.of(DEEP)
    image = torch.rand(1, 2, 14, 14, generator=torch.Generator().manual_seed(1)).expand(3000, -1, -1, -1)
    posterior = model.encode(image, torch.Generator().manual_seed(0))
    torch.testing.assert_close(posterior.code.mean(0), posterior.mean[0], atol=0.05, rtol=0)
    torch.testing.assert_close(posterior.code.std(0), posterior.log_spread[0].exp(), atol=0, rtol=0.06)


def test_max_pooling_is_the_largest_of_each_block() -> None:
    """VAE-d, by torch's own convolution and pooling; drawn and for prediction alike."""
    architecture = Architecture((2, 14, 14), (Layer(3, 3, 2), Layer(4, 3, 2), Layer(5, 2)))
    model = ImageModel.of(architecture, "max")
    images = torch.rand(4, 2, 14, 14, generator=torch.Generator().manual_seed(1))
    model.start_from(images)
    encoder, c = model.encoder, (images - images.mean(0)) / model.encoder.scale  # type: ignore[attr-defined]
    for filters in encoder.filters[:-1]:  # type: ignore[attr-defined]
        c = F.max_pool2d(F.conv2d(c, filters), 2)
    top = F.conv2d(c, encoder.filters[-1])  # type: ignore[attr-defined]
    mu, _ = encoder.code_mlp(batch_last(top))  # type: ignore[attr-defined]
    torch.testing.assert_close(model.encode(images, torch.Generator()).mu, mu, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoder.moments(batch_last(images))[0], mu, rtol=1e-4, atol=1e-5)
