"""`semisight.SemiSight`: what it learns, what it takes, what it keeps, and how usual images are."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from semisight import SemiSight, UserError
from semisight.data import load
from tests.cli.commands import ok

DIGITS = load_digits()
IMAGES, TRUTH = DIGITS.images / 16, DIGITS.target
NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
QUICK = SemiSight(max_steps=4, batch_size=32)


@pytest.fixture(scope="module")
def fitted() -> SemiSight:
    """Digits by name, one in five of which has a label."""
    labels = np.where(np.arange(600) % 5 == 0, NAMES[TRUTH[:600]], None)
    return SemiSight(max_steps=120, batch_size=128, learning_rate=2e-3).fit(IMAGES[:600], labels)


def test_it_learns_names_from_some_labels(fitted: SemiSight) -> None:
    assert sorted(fitted.classes_) == sorted(NAMES)
    assert fitted.score(IMAGES[1000:1400], NAMES[TRUTH[1000:1400]]) > 0.7
    probabilities = fitted.predict_proba(IMAGES[1000:1010])
    assert probabilities.shape == (10, 10) and np.allclose(probabilities.sum(1), 1)
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(IMAGES[1000:1010])).all()
    assert fitted.transform(IMAGES[:3]).shape == (3, fitted.run_.architecture.code_size)


def test_strange_images_score_below_usual_ones(fitted: SemiSight) -> None:
    """The bound alone fails at this; see docs/experiments.md."""
    usual = IMAGES[1000:1200]
    generator = np.random.default_rng(0)
    y, x = np.mgrid[0:8, 0:8] / 8
    strange = {
        "turned": np.rot90(usual, axes=(1, 2)),
        "negative": 1 - usual,
        "dark": 0.02 * generator.random((200, 8, 8)),
        "flat": np.broadcast_to(generator.random((200, 1, 1)), (200, 8, 8)),
        "smooth": 0.5 + 0.2 * (generator.standard_normal((200, 1, 1)) * x + generator.standard_normal((200, 1, 1)) * y),
        "noise": generator.random((200, 8, 8)),
        "scenes": load("builtin:scenes?n=200", size=8, channels=1).images[:, 0].numpy() / 255,
    }
    good = fitted.score_samples(usual)
    assert -2 < np.median(good) < 1
    for name, images in strange.items():
        bad = fitted.score_samples(np.ascontiguousarray(images.clip(0, 1)))
        auroc = roc_auc_score(np.repeat([1, 0], 200), np.concatenate([good, bad]))
        assert auroc > 0.9, (name, auroc)


def test_missing_pixels_are_drawn(fitted: SemiSight) -> None:
    images = IMAGES[1000:1100]
    missing = np.random.default_rng(0).random(images.shape) < 0.3
    holes = np.where(missing, np.nan, images)
    filled = fitted.impute(holes)
    assert (filled[~missing] == images[~missing]).all() and not np.isnan(filled).any()
    by_mean = np.broadcast_to(IMAGES[:600].mean(0), images.shape)
    error, plain = (np.sqrt(((guess - images)[missing] ** 2).mean()) for guess in (filled, by_mean))
    assert error < plain  # a hundred steps make no painter: that the mathematics is right is tested elsewhere


def test_reconstructions_and_samples_come_as_the_images_did(fitted: SemiSight) -> None:
    again = fitted.reconstruct(IMAGES[1000:1050])
    assert again.shape == (50, 8, 8) and again.min() >= 0 and again.max() <= 1
    left = ((again - IMAGES[1000:1050]) ** 2).mean() / IMAGES[1000:1050].var()
    assert left < 0.5
    assert fitted.sample(4).shape == (4, 8, 8)
    assert (fitted.sample(4, random_state=1) == fitted.sample(4, random_state=1)).all()
    assert (fitted.sample(4, random_state=1) != fitted.sample(4, random_state=2)).any()


def test_what_is_saved_is_what_is_loaded(fitted: SemiSight, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    files = {path.name for path in (tmp_path / "model").rglob("*") if path.is_file()}
    assert {path.rpartition(".")[2] for path in files} == {"json", "safetensors"}
    again = SemiSight.load(tmp_path / "model")
    assert (again.predict_proba(IMAGES[:20]) == fitted.predict_proba(IMAGES[:20])).all()
    assert (again.score_samples(IMAGES[:20]) == fitted.score_samples(IMAGES[:20])).all()
    assert again.get_params() == fitted.get_params() and (again.classes_ == fitted.classes_).all()
    unpickled = pickle.loads(pickle.dumps(fitted))
    assert (unpickled.transform(IMAGES[:5]) == fitted.transform(IMAGES[:5])).all()
    with pytest.raises(UserError, match="not empty"):
        fitted.save(tmp_path / "model")
    said = ok("predict", tmp_path / "model", "builtin:digits", "--limit", "5", "--format", "csv")
    assert said.count("\n") == 6
    (tmp_path / "model" / "estimator.json").write_text("{")
    with pytest.raises(ValueError, match=r"damaged|not valid JSON"):
        SemiSight.load(tmp_path / "model")


def test_a_run_of_the_command_line_is_loaded(labelled_run: Path) -> None:
    model = SemiSight.load(labelled_run)
    assert model.predict(IMAGES[:5]).shape == (5,) and model.predict("builtin:digits").shape == (1797,)
    with pytest.raises(ValueError, match="not fitted in Python"):
        model.score_samples(IMAGES[:5])


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (np.random.default_rng(0).integers(0, 256, (12, 8, 9, 3), dtype=np.uint8), (3, 8, 9)),
        (np.random.default_rng(0).random((12, 3, 8, 8)).astype(np.float32), (3, 8, 8)),
        (torch.rand(12, 8, 8), (1, 8, 8)),
        (np.random.default_rng(0).standard_normal((12, 8, 8)), (1, 8, 8)),
        (np.random.default_rng(0).random((12, 10)), (1, 4, 4)),
    ],
)
def test_arrays_of_every_layout(images: np.ndarray, shape: tuple[int, int, int]) -> None:
    model = SemiSight(max_steps=2, batch_size=8, image_shape="square" if images.ndim == 2 else None).fit(images)
    assert model.run_.architecture.image_shape == shape
    given = np.asarray(images)
    again = model.reconstruct(images)
    assert again.shape == given.shape
    low, high = (
        (0.0, 255.0) if given.dtype == np.uint8 else (0.0, 1.0) if given.min() >= 0 else (given.min(), given.max())
    )
    assert high != 255 or again.max() > 1
    assert again.min() >= low - 1e-9 and again.max() <= high + 1e-9
    with pytest.raises(ValueError, match="without labels"):
        model.predict(images)


def test_rows_with_a_shape() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (10, 8 * 6 * 3), dtype=np.uint8)
    model = SemiSight(max_steps=2, batch_size=8, image_shape=(8, 6, 3)).fit(rows, np.arange(10) % 2)
    assert model.run_.architecture.image_shape == (3, 8, 6) and model.n_features_in_ == 144
    assert model.reconstruct(rows).shape == rows.shape
    with pytest.raises(ValueError, match="does not suit rows"):
        SemiSight(image_shape=(9, 9)).fit(rows)


def test_paths_and_sets(tmp_path: Path) -> None:
    paths = []
    for i in range(8):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray((255 * IMAGES[i]).astype(np.uint8)).resize((16, 16 + i)).save(paths[-1])
    model = SemiSight(max_steps=2, batch_size=8, size=8).fit(paths, [0, 1, None, -1, 0, 1, -1, -1])
    assert model.classes_.tolist() == [0, 1] and model.predict(paths).shape == (8,)
    assert model.predict(IMAGES[:3]).shape == (3,)
    assert (model.predict(tmp_path) == model.predict(paths)).all()
    (tmp_path / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"broken.png cannot be used: not an image"):
        model.predict([paths[0], tmp_path / "broken.png"])
    digits = load("builtin:digits", limit=20)
    assert QUICK.fit(digits).score(digits, np.array(digits.class_names)[digits.labels]) >= 0


def test_captions_are_learned() -> None:
    scenes = load("builtin:scenes?n=24&size=12")
    captions = [None if i % 4 == 0 else of_image for i, of_image in enumerate(scenes.captions or ())]
    settings = {"hidden_size": 16, "embedding_size": 8}
    model = SemiSight(max_steps=5, batch_size=12, settings=settings)
    model.fit(scenes.images.numpy(), scenes.labels, captions)
    said = model.caption(scenes.images.numpy()[:3], n_codes=2, beam=2)
    assert len(said) == 3 and all(isinstance(text, str) for text in said)
    assert model.predict(scenes.images.numpy()[:3]).shape == (3,)
    with pytest.raises(ValueError, match="without captions"):
        QUICK.fit(IMAGES[:40], TRUTH[:40]).caption(IMAGES[:2])
    with pytest.raises(ValueError, match="captions for 1"):
        model.fit(scenes.images.numpy(), None, ["one"])


def test_in_a_pipeline_and_in_cross_validation() -> None:
    flat = DIGITS.data[:90]
    model = SemiSight(max_steps=3, batch_size=32, image_shape=(8, 8))
    pipeline = make_pipeline(FunctionTransformer(lambda x: x / 16), model)
    scores = cross_val_score(pipeline, flat, TRUTH[:90], cv=2)
    assert scores.shape == (2,) and np.isfinite(scores).all()


def test_mistakes_are_told(fitted: SemiSight) -> None:
    with pytest.raises(ValueError, match="one class"):
        QUICK.fit(IMAGES[:10], np.zeros(10, int))
    with pytest.raises(ValueError, match="the model takes"):
        fitted.predict(np.zeros((2, 9, 7)))
    with pytest.raises(ValueError, match="no setting"):
        SemiSight(settings={"learning_rat": 1}).fit(IMAGES[:10])
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(np.full((2, 8, 8), np.nan))


def test_importing_it_waits_for_its_first_use() -> None:
    code = (
        "import sys, semisight; assert 'torch' not in sys.modules; semisight.SemiSight; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
