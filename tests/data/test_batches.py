"""Plans are stateless in the step, visit every image once per epoch, and deal the classes evenly."""

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semisight.data.batches import LabelledAndUnlabelled, Shuffled
from semisight.errors import UserError
from semisight.random import Stream, random_order

seeds = st.integers(0, 2**63 - 1)


@given(n=st.integers(1, 100), batch_size=st.integers(1, 40), epoch=st.integers(0, 5), seed=seeds)
def test_shuffled_visits_each_image_at_most_once_per_epoch(n: int, batch_size: int, epoch: int, seed: int) -> None:
    plan = Shuffled(n, batch_size)
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    batches = [plan.indices(step, seed) for step in steps]
    assert all(len(batch) == min(n, batch_size) for batch in batches)
    seen = torch.cat(batches)
    assert len(seen.unique()) == len(seen) == plan.steps_per_epoch * min(n, batch_size)
    assert len(seen) > n - batch_size  # nothing but a partial batch is left out
    assert torch.equal(seen, random_order(n, seed, Stream.EPOCHS, epoch)[: len(seen)])


labelled_cases = st.fixed_dictionaries(
    {
        "sizes": st.lists(st.integers(1, 9), min_size=1, max_size=5),  # images of each class
        "n_unlabelled": st.integers(1, 60),
        "batch_size": st.integers(2, 20),
        "share": st.floats(0.01, 0.99),
    }
)


def make_plan(case: dict) -> LabelledAndUnlabelled:
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(case["sizes"])])
    n = len(labels)
    labelled = max(1, min(case["batch_size"] - 1, int(case["share"] * case["batch_size"])))
    positions = torch.arange(n + case["n_unlabelled"]).flip(0)  # positions are not ranks: mixing them up would show
    return LabelledAndUnlabelled(positions[:n], positions[n:], case["batch_size"], labelled, labels)


@given(case=labelled_cases, seed=seeds, start=st.integers(0, 30))
def test_classes_come_equally_often_and_images_of_a_class_in_turn(case: dict, seed: int, start: int) -> None:
    plan = make_plan(case)
    k, n_classes = plan.labelled_per_batch, len(case["sizes"])
    stream = torch.cat([plan.indices(step, seed)[:k] for step in range(start + 2 * n_classes)])
    label_of = dict(zip(plan.labelled_index.tolist(), plan.labels.tolist(), strict=True))
    classes = [label_of[i] for i in stream.tolist()]
    for first in range(0, len(classes) - n_classes + 1, n_classes):
        assert sorted(classes[first : first + n_classes]) == list(range(n_classes))
    for c, size in enumerate(case["sizes"]):
        of_class = [i for i in stream.tolist() if label_of[i] == c]
        for first in range(0, len(of_class) - size + 1, size):
            assert len(set(of_class[first : first + size])) == size


@given(case=labelled_cases, seed=seeds, epoch=st.integers(0, 4))
def test_an_epoch_is_one_pass_over_the_unlabelled_images(case: dict, seed: int, epoch: int) -> None:
    plan = make_plan(case)
    steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
    seen = torch.cat([plan.indices(step, seed)[plan.labelled_per_batch :] for step in steps])
    assert len(seen.unique()) == len(seen) > case["n_unlabelled"] - plan.unlabelled_per_batch
    assert set(seen.tolist()) <= set(plan.unlabelled_index.tolist())


@given(case=labelled_cases, seed=seeds, steps=st.lists(st.integers(0, 200), min_size=1, max_size=8))
def test_plans_are_stateless_in_the_step(case: dict, seed: int, steps: list[int]) -> None:
    def fresh() -> list[LabelledAndUnlabelled | Shuffled]:
        return [make_plan(case), Shuffled(case["n_unlabelled"], case["batch_size"])]

    used = fresh()
    for plan in used:
        for step in range(5):
            plan.indices(step, seed + 1)  # another run of the same plan must leave no trace
    for step in steps:
        for old, new in zip(used, fresh(), strict=True):
            assert torch.equal(old.indices(step, seed), new.indices(step, seed))


def test_a_batch_can_be_changed_without_changing_the_plan() -> None:
    plan = Shuffled(10, 5)
    expected = plan.indices(0, 0).clone()
    plan.indices(0, 0).zero_()
    assert torch.equal(plan.indices(0, 0), expected)


def test_one_kind_of_image_alone_is_ordinary_training() -> None:
    some, none = torch.arange(100, 150), torch.arange(0)
    for plan in (
        LabelledAndUnlabelled(some, none, 10, 5, torch.arange(50) % 3),
        LabelledAndUnlabelled(none, some, 10, 5),
    ):
        assert plan.steps_per_epoch == 5
        seen = torch.cat([plan.indices(step, 1) for step in range(5)])
        assert sorted(seen.tolist()) == some.tolist()


def test_fewer_unlabelled_images_than_a_batch_wants_are_all_taken() -> None:
    plan = LabelledAndUnlabelled(torch.arange(5), torch.arange(5, 8), 64, 32)
    assert plan.steps_per_epoch == 1
    batch = plan.indices(3, 0)
    assert len(batch) == 35 and sorted(batch[32:].tolist()) == [5, 6, 7]
    assert Counter(batch[:32].tolist()).total() == 32 and set(batch[:32].tolist()) == set(range(5))


def test_plans_that_cannot_be_are_refused() -> None:
    some, none = torch.arange(9), torch.arange(0)
    for build in (
        lambda: Shuffled(0),
        lambda: Shuffled(3, 0),
        lambda: LabelledAndUnlabelled(none, none),
        lambda: LabelledAndUnlabelled(some, some, 8, 8),
        lambda: LabelledAndUnlabelled(some, some, 8, 0),
    ):
        with pytest.raises(UserError):
            build()
    with pytest.raises(ValueError, match="labels"):
        LabelledAndUnlabelled(some, some, labels=torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="unknown"):
        LabelledAndUnlabelled(some, some, labels=torch.arange(9) - 1)
