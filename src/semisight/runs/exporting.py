"""`semisight export` without its command line: the encoder with its heads as one ONNX file, checked against torch.

    images [B, C, H, W] in [0, 1]  ->  code, log_spread [B, J]; probabilities [B, C]; caption [B, T], -1 after the end

The same mathematics as the model's in plain operations, batch first, that any runtime knows. The caption is the greedy
one for the mean code. Names of classes and words stand in the file's metadata under "semisight", as JSON.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.data.vocabulary import UNKNOWN
from semisight.errors import UserError
from semisight.files import atomic_path
from semisight.model.architecture import Layer
from semisight.model.encoders.paper import PaperEncoder, PoolingMLP, after_pooling, below_code
from semisight.model.heads.captions import END, PADDING, CaptionHead
from semisight.runs.run import Run

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
        if self.encoder.pooling == "max":
            return blocks.amax(-1)
        weights = cast(PoolingMLP, self.encoder.pooling_mlps[index])
        eta = (
            torch.tanh(blocks @ weights.inner.T + weights.inner_bias[:, 0]) @ weights.outer.T + weights.outer_bias[:, 0]
        )
        return (torch.softmax(eta, -1) * blocks).sum(-1)


class Whole(nn.Module):
    """The encoder with the heads that a run has; what it gives is in the order of `outputs`."""

    def __init__(self, run: Run, max_words: int) -> None:
        super().__init__()
        self.encoder = PlainEncoder(run.model.encoder)
        self.outputs = ["code", "log_spread"]
        self.label_head: nn.Module | None = None
        self.caption_head: CaptionHead | None = None
        self.max_words = max_words
        if run.classifier is not None:
            self.label_head = cast(nn.Module, run.classifier.head)
            calibration = run.classifier.calibration
            self.register_buffer("scale", calibration.scale.float())
            self.register_buffer("offset", calibration.offset.float())
            self.outputs.append("probabilities")
        if run.captioner is not None:
            self.caption_head = run.captioner.head
            self.outputs.append("caption")

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        code, log_spread = self.encoder(images)
        found = [code, log_spread]
        if self.label_head is not None:
            decision = cast(Any, self.label_head).decision(code)
            found.append((decision * cast(Tensor, self.scale) + cast(Tensor, self.offset)).softmax(1))
        if self.caption_head is not None:
            found.append(greedy_captions(self.caption_head, code, self.max_words))
        return tuple(found)


def greedy_captions(head: CaptionHead, code: Tensor, max_words: int) -> Tensor:
    """int64 [B, T]: the most probable word after the words before it, ended by END, then -1; never the unknown word."""
    allowed = torch.zeros(head.vocab_size)
    allowed[UNKNOWN] = -torch.inf
    state, words = head.start(code), []
    open_ = torch.ones(code.shape[0], dtype=torch.bool)
    for t in range(max_words):
        best = (head.log_words(state) + allowed).argmax(-1)
        words.append(torch.where(open_, best, torch.full_like(best, PADDING)))
        open_ = open_ & (best != END)
        if t + 1 < max_words:
            state = head.step(best, state)
    return torch.stack(words, 1)


def export_onnx(run: Run, out: Path, max_words: int = MAX_WORDS) -> Exported:
    """Writes the file, whole or not at all, once its answers were found equal to torch's."""
    onnx, onnxruntime = _libraries()
    if run.model.pooling == "sampled":
        raise UserError(
            f'{run.folder.path} was trained with pooling "sampled", whose codes are averages over draws: only '
            '"expected" and "max" give one answer that can be exported. Train with --pooling expected.'
        )
    run = _on_cpu(run)
    whole = Whole(run, max_words).eval()
    shape = run.architecture.image_shape
    example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    with atomic_path(out) as temporary:
        _export(whole, example, temporary)
        model = onnx.load(str(temporary))
        entry = model.metadata_props.add()
        entry.key, entry.value = "semisight", json.dumps(_about(run), ensure_ascii=False)
        onnx.checker.check_model(model)
        temporary.write_bytes(model.SerializeToString())
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        difference = _difference(run, whole, session)
        if not difference <= TOLERANCE:
            raise UserError(
                f"the exported model differs from torch by {difference:.2g}, more than {TOLERANCE:g}: nothing was "
                "written. Please report this with the settings of the run."
            )
        torch_ms, onnx_ms = _latency(run, whole, session)
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


def _on_cpu(run: Run) -> Run:
    for module in (run.model, run.classifier and run.classifier.head, run.captioner and run.captioner.head):
        if isinstance(module, nn.Module):
            module.cpu()
    return run


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


def _about(run: Run) -> dict[str, Any]:
    about: dict[str, Any] = {"image_shape": list(run.architecture.image_shape), "pixels": "0..1", "step": run.step}
    if run.classifier is not None:
        about |= {"classes": list(run.classifier.class_names), "calibrated": run.classifier.calibrated}
    if run.captioner is not None:
        vocabulary = run.captioner.vocabulary
        about["words"] = [
            vocabulary.tokens([symbol])[0] if symbol > UNKNOWN else "" for symbol in range(len(vocabulary))
        ]
    return about


@torch.no_grad()
def _difference(run: Run, whole: Whole, session: Any) -> float:
    """The largest difference of any output from what the model itself says, over random images; captions: 0 or 1."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(_CHECKED, *run.architecture.image_shape, generator=generator)
    found = dict(zip(whole.outputs, session.run(None, {"images": images.numpy()}), strict=True))
    posterior = run.model.encode(images, generator)
    expected = {"code": posterior.mean, "log_spread": posterior.log_spread}
    if run.classifier is not None:
        decision = run.classifier.head.decision(posterior.mean)
        expected["probabilities"] = run.classifier.calibration.probabilities(decision)
    worst = max(float((torch.from_numpy(found[name]) - value).abs().max()) for name, value in expected.items())
    if run.captioner is not None:
        words = greedy_captions(run.captioner.head, posterior.mean, whole.max_words)
        worst = max(worst, float((torch.from_numpy(found["caption"]) != words).any()))
    return worst


@torch.no_grad()
def _latency(run: Run, whole: Whole, session: Any) -> tuple[float, float]:
    """Milliseconds for one image, torch and ONNX in turns; torch by the way it predicts with itself."""
    image = torch.rand(1, *run.architecture.image_shape, generator=torch.Generator().manual_seed(2))
    generator = torch.Generator().manual_seed(0)

    def by_torch() -> None:
        code = run.model.mean_code(image, generator)
        if run.classifier is not None:
            run.classifier.calibration.probabilities(run.classifier.head.decision(code))
        if run.captioner is not None:
            greedy_captions(run.captioner.head, code, whole.max_words)

    given = {"images": image.numpy()}
    ways: tuple[Callable[[], object], ...] = (by_torch, lambda: session.run(None, given))
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(_ROUNDS + 3):
        for way, spent in zip(ways, times, strict=True):
            start = time.perf_counter()
            way()
            if number >= 3:
                spent.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])
