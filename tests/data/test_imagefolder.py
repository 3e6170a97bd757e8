"""Hugging Face's imagefolder layout: parts, tables, classes by folder; other folders stay what they were."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisight.data import load
from semisight.data.sources import Kind, kind_of
from semisight.errors import UserError


def picture(path: Path, value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((6, 6), value, np.uint8)).save(path)


def test_parts_with_a_class_per_folder(tmp_path: Path) -> None:
    for part, n in (("train", 3), ("test", 1)):
        for name in ("cat", "dog"):
            for i in range(n):
                picture(tmp_path / part / name / f"{i}.png")
    train, test = load(tmp_path), load(tmp_path, part="test")
    assert (len(train), len(test)) == (6, 2)
    assert train.class_names == test.class_names == ("cat", "dog")
    assert train.labels is not None and train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (kind_of(tmp_path), kind_of(tmp_path / "train")) == (Kind.IMAGEFOLDER, Kind.PICTURES)


def test_tables_with_labels_and_captions(tmp_path: Path) -> None:
    for name in ("a.png", "b.png", "deep/c.png", "deep/d.png"):
        picture(tmp_path / "train" / name)
    rows = [
        {"file_name": "a.png", "label": 10, "text": "a grey square"},
        {"file_name": "b.png", "label": 9},
        {"file_name": "deep/c.png", "text": ["one", "two"]},
        {"file_name": "gone.png", "label": 9},
    ]
    (tmp_path / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    images = load(tmp_path)
    assert images.names == ("a.png", "b.png", "deep/c.png", "deep/d.png") and images.skipped == ()
    assert images.class_names == ("9", "10")
    assert images.labels is not None and images.labels.tolist() == [1, 0, -1, -1]
    assert images.captions == (("a grey square",), (), ("one", "two"), ())
    assert any("1 row of the table" in note for note in images.notes)


def test_a_csv_without_parts(tmp_path: Path) -> None:
    picture(tmp_path / "x" / "a.png")
    picture(tmp_path / "y" / "b.png")
    (tmp_path / "metadata.csv").write_text("file_name,label\nx/a.png,cat\ny/b.png,dog\n")
    images = load(tmp_path)
    assert images.class_names == ("cat", "dog")
    with pytest.raises(UserError, match="has no parts"):
        load(tmp_path, part="test")


def test_folders_of_another_kind_are_read_as_before(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a.png")
    picture(tmp_path / "holiday" / "b.png")
    assert load(tmp_path).names == ("holiday/b.png", "train/a.png")
    (tmp_path / "metadata.csv").write_text("some,other,table\n1,2,3\n")
    assert load(tmp_path).names == ("holiday/b.png", "train/a.png")


def test_mistakes_are_told(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a.png")
    with pytest.raises(UserError, match="no part 'test'"):
        load(tmp_path, part="test")
    (tmp_path / "train" / "metadata.jsonl").write_text('{"file_name": ')
    with pytest.raises(UserError, match="not a readable table"):
        load(tmp_path)
