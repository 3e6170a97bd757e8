"""Captions and tags on features: `train --backbone` and all commands after it, with a tiny network as an ONNX file."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from semisight.runs import encoder_choice, images
from semisight.runs.encoder_choice import with_network
from semisight.runs.run import load_run
from semisight.runs.settings import CAPTION_VIEWS, resolve
from tests.backbones.networks import CHANNELS, write_network
from tests.cli.commands import ok, refused
from tests.cli.photos import CLASSES, write_photos

SENTENCES = ("a light ball in the middle", "dark and light stripes", "a dark corner")
N = 132


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures with captions of most, a table of tags, and a network."""
    folder = tmp_path_factory.mktemp("features")
    write_network(folder / "tiny.onnx")
    write_photos(folder / "photos", N)
    names = [f"{'holiday' if i % 2 else 'home'}/{i:04d}.jpg" for i in range(N)]
    rows = [f"{name},{SENTENCES[i % 3]}" for i, name in enumerate(names) if i % 6]
    (folder / "captions.csv").write_text("\n".join(["file,caption", *rows]) + "\n")
    rows = [f"{name},{tag}" for i, name in enumerate(names) for tag in (CLASSES[i % 3], "odd" if i % 2 else "even")]
    (folder / "tags.csv").write_text("\n".join(["file,label", *rows]) + "\n")
    return folder


def train(photos: Path, out: Path, *options: str | Path) -> str:
    data = (photos / "photos", "--backbone", photos / "tiny.onnx", "--hidden-size", "16", "--batch-size", "12")
    return ok("train", *data, "--threads", "1", "--out", out, *options)


@pytest.fixture(scope="module")
def captioned(photos: Path) -> Path:
    out = photos / "captioned"
    said = train(photos, out, "--captions", photos / "captions.csv", "--steps", "24", "--valid-fraction", "0.2")
    assert f"features of {CHANNELS} x 1 x 1 numbers" in said and "CIDEr" in (out / "log.csv").read_text()
    return out


def test_what_is_learned_on_features_is_asked_like_any_run(photos: Path, captioned: Path) -> None:
    run = load_run(captioned)
    assert run.backbone == str(photos / "tiny.onnx") and run.captions.head.code_at_every_step
    assert run.config.metric == "CIDEr" and run.config.metric_rises
    assert run.captions.head.tied and run.captions.head.embedding.embedding_dim == 16  # as --hidden-size says
    rows = list(
        csv.DictReader(io.StringIO(ok("caption", captioned, photos / "photos", "--limit", "9", "--format", "csv")))
    )
    assert len(rows) == 9
    found = json.loads(ok("evaluate", captioned, "--no-meteor", "--format", "json"))
    assert "CIDEr" in json.dumps(found)
    assert (captioned / "report.html").stat().st_size > 1000


def test_search_ranks_the_images_of_the_run_and_keeps_its_index(photos: Path, captioned: Path) -> None:
    found = json.loads(ok("search", captioned, "a dark corner", "-n", "5", "--format", "json"))
    assert [one["rank"] for one in found] == [1, 2, 3, 4, 5]
    index = captioned / "search.safetensors"
    before = index.stat().st_mtime_ns
    text = ok("search", captioned, "a dark corner", "-n", "5")
    assert found[0]["file"] in text.splitlines()[1] and index.stat().st_mtime_ns == before
    ok("search", captioned, "stripes", "--images", photos / "photos" / "home")
    assert index.stat().st_mtime_ns != before
    assert "none of the words" in refused("search", captioned, "zebra")


def test_a_resumed_run_equals_an_uninterrupted_one(photos: Path, tmp_path: Path) -> None:
    """Dropout and the drawn views come from the seed and the step."""
    options = ("--captions", photos / "captions.csv", "--no-report", "--schedule", "constant")
    train(photos, tmp_path / "whole", *options, "--steps", "8")
    train(photos, tmp_path / "parts", *options, "--steps", "3")
    ok("train", "--out", tmp_path / "parts", "--resume", "--steps", "8", "--no-report")
    whole, parts = (load_run(tmp_path / name, "newest").captions.head for name in ("whole", "parts"))
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), parts.state_dict().values(), strict=True))


