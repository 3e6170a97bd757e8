"""Whatever bytes a file holds: a set of images, a counted skip or a UserError comes out, nothing else."""

import gzip
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from semisight.data import load
from semisight.data.image_set import ImageSet
from semisight.data.tables import read_labels
from semisight.errors import UserError
from tests.data.writers import idx_bytes, python2_batch, random_image


def image_bytes(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(random_image(0, 12, 12)).save(buffer, kind)
    return buffer.getvalue()


def npz_bytes(compressed: bool) -> bytes:
    buffer = io.BytesIO()
    arrays = {"images": np.arange(96, dtype=np.uint8).reshape(2, 4, 4, 3), "labels": np.array([0, 1])}
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def npy_bytes() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((2, 4, 4), np.float32))
    return buffer.getvalue()


DATA, LABELS = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8), [1, 2]
SEEDS = {
    "train-images-idx3-ubyte": idx_bytes(np.zeros((3, 4, 4), np.uint8)),
    "train-images-idx3-ubyte.gz": gzip.compress(idx_bytes(np.zeros((3, 4, 4), np.uint8))),
    "data_batch_1.bin": np.concatenate([np.array([LABELS], np.uint8).T, DATA], 1).tobytes(),
    "data_batch_1": python2_batch(DATA, LABELS),
    "data_batch_2": pickle.dumps({"data": DATA, "labels": LABELS}, 4),
    "a.npz": npz_bytes(True),
    "b.npz": npz_bytes(False),
    "a.npy": npy_bytes(),
    **{
        f"a.{kind.lower()}": image_bytes(kind)
        for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")
    },
}


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content cut, with bytes changed, taken out or put in; mostly near the start, where headers are."""
    spoilt = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        near = st.integers(0, min(len(spoilt), 300))
        place = draw(near | st.integers(0, len(spoilt)))
        match draw(st.sampled_from(["cut", "change", "insert", "remove"])):
            case "cut":
                del spoilt[place:]
            case "change":
                new = draw(st.binary(min_size=1, max_size=6))
                spoilt[place : place + len(new)] = new
            case "insert":
                spoilt[place:place] = draw(st.binary(min_size=1, max_size=6))
            case "remove":
                del spoilt[place : place + draw(st.integers(1, 20))]
    return bytes(spoilt)


def accepted(source: Path, folder: bool) -> None:
    try:
        image_set = load(source)
    except UserError as error:
        assert str(error)
        return
    assert isinstance(image_set, ImageSet) and len(image_set) >= 1
    if folder:
        assert len(image_set) + len(image_set.skipped) >= 1


@pytest.mark.parametrize("name", sorted(SEEDS))
@given(data=st.data())
@settings(max_examples=40)
def test_damaged_files(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / name).write_bytes(data.draw(damaged(SEEDS[name])))
    accepted(folder / name, folder=False)
    accepted(folder, folder=True)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_the_same_files_undamaged_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(SEEDS[name])
    assert len(load(tmp_path / name)) == {"t": 3}.get(name[0], 1 if name.startswith("a.") and name[2:4] != "np" else 2)


STARTS = [
    b"",
    b"PK\x03\x04",
    b"\x93NUMPY\x01\x00",
    b"\x1f\x8b\x08",
    b"\0\0\x08\x03",
    b"\x80\x02",
    b"\x89PNG\r\n\x1a\n",
    b"\xff\xd8\xff",
    b"GIF89a",
]


@given(start=st.sampled_from(STARTS), rest=st.binary(max_size=200), name=st.sampled_from(["x", *sorted(SEEDS)]))
@settings(max_examples=200)
def test_any_bytes_under_any_name(
    start: bytes, rest: bytes, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / name).write_bytes(start + rest)
    accepted(folder / name, folder=False)
    accepted(folder, folder=True)


@given(content=st.binary(max_size=300), suffix=st.sampled_from(["csv", "npy"]), header=st.booleans())
def test_any_bytes_as_labels(
    content: bytes, suffix: str, header: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("labels") / f"labels.{suffix}"
    path.write_bytes((b"file,label\na,1\nb,2\n" if header else b"") + content)
    try:
        assert len(read_labels(path, ("a", "b")).labels) == 2
    except UserError as error:
        assert str(path) in str(error)


@given(
    broken=st.lists(
        st.sampled_from([name for name in SEEDS if name[2:] in ("png", "jpeg", "gif", "webp")]), max_size=4
    ),
    data=st.data(),
)
@settings(max_examples=40)
def test_good_images_survive_any_neighbours(
    broken: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "good.png").write_bytes(SEEDS["a.png"])
    for i, name in enumerate(broken):
        (folder / f"{i}{name}").write_bytes(data.draw(damaged(SEEDS[name])))
    image_set = load(folder)
    assert "good.png" in image_set.names
    assert len(image_set) + len(image_set.skipped) == 1 + len(broken)
