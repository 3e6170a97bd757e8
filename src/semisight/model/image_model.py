"""Section 2 as one module: an encoder and a decoder; [B, C, H, W] outside, batch last inside."""

from typing import Protocol, Self, cast

import torch
from torch import Tensor, nn

from semisight.model.architecture import Architecture, Nonlinearity, preset, suggest_architecture
from semisight.model.decoder import Decoder
from semisight.model.encoders.deep import DeepEncoder
from semisight.model.encoders.paper import PaperEncoder, Pooling
from semisight.model.ops.pooling import FAST, Operators
from semisight.model.posterior import (
    Encoder,
    Noise,
    Posterior,
    StartsFromImages,
    batch_first,
    batch_last,
    flat_code,
    maps_of_code,
)


class ImageModel(nn.Module):
    """q(s, z | X) and p(X | s, z), put together from an encoder and a decoder.

    Args:
        encoder: anything that follows `semisight.model.posterior.Encoder`, for instance a `NetworkEncoder`.
        decoder: a `Decoder`; its code has the encoder's `code_shape`.

    Example:
        >>> import semisight as ss
        >>> images = ss.load("builtin:digits")
        >>> model = ss.ImageModel.suited_to(images)
        >>> model.code_size == model.decoder.architecture.code_size
        True
    """

    def __init__(self, encoder: nn.Module, decoder: Decoder) -> None:
        super().__init__()
        found, wanted = cast(Encoder, encoder).code_shape, decoder.architecture.code_shape
        if tuple(found) != tuple(wanted):
            raise ValueError(f"the encoder gives codes of {tuple(found)}, but the decoder takes {tuple(wanted)}")
        self.encoder, self.decoder = cast(Encoder, encoder), decoder

    @classmethod
    def of(
        cls,
        architecture: Architecture,
        pooling: Pooling = "expected",
        seed: int = 0,
        operators: Operators = FAST,
        reach: float = 1.0,
    ) -> Self:
        """The paper's encoder and decoder with one architecture; the same seed gives the same start.

        Args:
            architecture: the layers of both.
            pooling: how the code sees the places z: their mean, a draw (the paper's), or max-pooling without z.
            seed: of the start.
            operators: fast or naive ones.
            reach: up to which size the places' MLP tells values apart at its start (`PoolingMLP`).
        """
        generator = torch.Generator().manual_seed(seed)
        encoder = PaperEncoder(architecture, pooling, generator, operators=operators, reach=reach)
        return cls(encoder, Decoder(architecture, generator, operators=operators))

    @classmethod
    def deep(
        cls,
        architecture: Architecture,
        seed: int = 0,
        width: float = 1.0,
        places: bool = True,
        bf16: bool = False,
    ) -> Self:
        """The deep encoder with the paper's decoder.

        Args:
            architecture: the layers of the decoder.
            seed: of the start.
            width: times so many maps in every layer of the encoder.
            places: choose places z; without, values go to fixed ones.
            bf16: convolve in bfloat16 while learning.
        """
        generator = torch.Generator().manual_seed(seed)
        encoder = DeepEncoder(architecture, generator, width, places, bf16)
        return cls(encoder, Decoder(architecture, generator))

    @classmethod
    def paper(cls, name: str, pooling: Pooling = "sampled", seed: int = 0) -> Self:
        """The model of a row of Table 5, such as "mnist" or "flickr8k"."""
        return cls.of(preset(name), pooling, seed)

    @classmethod
    def suited_to(
        cls, images: "HasShape", nonlinearity: Nonlinearity = "norm-relu", pooling: Pooling = "expected", seed: int = 0
    ) -> Self:
        """Layers that suit the size of the images, started from their mean and variance."""
        model = cls.of(suggest_architecture(images.shape, nonlinearity), pooling, seed)
        model.start_from(images.batch(torch.arange(min(len(images), 2000))))
        return model

    @property
    def architecture(self) -> Architecture:
        return self.decoder.architecture

    @property
    def code_size(self) -> int:
        """J: how many numbers the code of an image has."""
        return self.architecture.code_size

    @property
    def device(self) -> torch.device:
        return self.decoder.log_alpha0.device

    @torch.no_grad()
    def start_from(self, images: Tensor) -> None:
        """Starts what depends on the data from training images [N, C, H, W]: image bias, centring, scale, precision."""
        mean = images.mean(0)[..., None]
        # constant images still get a finite precision
        variance = (images - mean[..., 0]).square().mean().clamp_min(1e-4)
        self.decoder.start_from(mean, variance)
        self.encoder.start_from(mean, variance)
        if isinstance(self.encoder, StartsFromImages):
            self.encoder.start_from_images(images)

    def encode(self, images: Tensor, generator: torch.Generator) -> Posterior:
        """One draw from q(s, z | X) for images [B, C, H, W]."""
        return self.encoder(batch_last(images), self.noise(images.shape[0], generator))

    @torch.no_grad()
    def mean_code(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The mean of q(s | X), [B, J], for prediction: faster than `encode`, and draws only where z must be drawn."""
        if not len(images):  # as one process of several may have it
            return images.new_zeros(0, self.code_size)
        if not self.encoder.mean_is_exact:
            return self.encode(images, generator).mean
        return self.code_moments(images)[0]

    @torch.no_grad()
    def code_moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log spread of q(s | X), [B, J] each, where they do not depend on a drawn z."""
        mu, log_sigma = self.encoder.moments(batch_last(images))
        return flat_code(mu), flat_code(log_sigma)

    def noise(
        self,
        batch: int,
        generator: torch.Generator,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
        places: bool = True,
    ) -> Noise:
        """Random numbers for `batch` images; with `rows`, those of a part of them; without `places`, those of s alone.

        Several processes draw for the whole global batch and keep their rows: they then train what one process would.
        """
        rows, dtype = rows or slice(0, batch), dtype or self.decoder.log_alpha0.dtype
        eps = torch.randn(*self.encoder.code_shape, batch, generator=generator, dtype=dtype)[..., rows]
        uniform = []
        for index in self.architecture.pooled_layers if places and self.encoder.has_places else ():
            shape = (self.architecture.layers[index].maps, *self.architecture.shapes[index].pooled, batch)
            uniform.append(torch.rand(shape, generator=generator, dtype=dtype)[..., rows].to(self.device))
        return Noise(eps.to(self.device), tuple(uniform))

    def reconstruct(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The decoder's mean for the code's mean and a drawn z, [B, C, H, W]."""
        posterior = self.encode(images, generator)
        return batch_first(self.decoder(posterior.mu, posterior.drawn).mean)

    def generate(self, n: int, generator: torch.Generator) -> Tensor:
        """Mean images for s and z drawn from the prior, [n, C, H, W]."""
        code = torch.randn(n, self.code_size, generator=generator).to(self.decoder.log_alpha0)
        return self.decode(code, self.prior_places(n, generator))

    def decode(self, code: Tensor, z: tuple[Tensor, ...]) -> Tensor:
        """Codes [B, J] and one-hot z to mean images [B, C, H, W]."""
        return batch_first(self.decoder(maps_of_code(code, self.architecture), z).mean)

    def prior_places(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """z drawn uniformly, one-hot; () without places."""
        result = []
        for uniform, index in zip(self.noise(n, generator).uniform, self.architecture.pooled_layers, strict=False):
            places = self.architecture.layers[index].pool ** 2
            index_of_place = (uniform * places).long().clamp_max(places - 1)
            result.append(nn.functional.one_hot(index_of_place, places).movedim(-1, 0).to(uniform))
        return tuple(result)


class HasShape(Protocol):
    """A set of images of one shape, such as `semisight.load` gives."""

    @property
    def shape(self) -> tuple[int, int, int]: ...

    def __len__(self) -> int: ...

    def batch(self, index: Tensor) -> Tensor: ...
