"""Search by words: the images to whose code the caption model gives these words the highest probability.

    score(image) = log p(words | s),  s the mean code; words without an end: all sentences that begin so

For given words, p(image | words) is proportional to this where every image is as likely to be meant: dividing by
p(words) changes no order.

A recurrent pass over every image takes about a second for a thousand of them. So a first look narrows them down:

    hint(image) = sum over the words of log mean_t p(y_t = word | greedy caption, s)      worked out once per image

and the images with the best hints are then scored as above. Up to SHORTLIST images all are.
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.errors import UserError
from semisight.inference.encode import Progress, check_answer, mean_codes
from semisight.model.heads.captions import END, CaptionHead
from semisight.model.image_model import ImageModel
from semisight.objectives.step import Images

SHORTLIST = 200  # images that are scored exactly
_WORDS, _ROWS = 20, 500  # of greedy captions; images at a time


@dataclass(frozen=True)
class Query:
    """The known words as symbols, and the words that no caption of the training had."""

    symbols: tuple[int, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class Match:
    """An image by its place, and log p(words | image)."""

    place: int
    log_prob: float


@dataclass(frozen=True, eq=False)
class WordSearch:
    """Images as codes [N, J] and hints float16 [N, V]."""

    head: CaptionHead
    vocabulary: Vocabulary
    codes: Tensor
    hints: Tensor

    @classmethod
    def of(
        cls,
        model: ImageModel,
        head: CaptionHead,
        vocabulary: Vocabulary,
        images: Images,
        progress: Progress | None = None,
    ) -> Self:
        return cls.of_codes(head, vocabulary, mean_codes(model, images), progress)

    @classmethod
    @torch.no_grad()
    def of_codes(
        cls, head: CaptionHead, vocabulary: Vocabulary, codes: Tensor, progress: Progress | None = None
    ) -> Self:
        hints, inputs = torch.empty(len(codes), head.vocab_size, dtype=torch.float16), head.inputs()
        for rows in torch.arange(len(codes)).split(_ROWS):
            hints[rows] = _look(head, inputs, codes[rows].to(inputs))
            if progress is not None:
                progress(int(rows[-1]) + 1, len(codes))
        return cls(head, vocabulary, codes, hints)

    def query(self, text: str) -> Query:
        """What a user has written, as the model knows it; words that it does not know are left out."""
        words = tokenize(text)
        symbols = [symbol for word in words for symbol in self.vocabulary.symbols(word)[:1]]
        unknown = tuple(word for word, symbol in zip(words, symbols, strict=True) if symbol == UNKNOWN)
        known = tuple(symbol for symbol in symbols if symbol != UNKNOWN)
        if not known:
            near = [found for word in words for found in difflib.get_close_matches(word, self.vocabulary.words[2:], 2)]
            hint = f" It knows {', '.join(near)}." if near else ""
            raise UserError(f"none of the words of {text!r} occurs in the captions that were learned from.{hint}")
        return Query(known, unknown)

    @torch.no_grad()
    def __call__(self, query: Query, n: int = 10, shortlist: int = SHORTLIST) -> list[Match]:
        """The best n images, the best first."""
        places = torch.arange(len(self.codes))
        if len(places) > max(n, shortlist):
            hint = self.hints[:, list(query.symbols)].float().sum(1)
            places = hint.topk(max(n, shortlist)).indices.sort().values
        log_prob = _log_prob(self.head, query.symbols, self.codes[places].to(self.head.embedding.weight)).cpu()
        check_answer(log_prob)
        best = log_prob.topk(min(n, len(places))).indices.tolist()
        return [Match(int(places[i]), float(log_prob[i])) for i in best]


def recall(search: WordSearch, texts: Sequence[str], at: Sequence[int] = (1, 5, 10)) -> dict[str, float]:
    """Percent of the texts, text i being of image i, that find their image among the first k."""
    n, ranks = len(search.codes), []
    for place, text in enumerate(texts):
        found = [match.place for match in search(search.query(text), n=max(at))]
        ranks.append(found.index(place) + 1 if place in found else n)
    return {f"R@{k}": 100 * sum(rank <= k for rank in ranks) / len(ranks) for k in at}


def _look(head: CaptionHead, inputs: Tensor, codes: Tensor) -> Tensor:
    """log mean_t p(y_t = w) along the greedy caption of each code, [B, V]."""
    state, open_ = head.start(codes), codes.new_ones(len(codes))
    total, count = codes.new_zeros(len(codes), head.vocab_size), codes.new_zeros(len(codes))
    for _ in range(_WORDS):
        p = head.log_words(state).exp()
        total, count = total + p * open_[:, None], count + open_
        p[:, UNKNOWN] = 0
        word = p.argmax(1)
        open_ = open_ * (word != END)
        if not bool(open_.any()):
            break
        state = head.advance(inputs[word], state)
    return (total / count[:, None]).clamp_min(1e-7).log().half().cpu()


def _log_prob(head: CaptionHead, symbols: Sequence[int], codes: Tensor) -> Tensor:
    """[B]: log p(symbols | s), one sequence for all codes."""
    found, inputs = [], head.inputs(torch.tensor(symbols, device=codes.device))
    for part in codes.split(_ROWS):
        state = head.start(part)
        total = part.new_zeros(len(part))
        for t, symbol in enumerate(symbols):
            total = total + head.log_words(state)[:, symbol]
            if t + 1 < len(symbols):
                state = head.advance(inputs[t], state)
        found.append(total)
    return torch.cat(found) if found else codes.new_zeros(0)
