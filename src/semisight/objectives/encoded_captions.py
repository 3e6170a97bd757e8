"""Section 5.3: the captions of a whole training set as symbols, several per image or none, and a draw of some of them.

All captions lie one after another in one tensor of 32-bit numbers, without padding: half a million captions take 30 MB.
They are no part of a checkpoint. A resumed run makes them again from the caption file and the vocabulary, and `about`,
given to the trainer with what else describes the model, lets it refuse other ones.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semisight.data.vocabulary import PADDING, Vocabulary
from semisight.objectives.step import Rows


@dataclass(frozen=True, eq=False)
class EncodedCaptions:
    """Captions of N images.

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
        """For the trainer's `about`: number of captions, words, and a hash of them all."""
        digest = hashlib.sha256()
        for part in (self.symbols, self.starts, self.first):
            digest.update(part.contiguous().numpy().tobytes())
        return {"captions": len(self.starts) - 1, "vocab_size": self.vocab_size, "hash": digest.hexdigest()[:16]}
