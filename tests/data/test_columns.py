"""Labels, tags and captions are chosen, hidden, compared and parted alike, without asking which they are."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semisight.data.columns import (
    ENOUGH_IMAGES,
    ENOUGH_TO_HOLD_OUT,
    CaptionColumn,
    Column,
    LabelColumn,
    TagColumn,
    choose_labelled,
    hide_labels,
    in_order,
)
from semisight.errors import UserError


def labels(n: int) -> LabelColumn:
    return LabelColumn(torch.arange(n) % 4 - 1, ("a", "b", "c"))


def tags(n: int) -> TagColumn:
    return TagColumn(((torch.arange(n)[:, None] + torch.tensor([0, 1])) % 3 - 1).to(torch.int8), ("x", "y"))


def captions(n: int) -> CaptionColumn:
    return CaptionColumn(tuple(tuple(f"picture {i} {k}" for k in range(i % 3)) for i in range(n)))


KINDS = [labels, tags, captions]
Make = Callable[[int], Column]


def rows(column: Column) -> list[object]:
    return list(column.texts) if isinstance(column, CaptionColumn) else column.values.tolist()  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", KINDS)
def test_rows_are_chosen_and_hidden(make: Make) -> None:
    column = make(12)
    chosen = torch.tensor([7, 2, 7])
    assert rows(column.subset(chosen)) == [rows(column)[i] for i in (7, 2, 7)]
    mask = torch.arange(12) < 6
    kept = column.keep(mask)
    assert len(kept) == 12 and rows(kept)[:6] == rows(column)[:6]
    assert torch.equal(kept.present, column.present & mask)
    assert rows(column.minus(kept))[6:] == rows(column)[6:]
    assert not (column.minus(kept).present & kept.present).any()
    assert not column.minus(column).present.any()
    assert len(column.subset(torch.zeros(0, dtype=torch.int64))) == 0


@pytest.mark.parametrize("make", KINDS)
@given(n=st.integers(1, 400), share=st.sampled_from([0.0, 0.1, 0.5]), seed=st.integers(0, 5))
def test_only_free_images_are_set_aside(make: Make, n: int, share: float, seed: int) -> None:
    column = make(n)
    free = torch.arange(n) % 5 != 0
    aside = column.aside(share, seed, free)
    assert aside.tolist() == sorted(set(aside.tolist())) and free[aside].all()
    assert torch.equal(aside, column.aside(share, seed, free))
    if int(column.present.sum()) < ENOUGH_TO_HOLD_OUT:
        assert not column.present[aside].any()  # learning needs them more


def test_labels_of_every_class_are_set_aside() -> None:
    column = LabelColumn(torch.tensor([-1] * 50 + [0] * 100 + [1] * ENOUGH_TO_HOLD_OUT + [2] * 5), ("a", "b", "c"))
    aside = column.aside(0.1, 3, torch.ones(len(column), dtype=torch.bool))
    assert column.values[aside].tolist() == [-1] * 5 + [0] * 10 + [1] * 3
    assert column.few().nonzero().squeeze(1).tolist() == list(range(170, 175))
    assert column.counts.tolist() == [100, ENOUGH_TO_HOLD_OUT, 5]


def test_tags_are_set_aside_where_there_are_enough_but_never_a_rare_one() -> None:
    values = torch.full((2 * ENOUGH_IMAGES, 2), -1, dtype=torch.int8)
    values[:ENOUGH_IMAGES, 0] = torch.arange(ENOUGH_IMAGES) % 2
    values[:3, 1] = 1  # a tag that three images have
    column, free = TagColumn(values, ("often", "rare")), torch.ones(len(values), dtype=torch.bool)
    assert column.few().nonzero().squeeze(1).tolist() == [0, 1, 2]
    for seed in range(20):
        aside = column.aside(0.9, seed, free)
        assert int(column.present[aside].sum()) == int((~column.present)[aside].sum()) == 90
        assert not set(aside.tolist()) & {0, 1, 2}
    fewer = column.keep(torch.arange(len(values)) < ENOUGH_IMAGES - 1)
    assert not fewer.present[fewer.aside(0.5, 0, free)].any()
    assert torch.equal(fewer.few(), fewer.present)


@given(share=st.floats(0, 1), seed=st.integers(0, 9))
def test_entries_of_tags_are_hidden_one_by_one(share: float, seed: int) -> None:
    column = tags(30)
    known = int((column.values >= 0).sum())
    hidden = column.hide(share, seed)
    left = hidden.values >= 0
    assert int(left.sum()) == known - round(share * known)
    assert torch.equal(hidden.values[left], column.values[left])
    assert torch.equal(hidden.values, column.hide(share, seed).values)


def test_most_images_keep_some_of_their_tags() -> None:
    column = TagColumn(torch.ones(100, 11, dtype=torch.int8), tuple("abcdefghijk"))
    hidden = column.hide(0.8, 1)
    assert int(hidden.present.sum()) > 80 and int((hidden.values[0] < 0).sum()) > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: LabelColumn(torch.zeros(3, dtype=torch.int32), ("a",)),
        lambda: LabelColumn(torch.zeros(3, 1, dtype=torch.int64), ("a",)),
        lambda: LabelColumn(torch.tensor([0, 1]), ("a",)),
        lambda: LabelColumn(torch.tensor([0, -2]), ("a",)),
        lambda: TagColumn(torch.zeros(3, 2), ("a", "b")),
        lambda: TagColumn(torch.zeros(3, 2, dtype=torch.int8), ("a",)),
        lambda: TagColumn(torch.full((3, 1), 2, dtype=torch.int8), ("a",)),
        lambda: TagColumn(torch.full((3, 1), -2, dtype=torch.int8), ("a",)),
    ],
)
def test_values_that_mean_nothing_are_refused(make: Callable[[], Column]) -> None:
    with pytest.raises(ValueError, match=r"labels|tags"):
        make()


def test_labels_come_before_tags_before_captions() -> None:
    assert [column.name for column in in_order([captions(2), tags(2), labels(2)])] == ["labels", "tags", "captions"]


@given(per_class=st.integers(1, 4), seed=st.integers(0, 1000))
def test_choose_labelled_takes_so_many_of_each_class_and_hide_labels_keeps_only_those(
    per_class: int, seed: int
) -> None:
    values = torch.tensor([0, 1, 2, -1] * 4 + [2] * 9)
    chosen = choose_labelled(values, per_class, seed)
    assert values[chosen].bincount().tolist() == [per_class] * 3
    assert len(chosen.unique()) == len(chosen)
    hidden = hide_labels(values, chosen)
    assert torch.equal(hidden[chosen], values[chosen]) and int((hidden >= 0).sum()) == 3 * per_class


def test_choosing_more_than_there_are_is_an_error() -> None:
    with pytest.raises(UserError, match="class 1 has 1"):
        choose_labelled(torch.tensor([0, 0, 1]), 2)
    with pytest.raises(UserError, match="no image has a label"):
        choose_labelled(torch.tensor([-1, -1]), 2)
