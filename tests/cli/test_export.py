"""`semisight export` and `semisight embed`: what other programs get is what the model says (see also test_walk.py)."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from semisight import SemiSight
from semisight.data import load
from semisight.data.vocabulary import UNKNOWN
from semisight.inference.captions import greedy_captions
from semisight.inference.export import PlainEncoder, export_onnx
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.captions import CaptionHead
from semisight.model.image_model import ImageModel
from semisight.runs.run import load_run
from tests.cli.commands import ok, refused

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")


@pytest.mark.parametrize("pooling", ["expected", "max"])
@pytest.mark.parametrize("nonlinearity", ["none", "relu", "norm-relu"])
def test_the_plain_encoder_is_the_encoder(pooling: str, nonlinearity: str) -> None:
    layers = (Layer(5, 4, 2, "same"), Layer(6, 3, 2, "valid"), Layer(4, 2, 1, "valid"))
    architecture = Architecture((3, 12, 12), layers, nonlinearity)  # type: ignore[arg-type]
    model = ImageModel.of(architecture, pooling, seed=2).double()  # type: ignore[arg-type]
    images = torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.start_from(images)
    with torch.no_grad():
        posterior = model.encode(images, torch.Generator().manual_seed(0))
        mean, log_spread = PlainEncoder(model.encoder)(images)
    torch.testing.assert_close(mean, posterior.mean, atol=1e-10, rtol=0)
    torch.testing.assert_close(log_spread, posterior.log_spread, atol=1e-10, rtol=0)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_greedy_captions_take_the_best_word_each_time(cell: str) -> None:
    head = CaptionHead(3, 6, hidden_size=5, embedding_size=4, cell=cell)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(60)
    codes = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = greedy_captions(head, codes, 7)
        for row, code in zip(found.tolist(), codes, strict=True):
            words: list[int] = []
            state = head.start(code[None])
            while len(words) < 7 and (not words or words[-1] != 0):
                log_p = head.log_words(state)[0]
                log_p[UNKNOWN] = -torch.inf
                words.append(int(log_p.argmax()))
                state = head.step(torch.tensor([words[-1]]), state)
            assert row == words + [-1] * (7 - len(words))
    assert len({tuple(row) for row in found.tolist()}) > 2


def test_captions_and_labels_together_in_onnx(tmp_path: Path) -> None:
    scenes = load("builtin:scenes?n=24&size=12")
    settings = {"hidden_size": 16, "embedding_size": 8, "nonlinearity": "norm-relu"}
    model = SemiSight(max_steps=4, batch_size=12, settings=settings).fit(scenes)
    done = export_onnx(model.run_.model, list(model.run_.readers.values()), tmp_path / "model.onnx", max_words=6)
    assert done.outputs == ("code", "log_spread", "probabilities", "caption") and done.difference <= 1e-4
    session = onnxruntime.InferenceSession(str(done.file), providers=["CPUExecutionProvider"])
    images = scenes.batch(torch.arange(4))
    caption = session.run(["caption"], {"images": images.numpy()})[0]
    captioner = model.run_.captions
    with torch.no_grad():
        code = model.run_.model.mean_code(images, torch.Generator())
        assert (caption == greedy_captions(captioner.head, code, 6).numpy()).all()
    about = json.loads(session.get_modelmeta().custom_metadata_map["semisight"])
    assert len(about["words"]) == len(captioner.vocabulary)


def test_codes_as_arrays_and_as_a_table(labelled_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "codes.npz"
    said = ok("embed", labelled_run, "builtin:digits", "--limit", "11", "--out", out)
    assert "Codes of 11 images" in said
    with np.load(out, allow_pickle=False) as arrays:
        files, codes, spread = (arrays[name] for name in ("files", "codes", "spread"))
    size = load_run(labelled_run).architecture.code_size
    assert codes.shape == spread.shape == (11, size) and (spread > 0).all()
    rows = list(csv.reader(io.StringIO(ok("embed", labelled_run, "builtin:digits", "--limit", "11"))))
    assert [row[0] for row in rows[1:]] == files.tolist() and len(rows[0]) == 1 + 2 * size
    assert np.allclose(np.array([row[1 : 1 + size] for row in rows[1:]], float), codes, rtol=1e-4, atol=1e-5)
    assert "--out" in refused("embed", labelled_run, "builtin:digits", "--format", "npz")


def test_every_run_has_a_model_card(labelled_run: Path, shared_run: Path) -> None:
    text = (labelled_run / "model_card.md").read_text()
    for part in ("## Data", "## Settings", "## Metrics", "## Limits", "builtin:digits", "| error |", "seed | 1 |"):
        assert part in text, part
    assert "not calibrated" in text and "Learned from fewer than 10 labels" in text
    alone = (shared_run / "model_card.md").read_text()
    assert "bound on images set aside" in alone and "class" not in alone.split("## Settings")[0].replace("classes", "")
