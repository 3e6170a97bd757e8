"""What the tests of targets share: images, every encoder, every target, and one of each that a user might write.

The user's own are written against the seams alone (model/posterior.py, objectives/targets.py):

    OwnEncoder   mu, log sigma and q(z) by one linear map each; draws its own places
    Age          a number per image, NaN where unknown;  y ~ N(w's + b, 1)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.data.augment import Augment
from semisight.data.vocabulary import Vocabulary
from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.model.encoders.deep import DeepEncoder
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.model.heads.labels import BayesianSVM, Softmax
from semisight.model.heads.tags import TagHead
from semisight.model.image_model import ImageModel
from semisight.model.ops.batch_norm import settle
from semisight.model.ops.places import Chosen, PoolingWeights
from semisight.model.posterior import NetworkEncoder, Noise, Posterior, batch_last
from semisight.objectives.captions import Captions
from semisight.objectives.consistency import Consistency
from semisight.objectives.labels import Labels
from semisight.objectives.step import Batch, Rows, Step
from semisight.objectives.tags import Tags
from semisight.objectives.targets import Learned, Side, Target, Xi, per_other

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
N, J, PIXELS = 12, TINY.code_size, TINY.n_pixels
ALL = Rows(0, N, N)
SOME = torch.arange(N) < 5  # the images that carry a target, where only some do
IMAGES = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
STILL = Augment(0, 0, 0, 0, 0, 0, 0)  # an augmentation that changes nothing


# ---- encoders ----


class OwnEncoder(nn.Module):
    has_places, mean_is_exact, code_shape = True, True, TINY.code_shape

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.maps, self.blocks = TINY.layers[0].maps, TINY.shapes[0].pooled
        sizes = (J, J, 4 * self.maps * self.blocks[0] * self.blocks[1])
        self.mu, self.log_sigma, self.logits = (
            nn.Parameter(torch.randn(size, PIXELS, generator=generator) / 8) for size in sizes
        )

    def forward(self, x: Tensor, noise: Noise, through: bool = True) -> Posterior:
        mu, log_sigma = self._moments(x)
        log_q = (self.logits @ x.flatten(0, 2)).view(4, self.maps, *self.blocks, -1).log_softmax(0)
        q = log_q.exp()
        index = (q.cumsum(0) < noise.uniform[0]).sum(0).clamp_max(3)
        z = F.one_hot(index, 4).movedim(-1, 0).to(q)
        chosen = Chosen(z + q - q.detach() if through else z, index, (q * log_q).sum(0), (z * log_q).sum(0))
        return Posterior(mu, log_sigma, mu + noise.eps * log_sigma.exp(), (chosen,))

    @torch.no_grad()
    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self._moments(x)

    def start_from(self, mean: Tensor, variance: Tensor) -> None:
        pass

    def _moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*self.code_shape, x.shape[-1])
        return (self.mu @ x.flatten(0, 2)).view(shape), (self.log_sigma @ x.flatten(0, 2)).view(shape) - 1


def network_encoder(generator: torch.Generator) -> NetworkEncoder:
    network = nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 2 * J))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 8)
    return NetworkEncoder(network, TINY.code_shape)


def deep_encoder(generator: torch.Generator) -> DeepEncoder:
    """With running statistics: batch normalisation itself makes images depend on each other (test_deep.py)."""
    encoder = DeepEncoder(TINY, generator, width=0.2)
    encoder.start_from(IMAGES.mean(0)[..., None], IMAGES.var())
    encoder.start_from_images(IMAGES)
    encoder.code(batch_last(IMAGES), torch.zeros(()))
    settle(encoder)
    maps = TINY.code_shape[0]
    with torch.no_grad():  # codes around 0 that differ as much as those of the other encoders do
        encoder.eval().code_maps.weight[:maps] *= 6
        encoder.code_maps.bias[:maps] -= encoder.moments(batch_last(IMAGES))[0].mean((1, 2, 3))
    return encoder


ENCODERS = ("sampled", "expected", "max", "network", "own", "deep")
EXACT = tuple(name for name in ENCODERS if name != "sampled")


def model_with(encoder: str) -> ImageModel:
    generator = torch.Generator().manual_seed(1)
    makers = {"network": network_encoder, "own": OwnEncoder, "deep": deep_encoder}
    if encoder in makers:
        model = ImageModel(makers[encoder](generator), Decoder(TINY, generator))
    else:
        model = ImageModel.of(TINY, encoder, seed=1)  # type: ignore[arg-type]
    model.start_from(IMAGES)
    return model


# ---- targets ----


@dataclass(frozen=True)
class PseudoAges:
    ages: Tensor


class Age(nn.Module, Target):
    def __init__(self, ages: Tensor, xi: Xi) -> None:
        super().__init__()
        self.name, self.head, self.xi = "age", nn.Linear(J, 1), xi
        self.ages, self.present = ages, ~ages.isnan()
        self.rho, self.n_pixels = float(self.present.float().mean()), 1

    def balance(self, n_pixels: int, rho: float) -> None:
        self.n_pixels, self.rho = n_pixels, rho

    def weight(self, step: int) -> float:
        paper = self.xi.times * self.n_pixels / self.rho if self.xi.value is None else self.xi.value
        return paper * self.xi.ramp(step)

    def rows(self, index: Tensor, generator: torch.Generator, rows: Rows) -> Tensor:
        return self.ages[index]

    def log_prob(self, ages: Tensor, code: Tensor) -> Tensor:
        missing = ages.isnan()
        error = torch.where(missing, torch.zeros_like(ages), ages.nan_to_num() - self.head(code)[:, 0])
        return -0.5 * error.square()

    def side(self, rows: Tensor, code: Tensor, step: int) -> Side:
        log_p = self.log_prob(rows, code)
        return Side(self.weight(step) * log_p, log_p.detach().sum() / (~rows.isnan()).sum().clamp_min(1))

    @torch.no_grad()
    def believe(self, code: Tensor) -> PseudoAges:
        return PseudoAges(self.head(code)[:, 0] + 0.3)  # were it the mean itself, there would be nothing to learn

    def learn(self, pseudo: PseudoAges, rows: Tensor, which: Tensor, seen: list[Tensor], step: int) -> Learned:
        total = torch.stack([self.log_prob(pseudo.ages, code[which]).sum() for code in seen]).mean()
        return Learned(self.weight(step) * per_other(self.rho) * total / len(which), {"pseudo": total.detach()})


TEXTS = (("a dog runs", "a brown dog"), ("two birds over the sea",), ("a dog",))
VOCABULARY = Vocabulary.from_captions([caption for captions in TEXTS for caption in captions], min_count=1)
TAGS = torch.tensor([[1, 0, -1, 1], [0, 1, 1, -1], [1, 1, 0, 0]])


def labels(head: nn.Module, known: Tensor, xi: Xi) -> Labels:
    return Labels(head, torch.where(known, torch.arange(N) % 3, -1), xi=xi, threshold=0.6)


def tags(kind: Any, known: Tensor, xi: Xi) -> Tags:
    values = torch.where(known[:, None], TAGS[torch.arange(N) % 3], -1)
    return Tags(TagHead(J, 4, kind), values, xi=xi, threshold=0.6)


def captions(known: Tensor, xi: Xi, **options: Any) -> Captions:
    head = CaptionHead(J, len(VOCABULARY), hidden_size=6, embedding_size=5)
    texts = [TEXTS[i % 3] if known[i] else () for i in range(N)]
    return Captions(head, texts, VOCABULARY, xi=xi, **{"threshold": 0.0, **options})


MAKERS: Mapping[str, Callable[[Tensor, Xi], Any]] = {
    "svm": lambda known, xi: labels(BayesianSVM(J, 3, gamma=0.5), known, xi),
    "softmax": lambda known, xi: labels(Softmax(J, 3), known, xi),
    "tags-svm": lambda known, xi: tags("svm", known, xi),
    "tags-logistic": lambda known, xi: tags("logistic", known, xi),
    "captions": captions,
    "own": lambda known, xi: Age(torch.where(known, torch.arange(N) / 4, torch.nan), xi),
}
TARGETS = tuple(MAKERS)


def target_of(kind: str, known: Tensor = SOME, xi: Xi | None = None, name: str | None = None) -> Any:
    """The same weights whatever `known` and `xi`, wide enough that codes matter."""
    target = MAKERS[kind](known, xi or Xi())
    generator = torch.Generator().manual_seed(len(kind))
    with torch.no_grad():
        for parameter in target.head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / max(parameter.shape) ** 0.5)
    target.name = name or target.name
    return target


def size_of(target: Any, rows: Any) -> Tensor:
    """How many numbers the target of each image with one has: C, T or 1; of tags, those that are known on average."""
    if isinstance(target, Labels):
        return torch.full((N,), 3.0)
    if isinstance(target, Tags):
        known = TAGS[torch.arange(N) % 3][SOME] >= 0
        return torch.full((N,), 4.0 * float(known.float().mean()))
    if isinstance(target, Captions):
        sizes = torch.ones(N)
        sizes[rows.owners] = words_per_caption(rows.captions).float()
        return sizes
    return torch.ones(N)


# ---- steps ----


def step(of: nn.Module, rows: Rows = ALL, images: Tensor = IMAGES, seed: int = 3) -> Step:
    here = slice(rows.start, rows.stop)
    result: Step = of(Batch(images[here], torch.arange(N)[here]), torch.Generator().manual_seed(seed), rows)
    return result


def gradients(of: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    of.zero_grad()
    loss.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in of.named_parameters()}


def only(**parts: Any) -> Consistency:
    """Consistency with every part off but those that are named."""
    off: dict[str, Any] = {"pseudo_labels": 0.0, "contrastive": 0.0, "spreading": 0.0, "bound_images": 0}
    return Consistency(**{**off, "augment": STILL, **parts})


def place_probabilities(blocks: Tensor, weights: PoolingWeights) -> Tensor:
    """q(z) of (6), [P, K, h, w, B], which the model never writes out."""
    return torch.softmax(weights.logits(blocks.reshape(blocks.shape[0], -1))[1], dim=0).view(blocks.shape)
