"""Searching, sampling and scoring sentences under the mixture over codes, against enumeration and plain loops."""

import itertools
import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from semisight.inference.beam_search import Sentences, beam_search, mixture_log_prob, sample
from semisight.metrics.captions import perplexity
from semisight.model.heads.captions import END, PADDING, CaptionHead, words_per_caption

Cell = Literal["gru", "lstm"]
CELLS: tuple[Cell, ...] = ("gru", "lstm")
Sentence = tuple[int, ...]


def small_head(cell: Cell = "gru", vocab_size: int = 4, scale: float = 1.5, seed: int = 1) -> CaptionHead:
    """Float64, with weights so large that codes disagree about words."""
    generator = torch.Generator().manual_seed(seed)
    head = CaptionHead(3, vocab_size, hidden_size=6, embedding_size=5, cell=cell, generator=generator).double()
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "weight_hh" not in name:
                parameter.uniform_(-scale, scale, generator=generator)
    return head


def draw_codes(n_codes: int, n_images: int, seed: int = 5) -> Tensor:
    return torch.randn(n_codes, n_images, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sentences_of(vocab_size: int, max_words: int) -> list[Sentence]:
    words = range(1, vocab_size)
    return [(*c, END) for n in range(max_words + 1) for c in itertools.product(words, repeat=n)]


def padded(rows: list[Sentence]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PADDING] * (longest - len(row))] for row in rows])


def rows_of(symbols: Tensor) -> list[Sentence]:
    return [tuple(i for i in row if i != PADDING) for row in symbols.tolist()]


def exact(head: CaptionHead, codes: Tensor, rows: list[Sentence]) -> Tensor:
    """[B, M]: log p(Y | X) of every sentence, from each code's probability of the whole of it."""
    n_codes, n_images = codes.shape[:2]
    captions = padded(rows)
    each = [
        [head.log_prob(captions, codes[i, b].expand(len(rows), -1)) for b in range(n_images)] for i in range(n_codes)
    ]
    return torch.stack([torch.stack(row) for row in each]).logsumexp(0) - math.log(n_codes)


def plain_beam(
    head: CaptionHead, codes: Tensor, beam: int, max_words: int, length_power: float = 0.0
) -> list[tuple[Sentence, float]]:
    """Beam search for one image's codes [N_s, J], scoring every candidate from scratch."""
    prefixes: list[tuple[Sentence, float]] = [((), 0.0)]
    for t in range(max_words + 1):
        candidates = [p for p in prefixes if p[0][-1:] == (END,)]
        growing = [p[0] for p in prefixes if p[0][-1:] != (END,)]
        following = [(*p, w) for p in growing for w in (range(head.vocab_size) if t < max_words else (END,))]
        if following:
            values = exact(head, codes[:, None], following)[0].tolist()
            candidates += list(zip(following, values, strict=True))
        prefixes = sorted(candidates, key=lambda c: -c[1] / len(c[0]) ** length_power)[:beam]
    return prefixes


@pytest.mark.parametrize("cell", CELLS)
def test_a_wide_beam_equals_exhaustive_search(cell: Cell) -> None:
    head, codes, max_words = small_head(cell), draw_codes(4, 3), 3
    rows = sentences_of(head.vocab_size, max_words)
    values = exact(head, codes, rows)
    found = beam_search(head, codes, beam=len(rows), n_best=len(rows), max_words=max_words)
    for b in range(3):
        order = values[b].argsort(descending=True)
        torch.testing.assert_close(found.log_prob[b], values[b][order], atol=1e-11, rtol=0)
        assert rows_of(found.symbols[b]) == [rows[i] for i in order]


