"""How usual an image is, and missing pixels from the known ones: the mathematics, on models that are small."""

import torch

from semisight.inference.imputation import _from_known, impute
from semisight.inference.novelty import learn_novelty, redraw, squared_error
from semisight.model.architecture import Architecture, Layer
from semisight.model.image_model import ImageModel

TINY = Architecture((1, 8, 8), (Layer(6, 3, 2), Layer(5, 3)))


def model_with(alpha0: float) -> ImageModel:
    model = ImageModel.of(TINY, seed=3)
    with torch.no_grad():
        model.decoder.log_alpha0.fill_(torch.tensor(alpha0).log().item())
        model.decoder.image_bias.fill_(0.4)
        for dictionary in model.decoder.dictionaries:
            dictionary.copy_(torch.randn(dictionary.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    return model


def test_the_code_is_found_from_half_of_the_pixels() -> None:
    """Images that the decoder drew without noise: with their z, all of them follows from any half of their pixels."""
    model = model_with(alpha0=1e7)
    generator = torch.Generator().manual_seed(0)
    code, z = torch.randn(20, TINY.code_size, generator=generator), model.prior_places(20, generator)
    with torch.no_grad():
        images = model.decode(code, z)
    known = torch.rand(images.shape, generator=generator) < 0.5
    found = _from_known(model, images, known, tuple(one.argmax(0) for one in z))
    rough = (images - 0.4)[~known].square().mean().sqrt()
    assert (found - images)[~known].square().mean().sqrt() < 0.1 * rough
    assert (found - images)[known].abs().max() < 0.05


def test_the_code_given_known_pixels_is_that_of_the_regression_with_its_prior() -> None:
    """(I + alpha0 A'MA)^-1 alpha0 A'M (X - bias), A by differentiating the decoder, where the prior matters."""
    model = model_with(alpha0=2.0)
    generator = torch.Generator().manual_seed(0)
    z = model.prior_places(1, generator)
    images = torch.rand(1, 1, 8, 8, generator=generator)
    known = torch.rand(images.shape, generator=generator) < 0.5
    zero = torch.zeros(1, TINY.code_size)
    a = torch.autograd.functional.jacobian(lambda code: model.decode(code, z).flatten(), zero)[:, 0]  # [pixels, J]
    masked = a * known.flatten()[:, None]
    precision = torch.eye(TINY.code_size) + 2.0 * masked.T @ a
    code = torch.linalg.solve(precision, 2.0 * masked.T @ (images.flatten() - 0.4))
    found = _from_known(model, images, known, tuple(one.argmax(0) for one in z))
    torch.testing.assert_close(found.flatten(), a @ code + 0.4, atol=1e-4, rtol=0)


def test_nothing_known_gives_the_prior_mean_and_everything_known_stays() -> None:
    model = model_with(alpha0=50.0)
    images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    nothing = impute(model, images, torch.zeros_like(images, dtype=torch.bool))
    torch.testing.assert_close(nothing, torch.full_like(images, 0.4))
    assert torch.equal(impute(model, images, torch.ones_like(images, dtype=torch.bool)), images)


def test_one_image_is_drawn_alike_in_any_company() -> None:
    model = model_with(alpha0=50.0)
    images = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    together, alone = redraw(model, images), redraw(model, images[4:5])
    torch.testing.assert_close(together.images[4:5], alone.images, atol=1e-5, rtol=0)
    torch.testing.assert_close(together.codes[4:5], alone.codes, atol=1e-5, rtol=0)


def test_the_worse_of_two_marks_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    codes, errors = torch.randn(400, 3, generator=generator), torch.rand(400, generator=generator)
    novelty = learn_novelty(codes, errors)
    other = torch.randn(400, 3, generator=generator)
    scores = novelty.score(other, torch.rand(400, generator=generator))
    assert -1 < float(scores.median()) < 0.5  # the worse of two is a little below the middle
    far, unlike = novelty.score(other + 20, errors), novelty.score(other, errors + 9)
    assert float(far.max()) < float(scores.min()) and float(unlike.max()) < float(scores.min())


def test_one_training_image_and_equal_ones_divide_by_nothing() -> None:
    for codes in (torch.zeros(1, 2), torch.ones(7, 2)):
        novelty = learn_novelty(codes, torch.zeros(len(codes)))
        assert torch.isfinite(novelty.score(torch.zeros(2, 2), torch.ones(2))).all()


def test_squared_error() -> None:
    assert squared_error(torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5)).tolist() == [1.0, 1.0]
