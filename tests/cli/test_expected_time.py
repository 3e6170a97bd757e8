"""The expected time of a training: from two timed batches to a whole one, and from a step to all of them."""

import pytest
import torch

from semisight.runs import expected_time as timing
from semisight.runs.expected_time import Expected, expected_time
from semisight.runs.settings import resolve


@pytest.mark.parametrize(("side", "timed"), [(8, (4, 16)), (128, (1, 4))])
def test_a_step_costs_something_and_each_image_more(
    side: int, timed: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def seconds(settings: object, architecture: object, labelled: bool, n_classes: int, n: int) -> float:
        asked.append(n)
        return 0.05 + 0.01 * n

    monkeypatch.setattr(timing, "_seconds", seconds)
    settings = resolve({"source": "x", "use_labels": False, "batch_size": 50, "epochs": 3})
    architecture = settings.model.architecture((1, side, side))
    found = expected_time(settings, architecture, torch.full((210,), -1), 2)
    assert found is not None and tuple(asked) == timed
    assert found.seconds_per_step == pytest.approx(0.05 + 0.01 * 50)
    assert (found.steps, found.epochs) == (12, 3)  # 4 whole batches in 210 images
    assert found.minutes == pytest.approx(12 * 0.55 / 60)


def test_labels_make_batches_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_seconds", lambda *words: 0.01 * words[-1])
    labels = torch.full((1000,), -1)
    labels[:20] = torch.arange(20) % 10
    settings = resolve({"source": "x"}).for_labels(20, 980)
    found = expected_time(settings, settings.model.architecture((1, 8, 8)), labels, 10)
    assert found is not None
    assert found.seconds_per_step == pytest.approx(0.01 * settings.train.batch_size)
    per_epoch = 980 // (settings.train.batch_size - settings.labels.labelled_per_batch)
    assert found.steps == per_epoch * found.epochs


def test_a_coarse_clock_never_gives_less_than_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_seconds", lambda *words: 0.02)  # as long for four images as for sixteen
    settings = resolve({"source": "x", "use_labels": False, "batch_size": 64, "epochs": 1})
    found = expected_time(settings, settings.model.architecture((1, 8, 8)), torch.full((640,), -1), 2)
    assert found is not None and 0.02 <= found.seconds_per_step < 0.2
    assert Expected(60, 2.0, 1).minutes == 2
