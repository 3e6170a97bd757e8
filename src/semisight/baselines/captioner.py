"""What a baseline that writes captions gives, and how the trainer of section 4 takes it.

    see     what the sentence is written from, of a batch of feature maps: [B, ...]
    loss    of captions and the images that they belong to: a scalar to descend, and its terms for the logs
    start, log_words, inputs, advance, log_prob      p(Y | seen), as the search for captions asks for it

A baseline is one file with such a network and one line in its table. Batches, search, validation, checkpoints and
resuming are those of our own model, so that a comparison is one of methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.inference.beam_search import WordByWord, beam_search
from semisight.inference.captions import LENGTH_POWER
from semisight.metrics.captions import perplexity
from semisight.model.heads.captions import words_per_caption
from semisight.objectives.captions import EncodedCaptions
from semisight.objectives.step import Batch, Images, Rows, Step, Teacher

AT_A_TIME = 50  # images
Terms = dict[str, Tensor]


class Captioner(WordByWord, Protocol):
    """An `nn.Module` with these methods. Running averages change in `after_step` alone: a step may be thrown away."""

    def see(self, images: Tensor) -> Tensor: ...

    def loss(
        self, images: Tensor, captions: Tensor, owners: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Terms]: ...

    def after_step(self) -> None: ...


class CaptionLearning(nn.Module):
    """The `Objective` of a captioner: every step draws `per_image` captions of each image, or takes all (None)."""

    def __init__(self, captioner: Captioner, captions: EncodedCaptions, per_image: int | None = 1) -> None:
        super().__init__()
        assert isinstance(captioner, nn.Module)
        self.captioner: nn.Module = captioner
        self.captions, self.per_image = captions, per_image
        self.teacher: Teacher | None = None

    def forward(self, batch: Batch, generator: torch.Generator, rows: Rows) -> Step:
        captions, owners = self.captions.draw(batch.index.cpu(), self.per_image, generator, rows)
        device = batch.images.device
        loss, terms = cast(Captioner, self.captioner).loss(
            batch.images, captions.to(device), owners.to(device), generator
        )
        return Step(loss, {name: term.detach() for name, term in terms.items()})

    def after_step(self, global_step: int) -> None:
        cast(Captioner, self.captioner).after_step()

    def rate_multipliers(self) -> Mapping[str, float]:
        return {}

    def parts(self) -> Mapping[str, nn.Module]:
        return {"model": self.captioner}


class ByLikelihood:
    """For a captioner that learns by maximum likelihood and keeps no running averages."""

    def loss(
        self: Captioner, images: Tensor, captions: Tensor, owners: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Terms]:
        """Minus the mean log p of a symbol."""
        log_p = self.log_prob(captions, self.see(images)[owners]).sum() / words_per_caption(captions).sum()
        return -log_p, {"captions": log_p}

    def after_step(self) -> None:
        return


class Standardised(nn.Module):
    """Channels (axis 1) with mean 0 and deviation 1 over the training images."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("deviation", torch.ones(channels))

    @torch.no_grad()
    def fit(self, images: Tensor) -> None:
        """[N, C, H, W]"""
        values = images.transpose(0, 1).flatten(1)
        self.mean.copy_(values.mean(1))
        self.deviation.copy_(values.std(1).clamp_min(1e-3))

    def forward(self, images: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (images.dim() - 2))
        return (images - self.mean.view(shape)) / self.deviation.view(shape)


# ---- what a trained one says ----


@dataclass(frozen=True)
class Written:
    """A sentence that was found, and log p of it."""

    words: tuple[str, ...]
    log_prob: float


@torch.no_grad()
def write(
    captioner: Captioner,
    vocabulary: Vocabulary,
    images: Images,
    *,
    index: Tensor | None = None,
    beam: int = 5,
    n_best: int = 1,
) -> list[list[Written]]:
    """The best sentences of every image (at `index`), the best first; the unknown word is never written."""
    found = []
    for some in (torch.arange(len(images)) if index is None else index).split(AT_A_TIME):
        seen = captioner.see(_batch(captioner, images, some))[None]
        best = beam_search(
            captioner,
            seen,
            beam=beam,
            n_best=n_best,
            length_power=LENGTH_POWER,
            forbidden=(UNKNOWN,),
            rows=AT_A_TIME * beam,
        )
        for symbols, log_probs in zip(best.symbols.tolist(), best.log_prob.tolist(), strict=True):
            pairs = [(row, log_p) for row, log_p in zip(symbols, log_probs, strict=True) if log_p > -torch.inf]
            found.append([Written(vocabulary.tokens(row), log_p) for row, log_p in pairs])
    return found


@torch.no_grad()
def perplexity_of(captioner: Captioner, images: Images, captions: EncodedCaptions) -> float:
    """exp(-sum log p(Y | X) / sum T) over all captions of the images."""
    log_probs: list[float] = []
    lengths: list[int] = []
    for some in torch.arange(len(images)).split(AT_A_TIME):
        symbols, owners = captions.of(some)
        seen = captioner.see(_batch(captioner, images, some))
        log_probs += captioner.log_prob(symbols.to(seen.device), seen[owners]).tolist()
        lengths += words_per_caption(symbols).tolist()
    return perplexity(log_probs, lengths)


def _batch(captioner: Captioner, images: Images, index: Tensor) -> Tensor:
    assert isinstance(captioner, nn.Module)
    return images.batch(index).to(next(captioner.parameters()))


def first_words(found: Sequence[Sequence[Written]]) -> list[tuple[str, ...]]:
    """Of every image the words of the best sentence."""
    return [best.words for best, *_ in found]
