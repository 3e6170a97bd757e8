"""A pretrained network and what was learned on its features as one ONNX graph, from pixels to answers.

    images [B, 3, S, S] in [0, 1]  ->  as the network takes them  ->  network  ->  features [B, C, h, w]  ->  heads

What is done before, cropping and scaling to S x S pixels, stands in the file's metadata. The graph sees the plain view
of an image; `semisight predict` averages over all views that the run has learned with.
"""

from math import isqrt
from typing import Any

import numpy as np

from semisight.data.preprocessing import Backbone
from semisight.errors import UserError


def merged(heads: Any, backbone: Backbone, opset: int) -> Any:
    """The network before `heads`, an ONNX model that takes features [B, C, h, w] as `images`."""
    import onnx

    job = backbone.job
    if job is None or "path" not in job.network:
        raise UserError(
            f"{backbone.name} does not run in onnxruntime here, so that it has no place in an ONNX file: give the run "
            "an .onnx file as its backbone."
        )
    network = onnx.load(str(job.network["path"]))
    if any(entry.domain in ("", "ai.onnx") and entry.version != opset for entry in network.opset_import):
        network = onnx.version_converter.convert_version(network, opset)
    network = onnx.compose.add_prefix(network, "backbone/")
    (entry,) = network.graph.input
    if entry.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise UserError(f"{backbone.name} does not take 32-bit numbers: it cannot be exported with the heads.")
    named = job.network["output"]
    outputs = [one for one in network.graph.output if named is None or one.name == f"backbone/{named}"]
    before, after = _before(backbone, entry), _after(backbone, outputs[0], job.network["pooled"])
    result = before
    for model in (before, network, after):  # as onnx wants it of what is put together; heads has what runtimes know
        model.ir_version = heads.ir_version
        del model.opset_import[:]
        model.opset_import.extend(heads.opset_import)
    for model in (network, after, heads):
        given = result.graph.output[0].name if model is not after else outputs[0].name
        result = onnx.compose.merge_models(result, model, io_map=[(given, model.graph.input[0].name)],
                                           outputs=[one.name for one in model.graph.output])  # fmt: skip
    return result


def _before(backbone: Backbone, entry: Any) -> Any:
    """Pixels in [0, 1] as the network takes them: (255 x * scale - mean) / std, its order of colours, its layout."""
    from onnx import TensorProto, helper, numpy_helper

    how = backbone.preprocessing
    mean, std = (np.broadcast_to(np.asarray(value, np.float64), 3) for value in (how.mean, how.std))
    constants = {
        "pixels/factor": (255 * how.scale / std).astype(np.float32).reshape(1, 3, 1, 1),
        "pixels/offset": (-mean / std).astype(np.float32).reshape(1, 3, 1, 1),
    }
    nodes = [
        helper.make_node("Mul", ["images", "pixels/factor"], ["pixels/scaled"]),
        helper.make_node("Add", ["pixels/scaled", "pixels/offset"], ["pixels/shifted"]),
    ]
    last = "pixels/shifted"
    if how.channels == "bgr":
        constants["pixels/order"] = np.array([2, 1, 0], np.int64)
        nodes.append(helper.make_node("Gather", [last, "pixels/order"], ["pixels/bgr"], axis=1))
        last = "pixels/bgr"
    if how.layout == "nhwc":
        nodes.append(helper.make_node("Transpose", [last], ["pixels/nhwc"], perm=[0, 2, 3, 1]))
        last = "pixels/nhwc"
    size = how.size
    shape: list[str | int | None] = ["batch", 3, size, size]
    out_shape: list[str | int | None] = ["batch", size, size, 3] if how.layout == "nhwc" else shape
    graph = helper.make_graph(
        nodes,
        "pixels",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, out_shape)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph)


def _after(backbone: Backbone, output: Any, pooled: bool) -> Any:
    """Any output of a network as features [B, C, h, w], as backbones/onnx_file.py reads it."""
    from onnx import TensorProto, helper, numpy_helper

    axes = output.type.tensor_type.shape.dim
    nhwc = backbone.preprocessing.layout == "nhwc"
    constants: dict[str, Any] = {}
    nodes: list[Any] = []

    def then(kind: str, constant: Any = None, **attributes: Any) -> None:
        last = nodes[-1].output[0] if nodes else "features/given"
        inputs, name = [last], f"features/{len(nodes)}"
        if constant is not None:
            constants[f"{name}/constant"] = np.array(constant, np.int64)
            inputs.append(f"{name}/constant")
        nodes.append(helper.make_node(kind, inputs, [name], **attributes))

    if len(axes) == 4:
        if pooled:
            then("ReduceMean", [1, 2] if nhwc else [2, 3], keepdims=0)
        elif nhwc:
            then("Transpose", perm=[0, 3, 1, 2])
    elif len(axes) == 3:
        tokens = axes[1].dim_value
        if not pooled:
            _, h, w = backbone.feature_shape
            then("Gather", list(range(-h * w, 0)), axis=1)  # those before are of the whole image
            then("Transpose", perm=[0, 2, 1])
        elif tokens and tokens != isqrt(tokens) ** 2:
            then("Gather", 0, axis=1)
        else:
            then("ReduceMean", [1], keepdims=0)
    elif len(axes) != 2:
        raise UserError(f"an output of {len(axes)} axes cannot be read in an ONNX file.")
    then("Reshape", [0, *backbone.feature_shape])
    shape = [dim.dim_value or "batch" if i == 0 else dim.dim_value or None for i, dim in enumerate(axes)]
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, ["batch", *backbone.feature_shape])
    graph = helper.make_graph(
        nodes,
        "features",
        [helper.make_tensor_value_info("features/given", TensorProto.FLOAT, shape)],
        [out],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph)
