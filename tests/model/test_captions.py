"""The caption head: probabilities that sum to one, gradients, missing captions, and a toy learned to a threshold."""

import itertools
from typing import Literal

import pytest
import torch
from torch import Tensor

from semisight.data import vocabulary
from semisight.model.heads.captions import END, PADDING, CaptionHead, words_per_caption

Cell = Literal["gru", "lstm"]
CELLS: tuple[Cell, ...] = ("gru", "lstm")


def small_head(cell: Cell = "gru", vocab_size: int = 4, scale: float = 60.0) -> CaptionHead:
    """Float64, with weights large enough for words and codes to matter."""
    head = CaptionHead(
        *(3, vocab_size), hidden_size=5, embedding_size=6, cell=cell, generator=torch.Generator().manual_seed(1)
    )
    head = head.double()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "weight_hh" not in name:
                noise = torch.rand(parameter.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
                parameter.copy_(noise * 2 - 1).mul_(scale * 0.02)
    return head


def codes(n: int, seed: int = 3) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def all_captions(vocab_size: int, max_length: int) -> Tensor:
    """Every caption of at most max_length symbols with its end, and every one of max_length words without it."""
    words = range(1, vocab_size)
    ended = [(*c, END) for n in range(max_length) for c in itertools.product(words, repeat=n)]
    rows = ended + list(itertools.product(words, repeat=max_length))
    return torch.tensor([[*row, *[PADDING] * (max_length - len(row))] for row in rows])


def naive_log_prob(head: CaptionHead, caption: list[int], s: Tensor) -> Tensor:
    """One symbol at a time, with torch's own cells."""
    w_ih, w_hh, b_ih, b_hh = head.recurrent.all_weights[0]
    h, c = torch.tanh(head.code(s)), head.code(s)
    total = s.new_zeros(())
    for symbol in caption:
        total = total + torch.log_softmax(head.words(h), -1)[symbol]
        x = head.embedding.weight[symbol]
        if head.cell == "gru":
            h = torch.gru_cell(x[None], h[None], w_ih, w_hh, b_ih, b_hh)[0]
        else:
            h2, c2 = torch.lstm_cell(x[None], (h[None], c[None]), w_ih, w_hh, b_ih, b_hh)
            h, c = h2[0], c2[0]
    return total


@pytest.mark.parametrize("cell", CELLS)
def test_probabilities_of_all_captions_and_the_unfinished_mass_sum_to_one(cell: Cell) -> None:
    head, T = small_head(cell), 5
    captions = all_captions(head.vocab_size, T)
    for s in codes(3):
        p = head.log_prob(captions, s.expand(len(captions), -1)).exp()
        assert p.sum().item() == pytest.approx(1.0, abs=1e-12)
        unfinished = p[words_per_caption(captions) == T][-((head.vocab_size - 1) ** T) :].sum()
        assert 0.001 < unfinished.item() < 0.9  # neither part of the sum is trivial


@pytest.mark.parametrize("cell", CELLS)
def test_log_prob_equals_one_symbol_at_a_time(cell: Cell) -> None:
    head = small_head(cell)
    captions = torch.tensor([[1, 2, 0, -1], [0, -1, -1, -1], [3, 3, 3, 0], [2, 0, -1, -1], [-1] * 4, [1, 1, 2, 3]])
    s = codes(len(captions))
    rows = [[i for i in row if i != PADDING] for row in captions.tolist()]
    expected = torch.stack([naive_log_prob(head, row, x) for row, x in zip(rows, s, strict=True)])
    torch.testing.assert_close(head.log_prob(captions, s), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_word_by_word_equals_whole_captions(cell: Cell) -> None:
    head = small_head(cell)
    captions, s = torch.tensor([[1, 2, 3, 0], [3, 1, 1, 0]]), codes(2)
    state, total = head.start(s), s.new_zeros(2)
    for symbols in captions.T:
        total = total + head.log_words(state).gather(1, symbols[:, None]).squeeze(1)
        state = head.step(symbols, state)
    torch.testing.assert_close(head.log_prob(captions, s), total, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_the_order_of_rows_and_the_amount_of_padding_do_not_matter(cell: Cell) -> None:
    head = small_head(cell)
    captions = all_captions(4, 3)
    s = codes(len(captions))
    expected = head.log_prob(captions, s)
    order = torch.randperm(len(captions), generator=torch.Generator().manual_seed(0))
    wide = torch.cat([captions, torch.full((len(captions), 7), PADDING)], 1)
    torch.testing.assert_close(head.log_prob(wide[order], s[order]), expected[order], atol=1e-12, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
def test_a_missing_caption_contributes_nothing_to_value_and_gradient(cell: Cell) -> None:
    head = small_head(cell)
    captions = torch.tensor([[1, 2, 0], [-1, -1, -1], [3, 0, -1]])
    s = codes(3)
    s[1] = torch.nan  # nothing of the image without caption may be touched, not even this
    s.requires_grad_()
    values = head.log_prob(captions, s)
    assert values[1].item() == 0.0
    values.sum().backward()
    assert s.grad is not None and bool((s.grad[1] == 0).all())
    gradients = [p.grad.clone() for p in head.parameters() if p.grad is not None]
    head.zero_grad()
    head.log_prob(captions[[0, 2]], s[[0, 2]]).sum().backward()
    for both, alone in zip(gradients, (p.grad for p in head.parameters()), strict=True):
        torch.testing.assert_close(both, alone, atol=1e-12, rtol=0)


def test_nothing_but_missing_captions() -> None:
    head = small_head()
    s = codes(2).requires_grad_()
    value = head.log_prob(torch.full((2, 3), PADDING), s)
    assert value.tolist() == [0.0, 0.0]
    assert head.log_prob(torch.zeros(2, 0, dtype=torch.int64), s).tolist() == [0.0, 0.0]
    assert head.log_prob(torch.zeros(0, 4, dtype=torch.int64), s[:0]).shape == (0,)


@pytest.mark.parametrize("cell", CELLS)
def test_every_parameter_and_the_code_receive_a_gradient(cell: Cell) -> None:
    head = CaptionHead(3, 6, hidden_size=8, embedding_size=7, cell=cell)
    s = codes(4).float().requires_grad_()
    captions = torch.tensor([[1, 2, 3, 4, 5, 0], [5, 4, 0, -1, -1, -1], [0, -1, -1, -1, -1, -1], [3, 3, 1, 0, -1, -1]])
    head.log_prob(captions, s).sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).any()), name
    # The embedding of every word that another one follows; the end is followed by nothing.
    assert head.embedding.weight.grad is not None
    assert (head.embedding.weight.grad != 0).any(1).tolist() == [False, True, True, True, True, True]
    assert s.grad is not None and bool((s.grad != 0).any(1).all())


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_are_those_of_finite_differences(cell: Cell) -> None:
    head = small_head(cell, scale=30.0)
    captions = torch.tensor([[1, 2, 0], [3, 0, -1], [-1, -1, -1]])
    s = codes(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: head.log_prob(captions, s), (s,))


@pytest.mark.parametrize("cell", CELLS)
def test_initialisation_of_appendix_b(cell: Cell) -> None:
    head = CaptionHead(10, 50, cell=cell, generator=torch.Generator().manual_seed(0))
    gates = head.recurrent.all_weights[0][1].split(512)
    assert len(gates) == (3 if cell == "gru" else 4)
    for gate in gates:
        torch.testing.assert_close(gate @ gate.T, torch.eye(512), atol=1e-4, rtol=0)
    for name, parameter in head.named_parameters():
        if "bias" in name:
            assert bool((parameter == 0).all())
        elif "weight_hh" not in name:
            assert 0.009 < parameter.abs().max().item() <= 0.01
            assert abs(parameter.mean().item()) < 0.001
    again = CaptionHead(10, 50, cell=cell, generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), again.parameters(), strict=True))


