"""Labels of new images: decision values averaged over codes, in closed form and by drawing, their spread, and what a
calibration makes of them."""

import math

import pytest
import torch

from semisight.inference.encode import Codes, encode
from semisight.inference.labels import FittedCalibration, LabelAnswer, LabelReader, decide, fit_calibration
from semisight.metrics.calibration import Calibration, expected_calibration_error, fit_temperature
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.labels import BayesianSVM, Softmax
from semisight.model.image_model import ImageModel
from semisight.random import Stream, random_order

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)))


def model_and_head(pooling: Pooling) -> tuple[ImageModel, BayesianSVM]:
    model = ImageModel.of(TINY, pooling, seed=1)
    head = BayesianSVM(TINY.code_size, 3)
    torch.nn.init.normal_(head.scores.beta, generator=torch.Generator().manual_seed(0))
    return model, head


def images_of(n: int = 6) -> torch.Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(3))


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
    images, n = images_of(), 1000
    with torch.no_grad():
        mean, spread = by_sampling(model, head, images, n)
    found = decide(head, encode(model, images, torch.Generator().manual_seed(0), n_draws=200))
    error = 5 * float(spread.max()) * (1 / n + (1 / 200 if pooling == "sampled" else 0)) ** 0.5
    torch.testing.assert_close(found.value, mean, atol=error, rtol=0)
    torch.testing.assert_close(found.spread, spread, atol=0.0, rtol=0.15)


def test_the_spread_counts_what_draws_of_z_disagree_about() -> None:
    """With certain codes, draws of z are all there is: the spread is that between them."""
    head = BayesianSVM(2, 2, bias=False)
    with torch.no_grad():
        head.scores.beta.copy_(torch.eye(2))
    mu = torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]])
    found = decide(head, Codes(mu, torch.full_like(mu, -30.0)))
    torch.testing.assert_close(found.value, torch.tensor([[2.0, 0.0]]))
    torch.testing.assert_close(found.spread, torch.tensor([[1.0, 0.0]]), atol=2e-6, rtol=0)
    both = decide(head, Codes(mu, torch.full_like(mu, math.log(2.0))))
    torch.testing.assert_close(both.spread, torch.tensor([[5**0.5, 2.0]]))


def test_expected_pooling_needs_no_sampling() -> None:
    model, head = model_and_head("expected")
    one, many = (encode(model, images_of(), torch.Generator().manual_seed(n), n_draws=n) for n in (1, 50))
    assert torch.equal(one.mu, many.mu) and len(many.mu) == 1
    assert torch.equal(decide(head, one).value, head.decision(one.mean))


@pytest.mark.parametrize("head", [BayesianSVM(4, 3, gamma=0.5), Softmax(4, 3)])
def test_without_a_calibration_probabilities_are_the_head_s_own(head: BayesianSVM | Softmax) -> None:
    reader = LabelReader(head, ("a", "b", "c"))
    codes = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    answer = reader(Codes(codes[None], torch.full((1, 5, 4), -9.0)))
    own = head.log_prob_all(codes).softmax(1).detach()  # |f| < 1 here, where the SVM's is a softmax exactly
    torch.testing.assert_close(answer.probabilities.float(), own, atol=1e-5, rtol=0)
    assert not reader.calibrated and "not calibrated" in reader.believable()
    halves = [reader(Codes(part[None], torch.full((1, len(part), 4), -9.0))) for part in codes.split(2)]
    torch.testing.assert_close(reader.joined(halves).probabilities, answer.probabilities)
    assert isinstance(answer, LabelAnswer) and len(answer.probabilities) == 5


def test_a_calibration_is_fitted_on_held_out_labels_and_measured_on_others() -> None:
    """Scores ten times too sure: the fit takes it back, and states an error of labels that it did not see."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(3000, 3, generator=generator)
    labels = torch.multinomial(truth.softmax(1), 1, generator=generator).squeeze(1)
    fitted = fit_calibration(10 * truth, labels, step=7, seed=0)
    torch.testing.assert_close(fitted.calibration.scale, torch.full((3,), 0.1).double(), atol=0.02, rtol=0)
    assert fitted.step == 7 and fitted.n == 3000 and fitted.by == "labels" and 0 < fitted.error < 0.05
    few = fit_calibration(10 * truth[:60], labels[:60], step=7, seed=0)
    first, second = random_order(60, 0, Stream.FOLDS).chunk(2)
    crossed = torch.empty(60, 3, dtype=torch.float64)
    for here, there in ((first, second), (second, first)):
        fit = fit_temperature(10 * truth[there], labels[there])
        crossed[here] = fit.probabilities(10 * truth[here].double())
    assert few.error == pytest.approx(expected_calibration_error(crossed, labels[:60]))
    assert len(few.calibration.scale.unique()) == 1, "few labels give one temperature for all classes"
    assert FittedCalibration.from_dict(fitted.to_dict()).to_dict() == fitted.to_dict()
    alone = fit_calibration(10 * truth[:1], labels[:1], step=1, seed=0)
    assert math.isnan(alone.error)
    reader = LabelReader(Softmax(3, 3), ("a", "b", "c"), fitted)
    assert reader.calibrated and "3,000 held-out labels" in reader.believable()
    assert isinstance(reader.calibration, Calibration)
