"""The feature cache: worked out once, never stale, never half, within its limit; kill -9 and two processes included."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.backbones import Backbone, resolve
from semisight.data import feature_index
from semisight.data.feature_cache import cache_report, cached_features, clear, set_limit
from semisight.data.features import Features
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from tests.backbones.networks import CHANNELS, SIZE, right_map, write_network
from tests.data.writers import random_image, tiny_png_of, write_image

ROW = 2 * CHANNELS * 2 * 2  # bytes of a map in float16


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    for i in range(6):
        write_image(images / f"{'ab'[i % 2]}/{i}.png", random_image(i, 20, 24))
    return images


@pytest.fixture
def backbone(tmp_path: Path) -> Backbone:
    return resolve(write_network(tmp_path / "net" / "tiny.onnx"), output="map", pooled=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def read(
    folder: Path | list[Path] | ImageSet, backbone: Backbone, place: Path, views: int = 1, workers: int | None = 0
) -> tuple[Features, int]:
    """The features, and of how many images some were worked out for it."""
    calls: list[tuple[int, int]] = []
    found = cached_features(
        folder, backbone, views=views, cache=place, workers=workers, progress=lambda *call: calls.append(call)
    )
    return found, len(calls)


def direct(path: Path, backbone: Backbone, view: int = 0, seed: str = "") -> np.ndarray:
    picture = backbone.preprocessing.picture(Image.open(path).convert("RGB"), view, seed)
    return right_map(picture[None])[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_features_are_the_networks(folder: Path, backbone: Backbone, place: Path, workers: int) -> None:
    (folder / "notes.txt").write_text("not an image")
    (folder / "a" / "broken.png").write_bytes((folder / "a" / "0.png").read_bytes()[:60])
    (folder / "bomb.png").write_bytes(tiny_png_of(30_000, 30_000))
    made, worked = read(folder, backbone, place, workers=workers)
    assert worked == 9
    assert made.names == ("a/0.png", "a/2.png", "a/4.png", "b/1.png", "b/3.png", "b/5.png")
    assert [(skip.name, skip.reason.split(":")[0]) for skip in made.skipped] == [
        ("a/broken.png", "truncated or corrupt"),
        ("bomb.png", "too many pixels"),
        ("notes.txt", "not an image"),
    ]
    assert made.shape == (CHANNELS, 2, 2) and made.values().dtype == torch.float32
    right = np.stack([direct(folder / name, backbone) for name in made.names])
    np.testing.assert_allclose(made.values(), right, rtol=2e-3, atol=2e-3)  # half precision
    again, worked = read(folder, backbone, place)
    assert worked == 0  # broken files are not tried again either
    assert again.names == made.names and again.skipped == made.skipped
    assert torch.equal(again.values(), made.values())
    assert torch.equal(again.values([4, 1]), made.values()[[4, 1]])


def test_views_are_reproducible_and_added_one_by_one(folder: Path, backbone: Backbone, place: Path) -> None:
    one, _ = read(folder, backbone, place)
    three, worked = read(folder, backbone, place, views=3)
    assert worked == 6 and three.views == 3
    assert torch.equal(three.values(), one.values())
    rows = cache_report(place).backbones[0]
    assert (rows.images, rows.rows, rows.n_bytes) == (6, 18, 18 * ROW)  # the plain view was not made again
    assert read(folder, backbone, place)[1] == 0
    right = np.stack([direct(folder / name, backbone, 2) for name in three.names])
    np.testing.assert_allclose(three.values(view=2), right, rtol=2e-3, atol=2e-3)
    assert not torch.equal(three.values(view=1), three.values())
    # elsewhere, at another time, in other processes: the same
    for file in sorted(folder.rglob("*.png")):
        write = place.parent / "moved" / file.relative_to(folder)
        write.parent.mkdir(parents=True, exist_ok=True)
        write.write_bytes(file.read_bytes())
    moved, worked = read(place.parent / "moved", backbone, place, views=3, workers=2)
    assert worked == 6
    for view in range(3):
        torch.testing.assert_close(moved.values(view=view), three.values(view=view))


def test_only_what_changed_is_worked_out_again(folder: Path, backbone: Backbone, place: Path) -> None:
    before, _ = read(folder, backbone, place)
    write_image(folder / "a" / "0.png", random_image(99, 20, 24))
    os.utime(folder / "b" / "1.png", ns=(1, 1))
    (folder / "a" / "2.png").rename(folder / "a" / "22.png")
    write_image(folder / "new.png", random_image(7))
    after, worked = read(folder, backbone, place)
    assert worked == 4 and len(after) == 7
    right = np.stack([direct(folder / name, backbone) for name in after.names])
    np.testing.assert_allclose(after.values(), right, rtol=2e-3, atol=2e-3)
    assert torch.equal(after.values([2]), before.values([2])) and read(folder, backbone, place)[1] == 0


def test_another_backbone_has_features_of_its_own(
    folder: Path, backbone: Backbone, place: Path, tmp_path: Path
) -> None:
    one, _ = read(folder, backbone, place)
    other = resolve(write_network(tmp_path / "other" / "tiny.onnx", seed=1), output="map", pooled=False)
    two, worked = read(folder, other, place)
    assert worked == 6 and not torch.allclose(one.values(), two.values())
    pooled = resolve(tmp_path / "net" / "tiny.onnx")
    few, worked = read(folder, pooled, place)
    assert worked == 6 and few.shape == (CHANNELS, 1, 1)
    torch.testing.assert_close(few.values(), one.values().mean((2, 3), keepdim=True), rtol=2e-3, atol=2e-3)
    assert len(cache_report(place).backbones) == 3


def test_some_files_lists_of_files_and_one_file_twice(folder: Path, backbone: Backbone, place: Path) -> None:
    whole, _ = read(folder, backbone, place)
    some = cached_features(folder, backbone, names=["b/3.png", "a/0.png"], cache=place)
    assert some.names == ("b/3.png", "a/0.png") and torch.equal(some.values(), whole.values([4, 0]))
    listed, worked = read([folder / "a/2.png", folder / "a/2.png", folder / "b/1.png"], backbone, place)
    assert worked == 0 and torch.equal(listed.values(), whole.values([1, 1, 3]))
    with pytest.raises(UserError, match="does not lie in the image folder"):
        cached_features(folder, backbone, names=["../secret.png"], cache=place)
    with pytest.raises(UserError, match=r"no image of .* could be read.*vanished"):
        cached_features(folder, backbone, names=["a/none.png"], cache=place)
    with pytest.raises(UserError, match="does not exist"):
        read(folder / "none", backbone, place)
    with pytest.raises(UserError, match="at least 1 view"):
        read(folder, backbone, place, views=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_sets_in_memory_are_known_by_their_content(backbone: Backbone, place: Path, workers: int) -> None:
    pixels = torch.from_numpy(np.stack([random_image(i, SIZE, SIZE).transpose(2, 0, 1) for i in range(5)]))
    colour = ImageSet(pixels, tuple("abcde"))
    made, worked = read(colour, backbone, place, workers=workers)
    assert worked == 5 and made.names == tuple("abcde")
    pictures = [backbone.preprocessing.picture(Image.fromarray(p.permute(1, 2, 0).numpy())) for p in pixels]
    np.testing.assert_allclose(made.values(), right_map(np.stack(pictures)), rtol=2e-3, atol=2e-3)
    floats = ImageSet(pixels[[3, 1]].float() / 255, ("x", "y"))
    assert read(floats, backbone, place)[1] == 0
    grey = ImageSet(pixels[:, :1], tuple("abcde"))
    assert read(grey, backbone, place, workers=workers)[1] == 5


def test_what_may_be_mended_is_tried_again(folder: Path, backbone: Backbone, place: Path) -> None:
    (folder / "link.png").symlink_to(folder / "later.png")
    made, _ = read(folder, backbone, place)
    assert [(skip.name, skip.reason) for skip in made.skipped] == [("link.png", "link to nothing")]
    assert read(folder, backbone, place)[1] == 1
    write_image(folder / "later.png", random_image(8))
    assert len(read(folder, backbone, place)[0]) == 8


class Broken:
    """A network that gives NaN for dark pictures."""

    job = None

    def __init__(self, of: Backbone) -> None:
        self.name, self.licence, self.fingerprint = "broken", "", "nan"
        self.input_size, self.feature_shape, self.preprocessing = of.input_size, (1, 1, 1), of.preprocessing

    def features(self, pictures: np.ndarray) -> np.ndarray:
        mean = pictures.mean((1, 2, 3)).astype(np.float32)
        return np.where(mean < 10, np.nan, mean * 1e6).reshape(-1, 1, 1, 1)


def test_features_are_always_finite(folder: Path, backbone: Backbone, place: Path) -> None:
    write_image(folder / "dark.png", np.zeros((9, 9, 3), np.uint8))
    made, _ = read(folder, Broken(backbone), place)
    assert [(skip.name, skip.reason.split(":")[0]) for skip in made.skipped] == [("dark.png", "no features")]
    assert len(made) == 6 and (made.values() == 65504).all()  # the largest number of half precision


# ---- damage, kill -9, two processes ----

STARTED = """
import sys, time
from semisight.backbones import resolve
from semisight.data import feature_cache, feature_worker
net, folder, cache, workers, stop = sys.argv[1:]
feature_cache._COMMIT_SECONDS = feature_worker._SYNC_SECONDS = feature_worker._BATCH_PIXELS = 0
def progress(done, total):
    if done == int(stop):
        print("here", flush=True)
        time.sleep(1000)
