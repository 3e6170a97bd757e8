"""A stranger's run on features: it decides neither which network is loaded nor how large anything becomes; and caches,
networks and calibrations that somebody else wrote."""

import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisight.backbones import resolve
from semisight.backbones.onnx_file import _network_hash
from semisight.backbones.trusted import trust
from semisight.data.feature_cache import cache_report, cached_features
from semisight.data.image_cache import default_cache
from semisight.errors import UserError
from semisight.files import locked
from semisight.inference.tags import TagCalibration
from semisight.runs.bulk import Answerer, Asked
from semisight.runs.run import load_run
from semisight.server.image_index import read_index
from semisight.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from tests.backbones.networks import write_network
from tests.cli.commands import ok, refused, semisight
from tests.cli.test_hostile_runs import everywhere, header, record


@pytest.fixture(scope="module")
def on_features(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on the features of a small network of somebody's own, and the folder of images it learned from."""
    home = tmp_path_factory.mktemp("features")
    network, images, run = write_network(home / "network.onnx"), home / "images", home / "run"
    rng = np.random.default_rng(0)
    for name, mean in (("dark", 60), ("light", 190)):
        (images / name).mkdir(parents=True)
        for i in range(12):
            pixels = np.clip(rng.normal(mean, 30, (10, 10, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(images / name / f"{i}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        ok("train", images, "--class-per-folder", "--backbone", network, "--no-report", "--out", run)
    return run, images


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another machine: its caches are empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_network_is_used_once_somebody_has_named_it_here(on_features: tuple[Path, Path], elsewhere: Path) -> None:
    run, images = on_features
    network = str(run.parent / "network.onnx")
    for words in (("predict", run, images), ("evaluate", run), ("suggest", run), ("report", run)):
        said = refused(*words)
        assert "nobody has named on this machine" in said and f"--trust {network}" in said, words
    assert not list(default_cache().rglob("*.f16"))  # nothing was run
    assert "may be used" in ok("backbones", "--trust", network)
    assert "light" in ok("predict", run, images)
    ok("backbones", "--trust", network)
    assert (default_cache() / "networks.txt").read_text() == f"{network}\n"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Networks that somebody tried to open, whatever they are."""
    found: list[str] = []

    def open_(path: object, **_: object) -> None:
        found.append(str(path))
        raise UserError("it was opened")

    monkeypatch.setattr("semisight.backbones.onnx_file.open_onnx", open_)
    monkeypatch.setattr("semisight.backbones.huggingface.open_folder", open_)
    return found


@pytest.mark.parametrize("kind", ["an ONNX file", "a folder of torch's"])
def test_neither_a_server_nor_a_pile_nor_an_export_opens_a_network_of_the_runs_choice(
    kind: str, on_features: tuple[Path, Path], elsewhere: Path, opened: list[str]
) -> None:
    run, images = Path(shutil.copytree(on_features[0], elsewhere / "run")), on_features[1]
    name = on_features[0].parent / "network.onnx"
    if kind == "a folder of torch's":
        name = elsewhere / "torch"
        name.mkdir()
        (name / "config.json").write_text("{}")
    header(run, lambda about: everywhere(about, "backbone", str(name)))
    record(run, backbone="efficientnet-lite0")  # so that its own check lets it pass
    pile, export = elsewhere / "pile.parquet", elsewhere / "model.onnx"
    asked = Asked("predict", str(run), str(images), str(elsewhere / "worker.parquet"))
    commands: list[tuple[str | Path, ...]] = [
        ("serve", run, "--port", "0", "--images", images, "--labels", elsewhere / "labels.csv"),
        ("predict", run, images, "--out", pile, "--workers", "0"),
        ("predict", run, images, "--out", pile, "--engine", "local"),
        ("embed", run, images, "--out", pile, "--workers", "0"),
        ("export", run, "--out", export),
    ]
    for words in commands:
        assert "nobody has named on this machine" in refused(*words), words
    with pytest.raises(UserError, match="nobody has named"):  # a worker, whoever started it
        Answerer(dataclasses.asdict(asked))
    assert not opened and not pile.exists() and not export.exists() and not (elsewhere / "labels.csv").exists()
    trust(str(name))
    for words in commands:
        assert "it was opened" in refused(*words), words
    assert opened == [str(name)] * len(commands)


def test_a_run_does_not_choose_a_ray_cluster(
    on_features: tuple[Path, Path], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs the cluster that features are worked out by can run code in the process that asks it."""
    asked: list[object] = []

    def run_on_ray(*arguments: object) -> None:
        asked.append(arguments[-1])
        raise UserError("a cluster was asked")

    monkeypatch.setattr("semisight.engines.ray_data.run_on_ray", run_on_ray)
    run, images = Path(shutil.copytree(on_features[0], elsewhere / "run")), on_features[1]
    network = on_features[0].parent / "network.onnx"
    ok("backbones", "--trust", network)
    record(run, engine="ray", address="stranger:6379")
    for words in (("evaluate", run), ("suggest", run), ("report", run)):
        assert "cluster" not in semisight(*words).err, words
    assert len(read_index(load_run(run), None, lambda done, of: None)) == 24
    assert not asked
    monkeypatch.setenv("XDG_CACHE_HOME", str(elsewhere / "another"))
    mine = ("--engine", "ray", "--address", "mine:6379", "--no-report", "--out", elsewhere / "new")
    refused("train", images, "--class-per-folder", "--backbone", network, *mine)
    assert asked == ["mine:6379"]  # what the user names is asked


def test_two_that_learn_on_features_into_one_folder(on_features: tuple[Path, Path], elsewhere: Path) -> None:
    out, network = elsewhere / "run", on_features[0].parent / "network.onnx"
    with locked(out, "another training"):
        words = ("--class-per-folder", "--backbone", network, "--no-report", "--out", out)
        assert "in use by another process (another training" in refused("train", on_features[1], *words)
    assert not (out / "config.json").exists()


@pytest.mark.parametrize("name", ["hf:somebody/network", "/etc/passwd", "~/network.onnx", "../network.onnx", "\x1b[2J"])
def test_a_run_does_not_choose_a_network(name: str, on_features: tuple[Path, Path], elsewhere: Path) -> None:
    run, images = Path(shutil.copytree(on_features[0], elsewhere / "run")), on_features[1]
    header(run, lambda about: everywhere(about, "backbone", name))
    record(run, backbone=name)
    for words in (("predict", run, images), ("evaluate", run), ("train", "--out", run, "--resume", "--no-report")):
        result = semisight(*words)
        assert result.code == 2 and "Traceback" not in result.err and "\x1b[2J" not in result.err, result
    assert not list(default_cache().rglob("*.f16"))


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "features": lambda about: everywhere(about, "n_features", 10**6),
    "code": lambda about: everywhere(about, "code_size", 10**9),
    "views": lambda about: everywhere(about, "views", 10**9),
    "no names": lambda about: everywhere(about, "class_names", [["a"], {"b": 1}]),
    "a name twice": lambda about: everywhere(about, "class_names", ["a", "a"]),
    "no network": lambda about: everywhere(about, "backbone", None),
}


@pytest.mark.parametrize("variant", HEADERS)
def test_nothing_becomes_larger_than_the_file(variant: str, on_features: tuple[Path, Path], elsewhere: Path) -> None:
    run, images = Path(shutil.copytree(on_features[0], elsewhere / "run")), on_features[1]
    ok("backbones", "--trust", on_features[0].parent / "network.onnx")
    header(run, HEADERS[variant])
    result = semisight("predict", run, images)
    assert result.code == 2 and "Traceback" not in result.err, result


def test_weights_of_a_network_lie_beside_it(elsewhere: Path) -> None:
    """ONNX lets a file keep its weights in another one, by any name."""
    onnx = pytest.importorskip("onnx")
    path = write_network(elsewhere / "networks" / "small.onnx")
    (elsewhere / "secret.bin").write_bytes(bytes(5 * 3 * 16 * 4))
    for place in ("../secret.bin", str(elsewhere / "secret.bin"), "/dev/zero"):
        model = onnx.load(str(path))
        weights = next(one for one in model.graph.initializer if one.name == "w")
        weights.ClearField("raw_data")
        weights.data_location = onnx.TensorProto.EXTERNAL
        del weights.external_data[:]
        weights.external_data.add(key="location", value=place)
        other = path.with_name("other.onnx")
        other.write_bytes(model.SerializeToString())
        other.with_suffix(".yaml").write_text(path.with_suffix(".yaml").read_text())
        with pytest.raises(UserError):
            resolve(other)
        with pytest.raises(UserError, match="no file beside it"):
            _network_hash(other)


def test_a_cache_of_features_that_somebody_else_wrote(elsewhere: Path) -> None:
    """No name in its index leads out of its folder, and a damaged one is said to be."""
    images, backbone = elsewhere / "images", resolve(write_network(elsewhere / "network.onnx"))
    images.mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(images / "a.png")
    wanted = cached_features(images, backbone, workers=0).values()
    precious = elsewhere / "precious.f16"
    precious.write_bytes(bytes(100))
    index = default_cache() / "features" / "index.sqlite"
    for name in (str(precious), "../../../precious.f16"):
        with sqlite3.connect(index) as db:
            db.execute("UPDATE shard SET file = ?", (name,))
            db.execute("UPDATE shard SET used = 0")
        db.close()
        assert np.array_equal(cached_features(images, backbone, workers=0).values(), wanted)
        assert "precious" not in str(cache_report())
        ok("cache", "clear")
        assert precious.read_bytes() == bytes(100)
        cached_features(images, backbone, workers=0)
    link = default_cache() / "features" / "linked.f16"
    link.symlink_to(precious)
    with sqlite3.connect(index) as db:
        db.execute("UPDATE shard SET file = 'linked.f16'")
        db.execute("DELETE FROM feature")
    db.close()
    assert np.array_equal(cached_features(images, backbone, workers=0).values(), wanted)
    assert precious.read_bytes() == bytes(100)
    with sqlite3.connect(index) as db:
        db.execute("DROP TABLE feature")
    db.close()
    with pytest.raises(UserError, match="delete that folder"):
        cached_features(images, backbone, workers=0)


def test_calibrations_that_are_none(on_features: tuple[Path, Path], elsewhere: Path) -> None:
    for scale in ("nan", "inf", 1e300):
        with pytest.raises(ValueError, match="finite"):
            TagCalibration.from_dict({"scale": scale, "offset": 0, "step": 1, "n": 1})
    run = Path(shutil.copytree(on_features[0], elsewhere / "run"))
    good = json.loads((run / "calibration.json").read_text())
    good.pop("checksum")
    for change in ({"scale": [1.0]}, {"scale": [1e300, 1e300]}, {"offset": [[0.0, 0.0]]}, {"scale": "nan"}):
        (run / "calibration.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(UserError, match=r"calibration\.json"):
            load_run(run)


def test_a_decoder_of_pictures_from_elsewhere_is_refused(on_features: tuple[Path, Path], elsewhere: Path) -> None:
    """One of another run, one that describes more than it holds, and one with numbers that are none."""
    run = elsewhere / "run"
    shutil.copytree(on_features[0], run)
    whole = read_checkpoint(run / "pixels.safetensors")
    state = dict(whole.part("pixels"))
    bad = {
        "not of this run": ({**state, "weights": state["weights"][:1]}, whole.meta),
        "more numbers than it holds": (state, {**whole.meta, "shape": [3, 10**5, 10**5]}),
        "not finite": ({**state, "bias": state["bias"] * float("nan")}, whole.meta),
        "lacks": ({name: value for name, value in state.items() if name != "bias"}, whole.meta),
    }
    for words, (tensors, meta) in bad.items():
        write_checkpoint(run / "pixels.safetensors", Checkpoint({"pixels": tensors}, meta))
        said = refused("generate", run, "--out", elsewhere / "x.png")
        assert "pixels.safetensors" in said and (words in said or words == "lacks"), said
