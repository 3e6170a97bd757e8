"""The cache: what a folder holds, decoded once, never stale, never half."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from semisight.data import image_cache as cache_module
from semisight.data.formats.folders import read_folder
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.image_model import ImageModel
from semisight.objectives.joint import Joint
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer
from tests.data.writers import random_image, write_image

SIZE = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    for i in range(6):
        write_image(images / f"{'ab'[i % 2]}/{i}.{'png' if i < 4 else 'jpg'}", random_image(i, 20, 24))
    return images


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


class Counted:
    """A progress callback that counts: 0 means that nothing was decoded."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append((done, total))


def read(folder: Path, place: Path, names: list[str] | None = None) -> tuple[ImageSet, int]:
    """The set, and how many images were decoded for it."""
    progress = Counted()
    found = cached_folder(folder, size=SIZE, names=names, cache=place, workers=0, progress=progress)
    return found, len(progress.calls)


def files(place: Path, pattern: str) -> list[Path]:
    return sorted(place.glob(pattern))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_cache_holds_what_reading_the_folder_gives(folder: Path, place: Path, workers: int) -> None:
    (folder / "notes.txt").write_text("not an image")
    (folder / "a" / "broken.png").write_bytes((folder / "a" / "0.png").read_bytes()[:60])
    progress = Counted()
    made = cached_folder(folder, size=SIZE, cache=place, workers=workers, progress=progress)
    assert sorted(progress.calls) == [(i + 1, 8) for i in range(8)]
    plain = read_folder(folder, size=SIZE)
    assert made.names == plain.names
    assert torch.equal(made.images, plain.images)
    assert (
        [skip.name for skip in made.skipped] == [skip.name for skip in plain.skipped] == ["a/broken.png", "notes.txt"]
    )
    again, decoded = read(folder, place)
    assert decoded == 0
    assert again.names == made.names and again.skipped == made.skipped and torch.equal(again.images, made.images)
    grey = cached_folder(folder, size=SIZE, channels=1, cache=place)  # another cache beside it
    assert grey.shape == (1, SIZE, SIZE) and read(folder, place)[1] == 0


def test_images_are_mapped_and_writing_to_them_does_not_reach_the_file(folder: Path, place: Path) -> None:
    made, _ = read(folder, place)
    before = files(place, "*.npy")[0].read_bytes()
    first = made.images.clone()
    made.images.zero_()
    assert files(place, "*.npy")[0].read_bytes() == before
    again, decoded = read(folder, place)
    assert decoded == 0 and torch.equal(again.images, first)


def test_chosen_files_in_their_order(folder: Path, place: Path) -> None:
    chosen, _ = read(folder, place, ["b/3.png", "a/0.png"])
    assert chosen.names == ("b/3.png", "a/0.png")
    whole, decoded = read(folder, place)
    assert decoded == 6
    assert torch.equal(chosen.images, whole.subset([4, 0]).images)
    with pytest.raises(UserError, match="does not lie in the image folder"):
        read(folder, place, ["../secret.png"])
    with pytest.raises(UserError, match=r"no image in .* could be read"):
        read(folder, place, ["a/none.png"])


def change(folder: Path) -> None:
    write_image(folder / "a" / "0.png", random_image(99, 20, 24))


def touch(folder: Path) -> None:
    os.utime(folder / "a" / "0.png", ns=(1, 1))


def add(folder: Path) -> None:
    write_image(folder / "c" / "new.png", random_image(7))


def remove(folder: Path) -> None:
    (folder / "a" / "00.png").unlink()


def rename(folder: Path) -> None:
    (folder / "a" / "0.png").rename(folder / "a" / "00.png")


def test_a_source_that_changed_is_read_again(folder: Path, place: Path) -> None:
    read(folder, place)
    for happens in (change, touch, add, rename, remove):
        happens(folder)
        again, decoded = read(folder, place)
        assert decoded == len(again), happens
        assert "its source has changed" in again.notes[0], happens
        plain = read_folder(folder, size=SIZE)
        assert again.names == plain.names and torch.equal(again.images, plain.images), happens
        assert len(files(place, "*.npy")) == 1, happens  # the old pixels are gone
        assert read(folder, place)[1] == 0, happens