@torch.no_grad()
def test_the_mixture_of_sentences_is_not_the_average_of_words() -> None:
    """Two codes that disagree: an average of their words without weights gives other values and other sentences."""
    head, codes = small_head(), 3 * draw_codes(2, 30)
    head.words.bias[END] -= 5.0  # else the best sentence is often the end alone, about which both agree
    rows = sentences_of(head.vocab_size, 3)

    def average_of_words(sentence: Sentence) -> Tensor:
        state, total = head.start(codes), codes.new_zeros(30)
        for symbol in sentence:
            total = total + head.log_words(state).exp().mean(0)[:, symbol].log()
            state = head.step(torch.tensor(symbol), state)
        return total

    mixture = exact(head, codes, rows)  # [B, M]
    averages = torch.stack([average_of_words(row) for row in rows], 1)
    best, best_average = mixture.argmax(1), averages.argmax(1)
    found = beam_search(head, codes, beam=len(rows), max_words=3)
    assert rows_of(found.symbols[:, 0]) == [rows[i] for i in best]
    torch.testing.assert_close(found.log_prob[:, 0], mixture.max(1).values, atol=1e-11, rtol=0)
    assert (best != best_average).sum() >= 3
    assert (found.log_prob[:, 0] - averages.gather(1, best[:, None])[:, 0]).abs().mean() > 0.1


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("beam", "length_power"), [(1, 0.0), (2, 0.0), (3, 0.0), (3, 0.7), (5, 1.0)])
def test_narrow_beams_equal_a_plain_loop(cell: Cell, beam: int, length_power: float) -> None:
    head, codes = small_head(cell, vocab_size=5), draw_codes(3, 6)
    found = beam_search(head, codes, beam=beam, n_best=beam, max_words=5, length_power=length_power)
    for b in range(6):
        expected = plain_beam(head, codes[:, b], beam, 5, length_power)
        assert rows_of(found.symbols[b]) == [row for row, _ in expected]
        assert found.log_prob[b].tolist() == pytest.approx([value for _, value in expected], abs=1e-10)


@pytest.mark.parametrize("length_power", [0.0, 0.7, 1.0])
@torch.no_grad()
def test_prefixes_that_are_dropped_early_change_nothing(length_power: float) -> None:
    head, codes = small_head(vocab_size=5), 2 * draw_codes(2, 40)
    head.words.bias[END] += 1.0  # sentences that end before the others have grown
    for n_best in (1, 2):
        found = beam_search(head, codes, beam=3, n_best=n_best, max_words=5, length_power=length_power)
        for b in range(40):
            expected = plain_beam(head, codes[:, b], 3, 5, length_power)[:n_best]
            assert rows_of(found.symbols[b]) == [row for row, _ in expected]


@pytest.mark.parametrize("cell", CELLS)
def test_batched_decoding_equals_one_image_at_a_time(cell: Cell) -> None:
    head, codes = small_head(cell, vocab_size=8, scale=1.0), draw_codes(5, 17)
    together = beam_search(head, codes, beam=4, n_best=3, max_words=10)
    parts = beam_search(head, codes, beam=4, n_best=3, max_words=10, rows=60)  # three images at a time
    alone = [beam_search(head, codes[:, b : b + 1], beam=4, n_best=3, max_words=10) for b in range(17)]
    for b in range(17):
        expected = rows_of(alone[b].symbols[0])
        assert rows_of(together.symbols[b]) == rows_of(parts.symbols[b]) == expected
    values = torch.cat([one.log_prob for one in alone])
    torch.testing.assert_close(together.log_prob, values, atol=1e-11, rtol=0)
    torch.testing.assert_close(parts.log_prob, values, atol=1e-11, rtol=0)
    assert len({row for b in range(17) for row in rows_of(together.symbols[b])}) > 10  # not one caption for all


@pytest.mark.parametrize("cell", CELLS)
def test_log_probabilities_found_are_those_of_the_mixture(cell: Cell) -> None:
    head, codes = small_head(cell, vocab_size=6), draw_codes(4, 5)
    found = beam_search(head, codes, beam=5, n_best=5, max_words=6)
    owners = torch.arange(5).repeat_interleave(5)
    again = mixture_log_prob(head, found.symbols.flatten(0, 1), codes, owners, rows=8)
    torch.testing.assert_close(found.log_prob.flatten(), again, atol=1e-11, rtol=0)
    assert bool((found.log_prob[:, :-1] >= found.log_prob[:, 1:]).all())
    for b in range(5):
        assert len(set(rows_of(found.symbols[b]))) == 5


