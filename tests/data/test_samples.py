"""Shards, Parquet and streams of them: nothing twice, nothing missing, the same again, and damage that is told."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisight.data import load
from semisight.data.samples import Part, parts_of, read_part
from semisight.data.shards import write_shards
from semisight.data.stream import SampleStream
from semisight.errors import UserError
from tests.cli.commands import ok

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
N = 23
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3), dtype=np.uint8)


def png(i: int) -> bytes:
    held = io.BytesIO()
    Image.fromarray(PIXELS[i]).save(held, "PNG")
    return held.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 pictures in the folders of two classes."""
    root = tmp_path_factory.mktemp("pictures")
    for i in range(N):
        file = root / ("cat" if i % 2 else "dog") / f"{i:02d}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(png(i))
    return root


@pytest.fixture(scope="module")
def shards(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {form: tmp_path_factory.mktemp("shards") / form for form in ("webdataset", "parquet")}
    for form, out in made.items():
        captions = {"cat/01.png": ["a cat", "one cat"]}
        write_shards(str(folder), out, format=form, per_shard=4, class_per_folder=True, captions=captions)  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_what_is_sharded_is_what_was_there(form: str, folder: Path, shards: dict[str, Path]) -> None:
    plain, sharded = load(folder, class_per_folder=True), load(shards[form])
    assert len(sharded) == N and sharded.class_names == plain.class_names == ("cat", "dog")
    assert (sharded.images == plain.images).all() and (sharded.labels == plain.labels).all()
    assert sharded.captions is not None and sharded.captions[0] == ("a cat", "one cat") and not sharded.captions[1]
    about = json.loads((shards[form] / "shards.json").read_text())
    assert about["samples"] == N and [file["samples"] for file in about["files"]] == [4, 4, 4, 4, 4, 3]


def test_the_library_webdataset_reads_our_shards(shards: dict[str, Path]) -> None:
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    urls = sorted(str(file) for file in shards["webdataset"].glob("*.tar"))
    found = list(webdataset.WebDataset(urls, shardshuffle=False))
    assert len(found) == N and found[0]["png"] == png(1) and found[0]["cls"] == b"cat"  # cats come first


def test_the_command_takes_labels_from_a_table_and_refuses_to_mix(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(
        "file,label\n" + "".join(f"{kind}/{i:02d}.png,{i % 3}\n" for i in range(6) for kind in (["dog", "cat"][i % 2],))
    )
    said = ok("shard", folder, "--labels", table, "--out", tmp_path / "s", "--per-shard", "10")
    assert "23 images in 3 shards" in said
    images = load(tmp_path / "s")
    assert images.labels is not None and int((images.labels >= 0).sum()) == 6
    with pytest.raises(UserError, match="holds shards already"):
        write_shards(str(folder), tmp_path / "s")


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
@pytest.mark.parametrize(("processes", "workers"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_processes_and_workers_share_all_samples_and_none_twice(
    form: str, processes: int, workers: int, shards: dict[str, Path]
) -> None:
    seen = [
        sample.name
        for p in range(processes)
        for w in range(workers)
        for sample in SampleStream(str(shards[form]), 3, 5, (p, processes), (w, workers)).epoch(2)
    ]
    assert len(seen) == len(set(seen)) == N


def test_a_stream_is_shuffled_the_same_again_and_goes_on_in_the_middle(shards: dict[str, Path]) -> None:
    stream = SampleStream(str(shards["webdataset"]), seed=1, window=7)
    first, again, next_ = ([sample.name for sample in stream.epoch(number)] for number in (0, 0, 1))
    assert first == again and sorted(first) == sorted(next_) and first != next_ and first != sorted(first)
    other = [sample.name for sample in SampleStream(str(shards["webdataset"]), seed=2, window=7).epoch(0)]
    assert other != first
    for start in (1, 7, 12, N):
        assert [sample.name for sample in stream.epoch(0, start)] == first[start:]


def test_a_truncated_shard_gives_what_came_before_and_says_so(shards: dict[str, Path], tmp_path: Path) -> None:
    whole = (shards["webdataset"] / "images-000000.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:5000])
    found = list(read_part(Part(0, "shard", str(tmp_path / "a.tar"))))
    assert 0 < len([one for one in found if one.image]) < 4
    assert found[-1].image is None and "truncated or corrupt" in found[-1].reason
    (tmp_path / "b.parquet").write_bytes((shards["parquet"] / "images-000000.parquet").read_bytes()[:500])
    with pytest.raises(UserError, match="not a whole Parquet file"):
        parts_of(str(tmp_path / "b.parquet"))


def test_parquet_without_images_or_with_empty_ones(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "words.parquet")
    with pytest.raises(UserError, match="no column of images"):
        load(tmp_path / "words.parquet")
    rows = [
        {"bytes": png(0), "path": "x.png"},
        {"bytes": None, "path": "y.png"},
        {"bytes": b"no picture", "path": "z.png"},
    ]
    pq.write_table(pa.table({"image": rows, "label": [3, 4, 5]}), tmp_path / "hub.parquet")
    images = load(tmp_path / "hub.parquet")
    assert images.names == ("x.png",) and {skip.name for skip in images.skipped} == {"y.png", "z.png"}


def test_parts_of_a_folder_and_of_a_set_cover_it(folder: Path) -> None:
    parts = parts_of(str(folder), per_part=5)
    assert [len(part.names) for part in parts] == [5, 5, 5, 5, 3] and [part.number for part in parts] == list(range(5))
    assert Part.from_json(parts[1].to_json()) == parts[1]
    rows = parts_of("builtin:scenes?n=7&size=16", per_part=3)
    names = [sample.name for part in rows for sample in read_part(part)]
    assert len(names) == len(set(names)) == 7


def test_pixels_beyond_memory_are_mapped(shards: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from semisight.data.formats import webdataset

    plain = load(shards["webdataset"])
    assert not isinstance(webdataset.room_for((1, 1, 10, 20), "images"), np.memmap)
    monkeypatch.setattr(webdataset, "IN_MEMORY", 100)
    assert isinstance(webdataset.room_for((1, 1, 10, 20), "images"), np.memmap)
    assert (load(shards["webdataset"]).images == plain.images).all()


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_an_image_that_cannot_be_decoded_does_not_bring_the_others_into_memory(
    form: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from semisight.data.formats import parquet, webdataset

    for file in folder.rglob("*.png"):
        whole = file.read_bytes()
        (tmp_path / "files").mkdir(exist_ok=True)
        # its header is good, so that room is made for it
        (tmp_path / "files" / file.name).write_bytes(whole[:-60] if file.name in ("00.png", "07.png") else whole)
    write_shards(str(tmp_path / "files"), tmp_path / "out", per_shard=5, format=form)  # type: ignore[arg-type]
    rooms: list[np.ndarray] = []
    plain = webdataset.room_for

    def room(shape: tuple[int, int, int, int], what: str) -> Any:
        rooms.append(plain(shape, what))
        return rooms[-1]

    monkeypatch.setattr(webdataset, "IN_MEMORY", 100)
    monkeypatch.setattr(parquet if form == "parquet" else webdataset, "room_for", room)
    images = load(tmp_path / "out")
    assert len(images) == N - 2 and len(images.skipped) == 2
    assert isinstance(rooms[0], np.memmap) and np.shares_memory(rooms[0], images.images.numpy())
    rest = [i for i in range(N) if i not in (0, 7)]
    assert (images.images.numpy() == PIXELS[rest].transpose(0, 3, 1, 2)).all()


def test_a_stream_refuses_what_makes_no_sense(shards: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="count from 0"):
        SampleStream(str(shards["parquet"]), process=(2, 2))
    with pytest.raises(UserError, match="windows"):
        SampleStream(str(shards["parquet"]), window=0)
