"""Chance belongs to (seed, stream, numbers) alone, and no two streams are the same."""

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semisight.random import Stream, random_order, reseed, scene_numbers

SOURCE = Path(__file__).parents[1] / "src" / "semisight"
# What decides the images, the parts or the weights of runs that exist.
FIXED = {
    "order": dict(SPLIT=1, CHOICE=2, EPOCHS=3, ROUNDS=4, CLASSES=5, LIMIT=6, START=7, LABELS_ASIDE=9)
    | dict(CAPTIONS_LIMIT=17, CAPTIONS_KEPT=18, CAPTIONS_ASIDE=19, HEADERS=33, STREAMED_ASIDE=34),
    "noise": dict(TRAINING=0, VALIDATION=1, LABEL_HEAD=11, REFRESH=12, CAPTION_HEAD=13),
    "scenes": dict(SCENE_LAYOUT=7, SCENE_PAINT=8, SCENE_GRAIN=9, SCENE_CAPTIONS=10),
}


def test_no_two_streams_are_one_and_old_ones_keep_their_numbers() -> None:
    assert len({stream.value for stream in Stream}) == len(Stream.__members__)
    for family, numbers in FIXED.items():
        assert {name: Stream[name].number(family) for name in numbers} == numbers


def test_every_stream_has_one_owner() -> None:
    """A stream that two files name is drawn twice, unless both mean to draw the same."""
    same = {"SPLIT", "LIMIT", "VALIDATION", "START"}  # the report starts a model again as the run did
    owners: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        room, *_ = file.relative_to(SOURCE).parts
        for name in re.findall(r"Stream\.([A-Z]\w+)", file.read_text()):
            # an experiment composes trainings as runs/ does, from the same streams; its rows share its own
            owners.setdefault(name, set()).add("runs" if room in ("runs", "experiments") else str(file))
    assert set(owners) <= set(Stream.__members__)
    assert not {name: files for name, files in owners.items() if len(files) > 1 and name not in same}
    in_runs = [
        name
        for file in (SOURCE / "runs").rglob("*.py")
        for name in set(re.findall(r"Stream\.([A-Z]\w+)", file.read_text()))
    ]
    assert len(in_runs) == len(set(in_runs))


@pytest.mark.parametrize("wrong", [Stream.TRAINING, Stream.SCENE_LAYOUT])
def test_a_stream_of_another_family_is_refused(wrong: Stream) -> None:
    with pytest.raises(ValueError, match="no stream of order"):
        random_order(3, 0, wrong)
    with pytest.raises(ValueError, match="no stream of noise"):
        reseed(torch.Generator(), 0, Stream.SPLIT, 0)
    with pytest.raises(ValueError, match="no stream of scenes"):
        scene_numbers(0, Stream.SPLIT)


@given(n=st.integers(1, 200), epoch=st.integers(0, 10**6), seed=st.integers(0, 2**63 - 1))
def test_an_order_is_a_permutation_decided_by_its_arguments(n: int, epoch: int, seed: int) -> None:
    order = random_order(n, seed, Stream.EPOCHS, epoch)
    assert order.dtype == torch.int64 and sorted(order.tolist()) == list(range(n))
    assert torch.equal(order, random_order(n, seed, Stream.EPOCHS, epoch))


def test_seeds_streams_and_numbers_differ() -> None:
    orders = {
        tuple(random_order(50, seed, stream, number).tolist())
        for seed in range(5)
        for stream in (Stream.EPOCHS, Stream.ROUNDS)
        for number in range(10)
    }
    assert len(orders) == 100


def test_every_order_is_equally_likely() -> None:
    counts = Counter(tuple(random_order(3, 0, Stream.EPOCHS, epoch).tolist()) for epoch in range(3000))
    assert len(counts) == 6 and all(400 < count < 600 for count in counts.values())  # 500 expected, deviation 20
