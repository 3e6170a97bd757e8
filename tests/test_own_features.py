"""Features of the user's own take the place of images, for commands and in Python; an unmarked array does not."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

import semisight as ss
from semisight import SemiSight
from semisight.data import feature_cache
from tests.backbones.networks import write_network
from tests.cli.commands import ok, refused
from tests.cli.photos import CLASSES, write_photos

N, SIZE = 90, 12
RNG = np.random.default_rng(0)
KIND = np.arange(N) % 3
ROWS = (np.eye(3)[KIND] @ RNG.normal(0, 1, (3, SIZE)) + RNG.normal(0, 0.3, (N, SIZE))).astype(np.float32)
NAMES = [f"{i:03d}.jpg" for i in range(N)]
KNOWN = np.where(np.arange(N) < 24, KIND, -1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    np.savez(folder / "features.npz", features=ROWS, files=NAMES)
    np.save(folder / "features.npy", ROWS)
    lines = [f"{name},{'abc'[k]}" for name, k in zip(NAMES, KNOWN, strict=True) if k >= 0]
    (folder / "labels.csv").write_text("\n".join(["file,label", *lines]) + "\n")
    return folder / "features.npz"


def test_train_predict_and_evaluate_take_them(file: Path, tmp_path: Path) -> None:
    table, run = file.with_name("labels.csv"), tmp_path / "run"
    assert "learns on features of your own" in ok("inspect", file, "--labels", table)
    said = ok("train", file, "--labels", table, "--valid-fraction", "0", "--out", run)
    assert "logistic regression on the same features" in said and "HOG" not in said
    found = list(csv.DictReader(io.StringIO(ok("predict", run, file, "--format", "csv"))))
    assert [row["file"] for row in found] == NAMES
    assert np.mean([row["label"] == "abc"[k] for row, k in zip(found, KIND, strict=True)]) > 0.9
    assert "error" in ok("evaluate", run, file, "--labels", table)
    same = list(
        csv.DictReader(io.StringIO(ok("predict", run, f"features:{file.with_suffix('.npy')}", "--format", "csv")))
    )
    assert [row["label"] for row in same] == [row["label"] for row in found]
    assert "features of your own" in refused("predict", run, "builtin:digits")
    assert "network is not known" in refused("export", run, "--out", tmp_path / "x.onnx")
    np.savez(tmp_path / "other.npz", features=ROWS[:, :5])
    assert "5 numbers for each image" in refused("predict", run, tmp_path / "other.npz")


def test_an_array_without_a_mark_is_refused_with_its_two_meanings(file: Path, tmp_path: Path) -> None:
    message = refused("train", file.with_suffix(".npy"), "--out", tmp_path / "run")
    assert "could mean two things" in message and "features:" in message and "reshape" in message
    with pytest.raises(ValueError, match=r"two things.*semisight.Features.*image_shape"):
        SemiSight(max_steps=1).fit(ROWS, KNOWN)


def test_the_estimator_learns_from_marked_rows(tmp_path: Path) -> None:
    model = SemiSight(threads=1).fit(ss.Features(ROWS), np.where(KNOWN < 0, None, np.array(["x", "y", "z"])[KNOWN]))
    assert (model.predict(ss.Features(ROWS)) == np.array(["x", "y", "z"])[KIND]).mean() > 0.9
    assert model.transform(ss.Features(ROWS)).shape[0] == N
    strange = ss.Features(-3 * ROWS + RNG.normal(0, 3, ROWS.shape))
    assert np.median(model.score_samples(ss.Features(ROWS))) > np.median(model.score_samples(strange))
    model.save(tmp_path / "run")
    again = SemiSight.load(tmp_path / "run")
    np.testing.assert_allclose(again.predict_proba(ss.Features(ROWS)), model.predict_proba(ss.Features(ROWS)))
    with pytest.raises(ValueError, match=r"semisight\.Features"):
        model.predict(ROWS)
    with pytest.raises(ValueError, match="draws no pictures"):
        model.sample(1)
    with pytest.raises(ValueError, match="takes 12"):
        model.predict(ss.Features(ROWS[:, :4]))
    with pytest.raises(ValueError, match="labels are learned"):
        SemiSight().fit(ss.Features(ROWS))


def test_the_estimator_takes_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "_HERE", 1000)
    network = str(write_network(tmp_path / "net" / "tiny.onnx"))
    base = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])[KIND][:, None, None]
    images = np.clip(base + RNG.normal(0, 30, (N, 10, 10, 3)), 0, 255).astype(np.uint8)
    model = SemiSight(backbone=network, threads=1).fit(images, KNOWN)
    assert model.run_.backbone == network and (model.predict(images) == KIND).mean() > 0.9
    model.save(tmp_path / "run")
    assert (SemiSight.load(tmp_path / "run").predict(images[:9]) == model.predict(images[:9])).all()


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(feature_cache, "_HERE", 1000)
    return str(write_network(tmp_path / "net" / "tiny.onnx"))


def test_the_estimator_draws_pictures_of_what_it_knows_by_features(network: str, tmp_path: Path) -> None:
    base = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])[KIND][:, None, None]
    images = np.clip(base + RNG.normal(0, 10, (N, 10, 10, 3)), 0, 255).astype(np.uint8)
    model = SemiSight(backbone=network, threads=1).fit(images, KNOWN)
    drawn = model.reconstruct(images)
    assert drawn.shape == images.shape  # in their layout, and in their range
    off, spread = (drawn - images).std(), (images - images.mean(0)).std()
    assert off < 0.6 * spread
    made_up = model.sample(40, random_state=1)
    assert made_up.shape == (40, 10, 10, 3) and 20 < made_up.mean() < 200 and made_up.std(0).mean() > 5
    model.save(tmp_path / "run")
    again = SemiSight.load(tmp_path / "run")
    np.testing.assert_allclose(again.reconstruct(images[:7]), drawn[:7], atol=1e-3)
    np.testing.assert_allclose(again.sample(3), model.sample(3), atol=1e-3)
    ok("generate", tmp_path / "run", "-n", "2", "--out", tmp_path / "two.png")  # the folder is a run like any other
    with pytest.raises(ValueError, match="learned from features"):
        model.impute(images / 255)
    planes = SemiSight(backbone=network, threads=1).fit(images[..., 0] / 255, KNOWN)
    assert planes.reconstruct(images[:4, ..., 0] / 255).shape == (4, 10, 10) and planes.sample(2).max() <= 1


def test_pictures_come_from_files_as_from_arrays(network: str, tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", 30)
    files = sorted((tmp_path / "photos").rglob("0*.jpg"))
    labels = [CLASSES[int(file.stem) % 3] for file in files]
    model = SemiSight(backbone=network, threads=1).fit(files, labels)
    assert model.reconstruct(files[:5]).shape == (5, 32, 32, 3) and model.sample(2).min() >= 0
    for other in set((tmp_path / "photos").rglob("*.*")) - set(files):
        other.unlink()
    whole = SemiSight(backbone=network, threads=1).fit(tmp_path / "photos", labels)  # sorted as `files` are
    np.testing.assert_allclose(whole.reconstruct(files[:5]), model.reconstruct(files[:5]), atol=1e-4)
    rows = RNG.random((20, 40 * 40))
    drawing = SemiSight(backbone=network, threads=1, image_shape=(40, 40)).fit(rows, np.arange(20) % 2)
    with pytest.raises(ValueError, match="do not go back to rows"):
        drawing.reconstruct(rows)


def test_a_network_sees_later_arrays_in_the_range_of_the_first(network: str) -> None:
    images = RNG.normal(0, 1, (N, 10, 10, 3)) + KIND[:, None, None, None]
    model = SemiSight(backbone=network, threads=1).fit(images, KNOWN)
    np.testing.assert_allclose(model.transform(images)[:1], model.transform(images[:1]), atol=1e-6)
