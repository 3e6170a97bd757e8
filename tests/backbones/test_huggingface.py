"""Folders of transformers: small random networks of each family, written as their library writes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.backbones import resolve
from semisight.backbones.huggingface import read_preprocessing
from semisight.errors import UserError
from tests.backbones.networks import pictures
from tests.data.writers import random_image

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
VISION = {**SMALL, "image_size": 16, "patch_size": 4}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255, "do_rescale": True}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="needs transformers: pip install 'semisight[transformers]'")


def save(model: Any, folder: Path, **preprocessor: object) -> Path:
    model.eval().save_pretrained(str(folder))
    about = {"size": {"height": 16, "width": 16}, "do_resize": True, "resample": 3, "do_normalize": True, **HALF}
    (folder / "preprocessor_config.json").write_text(json.dumps({**about, **preprocessor}))
    return folder


def prepared(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy((images / 255 - 0.5) / 0.5).float()


def test_vit(transformers: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(**VISION))
    folder = save(model, tmp_path / "vit")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A network\n")
    images = pictures(3, size=16)
    with torch.no_grad():
        tokens = model(pixel_values=prepared(images)).last_hidden_state.numpy()
    pooled, grid = resolve(folder), resolve(str(folder), pooled=False)
    assert (pooled.name, pooled.licence, pooled.input_size) == ("vit", "apache-2.0", 16)
    assert pooled.feature_shape == (16, 1, 1) and grid.feature_shape == (16, 4, 4)
    assert pooled.job is not None, "it runs in onnxruntime"
    np.testing.assert_allclose(pooled.features(images)[..., 0, 0], tokens[:, 0], atol=1e-4)
    np.testing.assert_allclose(grid.features(images)[:, :, 3, 1], tokens[:, 1 + 3 * 4 + 1], atol=1e-4)


def test_dino_with_registers(transformers: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.Dinov2WithRegistersConfig(**{**VISION, "num_register_tokens": 4, "mlp_ratio": 2})
    model = transformers.Dinov2WithRegistersModel(config)
    folder, images = save(model, tmp_path / "dino"), pictures(2, size=16)
    with torch.no_grad():
        tokens = model(pixel_values=prepared(images)).last_hidden_state.numpy()
    assert tokens.shape[1] == 1 + 4 + 16
    np.testing.assert_allclose(resolve(folder).features(images)[..., 0, 0], tokens[:, 0], atol=1e-4)
    np.testing.assert_allclose(resolve(folder, pooled=False).features(images)[:, :, 0, 0], tokens[:, 5], atol=1e-4)


def test_resnet(transformers: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetModel(config)
    folder, images = save(model, tmp_path / "resnet"), pictures(2, size=16)
    with torch.no_grad():
        maps = model.eval()(pixel_values=prepared(images)).last_hidden_state.numpy()
    np.testing.assert_allclose(resolve(folder, pooled=False).features(images), maps, atol=1e-4)
    np.testing.assert_allclose(resolve(folder).features(images)[..., 0, 0], maps.mean((2, 3)), atol=1e-4)


def test_clip_gives_the_embedding_of_the_image(transformers: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    words = {**SMALL, "vocab_size": 50, "max_position_embeddings": 8, "eos_token_id": 1, "bos_token_id": 0}
    config = transformers.CLIPConfig(text_config=words, vision_config=VISION, projection_dim=12)
    model = transformers.CLIPModel(config)
    folder, images = save(model, tmp_path / "clip"), pictures(2, size=16)
    with torch.no_grad():
        seen = model.vision_model(pixel_values=prepared(images))
        right = model.visual_projection(seen.pooler_output).numpy()
    pooled = resolve(folder)
    assert pooled.feature_shape == (12, 1, 1)
    np.testing.assert_allclose(pooled.features(images)[..., 0, 0], right, atol=1e-4)
    grid = resolve(folder, pooled=False).features(images)
    np.testing.assert_allclose(grid[:, :, 0, 1], seen.last_hidden_state[:, 2], atol=1e-4)


def test_siglip_has_no_class_token(transformers: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    words = {**SMALL, "vocab_size": 50, "max_position_embeddings": 8}
    config = transformers.SiglipConfig(text_config=words, vision_config=VISION)
    model = transformers.SiglipModel(config)
    folder, images = save(model, tmp_path / "siglip"), pictures(2, size=16)
    with torch.no_grad():
        seen = model.vision_model(pixel_values=prepared(images))
    np.testing.assert_allclose(resolve(folder).features(images)[..., 0, 0], seen.pooler_output, atol=1e-4)
    grid = resolve(folder, pooled=False).features(images)
    np.testing.assert_allclose(grid[:, :, 0, 1], seen.last_hidden_state[:, 1], atol=1e-4)


def test_our_preprocessing_is_that_of_the_library(transformers: Any, tmp_path: Path) -> None:
    """The same numbers as transformers' own processor on Pillow, for the two ways of bringing images to a square."""
    image = Image.fromarray(random_image(0, 60, 90))
    ways = {
        "ViTImageProcessorPil": {"size": {"height": 32, "width": 32}, "resample": 2},
        "CLIPImageProcessorPil": {
            **{"size": {"shortest_edge": 40}, "resample": 3, "do_center_crop": True},
            **{"crop_size": {"height": 32, "width": 32}},
        },
    }
    for name, settings in ways.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        about = {"do_resize": True, "do_normalize": True, **HALF, **settings}
        (folder / "preprocessor_config.json").write_text(json.dumps(about))
        kind = getattr(transformers, name, None)
        if kind is None:
            pytest.skip(f"this release of transformers has no {name}")
        right = np.asarray(kind(**about)(image, return_tensors="np")["pixel_values"])
        from semisight.data.preprocessing import Preprocessing

        how = Preprocessing.from_mapping(read_preprocessing(folder), "test")
        found = how.normalised(how.picture(image)[None])
        assert found.shape == right.shape
        assert np.abs(found - right).max() < 0.03, name  # two roundings to whole pixels


