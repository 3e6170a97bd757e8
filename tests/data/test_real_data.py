"""The published data sets themselves, where they are at hand."""

from pathlib import Path

import pytest

from semisight.data import load


def found(root: Path, name: str) -> Path:
    if not (root / name).is_dir():
        pytest.skip(f"no {name} in the folder of real data")
    return root / name


def test_mnist(data_root: Path) -> None:
    folder = found(data_root, "mnist")
    train, test = load(folder), load(folder, part="test")
    assert train.images.shape == (60_000, 1, 28, 28) and test.images.shape == (10_000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert train.mean_image().mean().item() == pytest.approx(0.1307, abs=1e-4)


def test_cifar_10(data_root: Path) -> None:
    folder = found(data_root, "cifar-10-batches-bin")
    train, test = load(folder), load(folder, part="test")
    assert train.images.shape == (50_000, 3, 32, 32) and test.images.shape == (10_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [5000] * 10 and train.class_names[6] == "frog"
    assert train.mean_image().mean((1, 2)).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-3)


def test_flickr8k(data_root: Path) -> None:
    folder = found(data_root, "flickr8k") / "Images"
    some = load(folder, size=32, limit=40)
    assert some.images.shape == (40, 3, 32, 32) and some.skipped == ()
