"""The expected time of a training: composed as train composes it, from two timed batches to a whole one."""

import pytest
import torch

from semisight.data.image_set import ImageSet
from semisight.runs import expected_time as timing
from semisight.runs.expected_time import Expected, expected_time, recipe_without_pixels
from semisight.runs.recipe import Recipe
from semisight.runs.settings import resolve


def recipe(n: int, side: int, n_labelled: int = 0, **given: object) -> Recipe:
    images = ImageSet(torch.empty(n, 1, 0, 0, dtype=torch.uint8), tuple(map(str, range(n))))
    if n_labelled:
        labels = torch.full((n,), -1)
        labels[:n_labelled] = torch.arange(n_labelled) % 10
        images = images.with_labels(labels, tuple(map(str, range(10))))
    return recipe_without_pixels(resolve({"source": "x", "valid_fraction": 0.0, **given}), images, (1, side, side))


@pytest.mark.parametrize(("side", "timed"), [(8, (4, 16)), (128, (1, 4))])
def test_a_step_costs_something_and_each_image_more(
    side: int, timed: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def seconds(of: Recipe, index: torch.Tensor, n: int) -> float:
        asked.append(n)
        return 0.05 + 0.01 * n

    monkeypatch.setattr(timing, "_seconds", seconds)
    found = expected_time(recipe(210, side, batch_size=50, epochs=3))
    assert found is not None and tuple(asked) == timed
    assert found.seconds_per_step == pytest.approx(0.05 + 0.01 * 50)
    assert (found.steps, found.epochs) == (12, 3)  # 4 whole batches in 210 images
    assert found.minutes == pytest.approx(12 * 0.55 / 60)


def test_labels_make_batches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_seconds", lambda of, index, n: 0.01 * n)
    of = recipe(1000, 8, n_labelled=20)
    found = expected_time(of)
    assert found is not None
    assert found.seconds_per_step == pytest.approx(0.01 * of.config.batch_size)
    per_epoch = 980 // (of.config.batch_size - of.settings.consistency.labelled_per_batch)
    assert found.epochs == of.config.max_epochs and found.steps == per_epoch * found.epochs


def test_real_steps_are_timed_and_leave_the_objective_as_it_was() -> None:
    of = recipe(300, 8, n_labelled=20)
    before = of.objective.consistency
    found = expected_time(of)
    assert found is not None and found.seconds_per_step > 0 and of.objective.consistency is before
    assert len(of.sets.train) == 300 and of.sets.train.images.untyped_storage().nbytes() == 1


@pytest.mark.parametrize("n_labelled", [20, 1200])
def test_the_deep_encoder_with_any_number_of_labels(n_labelled: int) -> None:
    """Noise answers what the recipe asks of the labelled images, too: which symmetries they have."""
    found = expected_time(recipe(1500, 8, n_labelled=n_labelled, encoder="deep"))
    assert found is not None and found.seconds_per_step > 0


def test_a_coarse_clock_never_gives_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_seconds", lambda of, index, n: 0.02)  # as long for four images as for sixteen
    found = expected_time(recipe(640, 8, batch_size=64, epochs=1))
    assert found is not None and 0.02 <= found.seconds_per_step < 0.2
    assert Expected(60, 2.0, 1).minutes == 2
