"""Folders of images: nested, mixed, partly broken, and always in the same order."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.data import load
from semisight.data.formats.folders import read_folder
from semisight.errors import UserError
from tests.data.writers import random_image, tiny_png_of, write_image


def test_nested_images_in_the_order_of_their_names(tmp_path: Path) -> None:
    names = ["b/2.png", "a.png", "b/1.png", "c/d/e/3.png", "z.png"]
    for i, name in enumerate(names):
        write_image(tmp_path / name, random_image(i))
    image_set = load(tmp_path)
    assert image_set.names == tuple(sorted(names)) and image_set.shape == (3, 20, 20)
    assert image_set.images.dtype == torch.uint8 and image_set.skipped == () and image_set.notes == ()
    for i, name in enumerate(names):
        kept = image_set.images[image_set.names.index(name)].permute(1, 2, 0).numpy()
        assert np.array_equal(kept, random_image(i))
    one_thread = read_folder(tmp_path, workers=1)
    assert torch.equal(one_thread.images, image_set.images)


def test_bad_files_are_counted_and_good_ones_kept(tmp_path: Path) -> None:
    for i in range(5):
        write_image(tmp_path / f"good{i}.jpg", random_image(i))
    whole = write_image(tmp_path / "cut.png", np.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=np.uint8))
    whole.write_bytes(whole.read_bytes()[:600])
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "labels.csv").write_text("file,label\n")
    (tmp_path / "bomb.png").write_bytes(tiny_png_of(40_000, 40_000))
    (tmp_path / "link.png").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / ".DS_Store").write_bytes(b"hidden")
    image_set = load(tmp_path)
    assert image_set.names == tuple(f"good{i}.jpg" for i in range(5))
    assert {skip.name: skip.reason.split(":")[0] for skip in image_set.skipped} == {
        "cut.png": "truncated or corrupt",
        "empty.jpg": "empty file",
        "labels.csv": "not an image",
        "bomb.png": "too many pixels",
        "link.png": "link to nothing",
        "pipe": "not a regular file",
    }
    assert [skip.name for skip in image_set.skipped] == sorted(skip.name for skip in image_set.skipped)


def test_a_folder_with_nothing_to_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is empty"):
        load(tmp_path)
    (tmp_path / "sub").mkdir()
    with pytest.raises(UserError, match="is empty"):
        load(tmp_path)
    for i in range(8):
        (tmp_path / f"{i}.txt").write_text("no picture")
    with pytest.raises(
        UserError, match=r"no image in .* 8 files skipped: 8 not an image .*0\.txt: not an image.*\.\.\."
    ):
        load(tmp_path)
    with pytest.raises(UserError, match="is missing"):
        load(tmp_path / "missing")


def refuse(*parts: str):
    """os.listdir or PIL's open without permission for some paths (root may read everything: chmod shows nothing)."""

    def wrap(original):
        def wrapped(path, *arguments, **options):
            if str(path).endswith(parts):
                raise PermissionError(13, "Permission denied", str(path))
            return original(path, *arguments, **options)

        return wrapped

    return wrap