def test_a_grid_and_tags_and_labels_beside_captions(photos: Path, tmp_path: Path) -> None:
    about = (photos / "tiny.yaml").read_text()
    write_network(photos / "map.onnx").with_suffix(".yaml").write_text(about.replace("output: pooled", "output: map"))
    train(
        photos,
        tmp_path / "grid",
        "--backbone",
        photos / "map.onnx",
        "--captions",
        photos / "captions.csv",
        "--grid",
        "--steps",
        "4",
        "--no-report",
    )
    run = load_run(tmp_path / "grid")
    assert run.architecture.image_shape == (CHANNELS, 2, 2) and run.architecture.code_shape[1:] == (2, 2)
    assert run.captions.head.places == 4
    assert "0016.jpg" in ok("caption", tmp_path / "grid", photos / "photos" / "home", "--limit", "4")
    assert "1" in ok("search", tmp_path / "grid", "a dark corner", "-n", "3")
    ok("report", tmp_path / "grid")
    exported = json.loads(ok("export", tmp_path / "grid", "--out", tmp_path / "grid.onnx", "--format", "json"))
    assert exported["difference"] <= 1e-4 and "caption" in exported["outputs"]
    ok("embed", tmp_path / "grid", photos / "photos" / "home", "--out", tmp_path / "grid.npz")
    assert np.load(tmp_path / "grid.npz")["codes"].shape[1] == run.architecture.code_size
    beside = ("--backbone", photos / "map.onnx", "--grid", "--tags", photos / "tags.csv")
    train(photos, tmp_path / "flat", *beside, "--captions", photos / "captions.csv", "--steps", "2", "--no-report")
    assert load_run(tmp_path / "flat").captions.head.places == 1  # tags are told by the whole code
    tags = ("--tags", photos / "tags.csv", "--captions", photos / "captions.csv", "--labels", photos / "labels.csv")
    train(photos, tmp_path / "all", *tags, "--steps", "4", "--no-report")
    assert set(load_run(tmp_path / "all").readers) == {"labels", "tags", "captions"}
    assert "stripes" in ok("predict", tmp_path / "all", photos / "photos")
    data = (photos / "photos", "--backbone", photos / "tiny.onnx", "--captions", photos / "captions.csv")
    said = ok("inspect", *data)
    assert f"features of {CHANNELS} x 1 x 1 numbers" in said and "too small" not in said
    assert "--backbone" in refused("train", photos / "photos", "--grid", "--out", tmp_path / "x")


def test_captions_of_a_folder_of_pictures_are_learned_on_features_where_nothing_speaks_of_pixels(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_choice, "networks", lambda: [str(photos / "tiny.onnx")])
    about = (photos / "photos", "--captions", photos / "captions.csv")
    features = f"features of {CHANNELS} x 1 x 1 numbers"
    asked_of = []
    monkeypatch.setattr(images, "with_features", lambda *of, **more: asked_of.append(of))
    said = ok("inspect", *about)
    assert features in said and "scaled and cropped" not in said and not asked_of  # the network is not run only to look
    monkeypatch.undo()
    monkeypatch.setattr(encoder_choice, "networks", lambda: [str(photos / "tiny.onnx")])
    short = ("--minutes", "0.05", "--no-report", "--threads", "1", "--hidden-size", "8")
    said = ok("train", *about, "--out", tmp_path / "run", *short)
    assert "Captions are learned on features of" in said and "--encoder scratch" in said and features in said
    run = load_run(tmp_path / "run")
    assert run.backbone == str(photos / "tiny.onnx") and run.about["model"]["features"]["views"] == CAPTION_VIEWS
    tags = ("--tags", photos / "tags.csv", "--out", tmp_path / "tags", "--minutes", "0.05", "--no-report")
    assert "Tags are learned on features of" in ok("train", photos / "photos", *tags)
    for pixels in (("--size", "16"), ("--encoder", "scratch")):
        assert features not in ok("inspect", *about, *pixels)
    monkeypatch.setattr(encoder_choice, "networks", list)
    assert features not in ok("inspect", *about)
    assert "semisight[photos]" in with_network(resolve({"source": str(photos / "photos"), "captions": "x.csv"}))[1][0]


def test_features_that_take_too_long_leave_captions_to_pixels(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_choice, "networks", lambda: [str(photos / "tiny.onnx")])
    monkeypatch.setattr(encoder_choice, "seconds_for_features", lambda name, missing, views: 1000.0 * views)
    settings = resolve({"source": str(photos / "photos"), "captions": str(photos / "captions.csv")})
    found, said = with_network(settings)
    assert found.data.backbone is None and "--minutes 34" in said[0]
    for minutes, views in ((34.0, 1), (67.0, 2), (134.0, 4)):  # before that, with fewer views
        found, _ = with_network(settings.replace({"max_minutes": minutes}))
        assert (found.data.backbone, found.data.views) == (str(photos / "tiny.onnx"), views)
