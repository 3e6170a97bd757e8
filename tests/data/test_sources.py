"""`load` finds out what it is given, and says what it accepts when it cannot."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from semisight.data import load
from semisight.errors import UserError
from tests.data.writers import random_image, write_idx, write_image


def test_digits() -> None:
    digits = load("builtin:digits")
    assert len(digits) == 1797 and digits.shape == (1, 8, 8) and digits.images.dtype == torch.uint8
    assert digits.names[12] == "digits/00012" and digits.class_names == tuple("0123456789")
    assert int(digits.images.max()) == 255 and int(digits.images.min()) == 0
    assert digits.labels[:10].tolist() == list(range(10))
    larger = load("builtin:digits", size=16, channels=3, limit=50, seed=1)
    assert larger.images.shape == (50, 3, 16, 16) and larger.labels.shape == (50,)
    assert larger.names == load("builtin:digits", limit=50, seed=1).names


def test_scenes_with_options() -> None:
    scenes = load("builtin:scenes?n=30&size=16&seed=4&captions=3")
    assert scenes.images.shape == (30, 3, 16, 16) and all(len(captions) == 3 for captions in scenes.captions)
    assert torch.equal(load("builtin:scenes?n=30&size=16", seed=4).images, scenes.images)
    assert torch.equal(load("builtin:scenes?size=16&seed=4", limit=5).images, scenes.images[:5])
    assert load("builtin:scenes?n=3", size=24, channels=1).images.shape == (3, 1, 24, 24)
    assert len(load("builtin:scenes")) == 2000


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("builtin:digit", "Did you mean builtin:digits?"),
        ("builtin:senes", "Did you mean builtin:scenes?"),
        ("builtin:cats", "there is no built-in set 'builtin:cats'"),
        ("digits", "Did you mean builtin:digits?"),
        ("scenes?n=3", "scenes.* is missing"),
        ("builtin:scenes?nn=3", "no option 'nn'.*did you mean n?"),
        ("builtin:digits?n=3", "no option 'n'"),
        ("builtin:scenes?n=", "whole number"),
        ("builtin:scenes?n=-3", "whole number"),
        ("builtin:scenes?n=1e3", "whole number"),
        ("builtin:scenes?n=999999999999999", "would take"),
        ("builtin:scenes?n=99999999999999999999999", "whole number"),
        ("builtin:scenes?n=0", "at least 1"),
        ("builtin:scenes?size=2", "8 to 1024"),
        ("builtin:scenes?captions=40", "captions"),
        ("no/such/place", "no/such/place is missing"),
        ("x" * 5000, "cannot read|is missing"),
        ("a\0b", "cannot read|is missing"),
        ("", "empty|nothing|could be read"),
    ],
)
def test_what_cannot_be_loaded(source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says):
        load(source)


def test_unknown_things_list_what_is_accepted_and_near_names(tmp_path: Path) -> None:
    write_image(tmp_path / "photos" / "a.png", random_image(0))
    with pytest.raises(UserError) as caught:
        load(tmp_path / "photo")
    message = str(caught.value)
    assert f"Did you mean {tmp_path / 'photos'}?" in message
    for kind in ("builtin:digits", "builtin:scenes", "FOLDER", ".npz", "idx", "CIFAR"):
        assert kind in message
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").touch()
    with pytest.raises(UserError, match=r"not an image\. Accepted"):
        load(tmp_path / "notes.txt")
    with pytest.raises(UserError, match="is empty"):
        load(tmp_path / "empty")


def test_the_folder_above_a_published_set_is_not_the_set(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    write_idx(raw / "train-images-idx3-ubyte", np.zeros((2, 4, 4), np.uint8))
    for folder in (tmp_path, tmp_path / "MNIST"):
        with pytest.raises(UserError, match=f"no image .* Did you mean {raw}"):
            load(folder)


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"size": -3}, {"limit": 0}, {"seed": -1}, {"channels": 2}, {"part": "dev"}, {"part": "test"}],
)
def test_options_are_checked(options: dict, tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", random_image(0))
    for source in ("builtin:digits", tmp_path, tmp_path / "a.png"):
        with pytest.raises(UserError, match=next(iter(options))):
            load(source, **options)


def test_a_file_has_no_class_per_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="only a folder"):
        load(write_image(tmp_path / "a.png", random_image(0)), class_per_folder=True)


def test_limit_size_and_channels_hold_for_arrays(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((20, 6, 8))
    np.savez(tmp_path / "a.npz", images=images, labels=np.arange(20) % 2)
    some = load(tmp_path / "a.npz", limit=5, seed=2, size=12, channels=3)
    assert some.images.shape == (5, 3, 12, 12) and some.images.dtype == torch.float32
    assert float(some.images.min()) >= 0 and float(some.images.max()) <= 1
    places = [int(name.split("/")[1]) for name in some.names]
    assert places == sorted(places) and some.labels.tolist() == [i % 2 for i in places]


def test_importing_the_data_room_imports_nothing_heavy() -> None:
    program = "import sys, semisight.data; print(sorted({'torch', 'numpy', 'PIL', 'sklearn'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