def test_a_wider_beam_finds_no_worse_sentence_here() -> None:
    head, codes = small_head(vocab_size=6), draw_codes(3, 20)
    best = [beam_search(head, codes, beam=beam, max_words=6).log_prob[:, 0] for beam in (1, 30, 400)]
    assert bool((best[2] >= best[1] - 1e-12).all()) and best[2].mean() > best[0].mean()


@pytest.mark.parametrize("cell", CELLS)
def test_a_beam_of_one_takes_the_likeliest_word_at_every_step(cell: Cell) -> None:
    head, codes = small_head(cell, vocab_size=7, scale=1.0), draw_codes(3, 12)
    found = beam_search(head, codes, beam=1, max_words=6)
    assert rows_of(found.symbols[:, 0]) == rows_of(head.predict(codes, max_words=6))
    assert found.symbols.shape[1] == 1


@pytest.mark.parametrize("beam", [1, 3])
def test_no_sentence_is_endless(beam: int) -> None:
    head, codes = small_head(), draw_codes(2, 4)
    with torch.no_grad():
        head.words.bias[END] = -30.0  # the model never wants to stop
    found = beam_search(head, codes, beam=beam, n_best=beam, max_words=7)
    assert bool((words_per_caption(found.symbols.flatten(0, 1)) == 8).all())
    assert bool((found.symbols[..., 7] == END).all())
    owners = torch.arange(4).repeat_interleave(beam)
    again = mixture_log_prob(head, found.symbols.flatten(0, 1), codes, owners)
    torch.testing.assert_close(found.log_prob.flatten(), again, atol=1e-10, rtol=0)
    assert bool((found.log_prob < -25).all())  # forced to end, it pays what the model asks for it
    drawn = sample(head, codes, torch.Generator().manual_seed(0), n=3, max_words=7)
    assert drawn.symbols.shape == (4, 3, 7) and bool((drawn.symbols > END).all())  # cut, not ended


def test_forbidden_symbols_are_never_chosen() -> None:
    head, codes = small_head(vocab_size=6), draw_codes(3, 10)
    free = beam_search(head, codes, beam=3, max_words=6).symbols
    forbidden = tuple(free[free > END].unique().tolist())
    assert 1 <= len(forbidden) <= 3  # what is chosen otherwise; some words are left
    found = beam_search(head, codes, beam=3, n_best=3, max_words=6, forbidden=forbidden)
    assert not bool(torch.isin(found.symbols, torch.tensor(forbidden)).any())
    assert bool((found.symbols > END).any())
    # They keep their probability: the log-probabilities are still the model's own.
    owners = torch.arange(10).repeat_interleave(3)
    again = mixture_log_prob(head, found.symbols.flatten(0, 1), codes, owners)
    torch.testing.assert_close(found.log_prob.flatten(), again, atol=1e-11, rtol=0)


def test_fewer_sentences_than_asked_for() -> None:
    head, codes = small_head(vocab_size=2), draw_codes(2, 3)
    found = beam_search(head, codes, beam=8, n_best=8, max_words=2)  # there are three: the end after 0, 1 or 2 words
    assert (found.log_prob > -math.inf).sum(1).tolist() == [3, 3, 3]
    for b in range(3):
        assert sorted(rows_of(found.symbols[b])) == [(), (), (), (), (), (END,), (1, END), (1, 1, END)]


