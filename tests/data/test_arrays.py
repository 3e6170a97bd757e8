"""Pixel range, axes, channels and size are checked, and refused with what to do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semisight.data.arrays import channels_first, check_labels, check_pixels, fit, refuse_beyond
from semisight.errors import UserError


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([0, 255], np.uint8), np.array([0, 255], np.uint8)),
        (np.array([0, 255], np.int64), np.array([0, 255], np.uint8)),
        (np.array([0, 255], ">u2"), np.array([0, 255], np.uint8)),
        (np.array([False, True]), np.array([0, 255], np.uint8)),
        (np.array([0.0, 0.25, 1.0], np.float64), np.array([0, 0.25, 1], np.float32)),
        (np.array([0.0, 0.25, 1.0], ">f4"), np.array([0, 0.25, 1], np.float32)),
        (np.array([0.0, 0.5, 1.0], np.float16), np.array([0, 0.5, 1], np.float32)),
        (np.array([-1e-6, 1 + 1e-6]), np.array([0, 1], np.float32)),
    ],
)
def test_accepted_pixels(array: np.ndarray, expected: np.ndarray) -> None:
    checked = check_pixels(array, "here")
    assert checked.dtype == expected.dtype and np.array_equal(checked, expected)


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array([0.0, 200.0]), "from 0 to 200.*divide them by 255"),
        (np.array([-1.0, 1.0]), r"from -1 to 1.*\(x \+ 1\) / 2"),
        (np.array([-3.0, 7.5]), "from -3 to 7.5.*rescale"),
        (np.array([0, 60000], np.uint16), "from 0 to 60000.*257"),
        (np.array([-5, 5]), "from -5 to 5"),
        (np.array([0.5, np.nan]), "NaN"),
        (np.array([0.5, np.inf]), "NaN or infinite"),
        (np.array(["a"]), "type"),
        (np.array([1j]), "type"),
        (np.array(["2020-01-01"], "M8[D]"), "type"),
        (np.zeros((0, 3)), "nothing in them"),
    ],
)
def test_refused_pixels_say_the_range_and_what_to_do(array: np.ndarray, says: str) -> None:
    with pytest.raises(UserError, match=says):
        check_pixels(array, "here")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((5, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 3), (5, 3, 8, 9)),
        ((5, 3, 8, 9), (5, 3, 8, 9)),
        ((5, 8, 9, 1), (5, 1, 8, 9)),
        ((5, 1, 8, 9), (5, 1, 8, 9)),
        ((5, 8, 9, 4), (5, 4, 8, 9)),
        ((5, 4, 4, 1), (5, 1, 4, 4)),  # both readings possible: the square one
        ((5, 1, 4, 4), (5, 1, 4, 4)),
        ((5, 3, 3, 3), (5, 3, 3, 3)),
    ],
)
def test_axes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).random(shape)
    result = channels_first(array, "here")
    assert result.shape == expected
    if len(shape) == 4 and shape[3] in (1, 3, 4) and shape != (5, 1, 4, 4):
        assert np.array_equal(result, array.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("shape", [(5,), (5, 8), (5, 8, 8, 2), (5, 2, 8, 8), (5, 1, 8, 8, 1)])
def test_other_axes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"must be \[N,H,W\]"):
        channels_first(np.zeros(shape), "here")


def test_labels_are_checked() -> None:
    labels, names = check_labels(np.array([[2], [-1], [0]], np.int16), 3, "here")
    assert labels.tolist() == [2, -1, 0] and labels.dtype == torch.int64 and names == ("0", "1", "2")
    for bad in (np.zeros(4, int), np.zeros((3, 5), int), np.zeros(3), np.array([0, -2, 1]), np.array([0, 1, 10**9])):
        with pytest.raises(UserError, match="here: labels"):
            check_labels(bad, 3, "here")


def test_grey_and_colour_turn_into_each_other() -> None:
    grey = torch.randint(0, 256, (3, 1, 4, 4), dtype=torch.uint8)
    colour = fit(grey, channels=3)
    assert colour.shape == (3, 3, 4, 4) and torch.equal(colour[:, 1:2], grey)
    assert torch.equal(fit(colour, channels=1), grey)
    red = torch.zeros(1, 3, 1, 1)
    red[:, 0] = 1
    assert fit(red, channels=1).item() == pytest.approx(0.299)


def test_what_is_transparent_shows_white() -> None:
    rgba = torch.tensor([10, 20, 30, 0], dtype=torch.uint8).reshape(1, 4, 1, 1)
    assert fit(rgba).flatten().tolist() == [255, 255, 255]
    rgba[:, 3] = 255
    assert fit(rgba).flatten().tolist() == [10, 20, 30]
    assert fit(rgba, channels=1).shape == (1, 1, 1, 1)


@given(H=st.integers(1, 40), W=st.integers(1, 40), size=st.integers(1, 40), value=st.integers(0, 255))
def test_a_flat_image_stays_flat_at_every_size(H: int, W: int, size: int, value: int) -> None:
    images = torch.full((2, 1, H, W), value, dtype=torch.uint8)
    result = fit(images, size)
    assert result.shape == (2, 1, size, size) and result.eq(value).all()


def test_scaling_crops_the_middle_and_averages() -> None:
    wide = torch.zeros(1, 1, 4, 12)
    wide[..., 4:8] = 1  # the middle square is white, the sides black
    assert fit(wide, 4).eq(1).all()
    checks = (torch.arange(64).reshape(8, 8) + torch.arange(8)[:, None]) % 2
    assert fit(checks[None, None].float(), 2).sub(0.5).abs().max() < 0.1  # antialiased: not one of the two values
    same = torch.rand(2, 3, 5, 7)
    assert fit(same) is same


def test_sizes_beyond_the_limit_are_refused_before_they_are_made() -> None:
    with pytest.raises(UserError, match=r"1,000,000,000,000 bytes, more than the 1,000"):
        refuse_beyond(1000, 10**12, "a file")