def cut(place: Path) -> None:
    pixels = files(place, "*.npy")[0]
    pixels.write_bytes(pixels.read_bytes()[:-10])


def flip(place: Path) -> None:
    pixels = files(place, "*.npy")[0]
    content = bytearray(pixels.read_bytes())
    content[-5] ^= 1
    pixels.write_bytes(content)


def pickled(place: Path) -> None:
    """An array of objects, which numpy would unpickle, with a checksum that fits."""
    pixels, about = files(place, "*.npy")[0], files(place, "*.json")[0]
    np.save(pixels, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    about.write_text(json.dumps(json.loads(about.read_text()) | {"checksum": cache_module._checksum(pixels)}))


def vanish(place: Path) -> None:
    files(place, "*.npy")[0].unlink()


def garble(place: Path) -> None:
    files(place, "*.json")[0].write_text("{")


def mistype(place: Path) -> None:
    about = files(place, "*.json")[0]
    about.write_text(json.dumps(json.loads(about.read_text()) | {"names": [1, 2]}))


def shorten(place: Path) -> None:
    about = files(place, "*.json")[0]
    content = json.loads(about.read_text())
    about.write_text(json.dumps(content | {"names": content["names"][:-1]}))


def test_a_damaged_cache_is_made_again(folder: Path, place: Path) -> None:
    first = read(folder, place)[0].images.clone()  # nothing may touch a mapped file that is cut
    for damage in (cut, flip, pickled, vanish, garble, mistype, shorten):
        damage(place)
        again, decoded = read(folder, place)
        assert decoded == 6 and "was made again" in again.notes[0], damage
        assert torch.equal(again.images, first), damage
        del again
        assert read(folder, place)[1] == 0, damage


KILLED = """
import os, signal, sys
from semisight.data.image_cache import cached_folder
kill = lambda done, n: done == 3 and os.kill(os.getpid(), signal.SIGKILL)
cached_folder(sys.argv[1], size=8, cache=sys.argv[2], workers=1, progress=kill)
"""


def test_killed_half_way_leaves_no_half_cache(folder: Path, place: Path) -> None:
    """And a script that does not guard its main part may make a cache."""
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), str(place)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL and done.stderr == ""
    assert not files(place, "*.npy") and not files(place, "*.json")
    assert files(place, ".*.tmp")  # what was begun, under another name
    made, decoded = read(folder, place)
    assert decoded == 6 and torch.equal(made.images, read_folder(folder, size=SIZE).images)
    assert not files(place, ".*.tmp")


def test_a_failing_build_keeps_the_old_cache_and_says_why(
    folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(folder, place)
    before = {file: file.read_bytes() for file in place.iterdir()}
    touch(folder)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        with pytest.raises(UserError, match="ended with code 1"):
            cached_folder(folder, size=SIZE, cache=place, workers=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(UserError, match="No space left on device"):
            read(folder, place)
    assert {file: file.read_bytes() for file in place.iterdir()} == before


def test_the_default_place_and_one_that_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cached_folder(folder, size=SIZE)
    assert len(files(tmp_path / "home" / "semisight", "images-8-*.npy")) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to the folder of the image cache"):
        cached_folder(folder, size=SIZE, cache=tmp_path / "file" / "below")
    with pytest.raises(UserError, match="does not exist"):
        cached_folder(tmp_path / "nowhere", size=SIZE)


def test_training_from_the_cache_equals_training_from_memory(folder: Path, place: Path, tmp_path: Path) -> None:
    weights = []
    for name, images in (("cache", read(folder, place)[0]), ("memory", read_folder(folder, size=SIZE))):
        objective = Joint(ImageModel.of(Architecture((3, SIZE, SIZE), (Layer(4, 3, 2), Layer(5, 2))), seed=1))
        config = TrainConfig(batch_size=4, max_steps=3, threads=1, progress=False, tensorboard=False)
        Trainer(objective, images, tmp_path / name, config=config).fit()
        weights.append(objective.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
