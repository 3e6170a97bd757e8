"""Tiny models whose posterior is known: z by enumeration, s by the Gaussian that is left once z is fixed. Float64."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.model.image_model import ImageModel
from semisight.model.posterior import maps_of_code
from semisight.sampling.decoder_matrix import one_hot

ONE_Z = Architecture((1, 3, 5), (Layer(2, 2, 2), Layer(3, 1)))  # overlapping windows; 256 joint z
TWO_Z = Architecture((1, 5, 5), (Layer(1, 2, 2), Layer(1, 1, 2), Layer(2, 1)))  # two pooled layers; 1,024 joint z
SAME = Architecture((2, 4, 4), (Layer(1, 3, 2, "same"), Layer(2, 2)))  # windows over the edge, two channels; 256
NO_Z = Architecture((1, 3, 3), (Layer(4, 2),))
DEEP = Architecture((2, 12, 12), (Layer(3, 3, 2, "same"), Layer(4, 3, 2, "same"), Layer(2, 2)))  # not enumerable
TINY = {"one z": ONE_Z, "two z": TWO_Z, "same": SAME, "no z": NO_Z}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_model(architecture: Architecture, seed: int = 0, alpha0: float = 4.0) -> ImageModel:
    """A model with a posterior that is neither flat nor a spike; encoder and decoder are random."""
    model = ImageModel.of(architecture, seed=seed).double()
    random = generator(seed + 100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
        model.decoder.log_alpha0.fill_(math.log(alpha0))
    return model


def tiny_decoder(architecture: Architecture, seed: int = 0, alpha0: float = 4.0) -> Decoder:
    return tiny_model(architecture, seed, alpha0).decoder


def draw_images(decoder: Decoder, count: int, seed: int = 0) -> Tensor:
    """Images from the model itself, [N, C, H, W]."""
    random, architecture = generator(seed), decoder.architecture
    s = torch.randn(*architecture.code_shape, count, generator=random, dtype=torch.float64)
    places = random_places(architecture, count, random)
    with torch.no_grad():
        mean = decoder(s, hot(architecture, places)).mean
        noise = torch.randn(mean.shape, generator=random, dtype=torch.float64)
        return (mean + noise / decoder.log_alpha0.exp().sqrt()).permute(3, 0, 1, 2).contiguous()


def random_places(architecture: Architecture, count: int, random: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(
        torch.randint(architecture.layers[l].pool ** 2, (*block_shape(architecture, l), count), generator=random)
        for l in architecture.pooled_layers
    )


def block_shape(architecture: Architecture, l: int) -> tuple[int, int, int]:
    return (architecture.layers[l].maps, *architecture.shapes[l].pooled)


def hot(architecture: Architecture, places: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one_hot(p, architecture.layers[l].pool ** 2, torch.float64) for l, p in enumerate(places))


def all_places(architecture: Architecture) -> tuple[Tensor, ...]:
    """Every joint z, int64 [K_l, h, w, number of joint z] per pooled layer."""
    shapes = [block_shape(architecture, l) for l in architecture.pooled_layers]
    sizes = [math.prod(shape) for shape in shapes]
    counts = [architecture.layers[l].pool ** 2 for l in architecture.pooled_layers]
    axes = [torch.arange(p) for p, size in zip(counts, sizes, strict=True) for _ in range(size)]
    if not axes:
        return ()
    joint = torch.cartesian_prod(*axes).T
    return tuple(part.reshape(*shape, -1) for part, shape in zip(joint.split(sizes), shapes, strict=True))


def joint_number(architecture: Architecture, places: tuple[Tensor, ...]) -> Tensor:
    """Where a joint z stands in `all_places`, [B]."""
    number = torch.zeros(places[0].shape[-1], dtype=torch.int64)
    for l, p in enumerate(places):
        for row in p.long().flatten(0, 2):
            number = number * architecture.layers[l].pool ** 2 + row
    return number


@torch.no_grad()
def code_matrices(decoder: Decoder, places: tuple[Tensor, ...]) -> Tensor:
    """A(z) by decoding one unit code after the other, [B, pixels, J]."""
    architecture = decoder.architecture
    batch = places[0].shape[-1] if places else 1
    columns = []
    for j in range(architecture.code_size):
        code = torch.zeros(batch, architecture.code_size, dtype=torch.float64)
        code[:, j] = 1.0
        picture = decoder(maps_of_code(code, architecture), hot(architecture, places)).mean - decoder.image_bias
        columns.append(picture.flatten(0, 2).T)
    return torch.stack(columns, -1)


@dataclass(frozen=True)
class Exact:
    """One image's exact posterior: p(z | X) over all joint z, s | z, X ~ N(mean, covariance), and log p(X)."""

    probability: Tensor  # [Z]
    mean: Tensor  # [Z, J]
    covariance: Tensor  # [Z, J, J]
    log_evidence: Tensor

    @property
    def code_mean(self) -> Tensor:
        return self.probability @ self.mean

    @property
    def code_second_moment(self) -> Tensor:
        second = self.covariance + self.mean[:, :, None] * self.mean[:, None, :]
        return torch.einsum("z,zij->ij", self.probability, second)


@torch.no_grad()
def exact_posterior(decoder: Decoder, image: Tensor) -> Exact:
    """image [C, H, W]. Given z, X ~ N(bias, A A' + I/alpha0)."""
    a = code_matrices(decoder, all_places(decoder.architecture))
    alpha0 = decoder.log_alpha0.exp()
    rest = (image[..., None] - decoder.image_bias).flatten()
    pixels, codes = a.shape[1:]
    precision = torch.eye(codes, dtype=torch.float64) + alpha0 * a.transpose(1, 2) @ a
    covariance = torch.linalg.inv(precision)
    mean = alpha0 * (covariance @ (a.transpose(1, 2) @ rest)[..., None])[..., 0]
    marginal = a @ a.transpose(1, 2) + torch.eye(pixels, dtype=torch.float64) / alpha0
    normal = torch.distributions.MultivariateNormal(torch.zeros(pixels, dtype=torch.float64), marginal)
    log_joint = normal.log_prob(rest) - math.log(len(a))
    return Exact(log_joint.softmax(0), mean, covariance, log_joint.logsumexp(0))


@torch.no_grad()
def places_given_code(decoder: Decoder, image: Tensor, s: Tensor) -> Tensor:
    """p(z | s, X) over all joint z, [Z]; s is [K_L, h, w, 1]."""
    places = all_places(decoder.architecture)
    count = places[0].shape[-1]
    mean = decoder(s.expand(*s.shape[:-1], count), hot(decoder.architecture, places)).mean
    return decoder.log_prob(image[..., None], mean).softmax(0)
