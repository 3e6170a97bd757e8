"""ONNX files as backbones: the right output, the right preprocessing, one fingerprint for one thing."""

from pathlib import Path

import numpy as np
import pytest

from semisight.backbones import resolve
from semisight.backbones.onnx_file import OnnxBackbone, as_map
from semisight.errors import UserError
from tests.backbones.networks import CHANNELS, SIZE, pictures, right_map, write_network


def test_it_gives_what_the_network_says(tmp_path: Path) -> None:
    path = write_network(tmp_path / "tiny.onnx")
    pooled, grid = resolve(path), resolve(str(path), pooled=False, output="map")
    assert (pooled.name, pooled.licence, pooled.input_size) == ("tiny", "MIT", SIZE)
    assert pooled.feature_shape == (CHANNELS, 1, 1) and grid.feature_shape == (CHANNELS, 2, 2)
    images = pictures(7)
    right = right_map(images)
    assert grid.features(images).dtype == np.float32
    np.testing.assert_allclose(grid.features(images), right, atol=1e-4)
    np.testing.assert_allclose(pooled.features(images), right.mean((2, 3), keepdims=True), atol=1e-4)
    # prepared arrays are taken as they are
    prepared = pooled.preprocessing.normalised(images)
    np.testing.assert_array_equal(pooled.features(prepared), pooled.features(images))


def test_outputs_of_any_shape_become_maps(tmp_path: Path) -> None:
    path, images = write_network(tmp_path / "tiny.onnx"), pictures(3)
    right = right_map(images)
    np.testing.assert_allclose(resolve(path, output="map").features(images)[..., 0, 0], right.mean((2, 3)), atol=1e-4)
    np.testing.assert_allclose(resolve(path, output="tokens", pooled=False).features(images), right, atol=1e-4)
    with pytest.raises(UserError, match="no map in it"):
        resolve(path, output="pooled", pooled=False)
    tokens = np.arange(2 * 6 * 3, dtype=np.float32).reshape(2, 6, 3)  # two before the four places
    np.testing.assert_array_equal(as_map(tokens, True, "nchw", "")[..., 0, 0], tokens[:, 0])
    np.testing.assert_array_equal(as_map(tokens, False, "nchw", "")[:, :, 1, 0], tokens[:, 4])
    last = np.arange(2 * 3 * 3 * 4, dtype=np.float32).reshape(2, 3, 3, 4)
    np.testing.assert_array_equal(as_map(last, False, "nhwc", ""), last.transpose(0, 3, 1, 2))
    with pytest.raises(UserError, match=r"\[B, C\], \[B, C, h, w\] or \[B, T, C\]"):
        as_map(np.zeros(3, np.float32), True, "nchw", "it")


def test_a_network_for_one_size_of_batch_takes_any(tmp_path: Path) -> None:
    backbone = resolve(write_network(tmp_path / "fixed.onnx", batch=4), output="map", pooled=False)
    for n in (1, 4, 6):
        np.testing.assert_allclose(backbone.features(pictures(n)), right_map(pictures(n)), atol=1e-4)


def test_the_fingerprint_is_of_weights_preprocessing_and_output(tmp_path: Path) -> None:
    path = write_network(tmp_path / "a" / "tiny.onnx")
    first = resolve(path)
    assert resolve(write_network(tmp_path / "b" / "other-name.onnx")).fingerprint == first.fingerprint
    different = [
        resolve(write_network(tmp_path / "c" / "tiny.onnx", seed=1)),
        resolve(path, output="map"),
        resolve(path, output="map", pooled=False),
        resolve(path, preprocessing={"mean": 0.0}),
        resolve(path, preprocessing={"crop": 0.5}),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in different)}) == 6


def test_weights_in_a_file_beside_it_count(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    fingerprints = []
    for seed in (0, 1):
        model = onnx.load(str(write_network(tmp_path / f"{seed}" / "tiny.onnx", seed)))
        onnx.save(
            model, str(tmp_path / f"{seed}" / "tiny.onnx"), save_as_external_data=True, location="w", size_threshold=100
        )
        fingerprints.append(resolve(tmp_path / f"{seed}" / "tiny.onnx").fingerprint)
    assert (tmp_path / "0" / "tiny.onnx").read_bytes() == (tmp_path / "1" / "tiny.onnx").read_bytes()
    assert fingerprints[0] != fingerprints[1]


def test_a_worker_makes_the_same_network(tmp_path: Path) -> None:
    backbone = resolve(write_network(tmp_path / "tiny.onnx"), output="map", pooled=False)
    assert backbone.job is not None
    again = OnnxBackbone.from_job(backbone.job.network)
    np.testing.assert_array_equal(again.features(pictures(2)), backbone.features(pictures(2)))


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = write_network(tmp_path / "tiny.onnx", yaml=False)
    with pytest.raises(UserError, match=r"wants its images is not known. Write it to .*tiny\.yaml"):
        resolve(path)
    with pytest.raises(UserError, match=r"several outputs; choose one by `output`: map .*pooled .*tokens"):
        resolve(path, preprocessing={"size": SIZE})
    with pytest.raises(UserError, match="no output 'pool'"):
        resolve(path, output="pool", preprocessing={"size": SIZE})
    with pytest.raises(UserError, match="give `size`"):
        resolve(path, output="pooled", preprocessing={"mean": 0.5})
    with pytest.raises(UserError, match=r"cannot take images as float32 \[1, 3, 9, 9\]"):
        resolve(path, output="pooled", preprocessing={"size": 9})
    with pytest.raises(UserError, match=r"no setting 'men' of the preprocessing; did you mean mean\?"):
        resolve(path, output="pooled", preprocessing={"size": SIZE, "men": 0.5})
    path.with_suffix(".yaml").write_text("- size\n")
    with pytest.raises(UserError, match="should hold `name: value`"):
        resolve(path)
    path.with_suffix(".yaml").write_text("size: [")
    with pytest.raises(UserError, match="not valid YAML"):
        resolve(path)
    path.with_suffix(".yaml").unlink()
    (tmp_path / "noise.onnx").write_bytes(b"not a network")
    with pytest.raises(UserError, match="not an ONNX file"):
        resolve(tmp_path / "noise.onnx", preprocessing={"size": SIZE})
    with pytest.raises(UserError, match=r"pictures as uint8 \[B, 3, 8, 8\], not uint8 \[2, 3, 9, 9\]"):
        resolve(path, output="pooled", preprocessing={"size": SIZE}).features(pictures(2, size=9))