def test_arguments_that_cannot_be() -> None:
    head, codes = small_head(), draw_codes(1, 1)
    for options in ({"beam": 2, "n_best": 3}, {"beam": 0}, {"max_words": 0}, {"forbidden": (END,)}):
        with pytest.raises(ValueError):
            beam_search(head, codes, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 captions but owners"):
        mixture_log_prob(head, torch.zeros(2, 1, dtype=torch.int64), codes, torch.tensor([0]))


def test_no_images_give_no_sentences() -> None:
    found = beam_search(small_head(), draw_codes(3, 0), beam=2, n_best=2)
    assert found.symbols.shape[:2] == (0, 2) and found.log_prob.shape == (0, 2)


@pytest.mark.parametrize("cell", CELLS)
def test_the_mixture_sums_to_one_and_missing_captions_count_nothing(cell: Cell) -> None:
    head, codes, T = small_head(cell), draw_codes(3, 2), 4
    rows = sentences_of(head.vocab_size, T - 1) + list(itertools.product(range(1, head.vocab_size), repeat=T))
    for b in range(2):
        values = mixture_log_prob(head, padded(rows), codes, torch.full((len(rows),), b), rows=50)
        assert values.exp().sum().item() == pytest.approx(1.0, abs=1e-12)
        torch.testing.assert_close(values, exact(head, codes[:, b : b + 1], rows)[0], atol=1e-11, rtol=0)
    missing = torch.tensor([[PADDING, PADDING], [1, END]])
    assert mixture_log_prob(head, missing, codes)[0].item() == pytest.approx(0.0, abs=1e-15)


def test_samples_follow_the_mixture() -> None:
    head, codes, n = small_head(vocab_size=3), draw_codes(3, 2), 20_000
    drawn = sample(head, codes, torch.Generator().manual_seed(7), n=n, max_words=2)
    rows = [*sentences_of(3, 2), *itertools.product((1, 2), repeat=2)]  # cut ones at the end
    values = exact(head, codes, rows).exp()
    n_ended = len(rows) - 4
    for b in range(2):
        counts = {row: 0 for row in rows}
        for row in rows_of(drawn.symbols[b]):
            counts[row] += 1
        for i, row in enumerate(rows):
            p = values[b, i].item()
            if i >= n_ended:  # cut after two words: those that did not end there
                p -= values[b, rows.index((*row, END))].item()
            assert counts[row] / n == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n) + 1e-6), row
    some = rows_of(drawn.symbols[0])[:50]
    expected = exact(head, codes[:, :1], some)[0]
    torch.testing.assert_close(drawn.log_prob[0, :50], expected, atol=1e-11, rtol=0)


def test_samples_depend_on_nothing_but_the_generator() -> None:
    head, codes = small_head(vocab_size=9), draw_codes(4, 6)

    def draw(seed: int) -> Sentences:
        return sample(head, codes, torch.Generator().manual_seed(seed), n=3, max_words=5)

    assert torch.equal(draw(1).symbols, draw(1).symbols)
    assert not torch.equal(draw(1).symbols[..., :2], draw(2).symbols[..., :2])


def test_perplexity_of_a_model_that_knows_nothing_is_the_size_of_the_vocabulary() -> None:
    head, codes = small_head(vocab_size=7), draw_codes(3, 4)
    with torch.no_grad():
        head.words.weight.zero_()
        head.words.bias.zero_()
    captions = torch.tensor([[1, 2, 3, END], [4, END, -1, -1], [-1] * 4, [5, 6, END, -1]])
    values = mixture_log_prob(head, captions, codes)
    assert perplexity(values.tolist(), words_per_caption(captions).tolist()) == pytest.approx(7.0)


def test_more_codes_than_one_explain_a_caption_better_than_the_worst_of_them() -> None:
    head, codes = small_head(vocab_size=5), draw_codes(6, 8)
    captions = beam_search(head, codes, beam=3, max_words=5).symbols[:, 0]
    mixture = mixture_log_prob(head, captions, codes)
    each = torch.stack([head.log_prob(captions, s) for s in codes])
    assert bool((mixture >= each.mean(0)).all())  # Jensen
    assert bool((mixture <= each.max(0).values).all())


def test_float32_and_many_codes_stay_finite() -> None:
    """Long sentences of small probability: weights are kept relative to the best code, so nothing underflows."""
    head = small_head(vocab_size=50, scale=3.0).float()
    with torch.no_grad():
        head.words.bias[END] = -40.0
    codes = draw_codes(20, 5).float()
    found = beam_search(head, codes, beam=5, n_best=5, max_words=60)
    assert bool(found.log_prob.isfinite().all())
    owners = torch.arange(5).repeat_interleave(5)
    again = mixture_log_prob(head, found.symbols.flatten(0, 1), codes, owners)
    torch.testing.assert_close(found.log_prob.flatten(), again, atol=1e-2, rtol=1e-4)
