"""Beyond the paper: words that the model is sure of on an image moved a little are learned on the image moved more.

    Y       = the likeliest caption, word by word, of the mean code of a little moved X
    targets = those words y_t of Y whose p(y_t | y_<t, that code) is above `threshold`

As learning/confidence.py does it for labels, but p is that of the averaged weights where the trainer keeps any. What is
assumed: the moves keep what a caption says, so they are gentler (data/moving.py, CAPTION_MOVES). A picture of which the
model knows colours but not shapes pulls with what is known.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.data.augment import CAPTION_MOVES, Moves
from semisight.data.vocabulary import PADDING
from semisight.inference.beam_search import MAX_WORDS
from semisight.model.heads.captions import CaptionHead


@dataclass(frozen=True)
class CaptionPull:
    """How images without a caption pull on the captions; `confident` is a weight in units of xi."""

    confident: float = 1.0
    threshold: float = 0.9
    little: float = 0.3  # strength of the move on which the model has to be sure
    far: float = 1.0  # strength of the move that it learns from
    bound_images: int | None = 16  # how many of a batch enter the bound; 0 leaves the image model out, None takes all
    per_other: float = 1.0  # captioned images per image without a caption, so that both kinds weigh the same
    moves: Moves = CAPTION_MOVES


@torch.no_grad()
def sure_words(head: CaptionHead, code: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The likeliest caption of each code [B, J], int64 [B, T], and which of its symbols are sure, [B, T] of 0 and 1."""
    captions = head.predict(code[None], MAX_WORDS)
    sure = (head.log_symbols(captions, code).exp() > threshold) & (captions != PADDING)
    return captions, sure.to(code.dtype)
