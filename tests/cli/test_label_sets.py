"""Which labels a run learns from, which it holds out, and which it hides; labels that cannot be used."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semisight.data.columns import ENOUGH_TO_HOLD_OUT, LEAST_HELD_OUT, LabelColumn
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.runs.images import Sets, part, sets_of, with_labels
from semisight.runs.settings import DataSettings, resolve
from tests.cli.commands import settled


def digits(**settings: object) -> Sets:
    return sets_of(DataSettings("builtin:digits", **settings), seed=0)  # type: ignore[arg-type]


def counts(images: ImageSet | None) -> list[int]:
    assert images is not None and images.labels is not None
    return torch.bincount(images.labels[images.labels >= 0], minlength=len(images.class_names)).tolist()


def test_every_class_gives_its_share_to_be_held_out() -> None:
    sets = digits(valid_fraction=0.1)
    assert sets.n_present("labels") + sets.n_held_out("labels") == 1797
    for learned, held_out in zip(counts(sets.train), counts(sets.valid), strict=True):
        assert held_out == round(0.1 * (learned + held_out))
    measured = sets.measured("labels")
    assert measured is not None and sets.valid is not None
    assert measured.names == sets.valid.names
    assert set(sets.train.names).isdisjoint(measured.names)


def test_few_labels_are_all_learned_from() -> None:
    sets = digits(labels_per_class=ENOUGH_TO_HOLD_OUT - 1, valid_fraction=0.2)
    assert counts(sets.train) == [ENOUGH_TO_HOLD_OUT - 1] * 10
    assert sets.n_held_out("labels") == 0
    enough = digits(labels_per_class=ENOUGH_TO_HOLD_OUT, valid_fraction=0.01)
    assert counts(enough.valid) == [LEAST_HELD_OUT] * 10


@pytest.mark.parametrize("per_class", [3, 40])
def test_hidden_labels_are_measured_on_and_never_learned(per_class: int) -> None:
    everything = digits(valid_fraction=0.0).train
    truth = dict(zip(everything.names, everything.labels.tolist(), strict=True))  # type: ignore[union-attr]
    sets = digits(labels_per_class=per_class, valid_fraction=0.25)
    assert sets.n_present("labels") + sets.n_held_out("labels") == 10 * per_class
    measured, whole = sets.measured("labels"), sets.truth["labels"][0]
    assert isinstance(whole, LabelColumn) and measured is not None and measured.labels is not None
    assert whole.values.tolist() == [truth[name] for name in sets.train.names]
    assert measured.labels.tolist() == [truth[name] for name in measured.names]
    assert sets.valid is not None and sets.valid.labels is not None
    held_out = {name for name, label in zip(sets.valid.names, sets.valid.labels.tolist(), strict=True) if label >= 0}
    assert held_out.isdisjoint(measured.names)
    assert set(sets.train.names).isdisjoint(measured.names)
    assert len(measured) + len(held_out) == len(sets.valid)


def test_the_labelled_images_alone_are_the_same_ones() -> None:
    both, alone = (digits(labels_per_class=2, valid_fraction=0.25, only_labelled=only) for only in (False, True))
    assert len(alone.train) == alone.n_present("labels") == 20
    assert both.train.labels is not None
    assert alone.train.names == both.train.subset(both.train.labels >= 0).names
    measured = [sets.measured("labels") for sets in (both, alone)]
    assert measured[0] is not None and measured[1] is not None
    assert measured[0].names == measured[1].names


def test_without_labels_nothing_is_known() -> None:
    sets = digits(use_labels=False)
    assert not sets.has("labels") and sets.measured("labels") is None and sets.truth == {}
    assert (sets.n_present("labels"), sets.n_held_out("labels")) == (0, 0)


@given(st.lists(st.integers(-1, 3), min_size=2, max_size=150), st.sampled_from([0.0, 0.1, 0.5]), st.integers(0, 5))
def test_parting_loses_and_doubles_no_image(labels: list[int], fraction: float, seed: int) -> None:
    pixels = torch.zeros(len(labels), 1, 2, 2)
    images = ImageSet.of(pixels, tuple(map(str, range(len(labels)))), torch.tensor(labels), tuple("abcd"))
    train, valid = part(images, fraction, seed)
    assert sorted([*train.tolist(), *valid.tolist()]) == list(range(len(labels)))
    learned = torch.tensor(labels)[train]
    assert set(learned.tolist()) - {-1} == set(labels) - {-1}


def some_images(labels: list[int], names: tuple[str, ...]) -> ImageSet:
    n = len(labels)
    return ImageSet.of(torch.zeros(n, 1, 2, 2), tuple(map(str, range(n))), torch.tensor(labels), names, source="a set")


def test_classes_without_images_are_left_out_and_told() -> None:
    images = with_labels(some_images([0, 3, 3, -1, 0], ("a", "b", "c", "d")), DataSettings("x"))
    assert images.class_names == ("a", "d")
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 1, -1, 0]
    assert any("2 classes have no image" in note and "b, c" in note for note in images.notes)


def test_a_class_with_one_example_is_told() -> None:
    images = with_labels(some_images([0, 0, 1], ("a", "b")), DataSettings("x"))
    assert any("1 class has a single labelled image: b" in note for note in images.notes)


def test_one_class_is_refused_and_unknown_labels_are_none_and_told() -> None:
    with pytest.raises(UserError, match="all labelled images of a set are 'b'"):
        with_labels(some_images([1, 1, -1], ("a", "b")), DataSettings("x"))
    unknown = with_labels(some_images([-1, -1], ("a", "b")), DataSettings("x"))
    assert unknown.labels is None
    assert unknown.notes == ("all labels of a set are unknown: nothing is learned from them, only from the images",)


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        ({"labels": "a.csv", "use_labels": False}, "--no-labels and --labels exclude"),
        ({"class_per_folder": True, "use_labels": False}, "--no-labels and --class-per-folder"),
        ({"labels_per_class": 3, "use_labels": False}, "--no-labels and --labels-per-class"),
        ({"labels": "a.csv", "class_per_folder": True}, "both say which labels"),
        ({"labels_per_class": 0}, "labels_per_class must be"),
        ({"only_labelled": "yes"}, "only_labelled must be true or false"),
    ],
)
def test_wishes_that_exclude_each_other(settings: dict[str, object], fragment: str) -> None:
    with pytest.raises(UserError, match=fragment):
        DataSettings("x", **settings)  # type: ignore[arg-type]


def test_more_labels_per_class_than_there_are() -> None:
    with pytest.raises(UserError, match=r"10 classes have fewer labels: 0 \(178\)"):
        digits(labels_per_class=500)


def test_labels_are_asked_for_where_there_are_none(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    for settings in ({"labels_per_class": 1}, {"only_labelled": True}):
        with pytest.raises(UserError, match="carries no labels: give --labels"):
            sets_of(DataSettings(str(tmp_path), **settings), 0)  # type: ignore[arg-type]


def test_labels_of_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", images=np.zeros((6, 8, 8), np.uint8))
    np.save(tmp_path / "labels.npy", np.array([0, 1, -1, 1, 0, -1]))
    np.save(tmp_path / "short.npy", np.array([0, 1]))
    data = DataSettings(str(tmp_path / "images.npz"), labels=str(tmp_path / "labels.npy"), valid_fraction=0.0)
    sets = sets_of(data, 0)
    assert sets.train.labels is not None
    assert sets.train.labels.tolist() == [0, 1, -1, 1, 0, -1]
    with pytest.raises(UserError, match=r"has shape \[2\], but there are 6 images"):
        sets_of(DataSettings(data.source, labels=str(tmp_path / "short.npy")), 0)


# --- settings where there are labels


def test_few_labels_many_images() -> None:
    settings = settled(100, 50_000)
    assert settings.train.batch_size == 32 + 256
    assert settings.consistency.labelled_per_batch == 32
    assert settings.train.max_epochs == 21  # of 195 steps: at least 4,000
    assert settings.train.validate_every == 1
    assert (settings.labels.head, settings.labels.xi) == ("softmax", "100x")  # ten times C times the paper's
    assert settings.consistency.consistency
    assert (settings.model.nonlinearity, settings.train.average_decay) == ("norm-relu", 0.99)
    assert settings.train.patience is None


def test_a_small_set_has_smaller_batches_and_more_epochs() -> None:
    settings = settled(10, 100)
    assert settings.train.batch_size == 132
    assert settings.train.max_epochs == 4000
    assert settings.train.validate_every == 40
    assert settled(60, 0).train.batch_size == 60


def test_what_was_chosen_stays() -> None:
    settings = settled(100, 900, batch_size=16, epochs=3, learning_rate=0.5, head="svm", xi="12.5")
    assert (settings.train.batch_size, settings.train.max_epochs, settings.train.learning_rate) == (16, 3, 0.5)
    assert (settings.labels.head, settings.labels.xi) == ("svm", "12.5")
    assert settings.consistency.labelled_per_batch == 8  # half of so small a batch
    with pytest.raises(UserError, match="xi must be a number, paper, or a multiple such as 10x"):
        resolve({"source": "x", "xi": "much"})


def test_the_papers_settings_and_what_wins_over_them(tmp_path: Path) -> None:
    settings = settled(100, 50_000, paper=True, epochs=7)
    assert (settings.labels.head, settings.labels.xi, settings.consistency.consistency) == ("svm", "paper", False)
    assert (settings.train.batch_size, settings.consistency.labelled_per_batch) == (64, 32)
    train = settings.train
    assert (train.learning_rate, train.schedule, train.average_decay) == (2e-4, "constant", None)
    assert (settings.model.nonlinearity, settings.train.patience, settings.train.max_epochs) == ("none", 10, 7)
    file = tmp_path / "settings.yaml"
    file.write_text("paper: true\nhead: softmax\n")
    assert resolve({"source": "x"}, file).labels.head == "softmax"
    assert not resolve({"source": "x"}, file).consistency.consistency