def test_files_and_folders_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_image(tmp_path / "a.png", random_image(0))
    write_image(tmp_path / "secret.png", random_image(1))
    write_image(tmp_path / "closed" / "b.png", random_image(2))
    monkeypatch.setattr("PIL.Image.open", refuse("secret.png")(Image.open))
    monkeypatch.setattr("os.listdir", refuse("closed")(os.listdir))
    image_set = load(tmp_path)
    assert image_set.names == ("a.png",)
    assert {skip.name: skip.reason for skip in image_set.skipped} == {
        "secret.png": "no permission to read it",
        "closed": "folder that cannot be read: Permission denied",
    }
    monkeypatch.setattr("os.listdir", refuse(tmp_path.name)(os.listdir))
    with pytest.raises(UserError, match=r"cannot read the folder.*Permission denied"):
        read_folder(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_real_permissions(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", random_image(0))
    write_image(tmp_path / "b.png", random_image(0)).chmod(0)
    assert [skip.reason for skip in load(tmp_path).skipped] == ["no permission to read it"]
    tmp_path.chmod(0)
    try:
        with pytest.raises(UserError, match="cannot read"):
            load(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_links_are_followed_but_loops_end(tmp_path: Path) -> None:
    inside, outside = tmp_path / "data", tmp_path / "elsewhere"
    write_image(inside / "z" / "1.png", random_image(0))
    write_image(outside / "2.png", random_image(1))
    (inside / "a").symlink_to(inside / "z")  # sorts first, yet the real folder gives the name
    (inside / "z" / "up").symlink_to(inside)
    (inside / "self").symlink_to(inside / "self")
    (inside / "other").symlink_to(outside)
    (outside / "back").symlink_to(inside / "z")
    image_set = load(inside)
    assert image_set.names == ("other/2.png", "z/1.png")
    assert [skip.name for skip in image_set.skipped] == ["self"]


@pytest.mark.parametrize(
    ("sizes", "expected", "says"),
    [
        ([(20, 30)] * 3, (20, 30), None),
        ([(300, 300)] * 2, (128, 128), "300 x 300"),
        ([(30, 50), (45, 37), (60, 60)], (32, 32), "3 sizes, from 30 x 50 to 60 x 60"),
        ([(400, 500), (500, 400), (300, 900)], (128, 128), "3 sizes"),
        ([(5, 5), (6, 6)], (8, 8), "2 sizes"),
    ],
)
def test_mixed_sizes_get_a_size_that_suits_them_and_it_is_said(
    tmp_path: Path, sizes: list[tuple[int, int]], expected: tuple[int, int], says: str | None
) -> None:
    for i, (height, width) in enumerate(sizes):
        write_image(tmp_path / f"{i}.png", random_image(i, height, width))
    image_set = load(tmp_path)
    assert image_set.shape == (3, *expected)
    assert image_set.notes == () if says is None else says in image_set.notes[0]
    given = load(tmp_path, size=24)
    assert given.shape == (3, 24, 24) and given.notes == ()


def test_grey_and_colour_together_are_read_in_colour_and_it_is_said(tmp_path: Path) -> None:
    write_image(tmp_path / "grey.png", random_image(0, channels=1))
    assert load(tmp_path).shape == (1, 20, 20)
    assert load(tmp_path, channels=3).shape == (3, 20, 20)
    deep = random_image(3, channels=1).astype(np.uint16) * 257
    write_image(tmp_path / "deep.png", deep)
    assert load(tmp_path).shape == (1, 20, 20)
    write_image(tmp_path / "colour.png", random_image(1))
    write_image(tmp_path / "clear.png", np.dstack([random_image(2), np.full((20, 20), 255, np.uint8)]))
    image_set = load(tmp_path)
    assert image_set.shape == (3, 20, 20) and "2 of 4 images are grey" in image_set.notes[0]
    assert image_set.names == ("clear.png", "colour.png", "deep.png", "grey.png")
    for i, expected in ((0, random_image(2)), (1, random_image(1)), (2, random_image(3, channels=1)[..., None])):
        assert np.abs(image_set.images[i].permute(1, 2, 0).numpy().astype(int) - expected).max() <= 1
    assert load(tmp_path, channels=1).notes == ()


def test_a_class_per_folder(tmp_path: Path) -> None:
    for name in (
        "dog/1.png",
        "cat/1.png",
        "cat/deep/2.png",
        "loose.png",
        "Unlabeled/2.png",
        "unlabelled/1.png",
        "cow/broken.png",
    ):
        write_image(tmp_path / name, random_image(0))
    (tmp_path / "cow" / "broken.png").write_text("broken")
    image_set = load(tmp_path, class_per_folder=True)
    assert image_set.class_names == ("cat", "dog")  # the class of broken files is no class
    assert dict(zip(image_set.names, image_set.labels.tolist(), strict=True)) == {
        "cat/1.png": 0,
        "cat/deep/2.png": 0,
        "dog/1.png": 1,
        "loose.png": -1,
        "unlabelled/1.png": -1,
        "Unlabeled/2.png": -1,
    }
    assert load(tmp_path).labels is None


def test_folders_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", random_image(0))
    with pytest.raises(UserError, match=r"at least two folders.*found none"):
        load(tmp_path, class_per_folder=True)
    write_image(tmp_path / "train" / "a.png", random_image(0))
    with pytest.raises(UserError, match="found only 'train'"):
        load(tmp_path, class_per_folder=True)
    write_image(tmp_path / "Test" / "a.png", random_image(0))
    with pytest.raises(UserError, match="named as parts"):
        load(tmp_path, class_per_folder=True)


def test_limit_draws_by_seed_and_keeps_the_order(tmp_path: Path) -> None:
    for i in range(30):
        write_image(tmp_path / f"{i:02d}.png", random_image(i))
    some = load(tmp_path, limit=10, seed=3)
    assert (
        len(some) == 10
        and list(some.names) == sorted(some.names)
        and some.names != load(tmp_path, limit=10, seed=4).names
    )
    assert load(tmp_path, limit=10, seed=3).names == some.names and len(load(tmp_path, limit=99)) == 30


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    for i in range(300):  # more than one stretch of the pool
        write_image(tmp_path / f"{i}.png", random_image(i, 4, 4))
    calls: list[tuple[int, int]] = []
    load(tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(i + 1, 300) for i in range(300)]


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", random_image(0))
    strange = os.fsencode(tmp_path) + b"/caf\xe9.png"
    try:
        os.rename(path, strange)
    except OSError:
        pytest.skip("this file system holds UTF-8 names only")
    names = load(tmp_path).names
    assert len(names) == 1 and names[0].encode("utf-8")


def test_a_single_image(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", random_image(0))
    image_set = load(path)
    assert len(image_set) == 1 and image_set.names == ("a.png",) and image_set.shape == (3, 20, 20)
    assert load(path, size=8, channels=1).shape == (1, 8, 8)
