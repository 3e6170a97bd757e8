"""A walk as a new user would take it: a folder of photos, a table that labels one in ten, broken files among them."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.backbones import resolve
from semisight.data import feature_cache, load
from semisight.data.formats.pictures import read_upright
from tests.backbones.networks import SIZE, write_network
from tests.cli.commands import ok, refused
from tests.cli.photos import CLASSES, write_photos


@pytest.mark.slow
def test_from_a_folder_of_photos_to_answers(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    table = write_photos(photos, n=90)
    run = tmp_path / "run"

    found = json.loads(ok("inspect", photos, "--labels", table, "--size", "16", "--format", "json"))
    assert found["images"] == 90 and found["labelled"] == 9
    broken = {entry["file"] for entry in found["unreadable"]}
    assert broken == {"holiday/broken-empty.jpg", "home/broken-half.jpg", "home/broken-noise.jpg", "notes.txt"}

    size = ("--size", "16", "--epochs", "16", "--batch-size", "48", "--learning-rate", "0.01")
    said = ok("train", photos, "--labels", table, *size, "--out", run)
    assert "90 colour images of 16 x 16 pixels" in said and "4 files skipped" in said
    assert "labels: 9 images of 3 classes" in said and f"Next: semisight predict {run}" in said
    assert {"report.html", "model_card.md", "config.json", "data.json"} <= {path.name for path in run.iterdir()}

    rows = list(csv.DictReader(io.StringIO(ok("predict", run, photos, "--format", "csv"))))
    assert len(rows) == 90
    right = [row["label"] == CLASSES[int(Path(row["file"]).stem) % 3] for row in rows]
    assert sum(right) / len(right) > 0.6

    text = ok("suggest", run, "-n", "5", "--format", "csv")
    chosen = [row for row in csv.DictReader(io.StringIO(text)) if row["what"] == "label"]
    labelled = {line.split(",")[0] for line in table.read_text().splitlines()}
    assert len(chosen) == 5 and not {row["file"] for row in chosen} & labelled

    # more labels into the same table, and learning goes on from there
    more = "".join(f"{row['file']},{CLASSES[int(Path(row['file']).stem) % 3]}\n" for row in chosen)
    table.write_text(table.read_text() + more)
    said = ok(
        "train", photos, "--labels", table, *size[:2], "--epochs", "2", "--out", tmp_path / "second", "--no-report"
    )
    assert "labels: 14 images" in said

    ok("report", run, "--labels", table, "--out", tmp_path / "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()[:200].lower()

    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    exported = json.loads(ok("export", run, "--out", tmp_path / "photos.onnx", "--format", "json"))
    assert exported["difference"] <= 1e-4 and exported["outputs"] == ["code", "log_spread", "probabilities"]
    assert "--overwrite" in refused("export", run, "--out", tmp_path / "photos.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "photos.onnx"), providers=["CPUExecutionProvider"])
    images = load(photos, size=16, channels=3)
    probabilities = session.run(["probabilities"], {"images": images.batch(torch.arange(9)).numpy()})[0]
    about = json.loads(session.get_modelmeta().custom_metadata_map["semisight"])
    assert [about["classes"][c] for c in probabilities.argmax(1)] == [row["label"] for row in rows[:9]]
    assert np.allclose(probabilities.max(1), [float(row["probability"]) for row in rows[:9]], atol=1e-4)


def test_the_same_with_a_pretrained_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features in the place of pixels, from the same folder to one ONNX file with the network inside."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra photos")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "_HERE", 1000)  # no processes of their own
    photos, run = tmp_path / "photos", tmp_path / "run"
    table = write_photos(photos, n=60, labelled=4)
    network = write_network(tmp_path / "net" / "tiny.onnx")
    (tmp_path / "one.yaml").write_text("views: 1\n")
    how = ("--labels", table, "--backbone", network)

    plan = json.loads(ok("inspect", photos, *how, "--format", "json"))["plan"]
    assert plan["encoder"] == "features" and plan["networks"][0]["name"] == str(network)
    said = ok("train", photos, *how, "--config", tmp_path / "one.yaml", "--valid-fraction", "0.2", "--out", run)
    assert "60 " in said and "4 files skipped" in said
    assert "* our model" in said and "logistic regression on the same features" in said and "on HOG" in said
    card = (run / "model_card.md").read_text()
    assert "logistic regression on HOG" in card and "(this run)" in card
    assert "Held against other ways" in (run / "report.html").read_text()

    rows = list(csv.DictReader(io.StringIO(ok("predict", run, photos, "--format", "csv"))))
    assert len(rows) == 60
    right = [row["label"] == CLASSES[int(Path(row["file"]).stem) % 3] for row in rows]
    assert sum(right) / len(right) > 0.5
    chosen = [row for row in csv.DictReader(io.StringIO(ok("suggest", run, "-n", "5", "--format", "csv")))]
    labelled = {line.split(",")[0] for line in table.read_text().splitlines()}
    to_label = {row["file"] for row in chosen if row["what"] == "label"}
    assert len(to_label) == 5 and not to_label & labelled
    ok("embed", run, photos, "--out", tmp_path / "codes.npz")
    assert len(np.load(tmp_path / "codes.npz")["codes"]) == 60
    assert "error" in ok("evaluate", run, photos, "--labels", table)
    assert "nothing to resume" in refused("train", "--out", run, "--resume")

    # pictures come from a decoder beside the model
    said = ok("reconstruct", run, photos / "home", "--out", tmp_path / "drawn")
    assert "30 reconstructions" in said and len(list((tmp_path / "drawn").glob("*.png"))) == 30
    explained = float(re.search(r"([-\d.]+)% of what sets", said)[1])  # type: ignore[index]
    assert explained > 20  # five features tell the colour and the light
    assert Image.open(tmp_path / "drawn" / "0000.png").size == (32, 32)
    ok("generate", run, "-n", "4", "--out", tmp_path / "samples.png")
    assert "What the codes look like" in (run / "report.html").read_text()
    (run / "pixels.safetensors").unlink()
    assert "pixels.safetensors" in refused("generate", run, "--out", tmp_path / "none.png")
    assert ok("predict", run, photos, "--format", "csv").splitlines()[1:3]  # nothing else needs it

    exported = json.loads(ok("export", run, "--out", tmp_path / "photos.onnx", "--format", "json"))
    assert exported["difference"] <= 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "photos.onnx"), providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["semisight"])
    assert about["image_shape"] == [3, SIZE, SIZE] and about["preprocessing"]["size"] == SIZE
    picture = resolve(str(network)).preprocessing.picture
    seen = [picture(read_upright(photos / row["file"], 2 * SIZE)) for row in rows[:9]]  # as the cache reads files
    (p,) = session.run(["probabilities"], {"images": np.stack(seen).astype(np.float32) / 255})
    assert [about["classes"][c] for c in p.argmax(1)] == [row["label"] for row in rows[:9]]
    assert np.allclose(p.max(1), [float(row["probability"]) for row in rows[:9]], atol=5e-3)  # the cache has 16 bits