def test_words_per_caption_counts_the_end() -> None:
    assert words_per_caption(torch.tensor([[4, 5, 0, -1], [-1] * 4, [0, -1, -1, -1]])).tolist() == [3, 0, 1]


def test_symbols_are_those_of_the_vocabulary() -> None:
    assert (END, PADDING) == (vocabulary.END, vocabulary.PADDING)


@pytest.mark.parametrize("options", [{"vocab_size": 1}, {"hidden_size": 0}, {"cell": "rnn"}, {"code_size": 0}])
def test_heads_that_cannot_be(options: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        CaptionHead(**{"code_size": 3, "vocab_size": 5, **options})


@pytest.mark.parametrize("cell", CELLS)
def test_toy_captions_are_learned(cell: Cell) -> None:
    """The caption names the positive ones of the code's three numbers: 8 captions of 4 lengths, sure given the code."""
    generator = torch.Generator().manual_seed(0)
    s = torch.randn(256, 3, generator=generator)
    s = s.sign() * (0.5 + s.abs())
    rows = [[*(1 + i for i in range(3) if x[i] > 0), END] for x in s]
    captions = torch.tensor([row + [PADDING] * (4 - len(row)) for row in rows])
    head = CaptionHead(3, 4, hidden_size=32, embedding_size=16, cell=cell, generator=generator)
    optimiser = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(150):
        optimiser.zero_grad()
        loss = -head.log_prob(captions[:192], s[:192]).mean()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        assert head.log_prob(captions[192:], s[192:]).mean().item() > -0.1
        predicted = head.predict(s[None, 192:])
    found = [[i for i in row if i != PADDING] for row in predicted.tolist()]
    right = [a == b for a, b in zip(found, rows[192:], strict=True)]
    assert sum(right) >= 0.95 * len(right)


@pytest.mark.parametrize("cell", CELLS)
def test_from_a_wide_start_the_image_is_still_heard_after_eight_words(cell: Cell) -> None:
    """What is left, after the same eight words, of the difference of two codes' states."""

    def left(remembering: bool) -> float:
        generator = torch.Generator().manual_seed(0)
        head = CaptionHead(6, 9, hidden_size=64, embedding_size=32, cell=cell, start="wide", generator=generator)
        if not remembering:
            torch.nn.init.zeros_(head.recurrent.bias_hh_l0)
        state = head.start(torch.randn(2, 6, generator=generator))
        at_first = float(state.h.diff(dim=0).norm())
        for symbol in torch.randint(1, 9, (8, 1), generator=generator):
            state = head.step(symbol, state)
        return float(state.h.diff(dim=0).norm()) / at_first

    with torch.no_grad():
        assert left(remembering=True) > 0.3
        assert left(remembering=False) < 0.1


@pytest.mark.parametrize("cell", CELLS)
def test_tied_words_are_told_by_the_table_they_are_read_by(cell: Cell) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = {"hidden_size": 4, "embedding_size": 4, "cell": cell, "start": "wide", "code_at_every_step": True}
    head = CaptionHead(3, 5, **sizes, tied=True, generator=generator).double()
    assert "words.weight" not in head.state_dict()
    # an ordinary head that holds the same table twice: as it is to tell words, and scaled to read them
    twin = CaptionHead(3, 5, **sizes).double()
    table = head.embedding.weight.detach()
    known = {name: value for name, value in head.state_dict().items() if name != "embedding.weight"}
    twin.load_state_dict(known | {"embedding.weight": table * 4**0.5, "words.weight": table})
    captions, s = all_captions(5, 3), codes(1)
    there = head.log_prob(captions, s.expand(len(captions), -1))
    torch.testing.assert_close(there, twin.log_prob(captions, s.expand(len(captions), -1)))
    torch.testing.assert_close(there.exp().sum(), torch.ones((), dtype=torch.float64))
    word = torch.tensor([2])
    torch.testing.assert_close(
        head.log_words(head.step(word, head.start(s))), twin.log_words(twin.step(word, twin.start(s)))
    )
    # both uses teach it: the words that are read, and all that could have been told
    there[0].backward()
    assert head.embedding.weight.grad is not None
    assert bool((head.embedding.weight.grad != 0).any(1).all())


def test_tied_words_start_with_scores_and_inputs_of_unit_variance() -> None:
    generator = torch.Generator().manual_seed(1)
    head = CaptionHead(3, 500, hidden_size=64, embedding_size=64, start="wide", tied=True, generator=generator)
    assert abs(float((head.embedding.weight * head.reading_scale).std()) - 1) < 0.05
    assert abs(float(head.scores(torch.randn(200, 64, generator=generator)).std()) - 1) < 0.1


def test_tied_words_are_as_long_as_the_state() -> None:
    with pytest.raises(ValueError, match="8 numbers, not 6"):
        CaptionHead(3, 5, hidden_size=8, embedding_size=6, tied=True)
