"""The images of a run: the same on the disk and in memory, of any source, with the columns that were asked for."""

import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.data import load
from semisight.data.builtin.scenes import read_scenes
from semisight.data.columns import TagColumn
from semisight.errors import UserError
from semisight.runs import images as run_images
from semisight.runs.images import sets_of
from semisight.runs.settings import DataSettings
from tests.cli.photos import write_photos


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "photos"
    return folder, write_photos(folder, n=60, labelled=2)


def test_nothing_changes_but_where_pixels_lie(photos: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, table = photos
    data = DataSettings(str(folder), size=16, labels=str(table), valid_fraction=0.2)
    in_memory = sets_of(data, seed=1)
    assert not (folder.parent / "cache").exists()  # small enough for memory
    monkeypatch.setattr(run_images, "MOST_IN_MEMORY", 0)
    sets = sets_of(data, seed=1)
    assert sets.valid is not None and in_memory.valid is not None
    assert len(sets.train) + len(sets.valid) == 60 and len(sets.train.skipped) == 4
    assert not set(sets.train.names) & set(sets.valid.names)
    assert sets.train.class_names == in_memory.train.class_names and sets.n_present("labels") == in_memory.n_present(
        "labels"
    )
    whole = load(folder, size=16)
    place = {name: i for i, name in enumerate(whole.names)}
    kind = {name: ("ball", "stripes", "dark")[int(Path(name).stem) % 3] for name in whole.names}
    for part in (sets.train, sets.valid):
        rows = torch.tensor([place[name] for name in part.names])
        assert torch.equal(part.images, whole.images[rows])
        assert part.labels is not None
        for name, label in zip(part.names, part.labels.tolist(), strict=True):
            assert label == -1 or part.class_names[label] == kind[name]
    again = sets_of(data, seed=1)
    assert again.train.names == sets.train.names and torch.equal(again.train.images, sets.train.images)


def test_without_labels_and_with_a_limit(photos: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_images, "MOST_IN_MEMORY", 0)
    sets = sets_of(DataSettings(str(photos[0]), size=8, limit=20), seed=0)
    assert sets.train.labels is None and sets.valid is not None
    assert 14 <= len(sets.train) + len(sets.valid) <= 20
    assert sets.train.images.untyped_storage().data_ptr() == sets.valid.images.untyped_storage().data_ptr()


def test_a_folder_of_another_kind_is_not_taken_for_pictures(tmp_path: Path) -> None:
    """Shards and imagefolders stay what they are where a file has the captions."""
    pixels = np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8)
    for part in ("train", "test"):
        (tmp_path / "folder" / part).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(pixels[i]).save(tmp_path / "folder" / part / f"{i}.png")
    (tmp_path / "shards").mkdir()
    with tarfile.open(tmp_path / "shards" / "0.tar", "w") as archive:
        for i in range(4):
            archive.add(tmp_path / "folder" / "train" / f"{i}.png", f"{i}.png")
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\n0.png,a picture\n1.png,another one\n")
    for source in ("folder", "shards"):
        sets = sets_of(DataSettings(str(tmp_path / source), captions=str(table), valid_fraction=0.0), 0)
        assert sets.train.names == tuple(f"{i}.png" for i in range(4)) and sets.train.skipped == ()
        assert sets.train.captions == (("a picture",), ("another one",), (), ())
        assert torch.equal(sets.train.images[:, 0], torch.from_numpy(pixels))


@pytest.mark.parametrize("captions", [True, False])
def test_unlabeled_is_no_class_wherever_the_pixels_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captions: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = [f"{folder}/{i}.png" for folder in ("cat", "dog", "Unlabeled") for i in range(3)]
    for name in names:
        (tmp_path / "p" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8)).save(tmp_path / "p" / name)
    (tmp_path / "captions.csv").write_text("file,caption\n" + "".join(f"{name},a picture\n" for name in names))
    data = DataSettings(
        str(tmp_path / "p"),
        size=8,
        class_per_folder=True,
        valid_fraction=0.0,
        captions=str(tmp_path / "captions.csv") if captions else None,
    )
    for most in (10**9, 0):
        monkeypatch.setattr(run_images, "MOST_IN_MEMORY", most)
        train = sets_of(data, 0).train
        assert train.class_names == ("cat", "dog")
        assert train.labels is not None and sorted(train.labels.tolist()) == [-1] * 3 + [0] * 3 + [1] * 3


