"""A model repository for NVIDIA's Triton inference server, which KServe runs too: the exported model and what it takes.

    REPOSITORY/NAME/1/model.onnx      the encoder with its heads (export.py), version 1
    REPOSITORY/NAME/config.pbtxt      names, types and shapes of inputs and outputs, read from that file
    REPOSITORY/NAME/labels.txt        the classes, a line for each, where labels were learned

Requests are answered together up to `max_batch` images; Triton gathers them itself. The first axis of every input and
output is the number of images, which config.pbtxt leaves out.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from semisight.errors import UserError
from semisight.files import bundle
from semisight.inference.export import Exported

FILES = ("config.pbtxt", "labels.txt", "1/model.onnx")
_TYPES = {"FLOAT": "TYPE_FP32", "DOUBLE": "TYPE_FP64", "FLOAT16": "TYPE_FP16", "INT32": "TYPE_INT32",
          "INT64": "TYPE_INT64"}  # fmt: skip
_LABELLED = "probabilities"  # the output that labels.txt is of


def model_name(folder: str) -> str:
    """A name that Triton takes and that is safe in an address, from that of a run's folder."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", folder).strip("-.") or "semisight"


def write_repository(folder: Path, max_batch: int, export: Callable[[Path], Exported]) -> Exported:
    """Writes REPOSITORY/NAME, all of it or nothing; `export` writes the ONNX file to where it is told."""
    import onnx

    with bundle(folder, remove=FILES) as new:
        done = export(new / "1" / "model.onnx")
        model = onnx.load(str(new / "1" / "model.onnx"))
        labels = _labels(model)
        (new / "config.pbtxt").write_text(config(model, folder.name, max_batch, bool(labels)), encoding="utf-8")
        if labels:
            (new / "labels.txt").write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    return done


def config(model: Any, name: str, max_batch: int, labelled: bool) -> str:
    """config.pbtxt of an ONNX model."""
    inputs = [_tensor(value) for value in model.graph.input]
    outputs = [
        _tensor(value, ['label_filename: "labels.txt"'] if labelled and value.name == _LABELLED else [])
        for value in model.graph.output
    ]
    return (
        f'name: "{name}"\nbackend: "onnxruntime"\nmax_batch_size: {max_batch}\n'
        f"input [\n{_joined(inputs)}\n]\noutput [\n{_joined(outputs)}\n]\ndynamic_batching {{ }}\n"
    )


def _tensor(value: Any, more: list[str] | None = None) -> str:
    import onnx

    kind = value.type.tensor_type
    first, *rest = kind.shape.dim
    type_name = onnx.TensorProto.DataType.Name(kind.elem_type)
    if first.HasField("dim_value") or type_name not in _TYPES:
        raise UserError(f"{value.name} is {type_name} of {first.dim_value} images: Triton cannot batch it.")
    sides = [side.dim_value if side.HasField("dim_value") else -1 for side in rest]
    lines = [f'name: "{value.name}"', f"data_type: {_TYPES[type_name]}", f"dims: [ {', '.join(map(str, sides))} ]"]
    return "  {\n" + "".join(f"    {line}\n" for line in [*lines, *(more or [])]) + "  }"


def _joined(parts: list[str]) -> str:
    return ",\n".join(parts)


def _labels(model: Any) -> list[str]:
    """The names of the classes, on one line each: a line's number is a class's."""
    about: dict[str, Any] = next(
        (json.loads(entry.value) for entry in model.metadata_props if entry.key == "semisight"), {}
    )
    return [" ".join(str(label).split()) for label in about.get("classes", ())]
