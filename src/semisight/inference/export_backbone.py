"""A pretrained network and what was learned on its features as one ONNX graph, from pixels to answers.

    images [B, 3, S, S] in [0, 1]  ->  as the network takes them  ->  network  ->  pooled [B, C, 1, 1]  ->  heads

What is done before, cropping and scaling to S x S pixels, stands in the file's metadata. The graph sees the plain view
of an image; `semisight predict` averages over all views that the run has learned with.
"""

from typing import Any

import numpy as np

from semisight.data.preprocessing import Backbone
from semisight.errors import UserError


def merged(heads: Any, backbone: Backbone, opset: int) -> Any:
    """The network before `heads`, an ONNX model that takes features [B, C, 1, 1] as `images`."""
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
    if not job.network["pooled"]:
        raise UserError("a run on maps of features with their places cannot be exported yet: train without --grid.")
    named = job.network["output"]
    outputs = [one for one in network.graph.output if named is None or one.name == f"backbone/{named}"]
    before, after = _before(backbone, entry), _after(backbone, outputs[0])
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


def _after(backbone: Backbone, output: Any) -> Any:
    """Any output of a network as pooled features [B, C, 1, 1], as backbones/onnx_file.py reads it."""
    from onnx import TensorProto, helper, numpy_helper

    n_axes = len(output.type.tensor_type.shape.dim)
    channels = backbone.feature_shape[0]
    constants = {"pool/shape": np.array([0, channels, 1, 1], np.int64)}
    nodes, last = [], "pool/given"
    if n_axes == 4:
        constants["pool/axes"] = np.array([1, 2] if backbone.preprocessing.layout == "nhwc" else [2, 3], np.int64)
    elif n_axes == 3:
        tokens = output.type.tensor_type.shape.dim[1].dim_value
        side = int(tokens**0.5)
        if tokens and tokens != side * side:  # the first is of the whole image
            constants["pool/first"] = np.array(0, np.int64)
            nodes.append(helper.make_node("Gather", [last, "pool/first"], ["pool/token"], axis=1))
            last = "pool/token"
        else:
            constants["pool/axes"] = np.array([1], np.int64)
    elif n_axes != 2:
        raise UserError(f"an output of {n_axes} axes cannot be pooled in an ONNX file.")
    if "pool/axes" in constants:
        nodes.append(helper.make_node("ReduceMean", [last, "pool/axes"], ["pool/mean"], keepdims=0))
        last = "pool/mean"
    nodes.append(helper.make_node("Reshape", [last, "pool/shape"], ["pool/features"]))
    shape = [dim.dim_value or "batch" if i == 0 else dim.dim_value or None
             for i, dim in enumerate(output.type.tensor_type.shape.dim)]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "pool",
        [helper.make_tensor_value_info("pool/given", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("pool/features", TensorProto.FLOAT, ["batch", channels, 1, 1])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph)
