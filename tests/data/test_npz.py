"""npz and npy files: read without pickle, sizes checked before anything is allocated."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from semisight.data import load
from semisight.data.formats.npz import read_npy, read_npz
from semisight.errors import UserError

RANDOM = np.random.default_rng(0)


def npy(header: str, values: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + values


def saved(path: Path, **arrays: np.ndarray) -> Path:
    np.savez_compressed(path, **arrays)
    return path


@pytest.mark.parametrize("shape", [(5, 8, 6), (5, 8, 6, 1), (5, 1, 8, 6), (5, 8, 6, 3), (5, 3, 8, 6)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_layout_comes_back(tmp_path: Path, shape: tuple[int, ...], dtype: type, order: str) -> None:
    images = RANDOM.integers(0, 256, shape).astype(dtype)
    if dtype != np.uint8:
        images /= dtype(255)
    labels = np.array([0, 2, -1, 1, 0])
    path = saved(tmp_path / "a.npz", images=np.asarray(images, order=order), labels=labels)
    image_set = load(path)
    expected = images[:, None] if len(shape) == 3 else images if shape[1] in (1, 3) else images.transpose(0, 3, 1, 2)
    assert image_set.images.dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)
    assert np.allclose(image_set.images.numpy(), expected, atol=1e-6)
    assert image_set.labels is not None and image_set.labels.tolist() == labels.tolist()
    assert image_set.class_names == ("0", "1", "2") and image_set.names[1] == "a/00001"
    assert image_set.batch(torch.arange(5)).max() <= 1


def test_class_names_and_four_channels(tmp_path: Path) -> None:
    images = RANDOM.integers(0, 256, (4, 5, 5, 4), dtype=np.uint8)
    path = saved(tmp_path / "a.npz", images=images, labels=np.array([0, 1, 0, 1]), class_names=np.array(["cat", "dog"]))
    image_set = load(path, size=10)
    assert image_set.shape == (3, 10, 10) and image_set.class_names == ("cat", "dog")
    path = saved(tmp_path / "b.npz", images=images, labels=np.array([0, 1, 0, 1]), class_names=np.array(["cat"]))
    with pytest.raises(UserError, match="at least 2 names"):
        load(path)


def test_a_npy_of_images(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", RANDOM.random((4, 6, 6)))
    assert load(tmp_path / "a.npy").shape == (1, 6, 6)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"pictures": np.zeros((2, 4, 4))}, "no array `images`; it holds pictures"),
        ({"images": np.zeros((2, 4, 4)) + 7.5}, "from 7.5 to 7.5.*divide them by 255"),
        ({"images": np.full((2, 4, 4), np.nan)}, "NaN"),
        ({"images": np.zeros((2, 4))}, r"shape \[2, 4\]"),
        ({"images": np.zeros((0, 4, 4))}, "empty"),
        ({"images": np.zeros((2, 0, 4))}, "empty"),
        ({"images": np.array([[["x"]]])}, "type"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(3, int)}, "2 images"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.zeros(2)}, "whole numbers"),
        ({"images": np.zeros((2, 4, 4)), "labels": np.array([0, 10**12])}, "number the classes"),
    ],
)
def test_wrong_contents_say_what_is_wrong(tmp_path: Path, arrays: dict, says: str) -> None:
    with pytest.raises(UserError, match=says):
        load(saved(tmp_path / "a.npz", **arrays))


def test_objects_are_not_unpickled(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self) -> tuple:
            return open, (str(canary), "w")

    images = np.empty((1, 2, 2), object)
    images[:] = Evil()
    np.savez(tmp_path / "a.npz", images=images)
    np.save(tmp_path / "b.npy", images)
    for name in ("a.npz", "b.npy"):
        with pytest.raises(UserError, match="Python objects"):
            load(tmp_path / name)
    assert not canary.exists()


def test_a_zip_bomb_is_refused_by_its_header(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=np.zeros((100, 100, 100), np.uint8))
    assert path.stat().st_size < 5000
    with pytest.raises(UserError, match="1,000,000 bytes, more than the 1,000"):
        read_npz(path, max_bytes=1000)
    assert len(read_npz(path, max_bytes=10**6)) == 100


@pytest.mark.parametrize(
    "shape",
    ["(1000000, 1000000, 1000000)", "(99999999999999999999, 4, 4)", "(4, 100, 100)", "(-4, 4, -4)", "(4, 4, 3)"],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, shape: str) -> None:
    content = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}", bytes(64))
    (tmp_path / "b.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", content)
    for name in ("a.npz", "b.npy"):
        with pytest.raises(UserError, match=r"truncated|more than|impossible|garbled"):
            load(tmp_path / name)


@pytest.mark.parametrize(
    "header", ["", "{", "[1]", "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "__import__('os').getcwd()"]
)
def test_a_garbled_header_is_a_user_error(tmp_path: Path, header: str) -> None:
    (tmp_path / "b.npy").write_bytes(npy(header, bytes(64)))
    with pytest.raises(UserError):
        read_npy(tmp_path / "b.npy")


def test_images_that_are_as_good_as_black_are_remarked_on(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=np.eye(4, dtype=np.uint8)[None])
    assert "black" in load(path).notes[0]


def test_a_damaged_archive_is_a_user_error(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", images=RANDOM.integers(0, 256, (10, 20, 20), dtype=np.uint8))
    content = bytearray(path.read_bytes())
    content[1000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged"):
        load(path)
    path.write_bytes(content[:2000])
    with pytest.raises(UserError, match="damaged"):
        load(path)
    encrypted = io.BytesIO()
    with zipfile.ZipFile(encrypted, "w") as archive:
        archive.writestr("images.npy", b"x")
    raw = bytearray(encrypted.getvalue())
    raw[6] |= 1  # the bit for "encrypted", in the entry and in the directory
    raw[raw.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    with pytest.raises(UserError, match="damaged"):
        load(path)
