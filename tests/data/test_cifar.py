"""CIFAR in all four published forms; a pickle can do nothing but hold bytes, text, numbers and dictionaries."""

import io
import os
import pickle
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisight.data import load
from semisight.errors import UserError
from tests.data.writers import python2_batch

RANDOM = np.random.default_rng(0)
DATA = RANDOM.integers(0, 256, (7, 3072), dtype=np.uint8)
LABELS = [3, 9, 0, 1, 2, 3, 4]


def binary(data: np.ndarray, *labels: list[int]) -> bytes:
    return np.concatenate([np.array(labels, np.uint8).T, data], 1).tobytes()


def check(image_set: object, data: np.ndarray, labels: list[int]) -> None:
    assert image_set.shape == (3, 32, 32)
    assert np.array_equal(image_set.images.numpy(), data.reshape(-1, 3, 32, 32))
    assert image_set.labels.tolist() == labels


def test_binary_batches(tmp_path: Path) -> None:
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").write_bytes(binary(DATA + i, LABELS))
    (tmp_path / "test_batch.bin").write_bytes(binary(DATA[:2], LABELS[:2]))
    train = load(tmp_path)
    check(train, np.concatenate([DATA + i for i in range(1, 6)]), LABELS * 5)
    assert train.class_names[3] == "cat" and train.names[8] == "data_batch_2/00001" and train.notes == ()
    check(load(tmp_path, part="test"), DATA[:2], LABELS[:2])
    check(load(tmp_path / "data_batch_3.bin"), DATA + 3, LABELS)
    (tmp_path / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    (tmp_path / "data_batch_4.bin").unlink()
    fewer = load(tmp_path)
    assert fewer.class_names == tuple("abcdefghij") and "4 of the 5" in fewer.notes[0]


def test_binary_cifar_100(tmp_path: Path) -> None:
    fine = [99, 0, 50, 1, 2, 3, 4]
    (tmp_path / "train.bin").write_bytes(binary(DATA, [19, 0, 3, 4, 5, 6, 7], fine))
    image_set = load(tmp_path)
    check(image_set, DATA, fine)
    assert len(image_set.class_names) == 100


@pytest.mark.parametrize("extra", [-1, 1, -3073, 100])
def test_a_binary_batch_of_the_wrong_length_says_the_lengths(tmp_path: Path, extra: int) -> None:
    content = binary(DATA, LABELS)
    path = tmp_path / "data_batch_1.bin"
    if extra == -3073:  # a whole record less is a whole file
        path.write_bytes(content[:extra])
        assert len(load(path)) == 6
        return
    path.write_bytes(content[:extra] if extra < 0 else content + b"x" * extra)
    with pytest.raises(UserError, match=f"found {7 * 3073 + extra:,} bytes.*3,073.*3,074"):
        load(path)


def test_labels_beyond_ten_are_not_cifar_10(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(binary(DATA, [11] * 7))
    with pytest.raises(UserError, match="labels up to 11"):
        load(tmp_path / "x.bin")


@pytest.mark.parametrize("form", ["python2", 2, 3, 4, 5])
def test_python_batches(tmp_path: Path, form: str | int) -> None:
    for i in range(1, 6):
        path = tmp_path / f"data_batch_{i}"
        if form == "python2":
            path.write_bytes(python2_batch(DATA, LABELS))
        else:
            path.write_bytes(pickle.dumps({"data": DATA, "labels": LABELS, "filenames": ["a.png"] * 7}, int(form)))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"class%d" % c for c in range(10)]}, 2))
    image_set = load(tmp_path)
    check(image_set, np.concatenate([DATA] * 5), LABELS * 5)
    assert image_set.class_names[9] == "class9"
    check(load(tmp_path / "data_batch_1"), DATA, LABELS)


def test_python_cifar_100(tmp_path: Path) -> None:
    fine = [99, 0, 50, 1, 2, 3, 4]
    (tmp_path / "train").write_bytes(python2_batch(DATA, fine, b"fine_labels"))
    (tmp_path / "meta").write_bytes(pickle.dumps({"fine_label_names": [f"n{c}" for c in range(100)]}, 2))
    image_set = load(tmp_path)
    check(image_set, DATA, fine)
    assert image_set.class_names[50] == "n50"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([1, 2], "pickle of a list"),
        ({"labels": LABELS}, "without an array `data`"),
        ({"data": DATA[:, :100], "labels": LABELS}, r"shape \[7, 100\]"),
        ({"data": DATA, "labels": LABELS[:3]}, "7 images and 3 labels"),
        ({"data": DATA, "labels": [*LABELS[:6], 10]}, "0 to 9"),
        ({"data": DATA, "labels": [*LABELS[:6], -1]}, "0 to 9"),
        ({"data": DATA, "labels": [*LABELS[:6], "x"]}, "0 to 9"),
        ({"data": DATA.astype(np.float32), "labels": LABELS}, "something else than bytes"),
        ({"data": DATA.astype(object), "labels": LABELS}, "something else than bytes"),
    ],
)
def test_pickles_of_something_else_are_refused(tmp_path: Path, content: object, says: str) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(content, 2))
    with pytest.raises(UserError, match=says):
        load(path)


