"""Section 2.1 used backwards: pixels that are missing, from those that are there.

Given z the decoder is linear, X = A(z) s + bias + noise, so that the code given the known pixels alone is Gaussian:

    s | X_known, z ~ N(m, Q^-1),    Q = I + alpha0 A'MA,    m = Q^-1 alpha0 A'M (X - bias),    M: which are known

and the missing pixels are (A m + bias) there. z comes from the encoder, which wants a whole image: it sees the missing
pixels as last filled, at first by the image bias, and so in turns.
"""

import torch
from torch import Tensor

from semisight.inference.novelty import noise_for_all, redraw
from semisight.model.image_model import ImageModel
from semisight.model.posterior import batch_last
from semisight.sampling.decoder_matrix import paint_code

ROUNDS = 10
_ELEMENTS = 8_000_000  # of A(z) for the images worked on at a time


@torch.no_grad()
def impute(model: ImageModel, images: Tensor, known: Tensor, rounds: int = ROUNDS) -> Tensor:
    """Images [N, C, H, W] in [0, 1] with their pixels that are not `known` (bool, the same shape) filled in."""
    architecture = model.architecture
    at_a_time = max(1, _ELEMENTS // (architecture.n_pixels * architecture.code_size))
    pairs = zip(images.split(at_a_time), known.split(at_a_time), strict=True)
    return torch.cat([_impute(model, some, there, rounds) for some, there in pairs])


def _impute(model: ImageModel, images: Tensor, known: Tensor, rounds: int) -> Tensor:
    filled = torch.where(known, images, model.decoder.image_bias[..., 0].expand_as(images))
    generator = torch.Generator().manual_seed(0)
    for _ in range(rounds):
        if (
            not model.encoder.has_places
        ):  # without z there is no such A: what the decoder draws from the image's own code
            drawn = redraw(model, filled).images
        else:
            posterior = model.encoder(batch_last(filled), noise_for_all(model, len(images), generator))
            drawn = _from_known(model, images, known, tuple(z.argmax(0) for z in posterior.z))
        filled = torch.where(known, images, drawn.clamp(0, 1))
    return filled


def _from_known(model: ImageModel, images: Tensor, known: Tensor, places: tuple[Tensor, ...]) -> Tensor:
    """A(z) m + bias, [N, C, H, W]."""
    decoder = model.decoder
    alpha0, bias = decoder.log_alpha0.exp(), decoder.image_bias[..., 0].flatten()
    maps = slice(0, model.architecture.code_shape[0])
    a = paint_code(decoder, places, maps).expand(len(images), -1, -1)  # [N, pixels, J]; one for all where z is not
    there = known.flatten(1).to(a)
    target = there * (images.flatten(1) - bias)
    masked = a * there[..., None]
    precision = alpha0 * torch.bmm(masked.transpose(1, 2), a)
    precision.diagonal(dim1=1, dim2=2).add_(1.0)
    slope = alpha0 * torch.bmm(a.transpose(1, 2), target[..., None])
    # float64: alpha0 may be in the thousands, and float32 then loses what the prior says
    code = torch.linalg.solve(precision.double(), slope.double()).to(a)
    return (torch.bmm(a, code)[..., 0] + bias).view_as(images)
