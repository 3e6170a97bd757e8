"""The encoder with its heads as one ONNX file, checked against torch.

    images [B, C, H, W] in [0, 1]  ->  code, log_spread [B, J]; probabilities [B, C]; tag_probabilities [B, C];
                                       caption [B, T], -1 after the end

The same mathematics as the model's in plain operations, batch first, that any runtime knows. The caption is the greedy
one for the mean code. Names of classes and words stand in the file's metadata under "semisight", as JSON.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.data.preprocessing import Backbone
from semisight.errors import UserError
from semisight.files import atomic_path
from semisight.inference.export_backbone import merged
from semisight.model.architecture import Layer
from semisight.model.encoders.paper import PaperEncoder, PoolingMLP, after_pooling, below_code
from semisight.model.image_model import ImageModel

TOLERANCE = 1e-4
MAX_WORDS = 20
_OPSET = 18
_CHECKED = 7  # images; another number than the exporter saw
_ROUNDS = 30  # of timing


@dataclass(frozen=True)
class Exported:
    """What was written, how far it is from torch at most, and milliseconds for one image (median)."""

    file: Path
    outputs: tuple[str, ...]
    n_bytes: int
    difference: float
    torch_ms: float
    onnx_ms: float


class PlainEncoder(nn.Module):
    """`PaperEncoder.means` and the spread beside it, batch first."""

    def __init__(self, encoder: PaperEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        encoder, architecture = self.encoder, self.encoder.architecture
        c = (images - encoder.centre[..., 0]) / encoder.scale
        for index in architecture.pooled_layers:
            layer = architecture.layers[index]
            c = self._pooled(self._convolved(c, index, layer), index, layer)
            c = after_pooling(c.permute(1, 2, 3, 0), architecture.nonlinearity).permute(3, 0, 1, 2)
        last = len(architecture.layers) - 1
        top = self._convolved(c, last, architecture.layers[last])
        top = (
            below_code(top.permute(1, 2, 3, 0), architecture.nonlinearity).permute(3, 0, 1, 2).flatten(2)
        )  # [B, K, hw]
        mlp = encoder.code_mlp
        h = torch.tanh(torch.einsum("khs,bks->bkh", mlp.hidden, top) + mlp.hidden_bias[..., 0])
        mu = torch.einsum("ksh,bkh->bks", mlp.mu, h) + mlp.mu_bias[..., 0]
        log_sigma = torch.einsum("ksh,bkh->bks", mlp.log_sigma, h) + mlp.log_sigma_bias[..., 0]
        return mu.flatten(1), log_sigma.flatten(1)

    def _convolved(self, c: Tensor, index: int, layer: Layer) -> Tensor:
        before, after = layer.pad_before, layer.pad_total - layer.pad_before
        c = F.pad(c, (before, after, before, after)) if layer.pad_total else c
        return F.conv2d(c, self.encoder.filters[index], self.encoder.biases[index].flatten())

    def _pooled(self, maps: Tensor, index: int, layer: Layer) -> Tensor:
        p = layer.pool
        _, k, height, width = maps.shape
        blocks = maps.reshape(-1, k, height // p, p, width // p, p).permute(0, 1, 2, 4, 3, 5).flatten(4)
        if not self.encoder.has_places:
            return blocks.amax(-1)
        weights = cast(PoolingMLP, self.encoder.pooling_mlps[index])
        eta = (
            torch.tanh(blocks @ weights.inner.T + weights.inner_bias[:, 0]) @ weights.outer.T + weights.outer_bias[:, 0]
        )
        return (torch.softmax(eta, -1) * blocks).sum(-1)


class PlainMoments(nn.Module):
    """Mean and log spread of q(s | X) of any other encoder: these are plain operations already."""

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.code_moments(images)


class Answering(Protocol):
    """What an export asks of a reader: a name, the answer to mean codes [B, J] in plain operations, and its words."""

    @property
    def head(self) -> Any: ...

    @property
    def export_name(self) -> str: ...

    def exported(self, code: Tensor, max_words: int) -> Tensor: ...

    def export_about(self) -> dict[str, Any]: ...


class Whole(nn.Module):
    """The encoder with the heads that a run has; what it gives is in the order of `outputs`."""

    def __init__(self, model: ImageModel, readers: Sequence[Answering], max_words: int) -> None:
        super().__init__()
        plain = isinstance(model.encoder, PaperEncoder)
        self.encoder: nn.Module = PlainEncoder(cast(PaperEncoder, model.encoder)) if plain else PlainMoments(model)
        self.heads = nn.ModuleList(reader.head for reader in readers)
        self.readers, self.max_words = list(readers), max_words
        self.outputs = ["code", "log_spread", *(reader.export_name for reader in readers)]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        code, log_spread = self.encoder(images)
        return (code, log_spread, *(reader.exported(code, self.max_words) for reader in self.readers))


def export_onnx(
    model: ImageModel,
    readers: Sequence[Answering],
    out: Path,
    step: int = 0,
    max_words: int = MAX_WORDS,
    backbone: Backbone | None = None,
) -> Exported:
    """Writes the file, whole or not at all, once its answers were found equal to torch's; with the backbone inside, if
    the model takes features."""
    onnx, onnxruntime = _libraries()
    if not model.encoder.mean_is_exact:
        raise UserError(
            'the run was trained with pooling "sampled", whose codes are averages over draws: only "expected" and '
            '"max" give one answer that can be exported. Train with --pooling expected.'
        )
    for module in (model, *(reader.head for reader in readers)):
        module.cpu()
    whole = Whole(model, readers, max_words).eval()
    shape = model.architecture.image_shape
    example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    with atomic_path(out) as temporary:
        _export(whole, example, temporary)
        found = onnx.load(str(temporary))
        found = found if backbone is None else merged(found, backbone, _OPSET)
        entry = found.metadata_props.add()
        entry.key, entry.value = "semisight", json.dumps(_about(model, readers, step, backbone), ensure_ascii=False)
        onnx.checker.check_model(found)
        temporary.write_bytes(found.SerializeToString())
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        difference = _difference(model, whole, session, backbone)
        if not difference <= TOLERANCE:
            raise UserError(
                f"the exported model differs from torch by {difference:.2g}, more than {TOLERANCE:g}: nothing was "
                "written. Please report this with the settings of the run."
            )
        torch_ms, onnx_ms = _latency(model, whole, session, backbone)
        n_bytes = temporary.stat().st_size
    return Exported(out, tuple(whole.outputs), n_bytes, difference, torch_ms, onnx_ms)


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter wants it)
    except ImportError as error:
        raise UserError(f"export needs {error.name}: pip install 'semisight[onnx]'.") from None
    return onnx, onnxruntime


def _export(whole: Whole, example: Tensor, file: Path) -> None:
    import logging
    import warnings

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            whole,
            (example,),
            str(file),
            input_names=["images"],
            output_names=whole.outputs,
            opset_version=_OPSET,
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )


def _about(model: ImageModel, readers: Sequence[Answering], step: int, backbone: Backbone | None) -> dict[str, Any]:
    about: dict[str, Any] = {"image_shape": list(_input_shape(model, backbone)), "pixels": "0..1", "step": step}
    if backbone is not None:
        about |= {"backbone": backbone.name, "preprocessing": backbone.preprocessing.describe(), "view": "plain"}
    for reader in readers:
        about |= reader.export_about()
    return about


def _input_shape(model: ImageModel, backbone: Backbone | None) -> tuple[int, int, int]:
    return model.architecture.image_shape if backbone is None else (3, backbone.input_size, backbone.input_size)


def _seen(images: Tensor, backbone: Backbone | None) -> Tensor:
    """What the model itself takes of images that the file takes, whole numbers of 255ths."""
    if backbone is None:
        return images
    return torch.from_numpy(backbone.features((images * 255).round().byte().numpy()))


def _examples(model: ImageModel, backbone: Backbone | None, n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(n, *_input_shape(model, backbone), generator=generator)
    return images if backbone is None else (images * 255).round() / 255


@torch.no_grad()
def _expected(model: ImageModel, whole: Whole, images: Tensor) -> list[Tensor]:
    """What the model itself says, by its own fast encoder."""
    code, log_spread = model.code_moments(images)
    return [code, log_spread, *(reader.exported(code, whole.max_words) for reader in whole.readers)]


def _difference(model: ImageModel, whole: Whole, session: Any, backbone: Backbone | None) -> float:
    """The largest difference of any output from what the model itself says, over random images; words: 0 or 1."""
    images = _examples(model, backbone, _CHECKED, 1)
    found = [torch.from_numpy(value) for value in session.run(None, {"images": images.numpy()})]
    worst = 0.0
    for value, truth in zip(found, _expected(model, whole, _seen(images, backbone)), strict=True):
        if truth.is_floating_point():
            worst = max(worst, float((value - truth).abs().max()))
        else:
            worst = max(worst, float((value != truth).any()))
    return worst


def _latency(model: ImageModel, whole: Whole, session: Any, backbone: Backbone | None) -> tuple[float, float]:
    """Milliseconds for one image, torch and ONNX in turns; torch by the way it predicts with itself."""
    image = _examples(model, backbone, 1, 2)
    given = {"images": image.numpy()}
    ways: tuple[Callable[[], object], ...] = (
        lambda: _expected(model, whole, _seen(image, backbone)),
        lambda: session.run(None, given),
    )
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_ROUNDS + 3):
        for way, spent in zip(ways, times, strict=True):
            start = time.perf_counter()
            way()
            if number >= 3:
                spent.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])
