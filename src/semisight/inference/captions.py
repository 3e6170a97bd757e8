"""End of section 4, for whole sets of images: codes from q(s | X), the captions they give, and how they score others.

s_1 .. s_Ns ~ q(s | X),    p(Y | X) = 1/N_s sum_i p(Y | s_i)      (beam_search.py searches in it and scores with it)
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from semisight.data.tokenizer import readable, tokenize
from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.inference.beam_search import MAX_WORDS, beam_search, mixture_log_prob
from semisight.inference.encode import Codes, Progress, check_answer, encode_set
from semisight.metrics.captions import perplexity
from semisight.model.heads.captions import END, PADDING, CaptionHead, words_per_caption
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import EncodedCaptions
from semisight.objectives.step import Images

N_CODES = 20
BEAM = 5
# Captions are ranked by log p / T ** 0.7: by log p alone those that are found are too short. 500 training images of
# Flickr8k that were not learned from, written in 10.8 words on average: 0 gives 9.2 words, BLEU-4 0.194, CIDEr 0.478;
# 0.5 9.5, 0.200, 0.492; 0.7 9.7, 0.204, 0.501; 1 10.8, 0.200, 0.510.
LENGTH_POWER = 0.7
COLLAPSED, LEAST_TO_COLLAPSE = 0.5, 10  # share of images with the same caption; images that can tell
BATCH = 50  # images captioned at a time, between two moves of the bar


@dataclass(frozen=True)
class Search:
    """How captions are looked for: codes that the mixture is over, width of the beam, length, and how many to find.

    They are ranked by log p(Y | X) / T ** length_power; 0 is the likeliest sentence, which is shorter than people's.
    """

    n_codes: int = N_CODES
    beam: int = BEAM
    max_words: int = MAX_WORDS
    n_best: int = 1
    seed: int = 0
    length_power: float = LENGTH_POWER


@dataclass(frozen=True)
class Caption:
    """One caption: its words as metrics compare them, the text as people write it, and log p(Y | X)."""

    words: tuple[str, ...]
    text: str
    log_prob: float


@dataclass(frozen=True)
class CaptionReader:
    """The captions of a run. `seen` are the hashes of its training captions, sorted; empty where not known."""

    head: CaptionHead
    vocabulary: Vocabulary
    seen: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    n_captions: int = 0
    n_learned: int = 0
    n_held_out: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "captions"

    @torch.no_grad()
    def __call__(
        self, codes: Codes, generator: torch.Generator | None = None, search: Search | None = None
    ) -> list[tuple[Caption, ...]]:
        """The best captions of every image, at most n_best of each."""
        how = search or Search()
        check_answer(codes.mean, codes.spread)
        drawn = codes.draw(how.n_codes, generator or torch.Generator().manual_seed(how.seed))
        width = max(how.beam, how.n_best)
        found = beam_search(
            self.head,
            drawn,
            beam=width,
            n_best=how.n_best,
            max_words=how.max_words,
            length_power=how.length_power,
            forbidden=(UNKNOWN,),
        )
        result = []
        for symbols, log_probs in zip(found.symbols.tolist(), found.log_prob.tolist(), strict=True):
            pairs = zip(symbols, log_probs, strict=True)
            result.append(tuple(self._caption(row, log_p) for row, log_p in pairs if log_p > -torch.inf))
        return result

    def _caption(self, symbols: list[int], log_prob: float) -> Caption:
        return Caption(self.vocabulary.tokens(symbols), self.vocabulary.text(symbols), log_prob)

    def joined(self, parts: Sequence[list[tuple[Caption, ...]]]) -> list[tuple[Caption, ...]]:
        return [found for part in parts for found in part]

    def share_seen(self, captions: Sequence[Sequence[str]]) -> float | None:
        """The share of captions that occur, word for word, in training; None where that is not known."""
        if not len(self.seen):
            return None
        return float(torch.isin(hashes(captions), self.seen).double().mean())

    export_name = "caption"

    def exported(self, code: Tensor, max_words: int) -> Tensor:
        """The greedy caption of the mean code."""
        return greedy_captions(self.head, code, max_words)

    def export_about(self) -> dict[str, Any]:
        words = self.vocabulary
        return {"words": [words.tokens([symbol])[0] if symbol > UNKNOWN else "" for symbol in range(len(words))]}

    def believable(self) -> str:
        return "Captions are likely sentences, not facts: they may name what is not in the image."


def collapse(captions: Sequence[Sequence[str]]) -> str:
    """What to know of captions that say the same of most images; "" of others."""
    if len(captions) < LEAST_TO_COLLAPSE:
        return ""
    (words, count), *_ = Counter(map(tuple, captions)).most_common(1)
    if count / len(captions) <= COLLAPSED:
        return ""
    return (
        f"Collapsed: {count / len(captions):.0%} of {len(captions):,} images get the same caption, "
        f"{readable(words)!r}. It has learned what captions look like, not what images show. Train longer, give more "
        "captions, and for photographs learn on features (--backbone efficientnet-lite2)."
    )


def greedy_captions(head: CaptionHead, code: Tensor, max_words: int) -> Tensor:
    """int64 [B, T]: the most probable word after the words before it, ended by END, then -1; never the unknown word."""
    allowed = torch.zeros(head.vocab_size)
    allowed[UNKNOWN] = -torch.inf
    state, words = head.start(code), []
    open_ = torch.ones(code.shape[0], dtype=torch.bool)
    for t in range(max_words):
        best = (head.log_words(state) + allowed).argmax(-1)
        words.append(torch.where(open_, best, torch.full_like(best, PADDING)))
        open_ = open_ & (best != END)
        if t + 1 < max_words:
            state = head.step(best, state)
    return torch.stack(words, 1)


def write_captions(
    model: ImageModel,
    reader: CaptionReader,
    images: Images,
    search: Search | None = None,
    *,
    index: Tensor | None = None,
    progress: Progress | None = None,
) -> list[tuple[Caption, ...]]:
    """Captions of a whole set, or of its images at `index`."""
    how = search or Search()
    found = encode_set(
        model, images, index=index, n_draws=how.n_codes, batch_size=BATCH, seed=how.seed, progress=progress
    )
    return reader.joined([reader(codes, generator, how) for _, codes, generator in found])


@torch.no_grad()
def caption_perplexity(
    model: ImageModel,
    head: CaptionHead,
    images: Images,
    captions: EncodedCaptions,
    *,
    index: Tensor | None = None,
    n_codes: int = N_CODES,
    seed: int = 0,
) -> float:
    """exp(-sum log p(Y | X) / sum T) over all captions of the images (at `index`); those without one count nothing."""
    log_probs: list[float] = []
    n_symbols: list[int] = []
    for part, codes, generator in encode_set(
        model, images, index=index, n_draws=n_codes, batch_size=2 * BATCH, seed=seed
    ):
        symbols, owners = captions.of(part)
        symbols, owners = symbols.to(codes.mu.device), owners.to(codes.mu.device)
        log_probs += mixture_log_prob(head, symbols, codes.draw(n_codes, generator), owners).tolist()
        n_symbols += words_per_caption(symbols).tolist()
    return perplexity(log_probs, n_symbols)


def hashes(captions: Sequence[Sequence[str]]) -> Tensor:
    """int64 [N]: one number for each sequence of words."""
    digests = [hashlib.blake2b(" ".join(words).encode(), digest_size=8).digest() for words in captions]
    return torch.tensor([int.from_bytes(digest, "big", signed=True) for digest in digests], dtype=torch.int64)


def hashes_of_texts(captions: Sequence[Sequence[str]]) -> Tensor:
    """Of all captions of all images, sorted, each once."""
    return hashes([tokenize(caption) for of_image in captions for caption in of_image]).unique()
