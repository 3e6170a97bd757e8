"""Training on shards and Parquet that are mapped, not held: as on the folder, and resumed in the middle of an epoch."""

from pathlib import Path
from typing import Any

import pytest
import torch

from semisight.backbones import resolve as network_of
from semisight.data import load, unpack
from semisight.data.image_cache import default_cache
from semisight.data.shards import write_shards
from semisight.errors import UserError
from semisight.objectives.joint import Joint
from semisight.runs import images
from semisight.runs.images import sets_of
from semisight.runs.run import load_run
from semisight.runs.settings import DataSettings, resolve
from semisight.runs.train import train_run
from tests.backbones.networks import write_network
from tests.data.writers import random_image, write_image

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
pytestmark = pytest.mark.timeout(300)  # seconds where nothing else runs
N, STEPS, KILLED = 22, 7, 6  # in the middle of the second epoch


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    for i in range(N):
        write_image(tmp_path / "folder" / "ab"[i % 2] / f"{i:02d}.png", random_image(i, 16, 16))
    for form in ("webdataset", "parquet"):
        out = tmp_path / form
        write_shards(str(tmp_path / "folder"), out, format=form, per_shard=5, class_per_folder=True)  # type: ignore[arg-type]
    return {name: tmp_path / name for name in ("folder", "webdataset", "parquet")}


def weights(source: Path, out: Path, resume: bool = False, aside: float = 0.0) -> dict[str, Any]:
    """After seven steps; an epoch has four, or five."""
    settings = {
        **{
            "source": str(source),
            "max_steps": STEPS,
            "checkpoint_steps": 1,
            "max_epochs": None,
            "batch_size": 5,
            "valid_fraction": aside,
            "use_labels": not aside,
        },
        **{"layers": [{"maps": 6, "kernel": 5, "pool": 4}, {"maps": 8, "kernel": 3}], "encoder": "scratch"},
        **{"progress": False, "tensorboard": False, "class_per_folder": source.name == "folder" and not aside},
    }
    train_run(resolve(settings), out, resume=resume, overwrite=False, say=lambda line: None)
    return load_run(str(out), "newest").model.state_dict()


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
@pytest.mark.parametrize("aside", [0.0, 0.2])
def test_mapped_shards_train_as_the_folder_does_and_resume_in_an_epoch(
    form: str, aside: float, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(images, "MOST_IN_MEMORY", 100)
    whole = weights(sources[form], tmp_path / "whole", aside=aside)
    plain = weights(sources["folder"], tmp_path / "plain", aside=aside)
    steps, forward = 0, Joint.forward

    def dies(self: Joint, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > KILLED:
            raise MemoryError("killed")
        return forward(self, *arguments)

    monkeypatch.setattr(Joint, "forward", dies)
    with pytest.raises(MemoryError):
        weights(sources[form], tmp_path / "parted", aside=aside)
    monkeypatch.setattr(Joint, "forward", forward)
    assert load_run(str(tmp_path / "parted"), "newest").step == KILLED - bool(aside)  # one went to a validation
    resumed = weights(sources[form], tmp_path / "parted", resume=True, aside=aside)
    assert load_run(str(tmp_path / "parted"), "newest").step == STEPS
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
        assert torch.equal(value, plain[name]), name


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_images_beyond_memory_stay_on_the_disk_with_some_set_aside(
    form: str, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked and decoded once, by whichever process is first; both parts are stretches of one mapped file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plain = load(sources[form])
    monkeypatch.setattr(images, "MOST_IN_MEMORY", 100)
    labelled = sets_of(DataSettings(source=str(sources[form]), valid_fraction=0.0), 0).train
    assert labelled.names == plain.names and torch.equal(labelled.images, plain.images)
    assert labelled.class_names == plain.class_names and torch.equal(labelled.labels, plain.labels)  # type: ignore[arg-type]
    for file in default_cache().glob("*.npy"):
        file.unlink()
    data = DataSettings(source=str(sources[form]), valid_fraction=0.3, use_labels=False)
    first = sets_of(data, 0)
    assert first.valid is not None and len(first.valid) == 7 and len(first.train) == N - 7
    pixels_of = dict(zip(plain.names, plain.images, strict=True))
    for part in (first.train, first.valid):
        assert all(torch.equal(pixels_of.pop(name), one) for name, one in zip(part.names, part.images, strict=True))
    assert not pixels_of  # none missing, none twice
    [pixels] = default_cache().glob("*.npy")
    mapped = Path("/proc/self/maps").read_text() if Path("/proc/self/maps").exists() else str(pixels)
    assert str(pixels) in mapped
    assert first.train.images.untyped_storage().data_ptr() == first.valid.images.untyped_storage().data_ptr()

    monkeypatch.setattr(unpack, "_unpack", lambda *part: pytest.fail("unpacked again"))
    assert torch.equal(sets_of(data, 0).train.images, first.train.images)


def test_unpacking_that_was_interrupted_goes_on_and_other_shards_are_another_source(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shards, plain, done = sorted(sources["webdataset"].glob("*.tar")), unpack._unpack, list[str]()

    def dies(part: Any, folder: Path, name: str, several: bool) -> None:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(name)
        plain(part, folder, name, several)

    monkeypatch.setattr(unpack, "_unpack", dies)
    with pytest.raises(KeyboardInterrupt):
        unpack.unpacked(shards)
    monkeypatch.setattr(unpack, "_unpack", lambda *part: done.append(part[2]) or plain(*part))  # type: ignore[func-returns-value]
    found = unpack.unpacked(shards)
    assert len(found.files) == N and done == [f"{i:06d}" for i in range(len(shards))]  # none twice
    last = shards[-1]
    last.write_bytes(last.read_bytes()[:1700])  # ends within an image
    again = unpack.unpacked(shards)
    assert again.folder != found.folder and again.skipped[-1].reason.startswith("truncated or corrupt")
    assert N - 5 <= len(again.files) < N


def test_a_network_sees_the_pictures_of_shards_as_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several sizes, which pixels would be scaled to one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for i in range(8):
        write_image(tmp_path / "folder" / "ab"[i % 2] / f"{i}.png", random_image(i, 40 + 7 * i, 60 - 3 * i))
    network = str(write_network(tmp_path / "net" / "tiny.onnx"))
    network_of(network)
    given = {"backbone": network, "views": 2, "valid_fraction": 0.0}
    plain = sets_of(DataSettings(source=str(tmp_path / "folder"), class_per_folder=True, **given), 0).train
    for form in ("webdataset", "parquet"):
        out = tmp_path / form
        write_shards(str(tmp_path / "folder"), out, format=form, per_shard=3, class_per_folder=True)  # type: ignore[arg-type]
        found = sets_of(DataSettings(source=str(out), **given), 0).train
        assert torch.equal(found.images, plain.images) and torch.equal(found.views[0], plain.views[0])
        assert torch.equal(found.labels, plain.labels)  # type: ignore[arg-type]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.name != ".lock"}


def test_a_run_is_not_resumed_with_other_shards(sources: dict[str, Path], tmp_path: Path) -> None:
    weights(sources["webdataset"], tmp_path / "run")
    kept = contents(tmp_path / "run")
    for file in sorted(sources["webdataset"].glob("*.tar"))[:2]:
        file.unlink()
    with pytest.raises(UserError, match="resume"):
        settings = resolve(
            {"max_steps": STEPS + 2, "source": str(sources["webdataset"])}, tmp_path / "run" / "config.json"
        )
        train_run(settings, tmp_path / "run", resume=True, overwrite=False, say=lambda line: None)
    assert kept == contents(tmp_path / "run")