class _Runs:
    """Pickles to a call of `function(*arguments)`."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


def attack_bytes(canary: Path) -> dict[str, bytes]:
    """Pickles that run code, or take memory or time without end, if they are let."""
    touch = f"open({str(canary)!r}, 'w')"
    nested = b"".join(b"q" + bytes([i]) + b"0h" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(60))
    many_memos = b"".join(b"r" + struct.pack("<I", 2**32 - 1 - i) for i in range(3))
    encode = b"c_codecs\nencode\n"
    return {
        "os.system": pickle.dumps({"data": _Runs(os.system, f"touch {canary}")}, 2),
        "eval, protocol 4": pickle.dumps(_Runs(eval, touch), 4),
        "eval, text protocol after a mark": b"\x80\x02" + pickle.dumps(_Runs(eval, touch), 0),
        "exec by INST": b"\x80\x02(S'" + touch.encode().replace(b"'", b'"') + b"'\ni__builtin__\neval\n.",
        "exec by OBJ": b"\x80\x02(c__builtin__\neval\nS'" + touch.encode().replace(b"'", b'"') + b"'\no.",
        "a dotted name below an allowed one": b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.__new__\x93.",
        "numpy's own loader": b"\x80\x02cnumpy\nload\n" + pickle.dumps("x", 2)[2:-1] + b"\x85R.",
        "getattr": b"\x80\x02c__builtin__\ngetattr\n.",
        "persistent id": b"\x80\x02Pabc\n.",
        "extension": b"\x80\x02\x82\x01.",
        "attributes of our functions": b"\x80\x02" + encode + b"}U\x01aU\x01bsb" + encode + b"U\x01xU\x06latin1\x86R.",
        "defaults of our functions": b"\x80\x02" + encode + b"N}U\x0c__defaults__N\x85s\x86b.",
        "a key that takes for ever to hash": b"\x80\x02}" + b")" + nested + b"Ns.",
        "a set of such": b"\x80\x04\x8f(" + b")" + nested + b"\x90.",
        "memo places far out": b"\x80\x02}" + many_memos + b".",
        "bytes announced, not there": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
        "byte array announced, not there": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
        "a frame announced, not there": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"}.",
        "an array with a shape it has no bytes for": python2_batch(DATA, LABELS).replace(
            b"J" + struct.pack("<i", 7), b"J" + struct.pack("<i", 2**31 - 1)
        ),
        "nothing on the stack": b"\x80\x02.",
        "unknown protocol": b"\x80\xff}.",
        "deep nesting": b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
    }


@pytest.mark.parametrize("name", sorted(attack_bytes(Path("canary"))))
@pytest.mark.timeout(20)
def test_attacks_end_in_a_user_error_and_do_nothing(tmp_path: Path, name: str) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "data_batch_1"
    path.write_bytes(attack_bytes(canary)[name])
    with pytest.raises(UserError):
        load(path)
    assert not canary.exists()
    path.write_bytes(python2_batch(DATA, LABELS))  # and the reader is as good as before
    check(load(path), DATA, LABELS)


def test_the_attacks_would_work_on_an_unpickler_without_guard(tmp_path: Path) -> None:
    for name in ("os.system", "eval, protocol 4", "exec by INST", "exec by OBJ"):
        canary = tmp_path / name.replace(" ", "_")
        pickle._Unpickler(io.BytesIO(attack_bytes(canary)[name])).load()
        assert canary.exists(), name


modules = st.sampled_from(
    ["os", "builtins", "posix", "subprocess", "numpy", "numpy.core.multiarray", "pickle", "sys", "_codecs"]
)
functions = st.sampled_from(
    ["system", "eval", "exec", "load", "loads", "ndarray", "dtype", "encode", "scalar", "modules", "_reconstruct"]
)


@given(module=modules, function=functions, argument=st.binary(max_size=20), tail=st.binary(max_size=30))
def test_any_global_called_with_anything_is_a_user_error(
    module: str, function: str, argument: bytes, tail: bytes
) -> None:
    named = f"c{module}\n{function}\n".encode()
    content = b"\x80\x02" + named + b"U" + bytes([len(argument)]) + argument + b"\x85R" + tail + b"."
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data_batch_1"
        path.write_bytes(content)
        with pytest.raises(UserError):
            load(path)