# --- tags

SCENES = "builtin:scenes?n=300&size=8"


def test_hidden_tags_are_never_learned_and_measured_on() -> None:
    sets = sets_of(DataSettings(SCENES, tags="builtin", tags_known=0.2, use_labels=False, valid_fraction=0.2), 0)
    assert list(sets.train.columns) == ["tags"] and sets.valid is not None
    every = read_scenes(300, 8, 0)
    truth = dict(zip(every.names, every.tags.values.tolist(), strict=True)) if every.tags is not None else {}
    for images, whole in zip((sets.train, sets.valid), sets.truth["tags"], strict=True):
        shown = images.tags
        assert shown is not None and isinstance(whole, TagColumn)
        assert whole.values.tolist() == [truth[name] for name in images.names]
        known = shown.values >= 0
        assert torch.equal(shown.values[known], whole.values[known]) and 0.1 < float(known.float().mean()) < 0.3
    assert sets.n_present("tags") + sets.n_held_out("tags") > 240  # of most images something is known
    measured = sets.measured("tags")
    assert measured is not None and measured.tags is not None and set(measured.names) <= set(sets.valid.names)
    held_out = dict(zip(sets.valid.names, sets.valid.tags.values, strict=True)) if sets.valid.tags is not None else {}
    for name, row in zip(measured.names, measured.tags.values, strict=True):
        assert torch.equal(row >= 0, held_out[name] < 0)  # entries that chose the weights are not measured on


def test_few_tags_are_all_learned_from_and_many_are_parted(tmp_path: Path) -> None:
    for n, held_out in ((99, 0), (200, 20)):
        rows = [f"scenes/{i:05d},{'left' if i % 2 else 'right'}\n" for i in range(n)]
        (tmp_path / "tags.csv").write_text("file,label\n" + "".join(rows))
        sets = sets_of(DataSettings(SCENES, tags=str(tmp_path / "tags.csv"), use_labels=False), 1)
        assert (sets.n_present("tags"), sets.n_held_out("tags")) == (n - held_out, held_out)
        assert sets.valid is not None and len(sets.valid) == held_out + round(0.1 * (300 - n))
        assert sets.train.tags is not None and sets.train.tags.names == ("left", "right")


def test_the_last_column_parts_and_the_others_keep_their_few_values() -> None:
    data = DataSettings(SCENES, tags="builtin", labels_per_class=3, valid_fraction=0.3)
    sets = sets_of(data, 0)
    assert (sets.n_present("labels"), sets.n_held_out("labels"), sets.n_held_out("tags")) == (15, 0, 90)
    captioned = sets_of(DataSettings(SCENES, tags="builtin", captions="builtin", valid_fraction=0.3), 0)
    alone = sets_of(DataSettings(SCENES, captions="builtin", use_labels=False, valid_fraction=0.3), 0)
    assert captioned.train.names == alone.train.names  # captions decide, and no tag is rare
    assert list(captioned.train.columns) == ["labels", "tags", "captions"]


def test_what_nobody_asked_for_is_left_out() -> None:
    assert list(sets_of(DataSettings(SCENES), 0).train.columns) == ["labels"]
    with pytest.raises(UserError, match="digits carries no tags: give a file"):
        sets_of(DataSettings("builtin:digits", tags="builtin"), 0)
    for share in (0.0, 1.5):
        with pytest.raises(UserError, match="tags_known must be"):
            DataSettings(SCENES, tags="builtin", tags_known=share)
    with pytest.raises(UserError, match="--tags-known is about tags"):
        DataSettings(SCENES, tags_known=0.5)