@pytest.mark.parametrize(
    ("preprocessor", "config", "wanted"),
    [
        (None, {"image_size": 224}, {"size": 224}),
        (None, {"vision_config": {"image_size": 336}}, {"size": 336}),
        ({"size": 224, "do_normalize": False}, {}, {"size": 224, "crop": 1.0, "mean": 0.0, "std": 1.0}),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, {}, {"size": 224, "crop": 0.875}),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224, "resample": 2},
            {},
            {"size": 224, "crop": 0.875, "interpolation": "bilinear"},
        ),
        ({"size": {"height": 32, "width": 32}, "do_rescale": False}, {}, {"size": 32, "squash": True, "scale": 1.0}),
    ],
)
def test_what_the_configuration_says(
    tmp_path: Path, preprocessor: dict[str, Any] | None, config: dict[str, Any], wanted: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if preprocessor is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    found = read_preprocessing(tmp_path)
    assert {key: found[key] for key in wanted} == wanted


def test_folders_that_are_refused(transformers: Any, tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    with pytest.raises(UserError, match=r"there is no config\.json"):
        resolve(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "image_size": 16}))
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match=r"no \.safetensors \(there is pytorch_model\.bin, which may run code"):
        resolve(folder)
    (folder / "model.safetensors").write_bytes(b"garbled")
    with pytest.raises(UserError, match="transformers cannot load"):
        resolve(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 16, "width": 32}}))
    with pytest.raises(UserError, match="32 x 16; only square"):
        resolve(folder)
    # code that came with it is never run
    (folder / "preprocessor_config.json").unlink()
    code = {
        "auto_map": {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"},
        "model_type": "evil",
        "image_size": 16,
    }
    (folder / "config.json").write_text(json.dumps(code))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(UserError, match="transformers cannot load"):
        resolve(folder)
    assert not (tmp_path / "ran").exists()
