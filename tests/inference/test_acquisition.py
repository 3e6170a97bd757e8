"""Which images to label next: doubt and distance each do their part; wrong labels come first."""

import pytest
import torch

from semisight.data import load
from semisight.inference.acquisition import Seen, check_by_planting, choose_next, doubt_in_labels, see
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel


def around(angles: list[float]) -> torch.Tensor:
    turned = torch.tensor(angles) * torch.pi / 180
    return torch.stack([turned.cos(), turned.sin()], 1)


def test_doubt_is_the_margin_between_the_first_two() -> None:
    seen = Seen(torch.zeros(2, 3), torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.06, 0.04]]))
    torch.testing.assert_close(seen.doubt, torch.tensor([1.0, 0.16]))


def test_of_equal_doubt_the_farthest_comes_first_and_keeps_others_away() -> None:
    codes = around([0, 90, 180, 270, 178, 92])
    open_ = torch.tensor([False, True, True, True, True, True])
    chosen = choose_next(codes, torch.ones(6), open_, 3)
    assert chosen[0] in (2, 4) and set(chosen[1:]) in ({1, 3}, {5, 3})
    assert sorted(choose_next(codes, torch.ones(6), open_, 99)) == [1, 2, 3, 4, 5]


def test_of_equal_distance_the_doubtful_one_comes_first() -> None:
    codes = around([0, 120, 240])
    open_ = torch.tensor([False, True, True])
    assert choose_next(codes, torch.tensor([0.0, 0.2, 0.9]), open_, 2) == [2, 1]
    assert choose_next(codes, torch.tensor([0.0, 0.9, 0.2]), open_, 2) == [1, 2]
    assert choose_next(codes, torch.ones(3), torch.zeros(3, dtype=torch.bool), 2) == []


def test_images_without_any_doubt_or_distance_are_still_chosen_once_each() -> None:
    codes = torch.ones(4, 2)
    assert sorted(choose_next(codes, torch.zeros(4), torch.ones(4, dtype=torch.bool), 4)) == [0, 1, 2, 3]


def test_a_label_unlike_its_neighbours_is_the_most_doubtful() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(60) % 3
    codes = around([120.0 * c for c in truth.tolist()]) + 0.1 * torch.randn(60, 2, generator=generator)
    labels = truth.clone()
    labels[7] = (labels[7] + 1) % 3
    labels[50:] = -1
    learned_by_heart = 0.02 + 0.94 * torch.nn.functional.one_hot(labels.clamp_min(0), 3)
    against, instead = doubt_in_labels(Seen(codes, learned_by_heart), labels)
    assert int(against.argmax()) == 7 and int(instead[7]) == int(truth[7])
    assert float(against[50:].max()) == 0 and bool((instead[50:] == -1).all())
    assert float(against[torch.arange(60) != 7].max()) < 0.2 < float(against[7])


def test_an_image_has_no_vote_on_its_own_label() -> None:
    """Where no neighbour has its label, the neighbours give it nothing: half of what the model gives is left."""
    labels = torch.tensor([0, 0, 0, 0, 1])
    seen = Seen(around([0.0, 5.0, 10.0, 180.0, 4.0]), torch.full((5, 2), 0.5))
    against, instead = doubt_in_labels(seen, labels)
    assert float(against[4]) == pytest.approx(0.75) and int(instead[4]) == 0


def test_a_single_label_is_judged_by_the_model_alone() -> None:
    labels = torch.tensor([1, -1])
    against, instead = doubt_in_labels(Seen(torch.zeros(2, 2), torch.tensor([[0.9, 0.1], [0.5, 0.5]])), labels)
    assert float(against[0]) == pytest.approx(0.9) and instead.tolist() == [0, -1]


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
def test_probabilities_are_averaged_over_codes(pooling: str) -> None:
    images = load("builtin:digits", limit=12)
    model = ImageModel.of(Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(3, 3))), pooling, seed=0)  # type: ignore[arg-type]
    model.start_from(images.batch(torch.arange(12)))
    head = Softmax(model.architecture.code_size, 10, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        head.scores.beta.mul_(300)  # so that codes disagree
    one, same, many = (see(model, head, images, lambda f: f.softmax(1), n_codes=n) for n in (2, 2, 600))
    assert torch.equal(one.probabilities, same.probabilities)
    torch.testing.assert_close(many.probabilities.sum(1), torch.ones(12))
    if pooling == "expected":  # s is Gaussian then, whatever z
        generator = torch.Generator().manual_seed(5)
        posterior = model.encode(images.batch(torch.arange(12)), generator)
        eps = torch.randn(4000, 12, 3, generator=generator)
        expected = head.scores(posterior.mean + posterior.log_spread.exp() * eps).softmax(2).mean(0)
        torch.testing.assert_close(many.probabilities, expected, atol=0.05, rtol=0)
        assert float((one.probabilities - expected).abs().max().detach()) > 0.05


def test_a_doubtful_image_that_stands_for_others_comes_before_one_that_is_like_none() -> None:
    """120 small groups of three, and one image far from all of them: it is farthest, yet the last to be asked about."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.nn.functional.normalize(torch.randn(120, 8, generator=generator), dim=1)
    codes = torch.cat([groups.repeat_interleave(3, 0) + 0.01 * torch.randn(360, 8, generator=generator)])
    doubt = torch.ones(360)
    chosen = choose_next(codes, doubt, torch.ones(360, dtype=torch.bool), 120)
    assert len({place // 3 for place in chosen}) > 110  # nearly every group once before any comes twice
    certain = doubt.clone()
    certain[:180] = 0.01  # half of the groups are in no doubt
    asked = choose_next(codes, certain, torch.ones(360, dtype=torch.bool), 40)
    assert sum(place >= 180 for place in asked) >= 36


def _labelled(spread: float) -> tuple[Seen, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    truth = torch.arange(150) % 3
    codes = around([120.0 * c for c in truth.tolist()]) + spread * torch.randn(150, 2, generator=generator)
    return Seen(codes, 0.05 + 0.85 * torch.nn.functional.one_hot(truth, 3)), truth


def test_planted_labels_say_how_far_to_believe_the_list() -> None:
    clear = check_by_planting(*_labelled(0.1), threshold=0.5)
    assert clear is not None and clear.precision > 0.9 and clear.found > 0.6 and clear.error < 0.05
    blurred = check_by_planting(*_labelled(3.0), threshold=0.5)
    assert blurred is not None and blurred.error > 0.4 and blurred.found < 0.7
    seen, truth = _labelled(0.1)
    assert check_by_planting(seen, torch.where(torch.arange(150) < 15, truth, -1), threshold=0.5) is None
    # labels that are wrong already are told from the planted ones by nobody: the precision falls
    noisy = truth.clone()
    noisy[::10] = (noisy[::10] + 1) % 3
    worse = check_by_planting(seen, noisy, threshold=0.5)
    assert worse is not None and worse.precision < 0.7
