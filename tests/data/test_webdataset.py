"""WebDataset shards: what is read, what is passed over, and archives that mean harm."""

import io
import json
import pickle
import resource
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.data import load
from semisight.data.formats import webdataset
from semisight.data.samples import tar_entries
from semisight.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)


def png(i: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS[i]).save(stream, "PNG")
    return stream.getvalue()


def write_tar(path: Path, entries: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_images_labels_and_captions_of_two_shards(tmp_path: Path) -> None:
    first = {}
    for i in range(4):
        first |= {f"{i:04d}.png": png(i), f"{i:04d}.cls": str(10 - i).encode(), f"{i:04d}.txt": b"a square"}
    second = {"0004.png": png(4), "0004.json": json.dumps({"label": 9, "captions": ["one", "two"]}).encode()}
    second |= {"0005.png": png(5), "0006.txt": b"without an image"}
    write_tar(tmp_path / "a-000.tar", first)
    write_tar(tmp_path / "a-001.tar.gz", second, "w:gz")
    images = load(tmp_path)
    assert images.shape == (3, 8, 8) and images.names[-1] == "a-001.tar.gz/0005.png"
    assert torch.equal(images.images, torch.from_numpy(PIXELS[:6]).permute(0, 3, 1, 2))
    assert images.class_names == ("7", "8", "9", "10")
    assert images.labels is not None and images.labels.tolist() == [3, 2, 1, 0, 2, -1]
    assert images.captions == (*[("a square",)] * 4, ("one", "two"), ())
    one = load(tmp_path / "a-000.tar", size=4, channels=1, limit=2)
    assert len(one) == 2 and one.shape == (1, 4, 4)


def test_what_is_no_picture_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    entries = {"a.png": png(0), "b.png": png(1)[:60], "c.jpg": b"nothing", "a.jpg": png(2), "d.seg.png": png(3)}
    images = load(write_tar(tmp_path / "s.tar", entries))
    assert images.names == ("a.png",)
    assert {skip.name: skip.reason.split(":")[0] for skip in images.skipped} == {
        "a.jpg": "second image of its sample",
        "b.png": "truncated or corrupt",
        "c.jpg": "not an image",
    }


def test_a_shard_cut_short_gives_what_came_before(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", {f"{i}.png": png(i) for i in range(8)}).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: len(whole) // 2])
    images = load(cut)
    assert 0 < len(images) < 8
    (tmp_path / "noise.tar").write_bytes(np.random.default_rng(0).bytes(5000))
    with pytest.raises(UserError, match="no image in"):
        load(tmp_path / "noise.tar")


def test_nothing_is_unpickled_unpacked_or_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "sprung",))  # type: ignore[return-value]

    entries = {"a.png": png(0), "a.pyd": pickle.dumps(Trap()), "../outside.png": png(1), "/etc/x.png": png(2)}
    path = write_tar(tmp_path / "s.tar", entries)
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("b.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        device = tarfile.TarInfo("c.png")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
    before = sorted(tmp_path.rglob("*"))
    assert len(load(path)) == 3
    assert sorted(tmp_path.rglob("*")) == before and not (tmp_path.parent / "outside.png").exists()
    monkeypatch.setattr(webdataset, "MOST_BYTES", 10)
    with pytest.raises(UserError, match="too large"):
        load(path)


@pytest.mark.parametrize("seed", range(20))
def test_damaged_archives_raise_nothing_but_user_errors(tmp_path: Path, seed: int) -> None:
    path = write_tar(tmp_path / "s.tar", {f"{i}.png": png(i) for i in range(3)} | {"0.json": b'{"label": [[1]]}'})
    content = bytearray(path.read_bytes())
    generator = np.random.default_rng(seed)
    for place in generator.integers(0, len(content), 40):
        content[place] = generator.integers(0, 256)
    path.write_bytes(bytes(content))
    try:
        found = load(path)
    except UserError as error:
        assert str(path) in str(error)
        return
    assert 1 <= len(found) <= 3


def extended(kind: bytes, size: int, content: bytes = b"") -> bytes:
    """A header that says something of the entry after it."""
    info = tarfile.TarInfo("header")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")


def record_of(name: str, value: str) -> bytes:
    """A line of an extended header, which begins with its own length."""
    text = f" {name}={value}\n"
    return f"{next(n for n in range(99) if n == len(str(n)) + len(text))}{text}".encode()


HOLES = record_of("GNU.sparse.major", "1") + record_of("GNU.sparse.minor", "0") + record_of("GNU.sparse.name", "a.png")


@pytest.mark.parametrize("kind", ["x", "g", "L", "K", "holes", "one after the other"])
def test_headers_before_an_entry_are_bounded(kind: str, tmp_path: Path) -> None:
    """tarfile reads them whole, and into each other, before there is an entry to look at; the file is sparse."""
    path = tmp_path / "set.tar"
    with path.open("wb") as file:
        if kind == "one after the other":
            file.write(extended(b"x", 12, b"11 path=aa\n") * 3000)
        elif kind == "holes":
            file.write(extended(b"x", len(HOLES), HOLES) + extended(b"0", 2 << 30, b"999999999\n"))
        else:
            file.write(extended(kind.encode(), 2 << 30))
        file.truncate(3 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError):
        load(path)
    (last,) = tar_entries(str(path))
    assert last[1] is None and "corrupt" in last[0]
    assert (
        kind != "holes" or "an entry with holes" in last[0]
    )  # packed, a list of holes can be a thousand times as long
    assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < 300 << 20
