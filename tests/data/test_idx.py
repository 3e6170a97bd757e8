"""idx files come back as they were written; truncated and garbled ones say what was expected and found."""

import gzip
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from semisight.data import load
from semisight.data.formats.idx import read_idx
from semisight.errors import UserError
from tests.data.writers import IDX_TYPES, idx_bytes, write_idx

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
LABELS = np.array([3, 0, 1, 2, 0, 3], np.uint8)

arrays = st.sampled_from(sorted(IDX_TYPES)).flatmap(
    lambda code: hnp.arrays(np.dtype(code), hnp.array_shapes(min_dims=1, max_dims=4, max_side=6))
)


@given(array=arrays, zipped=st.booleans())
def test_round_trip(array: np.ndarray, zipped: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_idx(Path(folder) / ("a.gz" if zipped else "a"), array)
        back = read_idx(path)
    assert back.dtype == array.dtype and np.array_equal(back, array, equal_nan=array.dtype.kind == "f")


@given(cut=st.integers(0, 200), zipped=st.booleans())
def test_every_truncation_is_a_user_error_that_counts_bytes(cut: int, zipped: bool) -> None:
    whole = idx_bytes(IMAGES)
    content = whole[: min(cut, len(whole) - 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images"
        path.write_bytes(gzip.compress(content) if zipped else content)
        with pytest.raises(UserError) as caught:
            read_idx(path)
    message = str(caught.value)
    if len(content) >= 16:
        assert "truncated" in message and "120" in message and f"found {len(content) - 16}" in message
    else:
        assert "truncated" in message or "not an idx file" in message


def test_a_truncated_gzip_is_a_user_error(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((50, 9, 9), np.uint8) + LABELS[0]))[:-12])
    with pytest.raises(UserError, match="damaged"):
        load(path)


def test_bytes_after_the_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "images"
    path.write_bytes(idx_bytes(IMAGES) + b"xyz")
    with pytest.raises(UserError, match=r"expected 120 bytes.*at least 123"):
        read_idx(path)


@pytest.mark.parametrize("zipped", [False, True])
def test_a_header_that_promises_too_much_allocates_nothing(tmp_path: Path, zipped: bool) -> None:
    head = bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**31, 2**15, 2**15)
    path = tmp_path / "images"
    path.write_bytes(gzip.compress(head) if zipped else head)
    with pytest.raises(UserError, match="more than"):
        read_idx(path)
    with pytest.raises(UserError, match="truncated"):  # under a limit that would let it pass
        read_idx(path, max_bytes=2**63)


def test_a_small_gzip_that_unpacks_to_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((100, 100, 100), np.uint8))))
    assert path.stat().st_size < 5000
    with pytest.raises(UserError, match="1,000,000 bytes, more than the 1,000"):
        read_idx(path, max_bytes=1000)


@pytest.mark.parametrize(
    "images_name", ["train-images-idx3-ubyte", "train-images.idx3-ubyte", "train-images-idx3-ubyte.gz"]
)
@pytest.mark.parametrize("labels_name", ["train-labels-idx1-ubyte", "train-labels.idx1-ubyte.gz"])
def test_images_find_their_labels(tmp_path: Path, images_name: str, labels_name: str) -> None:
    write_idx(tmp_path / images_name, IMAGES)
    write_idx(tmp_path / labels_name, LABELS)
    for source in (tmp_path, tmp_path / images_name):
        image_set = load(source)
        assert image_set.images.dtype == torch.uint8 and np.array_equal(image_set.images[:, 0].numpy(), IMAGES)
        assert image_set.labels is not None and image_set.labels.tolist() == LABELS.tolist()
        assert image_set.class_names == ("0", "1", "2", "3") and image_set.names[2] == "train/00002"


def test_a_folder_has_a_train_and_a_test_part(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", IMAGES[:2])
    assert len(load(tmp_path)) == len(load(tmp_path, part="train")) == 6
    test = load(str(tmp_path), part="test")
    assert len(test) == 2 and test.names == ("t10k/00000", "t10k/00001")
    assert test.labels is None and "no labels" in test.notes[0]
    (tmp_path / "t10k-images-idx3-ubyte.gz").unlink()
    with pytest.raises(UserError, match="none for test"):
        load(tmp_path, part="test")


def test_labels_that_do_not_match_are_refused(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", IMAGES)
    write_idx(tmp_path / "train-labels-idx1-ubyte", LABELS[:-1])
    with pytest.raises(UserError, match=r"labels of train-images.*shape \[5\].*6 images"):
        load(tmp_path)
    with pytest.raises(UserError, match="look like labels"):
        load(tmp_path / "train-labels-idx1-ubyte")
