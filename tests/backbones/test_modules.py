"""Torch modules as backbones: through onnxruntime where they can be converted, else in torch; the same numbers."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semisight.backbones import resolve
from semisight.backbones.converting import TorchBackbone
from semisight.backbones.onnx_file import OnnxBackbone
from semisight.data.feature_cache import cached_features
from semisight.errors import UserError
from tests.backbones.networks import pictures
from tests.data.writers import random_image, write_image

HOW = {"size": 16, "mean": 0.5, "std": 0.25}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)


def convolutions(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 4, stride=4), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))


class Tokens(nn.Module):
    """A class token before 16 places."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.first = nn.Conv2d(3, 5, 4, stride=4), nn.Parameter(torch.randn(1, 1, 5))

    def forward(self, images: Tensor) -> Tensor:
        places = self.patches(images).flatten(2).transpose(1, 2)
        return torch.cat([self.first + places.mean(1, keepdim=True), places], 1)


class Stubborn(nn.Module):
    """Uses what neither exporter knows."""

    def forward(self, images: Tensor) -> Tensor:
        flat = torch.nn.functional.adaptive_avg_pool2d(images, 3).flatten(1)
        return torch.from_numpy(np.sort(flat.detach().numpy(), 1))


class LikeTimm(nn.Module):
    """What of timm's interface is used."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Conv2d(3, 6, 4, stride=4), nn.LayerNorm(6), nn.Linear(6, 10)
        self.pretrained_cfg = {
            **{"input_size": (3, 16, 16), "crop_pct": 0.95, "interpolation": "bilinear", "mean": (0.5, 0.5, 0.5)},
            **{"std": (0.2, 0.2, 0.2), "url": "somewhere"},
        }

    def forward_features(self, images: Tensor) -> Tensor:
        return self.body(images)

    def forward_head(self, found: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = self.norm(found.mean((2, 3)))
        return pooled if pre_logits else self.head(pooled)

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))


def prepared(images: np.ndarray) -> Tensor:
    return torch.from_numpy((images / 255 - 0.5) / 0.25).float()


def test_a_module_becomes_onnx_and_gives_the_same() -> None:
    module, images = convolutions(), pictures(5, size=16)
    module[1].running_mean.normal_()
    module.train()
    backbone = resolve(module, pooled=False, preprocessing=HOW)
    assert isinstance(backbone, OnnxBackbone) and backbone.job is not None
    assert module.training and backbone.feature_shape == (6, 4, 4)
    with torch.no_grad():
        right = module.eval()(prepared(images)).numpy()
    np.testing.assert_allclose(backbone.features(images), right, atol=1e-4)
    pooled = resolve(module, preprocessing=HOW)
    assert pooled.feature_shape == (6, 1, 1)
    np.testing.assert_allclose(pooled.features(images)[..., 0, 0], right.mean((2, 3)), atol=1e-4)
    assert pooled.fingerprint != backbone.fingerprint == resolve(module, pooled=False, preprocessing=HOW).fingerprint


def test_it_is_converted_once_and_again_if_the_file_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    count, export = [0], torch.onnx.export

    def counted(*arguments: object, **options: object) -> object:
        count[0] += 1
        return export(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.onnx, "export", counted)
    first = resolve(convolutions(), preprocessing=HOW)
    second = resolve(convolutions(), preprocessing=HOW)
    assert isinstance(first, OnnxBackbone) and count == [1] and second.fingerprint == first.fingerprint
    first.path.write_bytes(first.path.read_bytes()[:-1])
    third = resolve(convolutions(), preprocessing=HOW)
    assert count == [2]
    np.testing.assert_array_equal(third.features(pictures(2, size=16)), second.features(pictures(2, size=16)))


def test_the_fingerprint_is_of_the_state() -> None:
    one, two = convolutions(0), convolutions(1)
    names = {resolve(module, preprocessing=HOW).fingerprint for module in (one, two)}
    with torch.no_grad():
        one[0].bias[3] += 1e-6
    names.add(resolve(one, preprocessing=HOW).fingerprint)
    names.add(resolve(one, preprocessing={**HOW, "std": 0.3}).fingerprint)
    assert len(names) == 4


def test_training_goes_on_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # so that it runs in torch
    module, images = convolutions().train(), pictures(2, size=16)
    backbone = resolve(module, preprocessing=HOW)
    before = backbone.features(images)
    with torch.no_grad():
        module[0].weight += 1
    assert module.training
    np.testing.assert_array_equal(backbone.features(images), before)


def test_tokens() -> None:
    module, images = Tokens(), pictures(3, size=16)
    with torch.no_grad():
        right = module(prepared(images)).numpy()
    np.testing.assert_allclose(resolve(module, preprocessing=HOW).features(images)[..., 0, 0], right[:, 0], atol=1e-4)
    grid = resolve(module, preprocessing=HOW, pooled=False).features(images)
    np.testing.assert_allclose(grid[:, :, 1, 2], right[:, 1 + 4 + 2], atol=1e-4)


def test_what_cannot_be_converted_runs_in_torch(tmp_path: Path) -> None:
    backbone = resolve(Stubborn(), preprocessing=HOW)
    assert isinstance(backbone, TorchBackbone) and backbone.job is None and backbone.feature_shape == (27, 1, 1)
    for i in range(6):
        write_image(tmp_path / "images" / f"{i}.png", random_image(i))
    features = cached_features(tmp_path / "images", backbone, views=2, workers=2)
    assert features.shape == (27, 1, 1) and len(features) == 6
    assert (features.values().flatten(1).diff(dim=1) >= 0).all()
    with pytest.raises(UserError, match="no map in it"):
        resolve(Stubborn(), pooled=False, preprocessing=HOW)


def test_without_onnx_it_runs_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    right = resolve(convolutions(), preprocessing=HOW)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/nonexistent/for/this/test")
    plain = resolve(convolutions(), preprocessing=HOW)
    assert isinstance(plain, TorchBackbone) and plain.fingerprint == right.fingerprint
    monkeypatch.undo()
    np.testing.assert_allclose(plain.features(pictures(2, size=16)), right.features(pictures(2, size=16)), atol=1e-4)


def test_timms_interface_is_known() -> None:
    module, images = LikeTimm(), pictures(3, size=16)
    backbone = resolve(module)
    how = backbone.preprocessing
    assert (how.size, how.crop, how.interpolation, how.mean, how.std) == (16, 0.95, "bilinear", (0.5,) * 3, (0.2,) * 3)
    with torch.no_grad():
        found = module.forward_features(torch.from_numpy((images / 255 - 0.5) / 0.2).float())
        right = module.forward_head(found, pre_logits=True)
    np.testing.assert_allclose(backbone.features(images)[..., 0, 0], right, atol=1e-4)
    np.testing.assert_allclose(resolve(module, pooled=False).features(images), found, atol=1e-4)


class Pair(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(UserError, match="how Sequential wants its images is not known"):
        resolve(convolutions())
    with pytest.raises(UserError, match="must give one tensor, not tuple"):
        resolve(Pair(), preprocessing=HOW)
    with pytest.raises(UserError, match=r"Sequential cannot take images as float32 \[1, 3, 2, 2\]"):
        resolve(convolutions(), preprocessing={"size": 2})
    with pytest.raises(UserError, match="a name, a path or a torch module, not int"):
        resolve(3)  # type: ignore[arg-type]
