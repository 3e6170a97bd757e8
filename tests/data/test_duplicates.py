"""Duplicates: exact by content, near by fingerprint."""

import numpy as np
import pytest

from semisight.data.duplicates import fingerprint, nearly_same, same


def picture(number: int, side: int = 64) -> np.ndarray:
    small = np.random.default_rng(number).integers(0, 200, (8, 8))
    return np.kron(small, np.ones((side // 8, side // 8), dtype=int)).astype(np.uint8)


def test_the_same_content_is_grouped_the_largest_first() -> None:
    assert same(["a", "b", "c", "d", "e"], ["1", "2", "2", "1", "1"]) == (("a", "d", "e"), ("b", "c"))
    assert same(["a", "b"], ["1", "2"]) == ()


def test_brighter_noisy_and_larger_copies_are_near_and_others_are_not() -> None:
    noise = np.random.default_rng(9).integers(0, 12, (64, 64))
    plain = picture(0)
    pictures = [plain, picture(0, 96), plain + 40, plain + noise, picture(1), 255 - plain, plain.T]
    marks = [fingerprint(one.astype(np.uint8)) for one in pictures]
    names = ["plain", "large", "bright", "noisy", "other", "negative", "turned"]
    assert nearly_same(names, marks, names) == (("plain", "large", "bright", "noisy"),)


def test_groups_of_the_very_same_are_not_told_twice() -> None:
    mark = fingerprint(picture(0))
    assert nearly_same(["a", "b"], [mark, mark], ["1", "1"]) == ()
    assert nearly_same(["a", "b", "c"], [mark, mark, mark], ["1", "1", "2"]) == (("a", "b", "c"),)


@pytest.mark.parametrize("grey", [picture(0, 40), np.full((64, 64), 7, np.uint8)])
def test_small_and_empty_pictures_have_no_fingerprint(grey: np.ndarray) -> None:
    assert fingerprint(grey) is None
    assert nearly_same(["a", "b"], [None, None], ["1", "2"]) == ()
