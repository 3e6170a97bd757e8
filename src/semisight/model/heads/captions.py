"""Section 3.2 and appendix B: captions from codes, by a recurrent network.

    h_1         = tanh(C s)                                     the code sets the first hidden state
    y_1 | s     ~ softmax(V h_1)
    w_t         = W_e y_t                                       the embedding of word t
    h_t         = H(w_{t-1}, h_{t-1})                           H is a GRU, or an LSTM
    y_t | y_<t, s ~ softmax(V h_t)                              until y_T is the end symbol

With `code_at_every_step`, beyond the paper, h_t = H([w_{t-1}, s], h_{t-1}): nothing of the image has to be remembered.
With `places`, soft attention over the places of the code (s_i, i = 1..L, as of a grid of features); also beyond the
paper:

    alpha_t = softmax_i (W_q h_t . W_k s_i / sqrt(A))       which places the next word is about; A numbers in each key
    y_t     ~ softmax(V tanh(W_r [h_t, sum_i alpha_ti s_i]))

and s above is their mean. Attention follows the recurrent step instead of preceding it (Lu et al., "Knowing when to
look", 2017): all words of a caption attend at once, and none waits for the one before.

With `tied` embeddings, V = W_e, beyond the paper: a word is predicted by the numbers it is read by (Press and Wolf,
"Using the output embedding to improve language models", 2017). Rare words are then learned from both sides. W_e is
scaled up by the square root of its width where words are read, so that V keeps the variance of h_t.

Dropout, in training, leaves out numbers of w_t and of h_t on its way to the words, never of the state that is carried.

All three maps have biases, started at zero, as the paper's "omitted for simplicity" implies. An LSTM carries a second
state c with h = (output gate) tanh(c): it starts at c_1 = C s with the gate open, so that h_1 is the same.

Shapes: codes `s` [B, J]; captions int64 [B, T], symbols 0 .. vocab_size - 1, 0 the end, -1 padding after the last one.
A caption without the end is a prefix, and its probability that of all sentences that start so. A row of padding is a
missing caption: it contributes exactly nothing, to the value and to the gradient. An image with several captions is
several rows with the same code.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

END, PADDING = 0, -1
Start = Literal["paper", "wide"]
SMALL = 0.01  # appendix B: non-recurrent weights are uniform in [-0.01, 0.01]
KEYS = 256  # A, the numbers that a query and a place are compared by
CODE_START = 0.3  # of a wide start: the deviation of C s for a code of unit variance
REMEMBER = 4.0  # of a wide start: the bias of the gate that keeps the state; 98 % of it then lives on at every word
ATTENDING = 1.0  # the same with attention: the image need not be remembered


@dataclass(frozen=True)
class State:
    """What a prefix has left behind: h [..., H], an LSTM's c [..., H], and what the code adds to the gates at every
    step, [..., gates * H], where it does; and the places that its words attend to."""

    h: Tensor
    c: Tensor | None = None
    code: Tensor | None = None
    places: "Places | None" = None

    def at(self, index: Tensor) -> "State":
        """The states at positions of the first axis."""
        c, code = (None if part is None else part[index] for part in (self.c, self.code))
        return State(self.h[index], c, code, None if self.places is None else self.places.at(index))


@dataclass(frozen=True)
class Places:
    """Of codes [B, ...]: the places [B, ..., L, K] and their keys [B, ..., L, A]; and whose row r of the states are,
    [R], where these are no longer as many: prefixes of one image share its places, which are large."""

    values: Tensor
    keys: Tensor
    owner: Tensor | None = None

    def at(self, index: Tensor) -> "Places":
        return Places(self.values, self.keys, index if self.owner is None else self.owner[index])

    def attend(self, queries: Tensor) -> Tensor:
        """[R, ..., K]: the mean of the places, weighed by how each key agrees with the query [R, ..., A]."""
        if self.owner is None:
            return attention(queries[..., None, :], self.keys, self.values).squeeze(-2)
        counts = torch.bincount(self.owner, minlength=len(self.keys))
        order = self.owner.argsort(stable=True)
        slot = torch.empty_like(order)
        slot[order] = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[self.owner[order]]
        table = queries.new_zeros(len(counts), int(counts.max()), *queries.shape[1:])
        table[self.owner, slot] = queries
        found = attention(table.movedim(1, -2), self.keys, self.values)
        return found.movedim(-2, 1)[self.owner, slot]


class CaptionHead(nn.Module):
    """p(Y | s), for whole captions (`log_prob`, `log_symbols`) and word by word (`start`, `step`, `log_words`).

    Args:
        code_size: J, the numbers of a code.
        vocab_size: the symbols of a `Vocabulary`.
        hidden_size: of the recurrent cell.
        embedding_size: of a word.
        cell: "gru" or "lstm".
        start: how the weights are drawn, "paper" or "wide".
        code_at_every_step: the cell sees the code with every word, not only at the start.
        places: of the code, K maps of so many; where there are more than one, every word attends to them.
        dropout: of the embedded words and of the states that words are predicted from.
        tied: embeddings, one table to read and to predict words; hidden and embedding size are the same.
        generator: draws the first weights.

    Example:
        >>> import semisight as ss, torch
        >>> head = ss.CaptionHead(4, vocab_size=6, hidden_size=8, embedding_size=8)
        >>> head.log_prob(torch.tensor([[2, 3, 0]]), torch.zeros(1, 4)).shape
        torch.Size([1])
    """

    def __init__(
        self,
        code_size: int,
        vocab_size: int,
        *,
        hidden_size: int = 512,
        embedding_size: int = 512,
        cell: Literal["gru", "lstm"] = "gru",
        start: Start = "paper",
        code_at_every_step: bool = False,
        places: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(code_size, hidden_size, embedding_size) < 1 or vocab_size < 2:
            raise ValueError(
                f"sizes must be positive and there must be a word beside the end, not {vocab_size} symbols"
            )
        if cell not in ("gru", "lstm"):
            raise ValueError(f"the recurrent cell must be 'gru' or 'lstm', not {cell!r}")
        if start not in ("paper", "wide"):
            raise ValueError(f"weights start as in the paper or wide, not {start!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a share of at least 0 and below 1, not {dropout}")
        if places < 1 or code_size % places:
            raise ValueError(f"a code of {code_size} numbers does not divide into {places} places")
        if tied and hidden_size != embedding_size:
            raise ValueError(f"tied words are as long as the state: {hidden_size} numbers, not {embedding_size}")
        maps = code_size // places
        self.code = nn.Linear(maps, hidden_size)  # the paper's C
        self.embedding = nn.Embedding(vocab_size, embedding_size)  # W_e
        recurrent = nn.GRU if cell == "gru" else nn.LSTM
        inputs = embedding_size + (maps if code_at_every_step else 0)
        self.recurrent: nn.GRU | nn.LSTM = recurrent(inputs, hidden_size)
        self.words = nn.Linear(hidden_size, vocab_size)  # V
        if tied:
            self.words.register_parameter("weight", None)
        self.dropout = nn.Dropout(dropout)
        self.cell, self.code_at_every_step, self.places, self.tied = cell, code_at_every_step, places, tied
        if places > 1:
            self.query, self.key = nn.Linear(hidden_size, KEYS), nn.Linear(maps, KEYS)
            self.readout = nn.Linear(hidden_size + maps, hidden_size)
        self._initialise(generator)
        if start == "wide":
            self._widen(generator)

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator | None) -> None:
        for name, parameter in self.named_parameters():
            if "bias" in name:
                parameter.zero_()
            elif name == "recurrent.weight_hh_l0":
                for gate in parameter.split(parameter.shape[1]):  # each gate's matrix is orthogonal by itself
                    nn.init.orthogonal_(gate, generator=generator)
            else:
                parameter.uniform_(-SMALL, SMALL, generator=generator)

    @torch.no_grad()
    def _widen(self, generator: torch.Generator | None) -> None:
        """Embeddings of unit variance, maps that keep it, and a state that remembers.

        From the paper's start words say next to nothing to the recurrent network, and the way to say more frequent
        words is to drive h_1 to its limits, where tanh has no gradient and the image is not heard any more. And the
        image is in h_1 alone: with gates half open (biases of zero) a word says 1/256 of it, eight words later.
        """
        self.embedding.weight.normal_(0, 1 / self.reading_scale, generator=generator)
        w_ih: Tensor = self.recurrent.all_weights[0][0]
        maps = [(w_ih, 1.0), (self.code.weight, CODE_START)]
        if not self.tied:
            maps.insert(1, (self.words.weight, 1.0))
        if self.places > 1:
            maps += [(layer.weight, 1.0) for layer in (self.query, self.key, self.readout)]
        for weight, gain in maps:
            weight.normal_(0, gain / weight.shape[1] ** 0.5, generator=generator)
        # the second block: a GRU's update gate (torch: h <- (1 - z) n + z h), an LSTM's forget gate
        self.recurrent.all_weights[0][3].view(-1, self.recurrent.hidden_size)[1] = (
            ATTENDING if self.places > 1 else REMEMBER
        )

    @property
    def vocab_size(self) -> int:
        return self.words.out_features

    @property
    def reading_scale(self) -> float:
        return self.embedding.embedding_dim**0.5 if self.tied else 1.0

    def scores(self, h: Tensor) -> Tensor:
        """V h: of every symbol, before the softmax."""
        return F.linear(h, self.embedding.weight if self.tied else self.words.weight, self.words.bias)

    # ---- whole captions ----

    def log_prob(self, captions: Tensor, s: Tensor) -> Tensor:
        """[B]: log p(Y | s), zero for a row of padding."""
        return self.log_symbols(captions, s).sum(1)

    def log_symbols(self, captions: Tensor, s: Tensor) -> Tensor:
        """[B, T]: log p(y_t | y_<t, s), zero where there is padding.

        Works on the symbols that are there and on no padding: rows are sorted by length and packed.
        """
        lengths = words_per_caption(captions)
        order = lengths.argsort(descending=True, stable=True)
        n, n_longer = int((lengths > 0).sum()), int((lengths > 1).sum())
        table = s.new_zeros(captions.shape)
        if n == 0:
            return table
        rows, lengths = order[:n], lengths[order[:n]]
        s = s[rows]
        first = self.start(s)
        h, owners, t = first.h, torch.arange(n, device=s.device), torch.zeros_like(rows)
        if n_longer:
            pooled = self._mean_place(s) if self.code_at_every_step else None
            later = self._later_words(captions[rows], lengths, first, n_longer, pooled)
            h, t, owners = (torch.cat(pair) for pair in zip((h, t, owners), later, strict=True))
        if first.places is not None:
            queries = table.new_zeros(n, captions.shape[1], KEYS).index_put((owners, t), self.query(h).to(table))
            context = attention(queries, first.places.keys, first.places.values)
            h = self._read(self.dropout(h), context[owners, t])
        rows = rows[owners]
        log_p = -F.cross_entropy(self.scores(self.dropout(h)), captions[rows, t], reduction="none")
        return table.index_put((rows, t), log_p.to(table))

    def _later_words(
        self, captions: Tensor, lengths: Tensor, first: State, n_longer: int, pooled: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """h_t, t and the row of every symbol after the first, in order of t: [M, H], [M], [M]."""
        steps = torch.arange(1, captions.shape[1], device=captions.device)
        there = steps[:, None] < lengths  # [T-1, B], each row a run of True: captions are sorted by length
        t, owners = there.nonzero(as_tuple=True)
        batch_sizes = there.sum(1)
        batch_sizes = batch_sizes[batch_sizes > 0].cpu()
        inputs = self.dropout(self.embedding(captions[owners, t]) * self.reading_scale)
        if pooled is not None:
            inputs = torch.cat([inputs, pooled[owners].to(inputs)], 1)
        h = first.h[None, :n_longer]
        state = h if first.c is None else (h, first.c[None, :n_longer])
        outputs, _ = self.recurrent(PackedSequence(inputs, batch_sizes), state)
        return outputs.data, t + 1, owners

    # ---- word by word ----

    def start(self, s: Tensor) -> State:
        """The state before the first word: s [..., J] to h_1 [..., H]."""
        pooled = self._mean_place(s)
        c = self.code(pooled)
        words = self.embedding.embedding_dim
        fed = F.linear(pooled, self.recurrent.all_weights[0][0][:, words:]) if self.code_at_every_step else None
        values = self._places(s) if self.places > 1 else None
        places = None if values is None else Places(values, self.key(values))
        return State(torch.tanh(c), None if self.cell == "gru" else c, fed, places)

    def log_words(self, state: State) -> Tensor:
        """[..., V]: log p(y_t | y_<t, s) of every symbol."""
        h = state.h
        if state.places is not None:
            h = self._read(h, state.places.attend(self.query(h)))
        return self.scores(h).log_softmax(-1)

    def step(self, symbols: Tensor, state: State) -> State:
        """The state after one more symbol. `symbols` [...] may have size 1 where `state` [..., H] has more."""
        return self.advance(self.inputs(symbols), state)

    def inputs(self, symbols: Tensor | None = None) -> Tensor:
        """[V, gates * H]: what every word, or each of `symbols`, adds to the gates. Computed once, it saves a matrix
        product per step."""
        w_ih, _, b_ih, _ = self.recurrent.all_weights[0]
        words = self.embedding.weight if symbols is None else self.embedding.weight[symbols]
        return F.linear(words * self.reading_scale, w_ih[:, : self.embedding.embedding_dim], b_ih)

    def advance(self, inputs: Tensor, state: State) -> State:
        """`step` with rows of `inputs()` in the words' place."""
        _, w_hh, _, b_hh = self.recurrent.all_weights[0]
        recurrent = F.linear(state.h, w_hh, b_hh)
        if state.code is not None:
            inputs = inputs + state.code
        if state.c is None:
            x_r, x_z, x_n = inputs.chunk(3, -1)
            h_r, h_z, h_n = recurrent.chunk(3, -1)
            r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
            return replace(state, h=torch.lerp(torch.tanh(x_n + r * h_n), state.h, z))
        i, f, g, o = (inputs + recurrent).chunk(4, -1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        return replace(state, h=torch.sigmoid(o) * torch.tanh(c), c=c)

    # ---- places ----

    def _places(self, s: Tensor) -> Tensor:
        """[..., L, K]"""
        return s.unflatten(-1, (-1, self.places)).transpose(-1, -2)

    def _mean_place(self, s: Tensor) -> Tensor:
        """[..., K]"""
        return self._places(s).mean(-2) if self.places > 1 else s

    def _read(self, h: Tensor, context: Tensor) -> Tensor:
        """What the next word is told from: [..., H]."""
        return torch.tanh(self.readout(torch.cat([h, context.to(h)], -1)))

    @torch.no_grad()
    def predict(self, codes: Tensor, max_words: int = 30) -> Tensor:
        """[B, T]: the likeliest word at every step under the mixture over drawn codes [N_s, B, J], with the end.

        The mixture is of whole sentences: each code counts as much as the probability it gave the words so far.
        """
        state, inputs = self.start(codes), self.inputs()
        log_weight = codes.new_zeros(codes.shape[:2])
        ended = torch.zeros(codes.shape[1], dtype=torch.bool, device=codes.device)
        chosen = []
        for t in range(max_words + 1):
            log_p = self.log_words(state)  # [N_s, B, V]
            word = (log_weight[..., None] + log_p).logsumexp(0).argmax(-1)  # [B]
            word = torch.where(ended, PADDING, word if t < max_words else END)
            chosen.append(word)
            ended = ended | (word == END)
            if bool(ended.all()):
                break
            known = word.clamp_min(0)
            log_weight = log_weight + log_p.gather(-1, known.expand(len(codes), -1)[..., None]).squeeze(-1)
            state = self.advance(inputs[known], state)
        return torch.stack(chosen, 1)


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[..., T, K]: torch's own, with an axis for one head, without which it cannot be exported to ONNX."""
    q, k, v = (part.unsqueeze(-3) for part in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v).squeeze(-3)


def words_per_caption(captions: Tensor) -> Tensor:
    """[B] int64: T, the symbols of each caption with its end, 0 for a missing one; for xi = N_X / (T rho)."""
    return (captions != PADDING).sum(1)
