"""Large folders: images that stay on the disk are the same images, with the same labels, as those read into memory."""

from pathlib import Path

import pytest
import torch

from semisight.data import load
from semisight.runs import streamed_sets
from semisight.runs.caption_sets import sets_of
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
    assert streamed_sets.streamed_sets(data, seed=1) is None  # small enough for memory
    in_memory = sets_of(data, seed=1)
    monkeypatch.setattr(streamed_sets, "MOST_IN_MEMORY", 0)
    sets = sets_of(data, seed=1)
    assert sets.valid is not None and in_memory.valid is not None
    assert len(sets.train) + len(sets.valid) == 60 and len(sets.train.skipped) == 4
    assert not set(sets.train.names) & set(sets.valid.names)
    assert sets.train.class_names == in_memory.train.class_names and sets.n_labelled == in_memory.n_labelled
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
    monkeypatch.setattr(streamed_sets, "MOST_IN_MEMORY", 0)
    sets = sets_of(DataSettings(str(photos[0]), size=8, limit=20), seed=0)
    assert sets.train.labels is None and sets.valid is not None
    assert 14 <= len(sets.train) + len(sets.valid) <= 20
    assert sets.train.images.untyped_storage().data_ptr() == sets.valid.images.untyped_storage().data_ptr()
