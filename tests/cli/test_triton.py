"""A model repository for Triton: its configuration can be parsed, and says of the ONNX file beside it what is true."""

from pathlib import Path
from typing import Any

import pytest

from semisight.errors import UserError
from semisight.inference.triton import config, model_name
from semisight.runs.run import load_run
from tests.cli.commands import ok, refused

onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")

# The part of Triton's model_config.proto that we write: (name, type, repeated, message).
_FIELDS = {
    "ModelInput": [("name", "STRING", 0, ""), ("data_type", "ENUM", 0, "DataType"), ("dims", "INT64", 1, "")],
    "ModelOutput": [
        ("name", "STRING", 0, ""), ("data_type", "ENUM", 0, "DataType"), ("dims", "INT64", 1, ""),
        ("label_filename", "STRING", 0, ""),
    ],
    "ModelDynamicBatching": [("max_queue_delay_microseconds", "UINT64", 0, "")],
    "ModelConfig": [
        ("name", "STRING", 0, ""), ("backend", "STRING", 0, ""), ("max_batch_size", "INT32", 0, ""),
        ("input", "MESSAGE", 1, "ModelInput"), ("output", "MESSAGE", 1, "ModelOutput"),
        ("dynamic_batching", "MESSAGE", 0, "ModelDynamicBatching"),
    ],
}  # fmt: skip
_TYPES = {"TYPE_INT32": 8, "TYPE_INT64": 9, "TYPE_FP16": 10, "TYPE_FP32": 11, "TYPE_FP64": 12}
_ONNX = {"TYPE_FP32": "tensor(float)", "TYPE_INT64": "tensor(int64)"}


def parsed(text: str) -> Any:
    """As Triton reads it: an unknown name or a wrong kind of value is an error."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")
    enum = file.enum_type.add(name="DataType")
    enum.value.add(name="TYPE_INVALID", number=0)
    for name, number in _TYPES.items():
        enum.value.add(name=name, number=number)
    for message, fields in _FIELDS.items():
        of = file.message_type.add(name=message)
        for number, (name, kind, repeated, type_name) in enumerate(fields, start=1):
            field = of.field.add(name=name, number=number, label=3 if repeated else 1)
            field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
            if type_name:
                field.type_name = f".inference.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind_of = message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))
    return text_format.Parse(text, kind_of())


@pytest.mark.timeout(300)  # torch's exporter takes a minute on a busy machine
def test_the_configuration_is_that_of_the_file(labelled_run: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    said = ok("export", labelled_run, "--triton", repository, "--name", "my photos", "--max-batch", "16")
    folder = repository / "my-photos"
    assert str(folder) in said and "tritonserver --model-repository" in said
    assert sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()) == [
        "1/model.onnx", "config.pbtxt", "labels.txt",
    ]  # fmt: skip
    found = parsed((folder / "config.pbtxt").read_text())
    assert (found.name, found.backend, found.max_batch_size) == ("my-photos", "onnxruntime", 16)
    assert found.HasField("dynamic_batching")
    session = onnxruntime.InferenceSession(str(folder / "1" / "model.onnx"), providers=["CPUExecutionProvider"])
    kinds = {value: name for name, value in _TYPES.items()}
    for ours, theirs in ((found.input, session.get_inputs()), (found.output, session.get_outputs())):
        assert [(one.name, _ONNX[kinds[one.data_type]], list(one.dims)) for one in ours] == [
            (one.name, one.type, one.shape[1:]) for one in theirs
        ]
        assert all(not isinstance(one.shape[0], int) for one in theirs)  # any number of images
    (labelled,) = (one for one in found.output if one.label_filename)
    names = (folder / labelled.label_filename).read_text().splitlines()
    assert labelled.name == "probabilities" and names == list(load_run(labelled_run).labels.class_names)
    assert list(labelled.dims) == [len(names)]
    # what is there is not replaced unasked
    assert "already" in refused("export", labelled_run, "--triton", repository, "--name", "my photos")
    for places in ((), ("--triton", repository, "--out", tmp_path / "x.onnx")):
        assert "--triton REPOSITORY" in refused("export", labelled_run, *places)


def test_a_network_for_a_fixed_number_of_images_is_refused() -> None:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["images"], ["code"])],
        "fixed",
        [value("images", onnx.TensorProto.FLOAT, [4, 3])],
        [value("code", onnx.TensorProto.FLOAT, [4, 3])],
    )
    with pytest.raises(UserError, match="cannot batch"):
        config(onnx.helper.make_model(graph), "fixed", 8, labelled=False)


def test_names() -> None:
    assert [model_name(name) for name in ("photos-2", "My run!", "..")] == ["photos-2", "My-run", "semisight"]
