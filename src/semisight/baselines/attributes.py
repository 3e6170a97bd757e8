"""Table 3, Attributes-CNN+RNN (Wu, Shen, Liu, Dick and van den Hengel, 2016): words first, then sentences from them.

    attributes   the 256 most frequent words of the training captions, function words left out (scikit-learn's list)
    p_k          = max over places of sigmoid(w_k a_i + b_k)       a_i: the feature map; image regions were published
    y_1 .. y_T   show and tell (show_and_tell.py) with the 256 probabilities in the place of features

The first network learns, of every word, whether any caption of the image has it; then it stays as it is. `noisy-or`
(a word is there unless no place shows it) is what dmsm.py takes: p_k = 1 - prod_i (1 - p_ik).
"""

from collections import Counter
from typing import Literal

import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from torch import Tensor, nn

from semisight.baselines.captioner import Standardised
from semisight.data.vocabulary import UNKNOWN, Vocabulary
from semisight.model.evaluating import evaluating
from semisight.objectives.captions import EncodedCaptions
from semisight.objectives.step import Images

Pool = Literal["max", "noisy-or"]
AT_A_TIME = 100  # images
LEAST = 1e-4  # of the share of images that have a word


def frequent_words(captions: EncodedCaptions, vocabulary: Vocabulary, n: int, content: bool) -> Tensor:
    """int64 [K]: the symbols of the n most frequent words, `content` words only if asked."""
    counts = Counter(captions.symbols.tolist())
    kept = [
        symbol
        for symbol, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        if symbol > UNKNOWN and not (content and vocabulary.words[symbol] in ENGLISH_STOP_WORDS)
    ]
    return torch.tensor(kept[:n], dtype=torch.int64)


def words_present(captions: EncodedCaptions, words: Tensor) -> Tensor:
    """float [N, K]: 1 where any caption of the image has the word."""
    place = torch.full((captions.vocab_size,), -1, dtype=torch.int64)
    place[words] = torch.arange(len(words))
    found = torch.zeros(len(captions), len(words))
    owners = torch.arange(len(captions)).repeat_interleave(captions.counts)  # of captions
    owners = owners.repeat_interleave(captions.starts.diff())  # of symbols
    which = place[captions.symbols.long()]
    found[owners[which >= 0], which[which >= 0]] = 1.0
    return found


class Detector(nn.Module):
    """p(word is said of the image), of feature maps. A `Network` (network.py) whose labels are rows of 0 and 1."""

    def __init__(self, channels: int, share: Tensor, n_places: int, pool: Pool = "max", dropout: float = 0.5) -> None:
        """`share` [K]: of the training images, those that have the word: where probabilities start."""
        super().__init__()
        self.pool: Pool = pool
        self.scale, self.places, self.dropout = (
            Standardised(channels),
            nn.Linear(channels, len(share)),
            nn.Dropout(dropout),
        )
        share = share.clamp(LEAST, 1 - LEAST)
        with torch.no_grad():
            self.places.weight.mul_(0.1)
            at_a_place = 1 - (1 - share) ** (1 / n_places) if pool == "noisy-or" else share
            self.places.bias.copy_(at_a_place.logit())

    def _logits(self, images: Tensor) -> Tensor:
        """[B, L, K]"""
        return self.places(self.dropout(self.scale(images)).flatten(2).transpose(1, 2))

    def probabilities(self, images: Tensor) -> Tensor:
        """[B, K]"""
        logits = self._logits(images)
        return logits.amax(1).sigmoid() if self.pool == "max" else -torch.expm1(-F.softplus(logits).sum(1))

    def surprise(self, images: Tensor, present: Tensor) -> Tensor:
        """[B, K]: -log p of what is so."""
        logits = self._logits(images)
        if self.pool == "max":
            return F.binary_cross_entropy_with_logits(logits.amax(1), present, reduction="none")
        none = F.softplus(logits).sum(1)  # -log p(no place shows it)
        return torch.where(present > 0, -torch.log(-torch.expm1(-none) + 1e-12), none)

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        loss = self.surprise(images, labels.to(images)).sum(1).mean()
        return loss, {"words": -loss}

    def after_step(self) -> None:
        return


@torch.no_grad()
def detected(detector: Detector, images: Images) -> Tensor:
    """float32 [N, K, 1, 1]: the probabilities in the place of feature maps."""
    detector.eval()
    parts = torch.arange(len(images)).split(AT_A_TIME)
    return torch.cat([detector.probabilities(images.batch(some)) for some in parts])[..., None, None]


@torch.no_grad()
def surprise_of(detector: Detector, images: Images, present: Tensor) -> float:
    """Mean over a set, per word."""
    with evaluating(detector):
        parts = torch.arange(len(images)).split(AT_A_TIME)
        total = sum(float(detector.surprise(images.batch(some), present[some]).sum()) for some in parts)
    return total / present.numel()
