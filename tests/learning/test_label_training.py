"""Training with labels, put together: the weight xi, batches, and what held-out labels say."""

import math
from typing import Any

import pytest
import torch

from semisight.data.batches import LabelledAndUnlabelled, Shuffled
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.image_model import ImageModel
from semisight.objectives.image_objective import ImageObjective
from semisight.runs.label_training import (
    LabelSettings,
    build_label_objective,
    held_out_validator,
    label_error,
    label_plan,
    labelled_beside,
    labelled_share,
    refresher,
)
from semisight.training.state import Counters, TrainerState
from semisight.training.validation import validate

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
FEW = torch.where(torch.arange(100) < 6, torch.arange(100) % 3, -1)


def images(labels: torch.Tensor) -> ImageSet:
    pixels = torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return ImageSet.of(pixels, tuple(map(str, range(len(labels)))), labels, ("a", "b", "c"))


def objective(settings: LabelSettings, labels: torch.Tensor = FEW, batch_size: int = 32) -> Any:
    return build_label_objective(ImageObjective(ImageModel.of(TINY, seed=1)), labels, 3, settings, batch_size, seed=0)


@pytest.mark.parametrize(
    ("xi", "wanted"),
    [
        ("paper", 64 / (3 * 0.25)),
        ("pixels", 64 / 0.25),
        ("tenfold", 640 / 0.25),
        ("hundredfold", 6400 / 0.25),
        (7.5, 7.5),
        (0, 0),
    ],
)
def test_xi_by_rule_or_by_number(xi: Any, wanted: float) -> None:
    settings = LabelSettings(xi=xi, labelled_per_batch=8, pull=False)
    assert objective(settings).xi.value == pytest.approx(wanted)


def test_rho_is_what_batches_have_on_average() -> None:
    settings = LabelSettings(labelled_per_batch=8)
    for labels in (FEW, torch.arange(100) % 3, torch.where(torch.arange(100) < 70, torch.arange(100) % 3, -1)):
        plan = label_plan(labels, settings, 32)
        found = torch.stack([(labels[plan.indices(step, 0)] >= 0).float().mean() for step in range(60)]).mean()
        assert labelled_share(labels, settings, 32) == pytest.approx(float(found), abs=0.02)


def test_few_labels_are_dealt_and_many_come_by_chance() -> None:
    settings = LabelSettings(labelled_per_batch=8)
    assert isinstance(label_plan(FEW, settings, 32), LabelledAndUnlabelled)
    assert isinstance(label_plan(torch.arange(100) % 3, settings, 32), Shuffled)


@pytest.mark.parametrize(
    ("values", "fragment"),
    [
        ({"head": "tree"}, "head must be"),
        ({"xi": -1.0}, "xi must be a number"),
        ({"move_strength": -0.1}, "move_strength must be a number"),
        ({"xi": "many"}, "xi must be a number"),
        ({"xi": math.nan}, "xi must be a number"),
        ({"pull": "yes"}, "pull must be true or false"),
        ({"labelled_per_batch": 0}, "above 0"),
        ({"labelled_per_batch": 2.5}, "whole number"),
        ({"bound_images": -1}, "bound_images"),
        ({"gamma": 0.0}, "above 0"),
    ],
)
def test_settings_that_make_no_sense(values: dict[str, Any], fragment: str) -> None:
    with pytest.raises(UserError, match=fragment):
        LabelSettings(**values)


def test_settings_survive_json() -> None:
    settings = LabelSettings(xi="pixels", bound_images=None)
    assert LabelSettings(**settings.to_dict()) == settings


def test_what_held_out_labels_say() -> None:
    of = objective(LabelSettings()).eval()
    torch.nn.init.normal_(of.head.scores.beta, generator=torch.Generator().manual_seed(1))
    valid = images(torch.where(torch.arange(60) < 40, torch.arange(60) % 3, -1))
    terms = held_out_validator(valid, seed=3, batch_size=25)(of)
    assert terms["error"] == pytest.approx(label_error(of, valid))
    assert 0 < terms["nll"] <= math.log(3) + 1e-6  # at its best temperature it is no worse than guessing
    alone = validate(of.images, valid, batch_size=25, seed=3)
    assert {name: terms[name] for name in alone} == alone
    without = held_out_validator(images(torch.full((60,), -1)), seed=3, batch_size=25)(of)
    assert without == alone


def test_probable_labels_come_anew_every_so_many_epochs() -> None:
    of = objective(LabelSettings(latent=1.0))
    refresh = refresher(of, images(FEW), seed=0, every=3)
    for epoch in range(1, 7):
        refresh(TrainerState(Counters(step=4 * epoch), float(epoch), 0.0, {}))
        assert int(of.refreshed) == epoch // 3


def test_many_labels_have_a_larger_part_of_the_batch() -> None:
    """MNIST with 10, 100 and 300 labels per class, CIFAR-10 with 400, and a set of which a batch is all there is."""
    assert labelled_beside(100, 49_900, 256) == labelled_beside(600, 49_400, 256) == 32
    assert labelled_beside(3000, 47_000, 256) == -(-10 * 3000 // 183) == 164
    assert labelled_beside(4000, 36_000, 256) == 256  # never more than there are unlabelled ones
    assert labelled_beside(20, 1330, 256) == 32
    assert labelled_beside(10, 100, 100) == labelled_beside(5, 3, 3) == 32
