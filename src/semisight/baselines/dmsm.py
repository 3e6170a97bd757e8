"""Table 3, DMSM (Fang et al., "From captions to visual concepts and back", 2015): detected words, a language model that
is to use them, and a deep multimodal similarity model that chooses among its sentences.

    words       the 1,000 most frequent; p_k = 1 - prod over places of (1 - p_ik)              attributes.py, noisy-or
    sentence    maximum entropy: p(y_t | ...) ~ exp of  a part for y_t after y_t-1, y_t-2, y_t-3
                                                        a_y + b log p_y   where y_t is detected and not said yet
                                                        e R_t             where y_t is the end, R_t = sum of unsaid p_k
    similarity  cos(image network(features), text network(letter trigrams of a sentence)), of two and three tanh layers,
                learned as softmax over the sentences of a batch, of 10 times the cosine
    choice      of the 20 best sentences the one with the largest  log p + w . (length, detected words said, similarity)

The published language model has tables of n-grams; here the part for the words before is a sum of one vector for each
of them, times one for y_t. The published weights w are learned for BLEU by MERT; here by going through them one by one,
for CIDEr, on the images to pick by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from sklearn.feature_extraction.text import CountVectorizer
from torch import Tensor, nn

from semisight.baselines.captioner import AT_A_TIME, ByLikelihood, Standardised, Written
from semisight.model.evaluating import evaluating
from semisight.model.heads.captions import END
from semisight.objectives.step import Images

BEFORE = 3  # words that the next one depends on
DETECTED = 0.1  # probability from which a word is to be used
GAMMA = 10.0
NAMES = ("length", "detected words", "similarity")
STEPS = (-2.0, -1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0, 2.0)
SCALES = (1.0, 1.0, 10.0)  # of a weight, as its number differs from one sentence to the next


# ---- the language model ----


@dataclass(frozen=True)
class Said:
    """After a prefix: the last words [..., 3], the newest first; p of what is detected and not said yet, [..., V]."""

    last: Tensor
    unsaid: Tensor

    def at(self, index: Tensor) -> "Said":
        return Said(self.last[index], self.unsaid[index])


class LanguageModel(ByLikelihood, nn.Module):
    """Of detected words [N, K, 1, 1]; `words` are their symbols."""

    words: Tensor

    def __init__(self, vocab_size: int, words: Tensor, size: int = 256, dropout: float = 0.3) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.register_buffer("words", words)
        # one vector per word and distance; the start is a word of its own
        self.before = nn.ModuleList(nn.Embedding(vocab_size + 1, size) for _ in range(BEFORE))
        self.next, self.dropout = nn.Linear(size, vocab_size), nn.Dropout(dropout)
        self.detected, self.by_score = nn.Parameter(torch.zeros(vocab_size)), nn.Parameter(torch.zeros(()))
        self.end = nn.Parameter(torch.zeros(()))

    def see(self, images: Tensor) -> Tensor:
        """[B, V]: p of the detected words, 0 of all others."""
        p = images.flatten(1)
        seen = p.new_zeros(len(p), self.vocab_size)
        seen[:, self.words] = torch.where(p >= DETECTED, p, 0.0)
        return seen

    def _logits(self, last: Tensor, unsaid: Tensor) -> Tensor:
        h = sum(table(last[..., k]) for k, table in enumerate(self.before))
        assert isinstance(h, Tensor)
        there = unsaid > 0
        attribute = there * (self.detected + self.by_score * unsaid.clamp_min(1e-6).log())
        end = F.one_hot(torch.tensor(END), self.vocab_size).to(unsaid) * self.end * unsaid.sum(-1, keepdim=True)
        return self.next(self.dropout(h)) + attribute + end

    def start(self, s: Tensor) -> Said:
        return Said(torch.full((*s.shape[:-1], BEFORE), self.vocab_size, device=s.device), s)

    def log_words(self, state: Said) -> Tensor:
        return self._logits(state.last, state.unsaid).log_softmax(-1)

    def inputs(self) -> Tensor:
        """[V, 1]: a word is its number."""
        return torch.arange(self.vocab_size, device=self.words.device)[:, None]

    def advance(self, inputs: Tensor, state: Said) -> Said:
        word = inputs.expand(*state.last.shape[:-1], 1)
        return Said(torch.cat([word, state.last[..., :-1]], -1), state.unsaid.scatter(-1, word, 0.0))

    def log_prob(self, captions: Tensor, s: Tensor) -> Tensor:
        """[M]; all words of all captions at once."""
        M, T = captions.shape
        there = captions >= 0
        started = F.pad(captions.clamp_min(0), (BEFORE, 0), value=self.vocab_size)
        last = torch.stack([started[:, BEFORE - 1 - k : BEFORE - 1 - k + T] for k in range(BEFORE)], -1)  # [M, T, 3]
        t = torch.arange(T, device=captions.device)
        first = torch.full((M, self.vocab_size), T, device=captions.device)  # where a word is said first
        first.scatter_reduce_(1, captions.clamp_min(0), torch.where(there, t, T), "amin")
        m, place = there.nonzero(as_tuple=True)
        unsaid = s[m] * (first[m] >= place[:, None])
        logits = self._logits(last[m, place], unsaid)
        log_p = -F.cross_entropy(logits, captions[m, place], reduction="none")
        return log_p.new_zeros(M, T).index_put((m, place), log_p).sum(1)


# ---- the similarity ----


class Trigrams:
    """Sentences as counts of letter trigrams, word boundaries among the letters: those of the training captions."""

    def __init__(self, captions: Sequence[Sequence[str]]) -> None:
        self.counter = CountVectorizer(analyzer="char_wb", ngram_range=(3, 3), min_df=2 if len(captions) > 1000 else 1)
        self.counter.fit([text for texts in captions for text in texts])

    def __len__(self) -> int:
        return len(self.counter.vocabulary_)

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """float32 [N, trigrams]"""
        return torch.from_numpy(self.counter.transform(texts).toarray()).float()


class Similarity(nn.Module):
    """A `Network` (network.py) of feature maps whose labels are the places of the images in the training set: it draws
    one of their captions in every step. The other captions of the batch are the wrong answers."""

    def __init__(
        self,
        channels: int,
        trigrams: Trigrams,
        captions: Sequence[Sequence[str]],
        size: int = 300,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.trigrams, self.captions = trigrams, captions
        self.scale, self.dropout = Standardised(channels), nn.Dropout(dropout)
        self.image = nn.Sequential(nn.Linear(channels, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh())
        sizes = (len(trigrams), size, size, size)
        layers = [[nn.Linear(a, b), nn.Tanh()] for a, b in pairwise(sizes)]
        self.text = nn.Sequential(*(part for layer in layers for part in layer))

    def of_images(self, images: Tensor) -> Tensor:
        """[B, size], of length 1."""
        return F.normalize(self.image(self.dropout(self.scale(images).mean((2, 3)))), dim=1)

    def of_texts(self, texts: Sequence[str]) -> Tensor:
        counts = self.trigrams(texts).to(next(self.parameters()))
        return F.normalize(self.text(self.dropout(counts)), dim=1)

    def loss(self, images: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        uniform = torch.rand(len(labels), generator=generator).tolist()
        of_each = [self.captions[i] for i in labels.tolist()]
        texts = [own[int(u * len(own))] for own, u in zip(of_each, uniform, strict=True)]
        loss = surprise(self.of_images(images), self.of_texts(texts))
        return loss, {"similarity": -loss}

    def after_step(self) -> None:
        return


def surprise(images: Tensor, texts: Tensor) -> Tensor:
    """Mean of -log p(its own text | image) among all of them."""
    return F.cross_entropy(GAMMA * images @ texts.T, torch.arange(len(texts), device=texts.device))


@torch.no_grad()
def surprise_of(network: Similarity, images: Images, texts: Sequence[str]) -> float:
    """The same of a whole set, text i being of image i."""
    with evaluating(network):
        parts = torch.arange(len(images)).split(AT_A_TIME)
        seen = torch.cat([network.of_images(images.batch(some)) for some in parts])
        return float(surprise(seen, network.of_texts(texts)))


@torch.no_grad()
def similarity_of(network: Similarity, images: Images, sentences: Sequence[Sequence[str]]) -> list[Tensor]:
    """Of every image the cosines with its sentences."""
    network.eval()
    found = []
    for i, texts in enumerate(sentences):
        seen = network.of_images(images.batch(torch.tensor([i])))
        found.append((network.of_texts(texts) @ seen[0]).cpu())
    return found


# ---- the choice ----


def numbers_of(
    found: Sequence[Sequence[Written]], words_seen: Sequence[frozenset[str]], similarity: Sequence[Tensor]
) -> list[Tensor]:
    """Of every image [n, 4]: log p, length, detected words that are said, similarity; one row for each sentence."""
    rows = []
    for sentences, seen, close in zip(found, words_seen, similarity, strict=True):
        said = [[one.log_prob, len(one.words), len(seen & set(one.words))] for one in sentences]
        rows.append(torch.cat([torch.tensor(said), close[:, None]], 1))
    return rows


def choose(numbers: Sequence[Tensor], weights: Tensor) -> list[int]:
    """Of every image which of its sentences is the best."""
    return [int((of[:, 0] + of[:, 1:] @ weights).argmax()) for of in numbers]


def tuned(numbers: Sequence[Tensor], score: Callable[[list[int]], float], rounds: int = 2) -> Tensor:
    """w [3], one after another, so that the sentences chosen score best; 0, which changes nothing, if none does."""
    weights = torch.zeros(len(NAMES))
    best = score(choose(numbers, weights))
    for k in [*range(len(NAMES))] * rounds:
        for step in STEPS:
            tried = weights.clone()
            tried[k] = step * SCALES[k]
            value = score(choose(numbers, tried))
            if value > best:
                best, weights = value, tried
    return weights
