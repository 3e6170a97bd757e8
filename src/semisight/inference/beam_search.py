"""End of section 4: captions for new images. p(Y | X) = 1/N_s sum_i p(Y | s_i), s_i ~ q(s | X), a mixture of sentences.

What the mixture says of the next word depends on how well each code explains the words so far:

    p(y_<t | X)        = 1/N_s sum_i p(y_<t | s_i)
    p(y_<t, y_t | X)   = 1/N_s sum_i p(y_<t | s_i) p(y_t | y_<t, s_i)

so every prefix keeps one hidden state per code and log p(y_<t | s_i), the code's weight. An average of the codes' word
probabilities without these weights is another model. All functions take codes [N_s, B, J] and work on all images, beams
and codes at once, in parts that fit in memory.

A sentence has at most `max_words` words; after them only the end may follow, with the probability the model gives it.
So every sentence found by searching ends, and its log-probability is exact.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.model.heads.captions import END, PADDING, words_per_caption

ROWS = 2048  # hidden states advanced at a time: enough for full speed, few enough for tens of megabytes
MAX_WORDS = 30


class WordByWord(Protocol):
    """What is asked of a model of sentences, such as `CaptionHead`. A state has `at(index)`, its rows at positions of
    the first axis; codes may have further axes."""

    def start(self, s: Tensor, /) -> Any: ...

    def log_words(self, state: Any, /) -> Tensor: ...

    def inputs(self) -> Tensor: ...

    def advance(self, inputs: Tensor, state: Any, /) -> Any: ...

    def log_prob(self, captions: Tensor, s: Tensor, /) -> Tensor: ...


@dataclass(frozen=True)
class Sentences:
    """Captions per image, the best first.

    symbols   int64 [B, n, T]: words, the end, then -1; a sentence without the end was cut at the maximum length
    log_prob  [B, n]: log p(Y | X) under the mixture; -inf (and no symbols) where there are fewer than n sentences
    """

    symbols: Tensor
    log_prob: Tensor


@torch.no_grad()
def beam_search(
    head: WordByWord,
    codes: Tensor,
    *,
    beam: int = 5,
    n_best: int = 1,
    max_words: int = MAX_WORDS,
    length_power: float = 0.0,
    forbidden: Sequence[int] = (),
    rows: int = ROWS,
) -> Sentences:
    """The n best sentences that a search of this width finds.

    length_power  0 ranks by log p(Y | X); above 0 by log p(Y | X) / T ** length_power, which favours longer sentences
    forbidden     symbols that are never chosen, as the unknown word; they keep their probability
    """
    if not 1 <= n_best <= beam:
        raise ValueError(f"the number of sentences must be from 1 to the width of the beam ({beam}), not {n_best}")
    if max_words < 1 or END in forbidden:
        raise ValueError("a sentence needs room for a word, and the end cannot be forbidden")
    search = _Search(head, beam, n_best, max_words, length_power, tuple(forbidden))
    found = [search(part) for part in _parts(codes, rows // (len(codes) * beam))]
    return _joined([Sentences(part.symbols[:, :n_best], part.log_prob[:, :n_best]) for part in found])


@torch.no_grad()
def sample(
    head: WordByWord,
    codes: Tensor,
    generator: torch.Generator,
    *,
    n: int = 1,
    max_words: int = MAX_WORDS,
    rows: int = ROWS,
) -> Sentences:
    """n independent draws from p(Y | X) per image. A draw that has not ended after `max_words` words is cut there.

    To draw from a mixture, draw which code, then the sentence from that code alone.
    """
    n_codes, n_images = codes.shape[:2]
    device = codes.device
    which = torch.randint(n_codes, (n_images, n), generator=generator, device=generator.device).to(device)
    chosen = codes[which, torch.arange(n_images, device=device)[:, None]].flatten(0, 1)  # [B n, J]
    inputs = head.inputs()
    drawn = []
    for s in chosen.split(rows):
        state = head.start(s)
        symbols = torch.full((len(s), max_words + 1), PADDING, dtype=torch.int64, device=device)
        going = torch.arange(len(s), device=device)
        for t in range(max_words + 1):
            p = head.log_words(state).exp().to(generator.device)
            word = torch.multinomial(p, 1, generator=generator).squeeze(1).to(device)
            if t == max_words:
                symbols[going[word == END], t] = END
                break
            symbols[going, t] = word
            alive = (word != END).nonzero().squeeze(1)
            if len(alive) == 0:
                break
            going = going[alive]
            state = head.advance(inputs[word[alive]], state.at(alive))
        drawn.append(symbols)
    symbols = torch.cat(drawn)
    owners = torch.arange(n_images, device=device).repeat_interleave(n)
    log_prob = mixture_log_prob(head, symbols, codes, owners, rows=rows).view(n_images, n)
    order = log_prob.argsort(1, descending=True)
    symbols = symbols.view(n_images, n, -1).gather(1, order[..., None].expand(-1, -1, max_words + 1))
    return Sentences(_trimmed(symbols), log_prob.gather(1, order))


def mixture_log_prob(
    head: WordByWord, captions: Tensor, codes: Tensor, owners: Tensor | None = None, *, rows: int = ROWS
) -> Tensor:
    """[M]: log p(Y | X) of captions int64 [M, T], zero for a missing one; caption m belongs to image owners[m].

    Without owners, caption m belongs to image m. With `words_per_caption` this is what perplexity is made of.
    """
    owners = torch.arange(len(captions), device=captions.device) if owners is None else owners
    if owners.shape != captions.shape[:1]:
        raise ValueError(f"{len(captions)} captions but owners of shape {list(owners.shape)}")
    n_codes = len(codes)
    values = []
    for part in torch.arange(len(captions), device=captions.device).split(max(1, rows // n_codes)):
        mine = captions[part][:, : max(1, int(words_per_caption(captions[part]).max()))]
        s = codes[:, owners[part]].flatten(0, 1)  # [N_s M, J]
        values.append(head.log_prob(mine.repeat(n_codes, 1), s).view(n_codes, -1).logsumexp(0) - math.log(n_codes))
    return torch.cat(values) if values else codes.new_zeros(0)


class _Search:
    """Beam search for some images. Prefixes still growing are rows of a flat list; ended ones cost nothing more.

    A prefix only loses probability by growing, and is divided by the power of the greatest length at most: once n_best
    sentences have ended that rank above that, it is dropped, and so is all that would have taken its place, which is
    less probable at the same length. What is found stays the same.
    """

    def __init__(
        self,
        head: WordByWord,
        beam: int,
        n_best: int,
        max_words: int,
        length_power: float,
        forbidden: tuple[int, ...],
    ) -> None:
        self.head, self.beam, self.n_best = head, beam, n_best
        self.max_words, self.length_power = max_words, length_power
        self.longest = (max_words + 1) ** length_power
        self.forbidden = list(forbidden)
        self.inputs = head.inputs()

    def __call__(self, codes: Tensor) -> Sentences:
        n_codes, B = codes.shape[:2]
        device = codes.device
        symbols = torch.full((B, self.beam, self.max_words + 1), PADDING, dtype=torch.int64, device=device)
        log_prob = codes.new_full((B, self.beam), -math.inf)  # log p(prefix | X)
        log_prob[:, 0] = 0.0
        ended = torch.zeros(B, self.beam, dtype=torch.bool, device=device)
        # The prefixes that grow: image and beam of each, the states [R, N_s, H] and weights [R, N_s] of its codes.
        image, slot = torch.arange(B, device=device), torch.zeros(B, dtype=torch.int64, device=device)
        state = self.head.start(codes.transpose(0, 1))
        log_weight = codes.new_zeros(B, n_codes)
        for t in range(self.max_words + 1):
            p = self.head.log_words(state).exp()  # [R, N_s, V]
            scale = log_weight.max(1, keepdim=True).values
            mixed = torch.bmm((log_weight - scale).exp()[:, None], p).squeeze(1).log_()  # [R, V]
            mixed += scale - math.log(n_codes)
            words, values = self._best_words(mixed, last=t == self.max_words)  # [R, beam]
            # Candidates of an image: the best continuations of each growing prefix, and the ended sentences themselves.
            candidates = codes.new_full((B, self.beam, self.beam), -math.inf)
            candidates[image, slot] = values
            candidates[..., 0] = torch.where(ended, log_prob, candidates[..., 0])
            length = torch.where(ended, (symbols != PADDING).sum(-1), t + 1)
            ranks = candidates / (length**self.length_power)[..., None] if self.length_power else candidates
            best = ranks.flatten(1).topk(self.beam, 1).indices  # [B, beam]
            parent, rank = best // self.beam, best % self.beam
            log_prob = candidates.flatten(1).gather(1, best)

            row_of = torch.full((B, self.beam), -1, dtype=torch.int64, device=device)
            row_of[image, slot] = torch.arange(len(image), device=device)
            row = row_of.gather(1, parent)  # -1: an ended sentence, or nothing at all
            grows = (row >= 0) & (log_prob > -math.inf)
            symbols = symbols.gather(1, parent[..., None].expand_as(symbols))
            symbols[..., t] = torch.where(grows, words[row, rank], symbols[..., t])
            ended = ended.gather(1, parent) | (symbols[..., t] == END)
            lengths = (symbols != PADDING).sum(-1).clamp_min(1)
            reached = (log_prob / lengths**self.length_power).masked_fill(~ended, -math.inf)
            least = reached.topk(self.n_best, 1).values[:, -1:]
            log_prob = log_prob.masked_fill(~ended & (log_prob / self.longest <= least), -math.inf)
            grows = grows & (log_prob > -math.inf)
            symbols[log_prob == -math.inf] = PADDING
            image, slot = (grows & ~ended).nonzero(as_tuple=True)
            if len(image) == 0:
                break
            row, word = row[image, slot], symbols[image, slot, t]
            log_weight = log_weight[row] + p[row, :, word].log()
            state = self.head.advance(self.inputs[word][:, None], state.at(row))
        return Sentences(_trimmed(symbols), log_prob)

    def _best_words(self, mixed: Tensor, last: bool) -> tuple[Tensor, Tensor]:
        """The best continuations of each prefix [R, V]: symbols and log p(prefix, symbol | X), both [R, beam]."""
        if last:
            words = torch.full((len(mixed), self.beam), END, dtype=torch.int64, device=mixed.device)
            values = mixed.new_full((len(mixed), self.beam), -math.inf)
            values[:, 0] = mixed[:, END]
            return words, values
        mixed[:, self.forbidden] = -math.inf
        values, words = mixed.topk(min(self.beam, mixed.shape[1]), 1)
        missing = self.beam - words.shape[1]  # a beam wider than the vocabulary
        values = F.pad(values, (0, missing), value=-math.inf)
        return F.pad(words, (0, missing), value=END), values


def _parts(codes: Tensor, images: int) -> Iterator[Tensor]:
    yield from codes.split(max(1, images), 1)


def _trimmed(symbols: Tensor) -> Tensor:
    """Without the columns that are all padding."""
    longest = int((symbols != PADDING).sum(-1).max()) if symbols.numel() else 0
    return symbols[..., :longest]


def _joined(parts: list[Sentences]) -> Sentences:
    longest = max((part.symbols.shape[-1] for part in parts), default=0)
    symbols = [F.pad(part.symbols, (0, longest - part.symbols.shape[-1]), value=PADDING) for part in parts]
    return Sentences(torch.cat(symbols), torch.cat([part.log_prob for part in parts]))
