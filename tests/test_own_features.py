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