backbone = resolve(net, output="map", pooled=False)
found = feature_cache.cached_features(folder, backbone, cache=cache, workers=int(workers), progress=progress)
print(len(found), float(found.values().sum()))
"""


def start(tmp_path: Path, folder: Path, place: Path, workers: int, stop: int = -1) -> subprocess.Popen[str]:
    arguments = [str(value) for value in (tmp_path / "net" / "tiny.onnx", folder, place, workers, stop)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", STARTED, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    images = tmp_path / "many"
    for i in range(40):
        write_image(images / f"{i:03d}.png", random_image(i, 16, 16))
    return images


@pytest.mark.parametrize("workers", [0, 2])
def test_it_goes_on_where_it_was_killed(
    tmp_path: Path, many: Path, backbone: Backbone, place: Path, workers: int
) -> None:
    process = start(tmp_path, many, place, workers, stop=20)
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert cache_report(place).backbones[0].rows == 20
    # half a row at the end of a shard, as from a kill in the middle of a write
    for shard in (place / "features").glob("*.f16"):
        with shard.open("ab") as file:
            file.write(b"\xff" * (ROW // 2))
    made, worked = read(many, backbone, place)
    assert worked == 20
    right = np.stack([direct(many / name, backbone) for name in made.names])
    np.testing.assert_allclose(made.values(), right, rtol=2e-3, atol=2e-3)


def test_two_processes_at_once_do_the_work_once(tmp_path: Path, many: Path, backbone: Backbone, place: Path) -> None:
    processes = [start(tmp_path, many, place, workers) for workers in (2, 0)]
    lines = []
    for process in processes:
        out, _ = process.communicate(timeout=100)
        assert process.returncode == 0
        lines.append(out.splitlines()[-1])
    assert len(set(lines)) == 1 and lines[0].startswith("40 ")
    assert cache_report(place).backbones[0].rows == 40
    assert cache_report(place).n_bytes == 40 * ROW  # no image was done twice
    assert read(many, backbone, place)[1] == 0


def cut(place: Path) -> None:
    shard = max(place.glob("features/*.f16"))
    shard.write_bytes(shard.read_bytes()[: -ROW // 2])


def lose(place: Path) -> None:
    max(place.glob("features/*.f16")).unlink()


def garble(place: Path) -> None:
    (place / "features" / "index.sqlite").write_bytes(b"garbled" * 1000)


def other_version(place: Path) -> None:
    with sqlite3.connect(place / "features" / "index.sqlite") as db:
        db.execute("PRAGMA user_version = 999")
    db.close()


@pytest.mark.parametrize("damage", [cut, lose, garble, other_version])
def test_a_damaged_cache_is_made_again(folder: Path, backbone: Backbone, place: Path, damage: object) -> None:
    before = read(folder, backbone, place)[0].values()
    assert callable(damage)
    damage(place)
    again, worked = read(folder, backbone, place)
    assert worked == 6 and torch.equal(again.values(), before)
    assert read(folder, backbone, place)[1] == 0
    assert [file.stat().st_size for file in place.glob("features/*.f16")] == [6 * ROW]


def test_a_folder_that_cannot_be_written_to(folder: Path, backbone: Backbone, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot use the folder of the feature cache"):
        read(folder, backbone, tmp_path / "file" / "cache")


# ---- room ----


def test_the_longest_unused_goes_first(folder: Path, backbone: Backbone, place: Path, tmp_path: Path) -> None:
    names = ["a/0.png", "a/2.png", "a/4.png"]
    nets = [resolve(write_network(tmp_path / f"{i}" / "n.onnx", seed=i), output="map", pooled=False) for i in range(3)]
    set_limit(6 * ROW, place)
    for net in nets[:2]:
        cached_features(folder, net, names=names, cache=place)
    mapped = cached_features(folder, nets[0], names=names, cache=place)  # now the second is the longest unused
    values = mapped.values()
    cached_features(folder, nets[2], names=names, cache=place)
    assert {entry.fingerprint for entry in cache_report(place).backbones} == {nets[0].fingerprint, nets[2].fingerprint}
    assert cache_report(place).n_bytes == 6 * ROW == cache_report(place).limit
    set_limit(3 * ROW, place)
    assert [entry.fingerprint for entry in cache_report(place).backbones] == [nets[2].fingerprint]
    assert torch.equal(mapped.values(), values)  # who has them mapped keeps them
    with pytest.raises(UserError, match=r"of 6 images take .* GB, more than .* `semisight cache limit 2GB`"):
        read(folder, nets[2], place)
    with pytest.raises(UserError, match="above 0"):
        set_limit(0, place)


def test_a_full_disk_is_named_beforehand(
    folder: Path, backbone: Backbone, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 6 * ROW - 1})
    monkeypatch.setattr(feature_index.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="GB of the disk are free"):
        read(folder, backbone, place)


def test_clear_removes_everything_but_what_is_mapped(folder: Path, backbone: Backbone, place: Path) -> None:
    made, _ = read(folder, backbone, place)
    values = made.values()
    assert clear(place) == 6 * ROW and clear(place) == 0
    assert not list(place.glob("features/*.f16")) and cache_report(place).backbones == ()
    assert torch.equal(made.values(), values)
    assert read(folder, backbone, place)[1] == 6


def test_few_images_at_a_time_share_a_shard(folder: Path, backbone: Backbone, place: Path) -> None:
    for name in ("a/0.png", "a/2.png", "b/1.png"):
        cached_features(folder, backbone, names=[name], cache=place)
    assert [file.stat().st_size for file in place.glob("features/*.f16")] == [3 * ROW]


def test_writing_to_values_does_not_reach_the_cache(folder: Path, backbone: Backbone, place: Path) -> None:
    made, _ = read(folder, backbone, place)
    before = made.values()
    made.values().zero_()
    assert torch.equal(read(folder, backbone, place)[0].values(), before)


def test_a_worker_that_dies_is_an_error_and_what_was_done_is_kept(
    many: Path, backbone: Backbone, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nimport semisight.data.feature_worker as w\nw._SYNC_SECONDS = w._BATCH_PIXELS = 0\n"
        "read = w.read_bytes\n"
        "w.read_bytes = lambda path: os._exit(3) if '030' in path else read(path)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match="ended with code 3"):
        read(many, backbone, place, workers=1)
    assert cache_report(place).backbones[0].rows == 30
