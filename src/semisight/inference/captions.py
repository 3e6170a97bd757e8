"""End of section 4, for whole sets of images: codes from q(s | X), the captions they give, and how they score others.

    s_1 .. s_Ns ~ q(s | X),    p(Y | X) = 1/N_s sum_i p(Y | s_i)         (decoding.py searches in it and scores with it)

A batch of images at a time; what a batch gets depends on the seed and its number alone.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.inference.beam_search import MAX_WORDS, Sentences, beam_search, mixture_log_prob
from semisight.metrics.captions import perplexity
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.model.image_model import ImageModel
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.step import Images
from semisight.random import Stream, reseed

N_CODES = 20
BEAM = 5


@torch.no_grad()
def draw_codes(model: ImageModel, images: Tensor, n_codes: int, generator: torch.Generator) -> Tensor:
    """[N_s, B, J]: draws of s for images [B, C, H, W]. Only with sampled pooling does each need a pass of its own."""
    if model.pooling == "sampled":
        return torch.stack([model.encode(images, generator).code for _ in range(n_codes)])
    posterior = model.encode(images, generator)
    eps = torch.randn(n_codes, *posterior.mean.shape, generator=generator)
    return posterior.mean + posterior.log_spread.exp() * eps.to(posterior.mean)


def codes_in_batches(
    model: ImageModel, images: Images, index: Tensor, n_codes: int, batch_size: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """(places in the set [B], codes [N_s, B, J]) for the images at `index`."""
    generator, weight = torch.Generator(), model.decoder.log_alpha0
    for number, part in enumerate(index.split(batch_size)):
        batch = images.batch(part).to(weight)
        yield part, draw_codes(model, batch, n_codes, reseed(generator, seed, Stream.VALIDATION, number))


def caption_batches(
    model: ImageModel,
    head: CaptionHead,
    images: Images,
    *,
    index: Tensor | None = None,
    n_codes: int = N_CODES,
    beam: int = BEAM,
    n_best: int = 1,
    max_words: int = MAX_WORDS,
    forbidden: Sequence[int] = (UNKNOWN,),
    batch_size: int = 100,
    seed: int = 0,
) -> Iterator[Sentences]:
    """Captions of a whole set, or of its images at `index`, a batch at a time."""
    index = torch.arange(len(images)) if index is None else index
    for _, codes in codes_in_batches(model, images, index, n_codes, batch_size, seed):
        yield beam_search(head, codes, beam=beam, n_best=n_best, max_words=max_words, forbidden=forbidden)


def best_captions(
    model: ImageModel,
    head: CaptionHead,
    images: Images,
    vocabulary: Vocabulary,
    *,
    index: Tensor | None = None,
    n_codes: int = N_CODES,
    beam: int = BEAM,
    batch_size: int = 100,
    seed: int = 0,
) -> list[tuple[str, ...]]:
    """The words of the best caption of every image."""
    found = caption_batches(
        model, head, images, index=index, n_codes=n_codes, beam=beam, batch_size=batch_size, seed=seed
    )
    return [vocabulary.tokens(symbols[0]) for sentences in found for symbols in sentences.symbols]


@torch.no_grad()
def caption_perplexity(
    model: ImageModel,
    head: CaptionHead,
    images: Images,
    captions: EncodedCaptions,
    *,
    index: Tensor | None = None,
    n_codes: int = N_CODES,
    batch_size: int = 100,
    seed: int = 0,
) -> float:
    """exp(-sum log p(Y | X) / sum T) over all captions of the images (at `index`); those without one count nothing."""
    index = torch.arange(len(images)) if index is None else index
    log_probs: list[float] = []
    n_symbols: list[int] = []
    for part, codes in codes_in_batches(model, images, index, n_codes, batch_size, seed):
        symbols, owners = captions.of(part)
        symbols, owners = symbols.to(codes.device), owners.to(codes.device)
        log_probs += mixture_log_prob(head, symbols, codes, owners).tolist()
        n_symbols += words_per_caption(symbols).tolist()
    return perplexity(log_probs, n_symbols)
