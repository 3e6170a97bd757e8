"""A model so small that a whole training takes a fraction of a second: a noisy linear autoencoder.

    h ~ N(X W, 1/100),   bound = -|X - h V - c|^2,   and a running mean of h that only after_step moves

As a program it trains in a folder, for the tests that kill, signal or multiply processes:
    python -m tests.training.toy RUN [setting=value ...] [--resume] [--pause SECONDS] [--models]
In the end it tries once more to train in the same folder, which is refused.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.data.augment import Augment
from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.model.posterior import NetworkEncoder
from semisight.objectives.consistency import Consistency
from semisight.objectives.gradients import GradientName, gradient_named
from semisight.objectives.joint import Joint
from semisight.objectives.labels import Labels
from semisight.objectives.step import Batch, Rows, Step, Teacher, sum_over_processes
from semisight.training.config import TrainConfig
from semisight.training.interrupts import Interrupted
from semisight.training.trainer import Fitted, Trainer

PIXELS, HIDDEN = 12, 3
GRADIENTS: tuple[GradientName, ...] = ("local", "nvil")
MODELS = (*GRADIENTS, "deep", "own")
STILL = Augment(0, 0, 0, 0, 0, 0, 0)  # in 32-bit numbers an augmentation differs in the last bit between batches


@dataclass(frozen=True)
class ToyImages:
    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, index: Tensor) -> Tensor:
        return self.images[index]


def toy_images(n: int = 72, seed: int = 0) -> ToyImages:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.rand(n, HIDDEN, generator=generator)
    basis = torch.rand(HIDDEN, PIXELS, generator=torch.Generator().manual_seed(1))
    return ToyImages((codes @ basis / HIDDEN).reshape(n, 1, 3, 4))


class Net(nn.Module):
    """What a prediction would need: the part `model` of the toy's checkpoints."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.encode = nn.Parameter(torch.randn(PIXELS, HIDDEN, generator=generator) * 0.1)
        self.decode = nn.Parameter(torch.randn(HIDDEN, PIXELS, generator=generator) * 0.1)
        self.bias = nn.Parameter(torch.zeros(PIXELS))


class Toy(nn.Module):
    """`poison` makes a term infinite at the steps it holds; `pause` makes a step slow enough to be interrupted.

    `net` is a part; `gain`, a parameter, and `mean_code` are of no part: only resuming needs them.
    """

    mean_code: Tensor

    def __init__(self, seed: int = 0, poison: tuple[int, ...] = (), pause: float = 0.0) -> None:
        super().__init__()
        self.net = Net(torch.Generator().manual_seed(seed))
        self.gain = nn.Parameter(torch.ones(()))  # as an estimator's baseline
        self.unused = nn.Parameter(torch.ones(()))  # as a head that sees no target
        self.register_buffer("mean_code", torch.zeros(HIDDEN))
        self.teacher: Teacher | None = None
        self.poison, self.pause = poison, pause
        self.forwards = 0
        self.seen: list[int] = []  # every global step that after_step was told
        self._codes = torch.zeros(1, HIDDEN)

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        noise = torch.randn(rows.total, HIDDEN, generator=generator, dtype=torch.float32)[rows.start : rows.stop]
        x = batch.images.flatten(1)
        h = x @ self.net.encode + 0.1 * noise.to(x)
        reconstruction = -(x - self.gain * h @ self.net.decode - self.net.bias).square().sum(1).mean()
        size = h.square().sum(1).mean()
        if self.training:
            if self.pause:
                time.sleep(self.pause)
            self._codes = h.detach()
            if self.forwards in self.poison:
                size = size / 0.0
            self.forwards += 1
        bound = reconstruction - 0.001 * size
        return Step(-bound, {"bound": bound.detach(), "reconstruction": reconstruction.detach(), "size": size.detach()})

    @torch.no_grad()
    def after_step(self, global_step: int) -> None:
        self.seen.append(global_step)
        total = sum_over_processes(torch.cat([self._codes.sum(0), self._codes.new_tensor([len(self._codes)])]))
        self.mean_code.lerp_(total[:-1] / total[-1], 0.1)

    def rate_multipliers(self) -> Mapping[str, float]:
        return {"net.bias": 3.0}

    def parts(self) -> Mapping[str, nn.Module]:
        return {"model": self.net}


def toy_config(**changes: Any) -> TrainConfig:
    quiet = {"progress": False, "tensorboard": False, "log_every": 2, "checkpoint_steps": 4, "checkpoint_minutes": None}
    return TrainConfig(**{"batch_size": 8, "learning_rate": 1e-2, "max_epochs": 3, **quiet, **changes})


def train_toy(
    run: Any, *, resume: bool = False, overwrite: bool = False, toy: Toy | None = None, **changes: Any
) -> tuple[Toy, Fitted]:
    toy = toy if toy is not None else Toy()
    trainer = Trainer(toy, toy_images(), run, valid=toy_images(20, seed=5), config=toy_config(**changes))
    return toy, trainer.fit(resume=resume, overwrite=overwrite)


def train_image_model(run: Any, name: str, **changes: Any) -> Fitted:
    """The real objective on a tiny architecture of 8 x 8 pixels; sampled pooling and exact alpha0 for nvil."""
    images = torch.rand(72, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    objective = (normalising if name in ("deep", "own") else image_model)(name)
    objective.model.start_from(images)
    return Trainer(objective, ToyImages(images), run, valid=ToyImages(images[:10]), config=toy_config(**changes)).fit()


def image_model(name: str) -> Joint:
    architecture, gradient = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(6, 3))), cast(GradientName, name)
    model = ImageModel.of(architecture, pooling="sampled" if gradient == "nvil" else "expected")
    return Joint(model, gradient=gradient_named(gradient), alpha0="exact" if gradient == "nvil" else "learned")


def normalising(name: str) -> Joint:
    """Batch normalisation, ours or torch's, and labels with consistency. The images that enter the bound are few: the
    last process has all of them."""
    torch.manual_seed(0)
    architecture = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(6, 3)))
    if name == "deep":
        model = ImageModel.deep(architecture, width=0.1)
    else:
        j = architecture.code_size
        network = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2 * j)
        )
        model = ImageModel(NetworkEncoder(network, architecture.code_shape), Decoder(architecture))
    values = torch.where(torch.arange(72) % 4 == 0, torch.arange(72) % 3, -1)
    how = Consistency(contrastive=0.0, spreading=0.0, augment=STILL, weak_augment=STILL, bound_images=3)
    return Joint(model, [Labels(Softmax(model.code_size, 3), values, threshold=None)], consistency=how)


def main() -> int:
    torch.set_num_threads(1)
    run, *rest = sys.argv[1:]
    pause = float(rest[rest.index("--pause") + 1]) if "--pause" in rest else 0.0
    text = [setting.split("=") for setting in rest if "=" in setting]
    settings: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in text}
    try:
        if "--models" in rest:
            for name in MODELS:
                train_image_model(f"{run}/{name}", name, **settings)
            timed = {"schedule": "one-cycle", "max_epochs": None, "max_minutes": 0.02, "log_every": 1}
            train_toy(f"{run}/timed", **settings | timed)
            run = f"{run}/toy"
        train_toy(run, resume="--resume" in rest, toy=Toy(pause=pause), **settings)
        train_toy(run, **settings)
    except UserError as refused:
        print(refused)
    except Interrupted as stop:
        print(stop)
        return stop.exit_code
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # torch's threads between processes now and then abort an interpreter that is being torn down
