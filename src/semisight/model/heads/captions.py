"""Section 3.2 and appendix B: captions from codes, by a recurrent network.

    h_1         = tanh(C s)                                     the code sets the first hidden state
    y_1 | s     ~ softmax(V h_1)
    w_t         = W_e y_t                                       the embedding of word t
    h_t         = H(w_{t-1}, h_{t-1})                           H is a GRU, or an LSTM
    y_t | y_<t, s ~ softmax(V h_t)                              until y_T is the end symbol

With `code_at_every_step`, beyond the paper, h_t = H([w_{t-1}, s], h_{t-1}): nothing of the image has to be remembered.
Dropout, in training, leaves out numbers of w_t and of h_t on its way to the words, never of the state that is carried.

All three maps have biases, started at zero, as the paper's "omitted for simplicity" implies. An LSTM carries a second
state c with h = (output gate) tanh(c): it starts at c_1 = C s with the gate open, so that h_1 is the same.

Shapes: codes `s` [B, J]; captions int64 [B, T], symbols 0 .. vocab_size - 1, 0 the end, -1 padding after the last one.
A caption without the end is a prefix, and its probability that of all sentences that start so. A row of padding is a
missing caption: it contributes exactly nothing, to the value and to the gradient. An image with several captions is
several rows with the same code.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

END, PADDING = 0, -1
Start = Literal["paper", "wide"]
SMALL = 0.01  # appendix B: non-recurrent weights are uniform in [-0.01, 0.01]
CODE_START = 0.3  # of a wide start: the deviation of C s for a code of unit variance
REMEMBER = 4.0  # of a wide start: the bias of the gate that keeps the state; 98 % of it then lives on at every word


@dataclass(frozen=True)
class State:
    """What a prefix has left behind: h [..., H], an LSTM's c [..., H], and what the code adds to the gates at every
    step, [..., gates * H], where it does."""

    h: Tensor
    c: Tensor | None = None
    code: Tensor | None = None

    def at(self, index: Tensor) -> "State":
        """The states at positions of the first axis."""
        return State(*(None if part is None else part[index] for part in (self.h, self.c, self.code)))  # type: ignore[arg-type]


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
        dropout: of the embedded words and of the states that words are predicted from.
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
        dropout: float = 0.0,
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
        self.code = nn.Linear(code_size, hidden_size)  # the paper's C
        self.embedding = nn.Embedding(vocab_size, embedding_size)  # W_e
        recurrent = nn.GRU if cell == "gru" else nn.LSTM
        inputs = embedding_size + (code_size if code_at_every_step else 0)
        self.recurrent: nn.GRU | nn.LSTM = recurrent(inputs, hidden_size)
        self.words = nn.Linear(hidden_size, vocab_size)  # V
        self.dropout = nn.Dropout(dropout)
        self.cell, self.code_at_every_step = cell, code_at_every_step
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
        self.embedding.weight.normal_(generator=generator)
        w_ih: Tensor = self.recurrent.all_weights[0][0]
        for weight, gain in ((w_ih, 1.0), (self.words.weight, 1.0), (self.code.weight, CODE_START)):
            weight.normal_(0, gain / weight.shape[1] ** 0.5, generator=generator)
        # the second block: a GRU's update gate (torch: h <- (1 - z) n + z h), an LSTM's forget gate
        self.recurrent.all_weights[0][3].view(-1, self.recurrent.hidden_size)[1] = REMEMBER

    @property
    def vocab_size(self) -> int:
        return self.words.out_features

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
        first = self.start(s[rows])
        h, targets = [first.h], [captions[rows, 0]]
        places = [rows, torch.zeros_like(rows)]
        if n_longer:
            some = torch.arange(n_longer, device=s.device)
            later, t, owners = self._later_words(captions[rows], lengths, first.at(some), s[rows])
            h, targets = [*h, later], [*targets, captions[rows[owners], t]]
            places = [torch.cat([places[0], rows[owners]]), torch.cat([places[1], t])]
        log_p = -F.cross_entropy(self.words(self.dropout(torch.cat(h))), torch.cat(targets), reduction="none")
        return table.index_put((places[0], places[1]), log_p.to(table))

    def _later_words(self, captions: Tensor, lengths: Tensor, first: State, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h_t, t and the row of every symbol after the first, in order of t: [M, H], [M], [M]."""
        steps = torch.arange(1, captions.shape[1], device=captions.device)
        there = steps[:, None] < lengths  # [T-1, B], each row a run of True: captions are sorted by length
        t, owners = there.nonzero(as_tuple=True)
        batch_sizes = there.sum(1)
        batch_sizes = batch_sizes[batch_sizes > 0].cpu()
        inputs = self.dropout(self.embedding(captions[owners, t]))
        if self.code_at_every_step:
            inputs = torch.cat([inputs, s[owners].to(inputs)], 1)
        state = first.h[None] if first.c is None else (first.h[None], first.c[None])
        outputs, _ = self.recurrent(PackedSequence(inputs, batch_sizes), state)
        return outputs.data, t + 1, owners

    # ---- word by word ----

    def start(self, s: Tensor) -> State:
        """The state before the first word: s [..., J] to h_1 [..., H]."""
        c = self.code(s)
        words = self.embedding.embedding_dim
        fed = F.linear(s, self.recurrent.all_weights[0][0][:, words:]) if self.code_at_every_step else None
        return State(torch.tanh(c), None if self.cell == "gru" else c, fed)

    def log_words(self, state: Tensor | State) -> Tensor:
        """[..., V]: log p(y_t | y_<t, s) of every symbol."""
        return self.words(state.h if isinstance(state, State) else state).log_softmax(-1)

    def step(self, symbols: Tensor, state: State) -> State:
        """The state after one more symbol. `symbols` [...] may have size 1 where `state` [..., H] has more."""
        return self.advance(self.inputs()[symbols], state)

    def inputs(self) -> Tensor:
        """[V, gates * H]: what every word adds to the gates. Computed once, it saves a matrix product per step."""
        w_ih, _, b_ih, _ = self.recurrent.all_weights[0]
        return F.linear(self.embedding.weight, w_ih[:, : self.embedding.embedding_dim], b_ih)

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
            return State(torch.lerp(torch.tanh(x_n + r * h_n), state.h, z), None, state.code)
        i, f, g, o = (inputs + recurrent).chunk(4, -1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        return State(torch.sigmoid(o) * torch.tanh(c), c, state.code)

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


def words_per_caption(captions: Tensor) -> Tensor:
    """[B] int64: T, the symbols of each caption with its end, 0 for a missing one; for xi = N_X / (T rho)."""
    return (captions != PADDING).sum(1)
