"""A backbone inside an exported file: whatever its output is, heads behind it see what `features` gives."""

from pathlib import Path

import numpy as np
import pytest

from semisight.backbones.onnx_file import OnnxBackbone
from semisight.data.preprocessing import Preprocessing
from semisight.inference.export_backbone import merged
from tests.backbones.networks import pictures

SIZE, OPSET = 10, 18  # 300 numbers in each picture
OUTPUTS = {  # name: layout, output of a network that only arranges its input anew, known number of tokens
    "vector": ("nchw", [0, 300], True),
    "map": ("nchw", [0, 12, 5, 5], True),
    "map, channels last": ("nhwc", [0, 5, 5, 12], True),
    "tokens": ("nchw", [0, 4, 75], True),
    "tokens after one of the whole image": ("nchw", [0, 5, 60], True),
    "tokens of unknown number": ("nchw", [0, 5, 60], False),
}


def network(path: Path, layout: str, shape: list[int], known: bool) -> Path:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install 'semisight[photos]'")
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'semisight[photos]'")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    given = [SIZE, SIZE, 3] if layout == "nhwc" else [3, SIZE, SIZE]
    out = ["n", *shape[1:]] if known else ["n", "tokens", shape[2]]
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["image", "shape"], ["found"])],
        "arranged",
        [helper.make_tensor_value_info("image", kind, ["n", *given])],
        [helper.make_tensor_value_info("found", kind, out)],
        [onnx.numpy_helper.from_array(np.array(shape, np.int64), "shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10), str(path))
    return path


def no_heads(shape: tuple[int, int, int]):  # type: ignore[no-untyped-def]
    """A model that gives what it takes."""
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    given, found = (helper.make_tensor_value_info(name, kind, ["batch", *shape]) for name in ("images", "features"))
    graph = helper.make_graph([helper.make_node("Identity", ["images"], ["features"])], "heads", [given], [found])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("output", OUTPUTS)
def test_heads_see_the_features_of_the_network(tmp_path: Path, output: str, pooled: bool) -> None:
    if output == "vector" and not pooled:
        pytest.skip("a vector has no places")
    if output == "tokens of unknown number" and pooled:
        pytest.skip("whether the first of so many tokens is of the whole image cannot be told: export says so")
    layout, shape, known = OUTPUTS[output]
    file = network(tmp_path / "network.onnx", layout, shape, known)
    how = Preprocessing.from_mapping({"size": SIZE, "mean": [0.1, 0.2, 0.3], "std": 0.5, "layout": layout}, "here")
    backbone = OnnxBackbone(file, how, pooled=pooled)
    import onnxruntime

    whole = merged(no_heads(backbone.feature_shape), backbone, OPSET).SerializeToString()
    session = onnxruntime.InferenceSession(whole, providers=["CPUExecutionProvider"])
    for n in (1, 3):
        seen = pictures(n, size=SIZE)
        (found,) = session.run(None, {"images": seen.astype(np.float32) / 255})
        right = backbone.features(seen)
        assert found.shape == right.shape == (n, *backbone.feature_shape)
        np.testing.assert_allclose(found, right, atol=1e-5)
