"""Section 2.2 for whole sets of images: q(s | X), a batch at a time. The one place where a set of images is encoded.

    mean_is_exact     one pass gives mu and sigma, and nothing is drawn
    else              mu and sigma of `n_draws` draws of z; the mean over them is the mean of q(s | X)

What a batch gets depends on the seed and its number alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.evaluating import evaluating
from semisight.model.image_model import ImageModel
from semisight.objectives.step import Images, Rows, own_rows, place_of_process, whole_batch
from semisight.random import Stream, reseed

N_DRAWS = 50  # of z, where q(s | X) depends on it
BATCH = 250
Progress = Callable[[int, int], None]  # images done, images in all


@dataclass(frozen=True, eq=False)
class Codes:
    """q(s | X) of B images as a mixture over S draws of z: mu and log sigma, [S, B, J]; S = 1 where it needs none."""

    mu: Tensor
    log_sigma: Tensor

    def __len__(self) -> int:
        return self.mu.shape[1]

    @property
    def mean(self) -> Tensor:
        """[B, J]"""
        return self.mu.mean(0)

    @property
    def spread(self) -> Tensor:
        """[B, J]: the standard deviation of every number of the code."""
        within = (2 * self.log_sigma).exp().mean(0)
        return (within + self.mu.var(0, correction=0)).sqrt()

    def draw(self, n: int, generator: torch.Generator) -> Tensor:
        """[n, B, J]: draws of s. Those of z are taken in turn."""
        eps = torch.randn(n, *self.mu.shape[1:], generator=generator).to(self.mu)
        which = torch.arange(n) % len(self.mu)
        return self.mu[which] + self.log_sigma[which].exp() * eps

    def cpu(self) -> "Codes":
        return Codes(self.mu.cpu(), self.log_sigma.cpu())


@torch.no_grad()
def encode(model: ImageModel, images: Tensor, generator: torch.Generator, n_draws: int = N_DRAWS) -> Codes:
    """Images [B, C, H, W]; the same state of the generator gives the same codes."""
    if model.encoder.mean_is_exact:
        mean, log_spread = model.code_moments(images)
        return Codes(mean[None], log_spread[None])
    drawn = [model.encode(images, generator) for _ in range(n_draws)]
    return Codes(torch.stack([one.mean for one in drawn]), torch.stack([one.log_spread for one in drawn]))


def check_answer(*tensors: Tensor) -> None:
    """Before anything is told to a user: weights may be numbers and yet so large that what comes of them is none."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise UserError(
            "the model's answer is no number: its weights are damaged, or far too large. Use another checkpoint, or "
            "train again."
        )


def encode_set(
    model: ImageModel,
    images: Images,
    *,
    index: Tensor | None = None,
    n_draws: int = N_DRAWS,
    batch_size: int = BATCH,
    seed: int = 0,
    first: int = 0,
    progress: Progress | None = None,
) -> Iterator[tuple[Tensor, Codes, torch.Generator]]:
    """For the images of a set, or those at `index`: their places [B], their codes, and the batch's generator.

    `first` is the number of the first batch: a part of a set that begins there gets what the whole set would.
    """
    index = torch.arange(len(images)) if index is None else index
    generator, done = torch.Generator(), 0
    with evaluating(model):
        for number, part in enumerate(index.split(batch_size) if len(index) else (), first):
            batch = images.batch(part).to(model.decoder.log_alpha0)
            reseed(generator, seed, Stream.VALIDATION, number)
            found = [encode(model, batch, generator, n_draws)]
            for view in getattr(images, "views", ()):  # of features; an answer is the mean over them
                found.append(encode(model, view[part].to(batch), generator, n_draws))
            yield (
                part,
                Codes(torch.cat([one.mu for one in found]), torch.cat([one.log_sigma for one in found])),
                generator,
            )
            done += len(part)
            if progress is not None:
                progress(done, len(index))


def mean_codes(model: ImageModel, images: Images, *, index: Tensor | None = None, seed: int = 0) -> Tensor:
    """The means of q(s | X), [N, J], on the CPU."""
    parts = [codes.mean.cpu() for _, codes, _ in encode_set(model, images, index=index, seed=seed)]
    return torch.cat(parts) if parts else torch.zeros(0, model.code_size)


def mean_codes_of_all(model: ImageModel, images: Images, *, seed: int = 0) -> Tensor:
    """The same, on every process, where each of several encodes its part of the images."""
    number, processes = place_of_process()
    batches = own_rows(-(-len(images) // BATCH), number, processes)
    start, stop = batches.start * BATCH, min(batches.stop * BATCH, len(images))
    found = encode_set(model, images, index=torch.arange(start, stop), seed=seed, first=batches.start)
    own = [codes.mean for _, codes, _ in found]
    codes = torch.cat(own) if own else model.decoder.log_alpha0.new_zeros(0, model.code_size)
    return whole_batch(codes.detach(), Rows(start, stop, len(images))).cpu()


def joined(parts: Sequence[Codes]) -> Codes:
    """Of a whole set, from its batches."""
    return Codes(torch.cat([part.mu for part in parts], 1), torch.cat([part.log_sigma for part in parts], 1))
