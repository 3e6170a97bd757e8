"""Table 3, Hard-Attention (Xu et al., "Show, attend and tell: neural image caption generation with visual attention",
2015), and its soft form.

    a_1 .. a_L                       one vector for each place of the feature map; h_0, c_0 from their mean
    alpha_t = softmax_i f(a_i, h_t-1)
    hard:  s_t ~ alpha_t, z_t = a_{s_t}             soft:  z_t = sum_i alpha_ti a_i
    h_t, c_t = LSTM([W_e y_t-1, b_t z_t], h_t-1, c_t-1),  b_t = sigmoid(w h_t-1)
    y_t ~ softmax(V tanh(W_e y_t-1 + L_h h_t + L_z b_t z_t))

Soft attention descends -log p(Y) + sum_i (1 - sum_t alpha_ti)^2. Hard attention ascends the bound
E_{s ~ alpha} log p(Y | s) by REINFORCE, with the published tricks:

    a baseline that moves towards what is seen          b <- 0.9 b + 0.1 log p(Y | s)
    the entropy of alpha_t as a further term            weight 0.002
    with probability 1/2 the expected z_t, as if soft   no draw, hence no noise

s_t changes no word before t, so its reward is log p of the words from t on; b counts per symbol, and a draw is
compared with b times the symbols that are left. Neither changes the mean of the gradient: the published reward is the
whole sentence, with more noise. Sentences are searched for, and scored, with the expected z_t.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.baselines.captioner import Standardised, Terms
from semisight.model.heads.captions import words_per_caption

DECAY, ENTROPY, HALF, EVENLY = 0.9, 0.002, 0.5, 1.0


@dataclass(frozen=True)
class Attended:
    """After a prefix: h, c [..., H], what the next word is read from [..., E], and the places [..., L, D], [..., L, K].

    log_alpha [..., L]: where the last look was.
    """

    h: Tensor
    c: Tensor
    out: Tensor
    places: Tensor
    keys: Tensor
    log_alpha: Tensor

    def at(self, index: Tensor) -> "Attended":
        parts = (self.h, self.c, self.out, self.places, self.keys, self.log_alpha)
        return Attended(*(part[index] for part in parts))


@dataclass(frozen=True)
class Unrolled:
    """Of captions [M, T], zero where there is padding: log p(y_t), [M, T], log alpha_t of all places, [M, T, L]."""

    log_p: Tensor
    log_alpha: Tensor
    there: Tensor  # [M, T] bool


Look = Callable[[int, Tensor], Tensor]  # the word's number, log alpha [n, L] of the first n captions -> weights [n, L]


def expected(_: int, log_alpha: Tensor) -> Tensor:
    return log_alpha.exp()


class Attention(nn.Module):
    """`hard` says how it learns. Sizes: of state and embeddings, of a_i, of the hidden layer that scores places."""

    baseline: Tensor

    def __init__(
        self,
        channels: int,
        vocab_size: int,
        *,
        hard: bool,
        size: int = 512,
        place_size: int = 256,
        keys: int = 128,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.hard = hard
        self.scale, self.place = Standardised(channels), nn.Linear(channels, place_size)
        self.key = nn.Linear(place_size, keys)
        self.query, self.score, self.gate = nn.Linear(size, keys), nn.Linear(keys, 1), nn.Linear(size, 1)
        self.h0, self.c0 = nn.Linear(place_size, size), nn.Linear(place_size, size)
        self.embedding, self.first = nn.Embedding(vocab_size, size), nn.Parameter(torch.zeros(size))
        self.cell = nn.LSTMCell(size + place_size, size)
        self.from_h, self.from_z = nn.Linear(size, size), nn.Linear(place_size, size)
        self.words, self.dropout = nn.Linear(size, vocab_size), nn.Dropout(dropout)
        self.register_buffer("baseline", torch.tensor(-math.log(vocab_size)))  # of words that are guessed
        self._seen: Tensor | None = None

    def see(self, images: Tensor) -> Tensor:
        """[B, L, D]"""
        return torch.tanh(self.place(self.dropout(self.scale(images)).flatten(2).transpose(1, 2)))

    # ---- word by word ----

    def before(self, places: Tensor) -> Attended:
        """Nothing read and nothing looked at yet."""
        mean = places.mean(-2)
        h, c = torch.tanh(self.h0(mean)), torch.tanh(self.c0(mean))
        return Attended(h, c, h, places, self.key(places), torch.zeros_like(places[..., 0]))

    def advance(self, inputs: Tensor, state: Attended, look: Look = expected, t: int = 0) -> Attended:
        """One more word has been read, `inputs` its embedding [..., E]; looks for the next one."""
        hidden = torch.tanh(state.keys + self.query(state.h)[..., None, :])
        log_alpha = self.score(hidden).squeeze(-1).log_softmax(-1)
        z = (look(t, log_alpha)[..., None, :] @ state.places).squeeze(-2) * torch.sigmoid(self.gate(state.h))
        inputs = inputs.expand_as(state.h)
        gates = torch.cat([inputs, z], -1).flatten(0, -2)
        h, c = self.cell(gates, (state.h.flatten(0, -2), state.c.flatten(0, -2)))
        h, c = h.view_as(state.h), c.view_as(state.c)
        out = torch.tanh(inputs + self.from_h(self.dropout(h)) + self.from_z(z))
        return Attended(h, c, out, state.places, state.keys, log_alpha)

    def start(self, s: Tensor) -> Attended:
        return self.advance(self.first, self.before(s))

    def inputs(self) -> Tensor:
        return self.embedding.weight

    def log_words(self, state: Attended) -> Tensor:
        return self.words(self.dropout(state.out)).log_softmax(-1)

    # ---- whole captions ----

    def unroll(self, captions: Tensor, places: Tensor, look: Look = expected) -> Unrolled:
        """Captions [M, T] with the places [M, L, D] of their images, the longest first."""
        lengths = words_per_caption(captions)
        state = self.before(places)
        out, log_alpha = [], []
        for t in range(captions.shape[1]):
            n, before = int((lengths > t).sum()), len(state.h)
            if n < before:
                state = Attended(*(part[:n] for part in vars(state).values()))
            read = self.first if t == 0 else self.dropout(self.embedding(captions[:n, t - 1]))
            state = self.advance(read, state, look, t)
            out.append(state.out)
            log_alpha.append(F.pad(state.log_alpha, (0, 0, 0, len(captions) - n)))
        there = torch.arange(captions.shape[1], device=captions.device) < lengths[:, None]
        t_, m = there.T.nonzero(as_tuple=True)  # in the order of `out`
        right = -F.cross_entropy(self.words(self.dropout(torch.cat(out))), captions[m, t_], reduction="none")
        log_p = right.new_zeros(captions.shape).index_put((m, t_), right)
        return Unrolled(log_p, torch.stack(log_alpha, 1), there)

    def log_prob(self, captions: Tensor, s: Tensor) -> Tensor:
        order = words_per_caption(captions).argsort(descending=True, stable=True)
        return self.unroll(captions[order], s[order]).log_p.sum(1)[order.argsort()]

    # ---- learning ----

    def loss(
        self, images: Tensor, captions: Tensor, owners: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Terms]:
        order = words_per_caption(captions).argsort(descending=True, stable=True)
        captions, places = captions[order], self.see(images)[owners[order]]
        n = int((captions >= 0).sum())
        if not self.hard:
            seen = self.unroll(captions, places)
            attended = (seen.log_alpha.exp() * seen.there[..., None]).sum(1)
            uneven = EVENLY * (1 - attended).square().sum() / n
            log_p = seen.log_p.sum() / n
            return uneven - log_p, {"captions": log_p, "uneven": uneven}
        draws = Draws(captions.shape, generator)
        seen = self.unroll(captions, places, draws)
        self._seen = (seen.log_p.sum() / n).detach()
        surrogate = (seen.log_p + draws.drawn.to(seen.log_p) * self.reinforced(seen, draws.places)).sum() / n
        entropy = ENTROPY * (-(seen.log_alpha.exp() * seen.log_alpha).sum(2) * seen.there).sum() / n
        return -surrogate - entropy, {"captions": self._seen, "entropy": entropy}

    def reinforced(self, seen: Unrolled, places: Tensor) -> Tensor:
        """[M, T]: the reward of each drawn place, int64 [M, T], above the baseline, times its log alpha."""
        to_go = seen.log_p.flip(1).cumsum(1).flip(1)
        symbols_left = seen.there.flip(1).cumsum(1).flip(1)
        reward = (to_go - self.baseline * symbols_left).detach()
        return reward * seen.log_alpha.gather(2, places[..., None].to(seen.log_alpha.device)).squeeze(2) * seen.there

    @torch.no_grad()
    def after_step(self) -> None:
        if self._seen is not None:
            self.baseline.lerp_(self._seen.to(self.baseline), 1 - DECAY)
            self._seen = None


class Draws:
    """A place for every word, by the step's own random numbers; of half the captions none, but the expected z."""

    def __init__(self, shape: torch.Size, generator: torch.Generator) -> None:
        self.uniform = torch.rand(shape, generator=generator)
        self.drawn = (torch.rand(shape[0], 1, generator=generator) >= HALF).float()
        self.places = torch.zeros(shape, dtype=torch.int64)

    def __call__(self, t: int, log_alpha: Tensor) -> Tensor:
        n, alpha = len(log_alpha), log_alpha.exp()
        below = alpha.detach().cpu().cumsum(1) < self.uniform[:n, t, None]
        self.places[:n, t] = below.sum(1).clamp_max(alpha.shape[1] - 1)
        chosen = F.one_hot(self.places[:n, t], alpha.shape[1]).to(alpha)
        return torch.where(self.drawn[:n].to(alpha) > 0, chosen, alpha)
