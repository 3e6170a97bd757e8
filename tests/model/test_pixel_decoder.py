"""The decoder beside a model of features: least squares, a ridge chosen on held-out pictures, samples as codes lie."""

import torch

from semisight.model.pixel_decoder import PixelDecoder


def linear(n: int, noise: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and pictures [n, 2, 3, 4] that are linear in them."""
    generator = torch.Generator().manual_seed(0)
    codes = 0.3 + torch.randn(n, 5, generator=generator) * torch.tensor([1.0, 0.5, 0.2, 0.1, 0.01])
    weights = 0.03 * torch.randn(5, 24, generator=generator)
    images = 0.5 + codes @ weights + noise * torch.randn(n, 24, generator=generator)
    return codes, images.view(n, 2, 3, 4)


def test_what_is_linear_is_drawn_exactly() -> None:
    codes, images = linear(200)
    found = PixelDecoder.fit(codes, images)
    assert float((found(codes) - images).abs().max()) < 2e-3 and float(found.explained) > 0.99
    assert found(codes).shape == images.shape


def test_a_code_that_says_nothing_draws_the_mean_picture() -> None:
    """The ridge is chosen on pictures that were not fitted to: 40 numbers of noise do not redraw 60 pictures."""
    images = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    found = PixelDecoder.fit(torch.randn(60, 40, generator=torch.Generator().manual_seed(1)), images)
    assert float(found.explained) < 0.1
    assert float((found(torch.zeros(1, 40)) - images.mean(0)).abs().max()) < 0.2


def test_samples_are_spread_as_the_codes_are_and_stay_in_the_range() -> None:
    codes, images = linear(500, noise=0.01)
    drawn = PixelDecoder.fit(codes, images).sample(4000, torch.Generator().manual_seed(0))
    assert torch.allclose(drawn.mean(0), images.mean(0), atol=0.01)
    assert torch.allclose(drawn.std(0), images.std(0), atol=0.015)
    assert float(drawn.min()) >= 0 and float(drawn.max()) <= 1
