"""The deep encoder's training step against the same network in plain torch, with and without the image model.

plain     the encoder's convolutions with `nn.BatchNorm2d`, a linear layer and cross-entropy; Adam
labels    our step on the same images and labels without the bound: what seams, heads and turned maps cost
bound     the same with a share of the images in the bound, as the recipe has it
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.figures import Figure, Goal
from benchmarks.speed import square_product
from benchmarks.timing import interleave
from semisight.data.augment import Augment
from semisight.model.architecture import Architecture
from semisight.model.encoders.deep import DeepEncoder, Stage
from semisight.model.heads.labels import Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.consistency import Consistency
from semisight.objectives.joint import Joint
from semisight.objectives.labels import Labels
from semisight.objectives.step import Batch, Rows
from semisight.runs.deep import BOUND, BOUND_IMAGES
from semisight.training.config import TrainConfig
from semisight.training.optimiser import build_optimiser


class Still(Augment):
    """No augmentation: it is the network that is measured."""

    def of_rows(self, images: Tensor, generator: torch.Generator, strength: float, total: int, start: int) -> Tensor:
        return images


class OurStep:
    """Forward, backward and Adam of the objective."""

    def __init__(self, architecture: Architecture, images: Tensor, labels: Tensor, bound: bool) -> None:
        model = ImageModel.deep(architecture)
        model.start_from(images)
        how = Consistency(
            0, 0, 0, augment=Still(), bound_images=BOUND_IMAGES * bound, bound_weight=BOUND if bound else 0.0
        )
        self.joint = Joint(model, [Labels(Softmax(model.code_size, 10), labels)], consistency=how)
        own = {name: parameter for name, parameter in self.joint.named_parameters() if parameter.requires_grad}
        self.optimiser = build_optimiser(own, self.joint.rate_multipliers(), TrainConfig())
        self.batch, self.rows = Batch(images, torch.arange(len(images))), Rows(0, len(images), len(images))
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self) -> None:
        step = self.joint(self.batch, self.generator, self.rows)
        self.optimiser.zero_grad(set_to_none=True)
        step.loss.backward()
        self.optimiser.step()
        self.joint.after_step(0)


class PlainStep:
    """The same convolutions as a torch user would write them."""

    def __init__(self, architecture: Architecture, images: Tensor, labels: Tensor) -> None:
        self.network = DeepEncoder(architecture, places=False)
        for part in self.network.modules():
            if isinstance(part, Stage):
                part.norms = nn.ModuleList(nn.BatchNorm2d(part.maps) for _ in part.norms)
        self.head = nn.Linear(architecture.code_size, 10)
        parameters = [*self.network.parameters(), *self.head.parameters()]
        self.optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=True)
        self.images, self.labels = images.contiguous(memory_format=torch.channels_last), labels

    def __call__(self) -> None:
        top = F.adaptive_avg_pool2d(self.network.features(self.images)[-1], self.network.code_shape[1:])
        mean = self.network.code_maps(top)[:, : self.network.code_shape[0]]
        loss = F.cross_entropy(self.head(mean.flatten(1)), self.labels)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()


def measure_deep(
    name: str, architecture: Architecture, batch: int, rounds: int, turn: float, mm_size: int
) -> Iterator[Figure]:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(batch, *architecture.image_shape, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    plain = PlainStep(architecture, images, labels)
    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "labels": OurStep(architecture, images, labels, bound=False),
        "bound": OurStep(architecture, images, labels, bound=True),
        "mm": square_product(mm_size),
    }
    measured = interleave(ways, rounds, turn)
    about = {"batch": batch, "rounds": measured.count, "clock": measured.clock}
    for way, goal in (("labels", 1.05), ("bound", 1.5)):
        words = "without the bound" if way == "labels" else f"with the bound of {BOUND_IMAGES} images"
        details = about | {"range": measured.range_of_ratio(way, "plain"), "ms": 1e3 * measured.median(way)}
        figure = f"{name} deep training step {words} / plain torch"
        yield Figure(figure, measured.ratio(way, "plain"), "x", Goal("<=", goal), details)
    done = 6 * _products(plain.network, images[:1]) * batch  # two for a product and a sum, three passes
    share = measured.ratio("mm", "labels") * done / (2 * mm_size**3)
    figure = f"{name} deep training step, share of the matrix-product peak"
    yield Figure(figure, share, "share", Goal(">=", 0.5), about | {"gflop": done / 1e9})


@torch.no_grad()
def _products(network: DeepEncoder, image: Tensor) -> float:
    """Multiplications of one image's way up, by its convolutions."""
    found = 0.0

    def count(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        nonlocal found
        found += module.weight[0].numel() * out.numel()

    handles = [part.register_forward_hook(count) for part in network.modules() if isinstance(part, nn.Conv2d)]
    network.eval().features(image)
    network.train()
    for handle in handles:
        handle.remove()
    return found
