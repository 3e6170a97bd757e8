"""Runs of the first checkpoint format: model and heads load into what is built today, and say what they said then.

`old_runs/` holds four tiny runs made before the format changed (labels, captions, both, images alone) and what their
commands printed: codes, predictions, captions.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from semisight.data import load
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.inference.captions import CaptionReader
from semisight.inference.encode import encode
from semisight.inference.labels import FittedCalibration, LabelReader
from semisight.model.architecture import Architecture
from semisight.model.heads.captions import CaptionHead
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.joint import Joint
from semisight.random import Stream, reseed
from semisight.training import old_format
from semisight.training.checkpoint import FORMAT, load_parts, read_checkpoint, read_meta
from semisight.training.config import TrainConfig
from semisight.training.folder import RunFolder
from semisight.training.optimiser import build_optimiser
from semisight.training.state import LiveState

OLD = Path(__file__).parent / "old_runs"
RUNS = {"images": set[str](), "labels": {"labels"}, "captions": {"captions"}, "both": {"labels", "captions"}}


def opened(name: str) -> tuple[ImageModel, dict[str, Any], dict[str, Any]]:
    """A freshly built model with the old weights, its heads by target, and the header's JSON."""
    path = RunFolder(OLD / name).best_or_newest()
    about = read_checkpoint(path).meta["about"]
    architecture = Architecture.from_dict(about["model"]["architecture"])
    model = ImageModel.of(architecture, about["model"]["pooling"], seed=9)
    heads: dict[str, Any] = {}
    if "labels" in about["targets"]:
        heads["labels"] = Softmax(model.code_size, len(about["targets"]["labels"]["class_names"]))
    if "captions" in about["targets"]:
        of, n_symbols = about["targets"]["captions"]["settings"], about["targets"]["captions"]["vocab_size"]
        sizes = {name: of[name] for name in ("hidden_size", "embedding_size", "cell")}
        heads["captions"] = CaptionHead(model.code_size, n_symbols, **sizes)
    parts = {"model": model, **{f"head.{target}": head for target, head in heads.items()}}
    return model.eval(), heads, load_parts(parts, path)


@pytest.mark.parametrize("name", RUNS)
def test_an_old_checkpoint_has_the_parts_of_today(name: str) -> None:
    path = RunFolder(OLD / name).best_or_newest()
    assert read_meta(path)["format"] == old_format.FORMAT != FORMAT
    checkpoint = read_checkpoint(path)
    assert checkpoint.tensors.keys() == {"model"} | {f"head.{target}" for target in RUNS[name]}
    assert checkpoint.meta["about"]["targets"].keys() == RUNS[name]
    assert {"architecture", "pooling", "gradient", "alpha0"} <= checkpoint.meta["about"]["model"].keys()


@pytest.mark.parametrize("name", ["images", "labels"])
def test_old_codes_are_found_again(name: str) -> None:
    model, _, _ = opened(name)
    digits = load("builtin:digits")
    with open(OLD / f"{name}.codes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    index = torch.tensor([int(row["file"].removeprefix("digits/")) for row in rows])
    codes = encode(model, digits.batch(index), torch.Generator())
    for column, found in (("code", codes.mean), ("spread", codes.spread)):
        wanted = torch.tensor([[float(row[f"{column}_{j}"]) for j in range(model.code_size)] for row in rows])
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["labels", "both"])
def test_old_predictions_are_made_again(name: str) -> None:
    model, heads, _ = opened(name)
    wanted = json.loads((OLD / f"{name}.predict.json").read_text())
    channels, size, _ = model.architecture.image_shape
    images = load("builtin:scenes?n=5", size=size, channels=channels)
    file = OLD / name / "calibration.json"
    fitted = FittedCalibration.from_dict(json.loads(file.read_text())) if file.exists() else None
    reader = LabelReader(heads["labels"], tuple(wanted["classes"]), fitted)
    answer = reader(encode(model, images.batch(torch.arange(5)), torch.Generator()))
    assert reader.calibrated == wanted["calibrated"]
    for p, spread, image in zip(answer.probabilities, answer.spreads, wanted["images"], strict=True):
        best = int(p.argmax())
        assert wanted["classes"][best] == image["label"]
        assert float(p[best]) == pytest.approx(image["probability"], abs=1e-5)
        assert float(spread[best]) == pytest.approx(image["spread"], abs=1e-5)


@pytest.mark.parametrize("name", ["captions", "both"])
def test_old_captions_are_written_again(name: str) -> None:
    model, heads, _ = opened(name)
    reader = CaptionReader(heads["captions"], Vocabulary.load(OLD / name / "vocabulary.json"))
    generator = reseed(torch.Generator(), 0, Stream.VALIDATION, 0)
    model.noise(5, generator)  # encoding drew them, too, before codes were drawn
    images = load("builtin:scenes?n=5&size=16")
    found = reader(encode(model, images.batch(torch.arange(5)), torch.Generator()), generator)
    wanted = json.loads((OLD / f"{name}.caption.json").read_text())["images"]
    assert [best.text for (best,) in found] == [image["captions"][0]["caption"] for image in wanted]
    said = [image["captions"][0]["log_probability"] for image in wanted]
    assert [best.log_prob for (best,) in found] == pytest.approx(said, abs=1e-3)


def test_an_old_run_cannot_be_resumed_and_says_so() -> None:
    model, _, _ = opened("images")
    joint, path = Joint(model), RunFolder(OLD / "images").newest
    own = dict(joint.named_parameters())
    state = LiveState(joint, own, build_optimiser(own, {}, TrainConfig()), None)
    with pytest.raises(UserError, match="can be used, but not resumed"):
        state.load(read_checkpoint(path), path)
