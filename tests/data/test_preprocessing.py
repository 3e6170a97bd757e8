"""Preprocessing: the part of an image that a network sees, its numbers, and views that are the same every time."""

import json
import random

import numpy as np
import pytest
from PIL import Image

from semisight.data.preprocessing import Preprocessing, _random_box
from semisight.errors import UserError


def ramp(width: int, height: int) -> Image.Image:
    """Red grows to the right, green downwards, blue is 200."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x, y, np.full_like(x, 200)], -1).astype(np.uint8))


def test_the_plain_view_is_the_centre_square() -> None:
    picture = Preprocessing(10, crop=0.5).picture(ramp(200, 100))
    assert picture.shape == (3, 10, 10) and picture.dtype == np.uint8
    # 50 x 50 pixels around the middle (100, 50), ten steps of 5
    np.testing.assert_allclose(picture[0].mean(0), 75 + 5 * np.arange(10) + 2, atol=1)
    np.testing.assert_allclose(picture[1].mean(1), 25 + 5 * np.arange(10) + 2, atol=1)
    assert (picture[2] == 200).all()


def test_squashed_it_is_the_whole_image() -> None:
    picture = Preprocessing(10, squash=True).picture(ramp(200, 100))
    np.testing.assert_allclose(picture[0].mean(0), 20 * np.arange(10) + 9.5, atol=1.5)
    np.testing.assert_allclose(picture[1].mean(1), 10 * np.arange(10) + 4.5, atol=1.5)


def test_numbers() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 4), dtype=np.uint8)
    lite = Preprocessing(4, scale=1.0, mean=127.0, std=128.0).normalised(pixels)
    assert lite.dtype == np.float32
    np.testing.assert_allclose(lite, (pixels - 127.0) / 128, atol=1e-6)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    right = (pixels / 255 - mean.reshape(3, 1, 1)) / std.reshape(3, 1, 1)
    np.testing.assert_allclose(Preprocessing(4).normalised(pixels), right, atol=1e-5)
    last = Preprocessing(4, channels="bgr", layout="nhwc").normalised(pixels)
    np.testing.assert_allclose(last, right[:, ::-1].transpose(0, 2, 3, 1), atol=1e-5)


def test_views() -> None:
    how, image = Preprocessing(16, crop=0.9), ramp(120, 90)
    plain, mirror = how.picture(image, 0, "a"), how.picture(image, 2, "a")
    np.testing.assert_array_equal(mirror, plain[:, :, ::-1])
    np.testing.assert_array_equal(how.picture(image, 0, "b"), plain)
    drawn = [how.picture(image, view, seed) for view in (1, 3) for seed in ("a", "b")]
    for i, one in enumerate(drawn):
        assert not any(np.array_equal(one, other) for other in [plain, mirror, *drawn[:i]])
    np.testing.assert_array_equal(how.picture(image, 3, "a"), drawn[2])


def test_random_parts_are_between_0_6_and_1_of_the_area_and_moved_about() -> None:
    how, shown, lefts, mirrored = Preprocessing(32), [], set(), 0
    white = np.full((200, 250, 3), 255, np.uint8)
    for number in range(60):
        left, top, right, bottom = _random_box(random.Random(number), 250, 200)
        assert 0 <= left < right <= 250.001 and 0 <= top < bottom <= 200.001
        shown.append((right - left) * (bottom - top) / (250 * 200))
        assert 0.74 < (right - left) / (bottom - top) < 1.34
        lefts.add(round(left, 3))
        view = how.picture(ramp(250, 200), 1, str(number)).astype(float)
        mirrored += view[0, :, 0].mean() > view[0, :, -1].mean()
        light = how.picture(Image.fromarray(white // 2), 1, str(number)).mean()
        assert 0.5 * 127 < light < 1.5 * 127 + 1
    assert 0.59 < min(shown) < 0.65 and 0.85 < max(shown) <= 1.0
    assert len(lefts) > 50 and 15 < mirrored < 45
    panorama = Preprocessing(8).picture(ramp(250, 10), 2, "x")
    assert panorama.shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "whole number of pixels"),
        ({"size": 8, "crop": 0.0}, "share of the short side"),
        ({"size": 8, "interpolation": "cubic"}, "bicubic"),
        ({"size": 8, "mean": [1.0, 2.0]}, "three"),
        ({"size": 8, "std": [1.0, 0.0, 1.0]}, "divided"),
        ({"size": 8, "layout": "hwc"}, "nhwc"),
        ({"size": 8, "crop": "half"}, "not as it should be"),
        ({"sise": 8}, r"did you mean size\?"),
        ({}, "size"),
    ],
)
def test_mistakes_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Preprocessing.from_mapping(settings, "model.yaml")


def test_it_survives_json() -> None:
    how = Preprocessing(32, mean=(1.0, 2.0, 3.0), std=4.0, squash=True)
    assert Preprocessing.from_mapping(json.loads(json.dumps(how.describe())), "job") == how
