"""Speed of a training step and of encoding, against the naive twin, VAE-d and a plain torch CNN."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.figures import Figure, Goal
from benchmarks.on_paper import step_flops
from benchmarks.timing import Rounds, interleave
from semisight.inference.encode import encode
from semisight.inference.labels import decide
from semisight.model.architecture import Architecture
from semisight.model.encoders.paper import CodeMLP, Pooling
from semisight.model.heads.labels import BayesianSVM
from semisight.model.image_model import ImageModel
from semisight.model.ops.pooling import FAST, NAIVE, Operators
from semisight.objectives.joint import Joint
from semisight.objectives.step import Batch, Rows
from semisight.training.config import TrainConfig
from semisight.training.optimiser import build_optimiser, clip


class TrainingStep:
    """Forward, backward, clip, Adam: what the trainer does with one batch, without its logs and files."""

    def __init__(
        self, architecture: Architecture, batch: int, pooling: Pooling = "expected", operators: Operators = FAST
    ) -> None:
        self.generator = torch.Generator().manual_seed(0)
        images = torch.rand(batch, *architecture.image_shape, generator=self.generator)
        model = ImageModel.of(architecture, pooling, operators=operators)
        model.start_from(images)
        self.objective = Joint(model).train()
        self.batch, self.rows = Batch(images, torch.arange(batch)), Rows(0, batch, batch)
        self.config = TrainConfig()
        self.parameters = dict(self.objective.named_parameters())
        self.optimiser = build_optimiser(self.parameters, self.objective.rate_multipliers(), self.config)

    def __call__(self) -> None:
        self.take(self.batch, self.rows)

    def take(self, batch: Batch, rows: Rows) -> None:
        step = self.objective(batch, self.generator, rows)
        self.optimiser.zero_grad(set_to_none=True)
        step.loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])
        clip(list(self.parameters.values()), norm, self.config.clip_norm)
        self.optimiser.step()
        self.objective.after_step(0)


class PlainCNN(nn.Module):
    """nn.Conv2d and max-pooling with the architecture's sizes, and on top the encoder's own MLP, for its mean alone."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.convolutions = nn.ModuleList(
            nn.Conv2d(shape.maps_below, layer.maps, layer.kernel, padding=layer.padding)
            for layer, shape in zip(architecture.layers, architecture.shapes, strict=True)
        )
        maps, height, width = architecture.code_shape
        self.code_mlp = CodeMLP(maps, height * width, torch.Generator().manual_seed(0))

    def forward(self, images: Tensor) -> Tensor:
        maps = images
        for convolution, layer in zip(self.convolutions, self.architecture.layers, strict=True):
            maps = convolution(maps)
            if layer.pool > 1:
                maps = F.max_pool2d(maps, layer.pool)
        mlp, vectors = self.code_mlp, maps.flatten(2).permute(1, 2, 0)  # [K, h*w, B]
        hidden = torch.tanh(torch.baddbmm(mlp.hidden_bias, mlp.hidden, vectors))
        return torch.baddbmm(mlp.mu_bias, mlp.mu, hidden).flatten(0, 1).T


def square_product(size: int) -> Callable[[], Tensor]:
    """The machine's own idea of speed: a large float32 product."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator) for _ in range(2))
    out = torch.empty(size, size)
    return lambda: torch.mm(a, b, out=out)


def measure_steps(
    name: str, architecture: Architecture, batch: int, rounds: int, turn: float, mm_size: int
) -> Iterator[Figure]:
    ways: dict[str, Callable[[], object]] = {
        "fast": TrainingStep(architecture, batch),
        "naive": TrainingStep(architecture, batch, operators=NAIVE),
        "vae-d": TrainingStep(architecture, batch, pooling="max"),
        "mm": square_product(mm_size),
    }
    measured = interleave(ways, rounds, turn)
    title = f"{name} training step against the naive twin"
    yield _figure(title, measured, "naive", "fast", batch, Goal(">=", 3, must=2), "times faster")
    yield _figure(f"{name} training step against VAE-d", measured, "fast", "vae-d", batch, Goal("<=", 1.5))
    flops, mm_flops = step_flops(architecture, batch), 2.0 * mm_size**3
    share = measured.ratio("mm", "fast") * flops.done / mm_flops
    details = _details(measured, "mm", "fast", batch) | {
        "share_without_zeros": share * flops.needed / flops.done,
        "step_gflop": flops.done / 1e9,
        "step_gflop_per_s": flops.done / 1e9 / measured.median("fast"),
        "mm_gflop_per_s": mm_flops / 1e9 / measured.median("mm"),
        "mm_size": mm_size,
    }
    del details["middle_half"]  # of a ratio of times, which is not the share
    yield Figure(f"{name} training step, share of the matrix-product peak", share, "share", None, details)


def measure_encoding(name: str, architecture: Architecture, images: int, rounds: int, turn: float) -> Iterator[Figure]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(images, *architecture.image_shape, generator=generator)
    model = ImageModel.of(architecture).eval()
    model.start_from(x)
    cnn = PlainCNN(architecture).eval()
    head = BayesianSVM(architecture.code_size, n_classes=10)
    ways: dict[str, Callable[[], object]] = {
        "encode": lambda: model.mean_code(x, generator),
        "cnn": lambda: cnn(x),
        "predict": lambda: decide(head, encode(model, x, generator)),
    }
    with torch.no_grad():
        measured = interleave(ways, rounds, turn)
    yield _figure(f"{name} encoding against a plain torch CNN", measured, "encode", "cnn", images, Goal("<=", 1.5))
    title = f"{name} labels from 50 codes against one pass of the encoder"
    yield _figure(title, measured, "predict", "encode", images, Goal("<=", 2))


def _figure(
    title: str, measured: Rounds, above: str, below: str, batch: int, goal: Goal, unit: str = "times its time"
) -> Figure:
    return Figure(title, measured.ratio(above, below), unit, goal, _details(measured, above, below, batch))


def _details(measured: Rounds, above: str, below: str, batch: int) -> dict[str, object]:
    return {
        "batch": batch,
        "seconds": {name: measured.median(name) for name in (above, below)},
        "middle_half": measured.range_of_ratio(above, below),
        "rounds": measured.count,
        "clock": measured.clock,
    }
