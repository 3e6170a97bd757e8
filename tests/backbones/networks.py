"""A small random network as an ONNX file, and what it gives, worked out by numpy."""

from pathlib import Path

import numpy as np
import pytest

SIZE, CHANNELS, STRIDE = 8, 5, 4


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(CHANNELS, 3, STRIDE, STRIDE)).astype(np.float32)


def write_network(path: Path, seed: int = 0, *, batch: int | str = "n", yaml: bool = True) -> Path:
    """A strided convolution with ReLU: outputs `map` [n, 5, 2, 2], `pooled` [n, 5] and `tokens` [n, 4, 5]."""
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'semisight[photos]'")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'semisight[photos]'")
    helper, side = onnx.helper, SIZE // STRIDE
    make = helper.make_node
    nodes = [
        make("Conv", ["image", "w"], ["convolved"], strides=[STRIDE, STRIDE]),
        make("Relu", ["convolved"], ["map"]),
        make("ReduceMean", ["map", "axes"], ["pooled"], keepdims=0),
        make("Reshape", ["map", "rows"], ["flat"]),
        make("Transpose", ["flat"], ["tokens"], perm=[0, 2, 1]),
    ]
    constants = {
        "w": weights(seed),
        "axes": np.array([2, 3], np.int64),
        "rows": np.array([0, CHANNELS, side * side], np.int64),
    }
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("image", kind, [batch, 3, SIZE, SIZE])],
        [
            helper.make_tensor_value_info("map", kind, [batch, CHANNELS, side, side]),
            helper.make_tensor_value_info("pooled", kind, [batch, CHANNELS]),
            helper.make_tensor_value_info("tokens", kind, [batch, side * side, CHANNELS]),
        ],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, str(path))
    if yaml:
        path.with_suffix(".yaml").write_text(
            f"size: {SIZE}\nscale: 1\nmean: [100, 110, 120]\nstd: 50\noutput: pooled\nlicence: MIT\n"
        )
    return path


def right_map(pictures: np.ndarray, seed: int = 0) -> np.ndarray:
    """What `write_network` with its YAML file makes of uint8 [B, 3, 8, 8]: float64 [B, 5, 2, 2]."""
    mean = np.array([100, 110, 120]).reshape(3, 1, 1)
    x = (pictures.astype(np.float64) - mean) / 50
    side = SIZE // STRIDE
    blocks = x.reshape(len(x), 3, side, STRIDE, side, STRIDE)
    return np.maximum(np.einsum("bchiwj,kcij->bkhw", blocks, weights(seed)), 0)


def pictures(n: int, seed: int = 1, size: int = SIZE) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3, size, size), dtype=np.uint8)
