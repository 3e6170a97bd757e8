"""A network in an ONNX file, run by onnxruntime with one thread per process.

Its preprocessing stands in a YAML file beside it, model.yaml for model.onnx, or is given:

    size: 224
    crop: 0.875                    # of the short side; or squash: true
    interpolation: bicubic
    scale: 0.00392156862745098     # 1 / 255
    mean: [0.485, 0.456, 0.406]
    std: [0.229, 0.224, 0.225]
    channels: rgb
    layout: nchw
    output: last_hidden_state      # where the network has several
    licence: Apache-2.0

What an output is follows from its shape: [B, C] is pooled; [B, C, h, w] is a map (of layout nhwc: [B, h, w, C]), pooled
by its mean; [B, T, C] are tokens, of which the last, a square number, are the map, and the first, if it is not one of
them, is the pooled one.
Nothing here imports torch: worker processes start with this file.
"""

import functools
import hashlib
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semisight.data.preprocessing import Pictures, Preprocessing, WorkerJob, fingerprint_of
from semisight.errors import UserError
from semisight.untrusted import MOST_SETTINGS, parse_yaml, printable, read_text

NEEDS_EXTRA = "pip install 'semisight[photos]'"
WORKER = "semisight.backbones.worker"
_TYPES: dict[str, Any] = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
_BESIDE = ("output", "licence")  # of the YAML file, apart from the preprocessing


