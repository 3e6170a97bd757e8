"""Beyond the paper: a novelty score, how unlike an image is to those that were learned from (out of distribution).

    far(X)     distance of the code's mean to its 5th nearest among training images
    unlike(X)  squared error of what the decoder draws from the code
    score(X)   = min over both of (median - value) / (quantile 0.9 - median), medians and quantiles over training images

An image is as usual as its worse mark: 0 is the middle of the training images, -1 is where their last tenth begins,
and far below is strange. The bound itself is no such score: it ranks dark, flat and smooth images above the very images
that were learned from, because they are easy to draw. docs/experiments.md has the measurements.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.model.evaluating import evaluating
from semisight.model.image_model import ImageModel
from semisight.model.posterior import Noise, batch_first, batch_last, flat_code
from semisight.objectives.step import Images

_NEIGHBOUR = 5
_KEPT = 4000  # training codes
_DRAWS = 4
_LEAST = 1e-6  # a spread of nothing, where all training images are one, must not divide


@dataclass(frozen=True, eq=False)
class Novelty:
    """Codes of training images, and the middle and spread of both marks over them ([2]: far, unlike)."""

    codes: Tensor
    middle: Tensor
    spread: Tensor

    def score(self, codes: Tensor, unlike: Tensor) -> Tensor:
        """[N] from codes [N, J] and squared errors [N]; higher is more usual."""
        return self._standard(_far(codes, self.codes, _NEIGHBOUR), unlike)

    def _standard(self, far: Tensor, unlike: Tensor) -> Tensor:
        marks = torch.stack([far, unlike], 1).double()
        return ((self.middle - marks) / self.spread).amin(1)


def learn_novelty(codes: Tensor, unlike: Tensor) -> Novelty:
    """From the codes and squared errors of training images in random order, at least one."""
    kept = codes[:_KEPT]
    # one further: the nearest of a training image is itself
    marks = torch.stack([_far(kept, kept, _NEIGHBOUR + 1), unlike[:_KEPT]], 1).double()
    middle = marks.median(0).values
    spread = (torch.quantile(marks, 0.9, dim=0) - middle).clamp_min(_LEAST)
    return Novelty(kept, middle, spread)


def _far(queries: Tensor, among: Tensor, number: int) -> Tensor:
    k = min(number, len(among))
    return torch.cat([torch.cdist(part, among).kthvalue(k, dim=1).values for part in queries.split(500)])


@dataclass(frozen=True)
class Redrawn:
    """Mean codes [N, J] and what the decoder makes of them, [N, C, H, W]."""

    codes: Tensor
    images: Tensor


@torch.no_grad()
def redraw(model: ImageModel, images: Tensor) -> Redrawn:
    """Images [N, C, H, W] from their codes' means, averaged over a few draws of z.

    The draws are the same for every image: what one image gets does not depend on those beside it.
    """
    generator = torch.Generator().manual_seed(0)
    codes, total = torch.zeros(()), torch.zeros(())
    x = batch_last(images)
    for _ in range(_DRAWS):
        posterior = model.encoder(x, noise_for_all(model, len(images), generator))
        total = total + batch_first(model.decoder(posterior.mu, posterior.z).mean)
        codes = codes + flat_code(posterior.mu)
    return Redrawn(codes / _DRAWS, total / _DRAWS)


def noise_for_all(model: ImageModel, batch: int, generator: torch.Generator) -> Noise:
    """One draw of the random numbers of z for all images of a batch alike, and none for s."""
    one = model.noise(1, generator)
    return Noise(
        torch.zeros_like(one.eps).expand(*one.eps.shape[:-1], batch),
        tuple(u.expand(*u.shape[:-1], batch).contiguous() for u in one.uniform),
    )


def redraw_set(model: ImageModel, images: Images, batch_size: int = 250) -> Redrawn:
    """The same for a whole set, on the CPU."""
    with evaluating(model):
        batches = (images.batch(index).to(model.device) for index in torch.arange(len(images)).split(batch_size))
        parts = [redraw(model, batch) for batch in batches]
    return Redrawn(torch.cat([p.codes for p in parts]).cpu(), torch.cat([p.images for p in parts]).cpu())


def squared_error(images: Tensor, drawn: Tensor) -> Tensor:
    """[N], summed over pixels."""
    return (images - drawn).flatten(1).square().sum(1)
