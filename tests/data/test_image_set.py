"""Image sets keep images and what is known of them together, whatever is chosen from them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semisight.data.columns import CaptionColumn, LabelColumn, TagColumn
from semisight.data.image_set import ImageSet, Skipped, skipped_summary, split
from semisight.errors import UserError


def make_set(n: int = 10, dtype: torch.dtype = torch.uint8) -> ImageSet:
    images = torch.arange(n * 12).remainder(256).to(torch.uint8).reshape(n, 3, 2, 2)
    if dtype == torch.float32:
        images = images.float() / 255
    return ImageSet.of(
        images=images,
        names=tuple(f"{i}.png" for i in range(n)),
        labels=torch.arange(n) % 3 - 1,
        class_names=("a", "b"),
        captions=tuple((f"picture {i}",) for i in range(n)),
        tags=TagColumn((torch.arange(n)[:, None] % 3 - 1).to(torch.int8), ("old",)),
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_batch_is_float_in_0_to_1_and_does_not_touch_the_set(dtype: torch.dtype) -> None:
    image_set = make_set(dtype=dtype)
    before = image_set.images.clone()
    batch = image_set.batch(torch.tensor([9, 0, 9]))
    assert batch.dtype == torch.float32 and batch.shape == (3, 3, 2, 2)
    assert torch.allclose(batch[1], torch.arange(12).reshape(3, 2, 2) / 255)
    batch.zero_()
    assert torch.equal(image_set.images, before)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_mean_image_equals_the_mean_of_all_batches(dtype: torch.dtype) -> None:
    image_set = make_set(2500, dtype)  # more than one chunk
    assert torch.allclose(
        image_set.mean_image(), image_set.batch(torch.arange(2500)).double().mean(0).float(), atol=1e-6
    )


def test_subset_takes_everything_along_by_positions_and_by_mask() -> None:
    image_set = make_set()
    some = image_set.subset([7, 2])
    assert some.names == ("7.png", "2.png") and some.captions == (("picture 7",), ("picture 2",))
    assert some.labels is not None and some.labels.tolist() == [0, 1]
    assert some.tags is not None and some.tags.values.tolist() == [[0], [1]] and some.tags.names == ("old",)
    assert torch.equal(some.images, image_set.images[[7, 2]])
    mask = torch.zeros(10, dtype=torch.bool)
    mask[[2, 7]] = True
    assert image_set.subset(mask).names == ("2.png", "7.png")
    assert image_set.subset(mask.tolist()).names == ("2.png", "7.png")
    assert len(image_set.subset([])) == 0


def test_columns_come_and_go() -> None:
    image_set = make_set()
    assert list(image_set.columns) == ["labels", "tags", "captions"]
    bare = image_set.without_column("labels", "tags")
    assert bare.labels is None and bare.tags is None and bare.class_names == () and bare.captions is not None
    again = bare.with_column(LabelColumn(torch.zeros(10, dtype=torch.int64), ("z",)))
    assert list(again.columns) == ["labels", "captions"] and again.class_names == ("z",)
    assert again.with_labels(torch.ones(10, dtype=torch.int64), ["y", "z"]).labels is not again.labels
    assert list(bare.columns) == ["captions"]  # a set never changes
    with pytest.raises(ValueError, match="10 images but captions for 9"):
        image_set.with_column(CaptionColumn(((),) * 9))


def test_images_may_be_mapped_from_a_file(tmp_path: Path) -> None:
    array = np.memmap(tmp_path / "images.u8", np.uint8, "w+", shape=(5, 1, 4, 4))
    array[:] = np.arange(80).reshape(5, 1, 4, 4)
    image_set = ImageSet.of(torch.from_numpy(array), tuple("abcde"))
    assert torch.allclose(image_set.batch(torch.tensor([4]))[0, 0, 0, 0], torch.tensor(64 / 255))
    array[4] = 255  # the set reads the file, not a copy of it
    assert image_set.batch(torch.tensor([4])).eq(1).all()
    assert image_set.mean_image().shape == (1, 4, 4)


@pytest.mark.parametrize(
    "change",
    [
        {"images": torch.zeros(10, 2, 2)},
        {"images": torch.zeros(10, 3, 2, 2, dtype=torch.float64)},
        {"names": ("a",)},
        {"labels": torch.zeros(9, dtype=torch.int64)},
        {"labels": torch.zeros(10, dtype=torch.int32)},
        {"labels": torch.full((10,), 2)},
        {"labels": torch.full((10,), -2)},
        {"captions": ((),)},
    ],
)
def test_parts_that_do_not_fit_are_refused(change: dict) -> None:
    good = make_set()
    fields = {"images": good.images, "names": good.names, "labels": good.labels, "class_names": ("a", "b")}
    with pytest.raises(ValueError):
        ImageSet.of(**{**fields, **change})


@given(n=st.integers(2, 60), share=st.floats(0.2, 0.8), seed=st.integers(0, 2**40))
def test_split_parts_the_set_and_repeats_itself(n: int, share: float, seed: int) -> None:
    image_set = make_set(n)
    if round(n * share) in (0, n):
        return
    train, valid = split(image_set, share, seed)
    assert sorted(train.names + valid.names) == sorted(image_set.names)
    assert len(valid) == round(n * share)
    assert split(image_set, share, seed)[1].names == valid.names
    assert len(split(image_set, 1, seed)[1]) == 1


def test_split_depends_on_the_seed_and_refuses_to_leave_nothing() -> None:
    image_set = make_set(50)
    assert split(image_set, 10, 0)[1].names != split(image_set, 10, 1)[1].names
    for impossible in (0, 50, 51, -1, 1.5, 0.0, 0.001):
        if impossible == 1.5:
            assert len(split(image_set, impossible)[1]) == 1  # a number, rounded down
            continue
        with pytest.raises(UserError, match="aside for validation"):
            split(image_set, impossible)


def test_skips_are_counted_by_kind() -> None:
    skipped = [
        Skipped("a", "not an image"),
        Skipped("b", "corrupt: x"),
        Skipped("c", "not an image"),
        Skipped("d", "corrupt: y"),
    ]
    assert skipped_summary(skipped) == "4 files skipped: 2 not an image (a, c), 2 corrupt (b, d)"
    assert skipped_summary(skipped[:1]) == "1 file skipped: 1 not an image (a)"
    assert skipped_summary([]) == ""