class OnnxBackbone:
    """An ONNX file as a backbone.

    Args:
        path: the file.
        preprocessing: what is done to images before.
        pooled: one vector for each image, else a map with places.
        output: its output's name; may be left out if it has only one.
        weights: a hash of the weights that the file was made from; by default the file's own.
    """

    def __init__(
        self,
        path: Path,
        preprocessing: Preprocessing,
        *,
        pooled: bool = True,
        output: str | None = None,
        name: str = "",
        licence: str = "not stated",
        weights: str | None = None,
    ) -> None:
        self.path, self.preprocessing, self.pooled, self.output = path, preprocessing, pooled, output
        self.name, self.licence = name or path.stem, licence
        self._weights = weights

    @classmethod
    def from_job(cls, network: Mapping[str, Any]) -> "OnnxBackbone":
        """As a worker process makes it from what `job` says."""
        preprocessing = Preprocessing.from_mapping(network["preprocessing"], network["path"])
        return cls(Path(network["path"]), preprocessing, pooled=network["pooled"], output=network["output"], weights="")

    @property
    def job(self) -> WorkerJob:
        shown = {"path": str(self.path.resolve()), "pooled": self.pooled, "output": self.output}
        return WorkerJob(WORKER, {**shown, "preprocessing": self.preprocessing.describe()})

    @property
    def input_size(self) -> int:
        return self.preprocessing.size

    @functools.cached_property
    def fingerprint(self) -> str:
        kind = "pooled" if self.pooled else "map"
        if self._weights is not None:  # converted: the same features as in torch
            return fingerprint_of(self._weights, self.preprocessing, kind)
        return fingerprint_of(_network_hash(self.path), self.preprocessing, f"{self._output} {kind}")

    @functools.cached_property
    def feature_shape(self) -> tuple[int, int, int]:
        size = self.input_size
        C, h, w = self.features(np.zeros((1, 3, size, size), np.uint8)).shape[1:]
        return (C, h, w)

    def features(self, pictures: Pictures | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """uint8 [B, 3, S, S], or float32 as the network itself takes it, to float32 [B, C, h, w]."""
        values = self.preprocessing.normalised(pictures).astype(_TYPES[self._input.type], copy=False)
        fixed = self._input.shape[0]
        if not isinstance(fixed, int):
            found = self._run(values)
        else:  # exported for batches of one size only: the last is filled up
            filled = np.concatenate([values, np.repeat(values[-1:], -len(values) % fixed, 0)])
            found = np.concatenate([self._run(filled[i : i + fixed]) for i in range(0, len(filled), fixed)])
        where = f"output {self._output!r} of {self.path.name}"
        return as_map(
            found[: len(values)].astype(np.float32, copy=False), self.pooled, self.preprocessing.layout, where
        )

    def _run(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        try:
            return np.asarray(self._session.run([self._output], {self._input.name: values})[0])
        except Exception as error:  # onnxruntime has exceptions of its own, without a common base
            raise UserError(
                f"{self.path} cannot take images as {values.dtype} {list(values.shape)}: {_first_line(error)}. "
                "Its preprocessing (size, layout) may be another one."
            ) from error

    @functools.cached_property
    def _session(self) -> Any:
        onnxruntime = runtime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            return onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise UserError(
                f"{self.path} is not an ONNX file that onnxruntime can run: {_first_line(error)}"
            ) from error

    @functools.cached_property
    def _input(self) -> Any:
        inputs = self._session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _TYPES:
            listed = ", ".join(f"{entry.name} {entry.type}" for entry in inputs)
            raise UserError(f"{self.path} takes {listed}; a backbone takes images alone, as floats")
        return inputs[0]

    @functools.cached_property
    def _output(self) -> str:
        outputs = {entry.name: entry.shape for entry in self._session.get_outputs()}
        if self.output is not None and self.output in outputs:
            return self.output
        if self.output is None and len(outputs) == 1:
            return next(iter(outputs))
        listed = ", ".join(f"{name} {shape}" for name, shape in outputs.items())
        wrong = "it has several outputs" if self.output is None else f"it has no output {self.output!r}"
        raise UserError(f"{self.path}: {wrong}; choose one by `output`: {listed}")


def open_onnx(
    path: Path,
    *,
    pooled: bool = True,
    output: str | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
) -> OnnxBackbone:
    """The user's own ONNX file; what is given here comes before what stands in the YAML file beside it."""
    runtime()
    beside = path.with_suffix(".yaml")
    settings = parse_yaml(read_text(beside, MOST_SETTINGS), str(beside)) if beside.is_file() else {}
    licence, named = str(settings.pop("licence", "not stated")), settings.pop("output", None)
    if preprocessing is None and not settings:
        raise UserError(
            f"how {path.name} wants its images is not known. Write it to {beside}, for instance\n"
            "  size: 224\n  mean: [0.485, 0.456, 0.406]\n  std: [0.229, 0.224, 0.225]\n"
            "or give it as preprocessing=dict(size=..., mean=..., std=...). Pixels are taken as "
            "(x * scale - mean) / std, x from 0 to 255, scale 1/255 unless given."
        )
    if not isinstance(preprocessing, Preprocessing):
        settings |= preprocessing or {}
        if "size" not in settings:
            raise UserError(f"{path.name}: the side of its input in pixels is missing: give `size`, for instance 224")
        preprocessing = Preprocessing.from_mapping(settings, str(beside if beside.is_file() else path))
    backbone = OnnxBackbone(path, preprocessing, pooled=pooled, output=output or named, name=path.stem, licence=licence)
    _ = backbone.feature_shape  # runs it once: what is wrong is said now, not by a worker
    return backbone


def as_map(values: npt.NDArray[np.float32], pooled: bool, layout: str, where: str) -> npt.NDArray[np.float32]:
    """Any output of a network as float32 [B, C, h, w]; see above."""
    if values.ndim == 4:
        maps = values.transpose(0, 3, 1, 2) if layout == "nhwc" else values
    elif values.ndim == 3:
        side = isqrt(values.shape[1])
        first = values.shape[1] - side * side
        if pooled and first:
            return values[:, 0, :, None, None]
        maps = values[:, first:].transpose(0, 2, 1).reshape(len(values), -1, side, side)
    elif values.ndim == 2:
        if not pooled:
            raise UserError(f"{where} has one vector for each image, [B, {values.shape[1]}]: there is no map in it")
        maps = values[:, :, None, None]
    else:
        raise UserError(f"{where} has shape {list(values.shape)}; features are [B, C], [B, C, h, w] or [B, T, C]")
    return maps.mean((2, 3), keepdims=True) if pooled else np.ascontiguousarray(maps)


def runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise UserError(f"pretrained networks run in onnxruntime: {NEEDS_EXTRA}") from None
    return onnxruntime


def file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _network_hash(path: Path) -> str:
    """Of an ONNX file and of the files beside it in which a large one keeps its weights."""
    try:
        import onnx
    except ImportError:
        return file_hash(path)
    model = onnx.load(str(path), load_external_data=False)
    beside = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in beside:  # onnxruntime refuses other places too; here nothing of them is even opened
        file = path.parent / name
        if not file.resolve().is_relative_to(path.parent.resolve()) or not file.is_file():
            raise UserError(f"{path} keeps its weights in {printable(name)!r}, which is no file beside it")
    return "".join(file_hash(file) for file in (path, *(path.parent / name for name in sorted(beside))))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200] or type(error).__name__
