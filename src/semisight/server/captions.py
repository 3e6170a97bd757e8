"""Captions of a batch of codes, each with its probability per word and the range of that over codes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.inference.beam_search import beam_search
from semisight.inference.captions import BEAM, LENGTH_POWER, N_CODES
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.runs.run import Run

_SHARE = 0.9


@dataclass(frozen=True)
class Sentence:
    """probability: of a word, on average (geometric), under the mixture over codes; low and high for nine in ten."""

    text: str
    probability: float
    low: float
    high: float


@dataclass(frozen=True)
class Describer:
    """The caption head of a run."""

    head: CaptionHead
    vocabulary: Vocabulary

    @torch.no_grad()
    def __call__(self, codes: Tensor, n: int) -> list[tuple[Sentence, ...]]:
        """The n best captions of each image, for codes [N_s, B, J]."""
        codes = codes[:N_CODES]
        beam = max(BEAM, n)
        found = beam_search(self.head, codes, beam=beam, n_best=n, length_power=LENGTH_POWER, forbidden=(UNKNOWN,))
        B, _, T = found.symbols.shape
        symbols = found.symbols.reshape(B * n, T)
        owners = torch.arange(B, device=codes.device).repeat_interleave(n)
        words = words_per_caption(symbols).clamp_min(1)
        each = torch.stack([self.head.log_prob(symbols, code[owners]) for code in codes]) / words  # [N_s, B n]
        outside = round((1 - _SHARE) / 2 * (len(codes) - 1))
        ordered = each.exp().sort(0).values
        mixed = (found.log_prob.reshape(-1) / words).exp()
        low, high = torch.minimum(ordered[outside], mixed), torch.maximum(ordered[-1 - outside], mixed)
        sentences = [
            Sentence(self.vocabulary.text(row), *(round(float(value), 6) for value in values))
            for row, *values in zip(symbols, mixed, low, high, strict=True)
        ]
        usable = found.log_prob.reshape(-1).isfinite().tolist()
        return [tuple(sentences[i] for i in range(b * n, (b + 1) * n) if usable[i]) for b in range(B)]


def describer_of(run: Run) -> Describer | None:
    """For a run that learned captions."""
    return Describer(run.captions.head, run.captions.vocabulary) if run.has("captions") else None
