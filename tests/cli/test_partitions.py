"""`evaluate RUN` parts the images of a run again: the parts of runs that exist stay the same, to the image.

The codes below were worked out with the functions that parted images before labels, tags and captions were columns, one
for each seed. A code is a hash of the names, labels and captions of both parts, in order.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from semisight.runs import images as run_images
from semisight.runs.images import Sets, sets_of
from semisight.runs.settings import DataSettings

SEEDS = (0, 1, 7)
DIGITS, SCENES = {"source": "builtin:digits"}, {"source": "builtin:scenes?n=300&size=8&seed=2", "captions": "builtin"}
FOLDERS = ("cat", "dog", "unlabelled")


def code(sets: Sets) -> str:
    rows = [
        None if part is None else [part.names, None if part.labels is None else part.labels.tolist(), part.captions]
        for part in (sets.train, sets.valid)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]


def codes(settings: Mapping[str, object], seeds: tuple[int, ...] = SEEDS) -> str:
    return " ".join(code(sets_of(DataSettings(**settings), seed)) for seed in seeds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({**DIGITS, "limit": 400}, "1ffacd927ffd 54d82f1bd89d a49fb9c91eba"),
        ({**DIGITS, "labels_per_class": 3, "valid_fraction": 0.25}, "8f878c2501ac 53b189594fae ef118fcca607"),
        ({**DIGITS, "labels_per_class": 40, "valid_fraction": 0.25}, "0bda46ca3be8 b60a8c60e8a9 e8e42e4ad697"),
        ({**DIGITS, "labels_per_class": 40, "only_labelled": True}, "f0de6846f5de a3d023099ce5 7b914f6fdcd9"),
        ({**DIGITS, "limit": 500, "use_labels": False}, "971bbccd011f 0764c0676abc 07103eaa1a60"),
        (
            {**DIGITS, "limit": 50, "use_labels": False, "valid_fraction": 0.0},
            "c5e59f4145e6 1fd1a4e6f048 abadc5297cd8",
        ),
        ({**SCENES, "use_labels": False}, "91becca84742 972f1a055a8d 6f7ebad2ad00"),
        (
            {**SCENES, "use_labels": False, "captioned_images": 60},
            "bb2d7ee73532 58746f7b4f02 4a95089d8f5b",
        ),
        ({**SCENES, "captioned_images": 120}, "3b6a5fefa7f9 4b5513781376 256c3a731abd"),
        (
            {**SCENES, "labels_per_class": 3, "valid_fraction": 0.3},
            "d3ab0b7c7e91 acd046f527e8 fd92243dfcaa",
        ),
        (
            {**SCENES, "captioned_images": 120, "only_captioned": True},
            "94d3f75987b4 4bf851c1b2b6 562779d04d13",
        ),
    ],
)
def test_sets_in_memory_are_parted_as_ever(settings: dict[str, object], expected: str) -> None:
    assert codes(settings) == expected


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    names = [f"{FOLDERS[i % 3 if i % 10 else 2]}/{i:03d}.png" for i in range(150)]
    for i, name in enumerate(names):
        (root / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4), i).save(root / name)
    rows = [f"{name},picture {i} here\n" for i, name in enumerate(names) if i % 9]
    (root / "captions.csv").write_text("file,caption\n" + "".join(rows))
    return root


@pytest.mark.parametrize(
    ("settings", "in_memory", "on_disk"),
    [
        (
            {"class_per_folder": True},
            "62a8bf64beca",
            "a73d0cae84da",
        ),
        ({"limit": 90}, "06ab77058806", "762ed320d738"),
        (
            {"captions": "captions.csv", "limit": 140},
            "14a45709f66f",
            "14a45709f66f",
        ),
        (
            {"captions": "captions.csv", "class_per_folder": True, "labels_per_class": 5},
            "e6ad0d364316",
            "e6ad0d364316",
        ),
    ],
)
def test_folders_are_parted_as_ever(
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    in_memory: str,
    on_disk: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if "captions" in settings:
        settings = settings | {"captions": str(pictures / "captions.csv")}
    settings = settings | {"source": str(pictures), "size": 4}
    assert codes(settings, (7,)) == in_memory
    monkeypatch.setattr(run_images, "MOST_IN_MEMORY", 0)
    assert codes(settings, (7,)) == on_disk
