"""A network in torch as an ONNX file in the user's folder for caches: converted once, checked, never half written.

CACHE/backbones/NAME-HASH.onnx    outputs `pooled` [B, C] and, where there is one, `map` [B, C, h, w]
CACHE/backbones/NAME-HASH.json    checksum of the file, and how far its answers were from torch's at most
"""

import contextlib
import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from semisight.backbones.onnx_file import NEEDS_EXTRA, OnnxBackbone, file_hash
from semisight.data.image_cache import default_cache
from semisight.data.preprocessing import Pictures, Preprocessing, fingerprint_of
from semisight.errors import UserError
from semisight.files import atomic_path, write_atomic

TOLERANCE = 1e-4  # of the largest value, or of 1 if that is larger
_OPSET = 18
_CHECKED = 3  # images; another number than the exporter sees


class Unconvertible(Exception):
    """Why a network cannot become an ONNX file; it then runs in torch."""


class TorchBackbone:
    """A network that runs in torch, in this process: for those that cannot be converted."""

    job = None

    def __init__(
        self, network: nn.Module, weights: str, preprocessing: Preprocessing, *, pooled: bool, name: str, licence: str
    ) -> None:
        self.name, self.licence, self.preprocessing, self.pooled = name, licence, preprocessing, pooled
        self.fingerprint = fingerprint_of(weights, preprocessing, "pooled" if pooled else "map")
        self._network = network
        size = preprocessing.size
        C, h, w = self.features(np.zeros((1, 3, size, size), np.uint8)).shape[1:]
        self.feature_shape = (int(C), int(h), int(w))

    @property
    def input_size(self) -> int:
        return self.preprocessing.size

    def features(self, pictures: Pictures | npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """uint8 [B, 3, S, S], or float32 as the network itself takes it, to float32 [B, C, h, w]."""
        with torch.inference_mode():
            found = self._network(torch.from_numpy(self.preprocessing.normalised(pictures)))
        return choose(found, self.pooled, self.name).float().numpy()


def choose(found: tuple[Tensor, ...], pooled: bool, name: str) -> Tensor:
    """`pooled` [B, C] or `map` [B, C, h, w] as [B, C, h, w]."""
    if pooled:
        return found[0][:, :, None, None]
    if len(found) < 2:
        raise UserError(f"{name} has one vector for each image: there is no map in it; take pooled features")
    return found[1]


def as_backbone(
    network: Callable[[], nn.Module],
    weights: str,
    preprocessing: Preprocessing,
    *,
    pooled: bool,
    name: str,
    licence: str,
    must_convert: bool = False,
) -> OnnxBackbone | TorchBackbone:
    """A network as a backbone, by onnxruntime where it can be converted, else in torch.

    network  makes it: images as preprocessed to a tuple (pooled,) or (pooled, map); called only if it was not converted
    weights  a hash of all that decides what it makes of images
    """
    try:
        file, outputs = converted(network, weights, preprocessing, name)
    except Unconvertible as reason:
        if must_convert:
            raise UserError(f"{name} could not be converted to ONNX: {reason}") from reason
        return TorchBackbone(network(), weights, preprocessing, pooled=pooled, name=name, licence=licence)
    output = "pooled" if pooled else "map"
    if output not in outputs:
        raise UserError(f"{name} has one vector for each image: there is no map in it; take pooled features")
    return OnnxBackbone(file, preprocessing, pooled=pooled, output=output, name=name, licence=licence, weights=weights)


def converted(
    network: Callable[[], nn.Module], weights: str, preprocessing: Preprocessing, name: str
) -> tuple[Path, list[str]]:
    """The ONNX file and its outputs, from the cache if it is there and whole."""
    folder = default_cache() / "backbones"
    form = f"{weights} {preprocessing.size} {preprocessing.layout} {_OPSET}"
    stem = f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:60]}-{hashlib.sha256(form.encode()).hexdigest()[:16]}"
    file, about = folder / f"{stem}.onnx", folder / f"{stem}.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        known = json.loads(about.read_text(encoding="utf-8"))
        if known["sha256"] == file_hash(file):
            return file, list(known["outputs"])
    made = network().eval()
    example = _example(1, preprocessing)
    try:
        with torch.inference_mode():
            outputs = ["pooled", "map"][: len(made(example))]
    except (RuntimeError, ValueError, TypeError) as error:
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(
            f"{name} cannot take images as float32 {list(example.shape)}: {first}. Its preprocessing (size, layout) "
            "may be another one."
        ) from error
    with atomic_path(file) as temporary:
        difference = _export(made, temporary, outputs, preprocessing)
        digest = file_hash(temporary)
    about_it = {"name": name, "sha256": digest, "outputs": outputs, "difference_from_torch": difference}
    write_atomic(about, json.dumps(about_it))
    return file, outputs


def _example(n: int, preprocessing: Preprocessing) -> Tensor:
    pixels = np.random.default_rng(n).integers(0, 256, (n, 3, preprocessing.size, preprocessing.size), dtype=np.uint8)
    return torch.from_numpy(preprocessing.normalised(pixels))


def _export(network: nn.Module, file: Path, outputs: list[str], preprocessing: Preprocessing) -> float:
    """Writes the file; gives how far its answers are from torch's at most."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise Unconvertible(f"{error.name} is needed: {NEEDS_EXTRA}") from error
    names: dict[str, Any] = {"input_names": ["images"], "output_names": outputs, "opset_version": _OPSET}
    # Tracing takes a second, torch's newer exporter ten, but it understands more networks.
    traced: dict[str, Any] = {"dynamo": False, "dynamic_axes": {name: {0: "batch"} for name in ("images", *outputs)}}
    batch = torch.export.Dim("batch", min=1)
    newer: dict[str, Any] = {"dynamo": True, "dynamic_shapes": ({0: batch},), "external_data": False}
    reason = ""
    for how in (traced, newer):
        try:
            # The exporters print and warn about their own workings.
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
                warnings.simplefilter("ignore")
                torch.onnx.export(network, (_example(2, preprocessing),), str(file), verbose=False, **names, **how)
            difference = _difference(network, file, outputs, preprocessing)
        except Exception as error:  # whatever a network does that an exporter does not know
            first = (str(error).splitlines() or [""])[0][:200]
            reason = f"{type(error).__name__}: {first}"
            continue
        if difference <= TOLERANCE:  # NaN is not
            return difference
        reason = f"its answers differ from torch's by {difference:.1g}"
    raise Unconvertible(reason)


def _difference(network: nn.Module, file: Path, outputs: list[str], preprocessing: Preprocessing) -> float:
    """The largest difference between the file's answers and torch's, relative to the largest answer above 1."""
    example = _example(_CHECKED, preprocessing)
    with torch.inference_mode():
        wanted = cast(tuple[Tensor, ...], network(example))
    worst = 0.0
    for output, right in zip(outputs, wanted, strict=True):
        run = OnnxBackbone(file, preprocessing, pooled=output == "pooled", output=output, weights="")
        found = torch.from_numpy(run.features(example.numpy()))
        right = right.reshape(found.shape)
        worst = max(worst, float((found - right).abs().max() / right.abs().max().clamp(min=1)))
    return worst
