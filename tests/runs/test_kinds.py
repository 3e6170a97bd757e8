"""Training with labels and captions, put together: the weight xi, shares of a batch, and what held-out values say."""

import math
from typing import Any

import pytest
import torch

from semisight.data.batches import labelled_beside
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.consistency import Consistency
from semisight.objectives.joint import Joint
from semisight.objectives.labels import Labels
from semisight.runs.captions import one_width
from semisight.runs.recipe import refresher
from semisight.runs.settings import CaptionSettings, ConsistencySettings, LabelSettings, parse_xi, resolve
from semisight.training.state import Counters, TrainerState

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
N = 60
PIXELS = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.where(torch.arange(N) < 40, torch.arange(N) % 3, -1)
IMAGES = ImageSet.of(PIXELS, tuple(map(str, range(N))))


@pytest.mark.parametrize(
    ("given", "found"),
    [("paper", (None, 1.0)), ("10x", (None, 10.0)), (7.5, (7.5, 1.0)), ("7.5", (7.5, 1.0)), (0, (0.0, 1.0))],
)
def test_xi_by_rule_or_by_number(given: Any, found: tuple[float | None, float]) -> None:
    assert parse_xi(given) == found


@pytest.mark.parametrize("wrong", ["many", "-2x", -1.0, math.nan, "nan", math.inf])
def test_an_xi_that_makes_no_sense(wrong: Any) -> None:
    with pytest.raises(UserError, match="caption_xi must be a number"):
        parse_xi(wrong, "caption_xi")


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (LabelSettings, {"head": "tree"}),
        (LabelSettings, {"gamma": 0.0}),
        (LabelSettings, {"threshold": -1.0}),
        (ConsistencySettings, {"augment_strength": -0.1}),
        (ConsistencySettings, {"consistency": "perhaps"}),
        (ConsistencySettings, {"labelled_per_batch": 0}),
        (ConsistencySettings, {"labelled_per_batch": 2.5}),
        (ConsistencySettings, {"bound_images": -2}),
        (ConsistencySettings, {"bound_images": 1.5}),
        (CaptionSettings, {"cell": "rnn"}),
        (CaptionSettings, {"min_count": 0}),
        (CaptionSettings, {"start": "far"}),
        (CaptionSettings, {"caption_threshold": -1.0}),
    ],
)
def test_settings_that_make_no_sense(kind: Any, values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(values))):
        kind(**values)


def test_many_labels_have_a_larger_part_of_the_batch() -> None:
    """MNIST with 10, 100 and 300 labels per class, CIFAR-10 with 400, and a set of which a batch is all there is."""
    assert labelled_beside(100, 49_900, 256) == labelled_beside(600, 49_400, 256) == 32
    assert labelled_beside(3000, 47_000, 256) == -(-10 * 3000 // 183) == 164
    assert labelled_beside(4000, 36_000, 256) == 256  # never more than there are unlabelled ones
    assert labelled_beside(20, 1330, 256) == 32
    assert labelled_beside(10, 100, 100) == labelled_beside(5, 3, 3) == 32


def test_labels_spread_anew_every_so_many_epochs() -> None:
    labels = Labels(Softmax(TINY.code_size, 3), LABELS)
    joint = Joint(ImageModel.of(TINY, seed=1), [labels], consistency=Consistency())
    refresh = refresher(joint, IMAGES, seed=0, every=3)
    assert refresh is not None
    seen = []
    for epoch in range(1, 7):
        before = labels.responsibilities
        refresh(TrainerState(Counters(step=4 * epoch), float(epoch), 0.0, {}))
        seen.append(labels.responsibilities is not before)
    assert seen == [False, False, True, False, False, True]
    assert refresher(Joint(ImageModel.of(TINY), [labels], consistency=Consistency(spreading=0.0)), IMAGES, 0) is None
    assert refresher(Joint(ImageModel.of(TINY), [labels]), IMAGES, 0) is None


def test_words_are_tied_where_they_are_as_long_as_the_state() -> None:
    for chosen, expected in (
        ({}, (512, 512, True)),
        ({"hidden_size": 64}, (64, 64, True)),
        ({"hidden_size": 64, "embedding_size": 32}, (64, 32, False)),
    ):
        settings = resolve({"source": "x", **chosen})
        found = one_width(settings, {})
        sizes = (settings.captions.hidden_size, found["embedding_size"], found["tied_words"])
        assert sizes == expected
    assert one_width(resolve({"source": "x"}), {"hidden_size": 256}) == {"embedding_size": 256, "tied_words": True}
