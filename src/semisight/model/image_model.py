"""Section 2 as one module: encoder and decoder with the same architecture, [B, C, H, W] outside, batch last inside."""

import torch
from torch import Tensor, nn

from semisight.model.architecture import Architecture
from semisight.model.decoder import ImageDecoder
from semisight.model.encoders.paper import ImageEncoder, Noise, Pooling, Posterior, draw_noise, flat_code, maps_of_code
from semisight.model.ops.pooling import FAST, Operators


def batch_last(images: Tensor) -> Tensor:
    """[B, C, H, W] -> [C, H, W, B], contiguous."""
    return images.permute(1, 2, 3, 0).contiguous()


def batch_first(maps: Tensor) -> Tensor:
    """[C, H, W, B] -> [B, C, H, W], contiguous."""
    return maps.permute(3, 0, 1, 2).contiguous()


class ImageModel(nn.Module):
    """q(s, z | X) and p(X | s, z). The same seed gives the same start."""

    def __init__(
        self,
        architecture: Architecture,
        pooling: Pooling = "expected",
        seed: int = 0,
        operators: Operators = FAST,
        reach: float = 1.0,
    ) -> None:
        """`reach`: up to which size the places' MLP tells values apart at its start (PoolingMLP)."""
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.architecture, self.pooling = architecture, pooling
        self.encoder = ImageEncoder(architecture, pooling, generator, operators=operators, reach=reach)
        self.decoder = ImageDecoder(architecture, generator, operators=operators)

    @torch.no_grad()
    def start_from(self, images: Tensor) -> None:
        """Starts what depends on the data from training images [N, C, H, W]: image bias, centring, scale, precision."""
        mean = images.mean(0)[..., None]
        variance = (
            (images - mean[..., 0]).square().mean().clamp_min(1e-4)
        )  # constant images still get a finite precision
        self.decoder.image_bias.copy_(mean)
        self.decoder.log_alpha0.copy_(-variance.log())
        self.encoder.centre.copy_(mean)
        self.encoder.scale.copy_(variance.sqrt())
        for dictionary in self.decoder.dictionaries[:1]:  # the first picture has the right size of variation
            dictionary.mul_(0.5 * variance.sqrt())

    def encode(self, images: Tensor, generator: torch.Generator) -> Posterior:
        """One draw from q(s, z | X) for images [B, C, H, W]."""
        noise = self.noise(images.shape[0], generator)
        posterior: Posterior = self.encoder(batch_last(images), noise)
        return posterior

    @torch.no_grad()
    def mean_code(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The mean of q(s | X), [B, J], for prediction: faster than `encode`. Only pooling="sampled" draws, for z."""
        if not len(images):  # as one process of several may have it
            return images.new_zeros(0, self.architecture.code_size)
        if self.pooling == "sampled":
            return self.encode(images, generator).mean
        return flat_code(self.encoder.means(batch_last(images)))

    @torch.no_grad()
    def code_moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log spread of q(s | X), [B, J] each, where they do not depend on a drawn z (not for "sampled")."""
        mu, log_sigma = self.encoder.moments(batch_last(images))
        return flat_code(mu), flat_code(log_sigma)

    def noise(self, batch: int, generator: torch.Generator) -> Noise:
        dtype, places = self.decoder.log_alpha0.dtype, self.pooling != "max"
        noise = draw_noise(self.architecture, batch, generator, dtype=dtype, places=places)
        device = self.decoder.log_alpha0.device
        return Noise(noise.eps.to(device), tuple(u.to(device) for u in noise.uniform))

    def reconstruct(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """The decoder's mean for the code's mean and a drawn z, [B, C, H, W]."""
        posterior = self.encode(images, generator)
        return batch_first(self.decoder(posterior.mu, posterior.drawn).mean)

    def generate(self, n: int, generator: torch.Generator) -> Tensor:
        """Mean images for s and z drawn from the prior, [n, C, H, W]."""
        code = torch.randn(n, self.architecture.code_size, generator=generator).to(self.decoder.log_alpha0)
        return self.decode(code, self.prior_places(n, generator))

    def decode(self, code: Tensor, z: tuple[Tensor, ...]) -> Tensor:
        """Codes [B, J] and one-hot z to mean images [B, C, H, W]."""
        return batch_first(self.decoder(maps_of_code(code, self.architecture), z).mean)

    def prior_places(self, n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """z drawn uniformly, one-hot; () for VAE-d."""
        if self.pooling == "max":
            return ()
        result = []
        for uniform, index in zip(self.noise(n, generator).uniform, self.architecture.pooled_layers, strict=True):
            places = self.architecture.layers[index].pool ** 2
            index_of_place = (uniform * places).long().clamp_max(places - 1)
            result.append(nn.functional.one_hot(index_of_place, places).movedim(-1, 0).to(uniform))
        return tuple(result)
