"""Sections 3.2 and 5.3, (12): captions as a target, several per image or none.

    side     mean over its drawn captions of xi log p(Y | s), xi = N_X / (T rho)
    learn    log p of the words that the averaged model is sure of on a weakly augmented image

T counts the symbols of that very caption, the end among them: every caption weighs as much as N_X pixels, however long
it is. Of an image with several captions `per_image` are drawn anew at every step (by default one; None takes them all).
Their mean is an unbiased estimate of the mean over all its captions: an image counts once however many it has.

Pseudo-captions, as pseudo_labels.py has it for labels: Y is the likeliest caption, word by word, of the mean code, and
those words are learned whose p(y_t | y_<t, that code) is above `threshold`. A picture of which the model knows colours
but not shapes teaches what is known. What is assumed: augmentation keeps what a caption says (data/augment.py).
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from semisight.data.vocabulary import PADDING, Vocabulary
from semisight.errors import UserError
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.objectives.step import Rows
from semisight.objectives.targets import Learned, Side, Target, Xi, per_other

MAX_WORDS = 30  # of a caption that is looked for


@dataclass(frozen=True, eq=False)
class EncodedCaptions:
    """Captions of N images as symbols, one after another without padding: half a million take 30 MB.

    symbols     int32 [S]: all captions, one after another
    starts      int64 [M + 1]: caption m is symbols[starts[m] : starts[m + 1]]
    first       int64 [N + 1]: image i has the captions first[i] .. first[i + 1] - 1
    vocab_size  of the vocabulary that they were encoded with
    """

    symbols: Tensor
    starts: Tensor
    first: Tensor
    vocab_size: int

    @classmethod
    def encode(cls, captions: Sequence[Sequence[str]], vocabulary: Vocabulary) -> "EncodedCaptions":
        """Captions per image, possibly none; those without a word are left out."""
        symbols: list[int] = []
        starts, first = [0], [0]
        for of_image in captions:
            for caption in of_image:
                encoded = vocabulary.symbols(caption)
                if encoded:
                    symbols += encoded
                    starts.append(len(symbols))
            first.append(len(starts) - 1)
        return cls(torch.tensor(symbols, dtype=torch.int32), torch.tensor(starts), torch.tensor(first), len(vocabulary))

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def counts(self) -> Tensor:
        """[N]: how many captions each image has."""
        return self.first.diff()

    @property
    def present(self) -> Tensor:
        """[N] bool: which images have a caption."""
        return self.counts > 0

    def of(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Every caption of the images at `index` [B]: captions int64 [M, T], and the place in `index` of each, [M]."""
        counts = self.counts[index]
        owners = torch.arange(len(index)).repeat_interleave(counts)
        before = counts.cumsum(0) - counts
        within = torch.arange(len(owners)) - before[owners]
        return self._padded(self.first[index][owners] + within), owners

    def draw(
        self, index: Tensor, per_image: int | None, generator: torch.Generator, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """The same for `per_image` captions of each image, drawn without replacement; None takes all of them.

        Numbers are drawn for the whole batch, of which `index` is the rows of this process.
        """
        counts = self.counts
        most = int(counts.max()) if len(counts) else 0
        if per_image is None or per_image >= most:
            return self.of(index)
        order = torch.rand(rows.total, most, generator=generator)[rows.start : rows.stop]
        order = order.masked_fill(torch.arange(most) >= counts[index][:, None], -1.0)
        rank, which = order.topk(per_image, 1)
        owners, place = (rank >= 0).nonzero(as_tuple=True)
        return self._padded(self.first[index[owners]] + which[owners, place]), owners

    def _padded(self, numbers: Tensor) -> Tensor:
        """Captions by their numbers [M], int64 [M, T], T the longest of them."""
        starts = self.starts[numbers]
        lengths = self.starts[numbers + 1] - starts
        steps = torch.arange(int(lengths.max()) if len(numbers) else 0)
        there = steps < lengths[:, None]
        captions = torch.full(there.shape, PADDING, dtype=torch.int64)
        captions[there] = self.symbols[(starts[:, None] + steps)[there]].long()
        return captions

    def about(self) -> dict[str, Any]:
        """For a run's record: number of captions, words, and a hash of them all, so that a resumed run has the same."""
        digest = hashlib.sha256()
        for part in (self.symbols, self.starts, self.first):
            digest.update(part.contiguous().numpy().tobytes())
        return {"captions": len(self.starts) - 1, "vocab_size": self.vocab_size, "hash": digest.hexdigest()[:16]}


@dataclass(frozen=True)
class CaptionRows:
    """Captions int64 [M, T], and the place in the batch of the image that each belongs to, [M]."""

    captions: Tensor
    owners: Tensor


@dataclass(frozen=True)
class PseudoCaptions:
    """The likeliest caption of each image, int64 [B, T], and which of its symbols are sure, [B, T] of 0 and 1."""

    captions: Tensor
    sure: Tensor


class Captions(nn.Module, Target):
    """Sentences about images.

    Args:
        head: p(Y | s), a `CaptionHead`.
        captions: of every training image its captions, possibly none; texts with their `vocabulary`, or encoded ones.
        vocabulary: the words of the head; needed for texts.
        xi: the weight of captions beside images; by default the paper's, N_X / (T rho). A number is the weight of
            log p(Y | s) itself, 1 giving the exact bound.
        per_image: captions of an image that are drawn in a step; None takes all it has.
        threshold: the probability above which a word of a pseudo-caption is learned.
        code_rate: multiplies the learning rate of the map from the code to the first state.

    Example:
        >>> import semisight as ss
        >>> scenes = ss.load("builtin:scenes?n=20&size=16")
        >>> words = ss.Vocabulary.from_captions(text for texts in scenes.captions for text in texts)
        >>> model = ss.ImageModel.suited_to(scenes)
        >>> captions = ss.Captions(ss.CaptionHead(model.code_size, len(words)), scenes.captions, words)
        >>> bool(captions.present.all())
        True
    """

    def __init__(
        self,
        head: CaptionHead,
        captions: EncodedCaptions | Sequence[Sequence[str]],
        vocabulary: Vocabulary | None = None,
        *,
        xi: Xi | None = None,
        per_image: int | None = 1,
        threshold: float = 0.9,
        code_rate: float = 1.0,
        name: str = "captions",
    ) -> None:
        super().__init__()
        self.texts: Sequence[Sequence[str]] = ()
        if not isinstance(captions, EncodedCaptions):
            self.texts = captions
            if vocabulary is None:
                raise ValueError("captions as texts need the vocabulary of the head")
            captions = EncodedCaptions.encode(captions, vocabulary)
        if captions.vocab_size != head.vocab_size:
            raise UserError(
                f"the captions were encoded with a vocabulary of {captions.vocab_size} symbols, but the caption model "
                f"has {head.vocab_size}: use the vocabulary that belongs to the model."
            )
        self.name, self.head, self.xi, self.vocabulary = name, head, xi or Xi(), vocabulary
        self.per_image, self.threshold, self.code_rate = per_image, threshold, code_rate
        # A plain attribute, not a buffer: it belongs to the data, and would make every checkpoint as large.
        self.encoded, self.present = captions, captions.present
        self.rho, self.n_pixels = float(self.present.float().mean()), 1

    def balance(self, n_pixels: int, rho: float) -> None:
        self.n_pixels, self.rho = n_pixels, rho

    def weight(self, n_symbols: Tensor, step: int) -> Tensor:
        """xi of captions of so many symbols each."""
        if self.xi.value is not None:
            return torch.full_like(n_symbols, self.xi.value * self.xi.ramp(step), dtype=torch.float32)
        return self.n_pixels / self.rho * self.xi.times * self.xi.ramp(step) / n_symbols

    def rows(self, index: Tensor, generator: torch.Generator, rows: Rows) -> CaptionRows:
        return CaptionRows(*self.encoded.draw(index.cpu(), self.per_image, generator, rows))

    def side(self, rows: CaptionRows, code: Tensor, step: int) -> Side:
        """The logs show the mean log p per symbol: minus the logarithm of the perplexity."""
        captions, owners = rows.captions.to(code.device), rows.owners.to(code.device)
        n_symbols = words_per_caption(captions)
        drawn_of_image = torch.bincount(owners, minlength=len(code))[owners]
        weight = self.weight(n_symbols, step).to(code) / drawn_of_image
        log_p = self.head.log_prob(captions, code[owners])
        side = code.new_zeros(len(code)).index_add(0, owners, (weight * log_p).to(code))
        return Side(side, log_p.detach().sum() / n_symbols.sum().clamp_min(1))

    @torch.no_grad()
    def believe(self, code: Tensor) -> PseudoCaptions:
        captions = self.head.predict(code[None], MAX_WORDS)
        sure = (self.head.log_symbols(captions, code).exp() > self.threshold) & (captions != PADDING)
        return PseudoCaptions(captions, sure.to(code.dtype))

    def learn(self, pseudo: PseudoCaptions, rows: CaptionRows, which: Tensor, seen: list[Tensor], step: int) -> Learned:
        n_symbols, n_sure = words_per_caption(pseudo.captions), pseudo.sure.sum()
        weight = self.weight(n_symbols.clamp_min(1), step)
        log_p = [(pseudo.sure * self.head.log_symbols(pseudo.captions, code[which])).sum(1) for code in seen]
        total = torch.stack([(weight.to(one) * one).sum() for one in log_p]).mean()
        shown = torch.stack([one.detach().sum() for one in log_p]).mean() / n_sure.clamp_min(1)
        terms = {"sure": n_sure / n_symbols.sum().clamp_min(1), "pseudo": shown}
        return Learned(per_other(self.rho) * total / len(which), terms)

    def rate_multipliers(self) -> Mapping[str, float]:
        """A code has far more entries than the state it sets: at one rate C s would soon be at the ends of tanh."""
        return {"code.weight": self.code_rate, "code.bias": self.code_rate} if self.code_rate != 1 else {}
