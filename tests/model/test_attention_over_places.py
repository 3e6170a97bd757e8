"""A code that keeps the places of a grid: encoded place by place, and every word of its captions attends to them."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.errors import UserError
from semisight.inference.beam_search import beam_search, mixture_log_prob
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.feature_network import FeatureNetwork, place_architecture
from semisight.model.heads.captions import END, KEYS, CaptionHead
from semisight.model.posterior import batch_last, flat_code
from semisight.objectives.joint import Joint
from semisight.objectives.step import Batch, Rows
from semisight.runs import features

MAPS, PLACES = 3, 4
Cell = Literal["gru", "lstm"]


def attending_head(cell: Cell = "gru", fed: bool = True, dropout: float = 0.0) -> CaptionHead:
    generator = torch.Generator().manual_seed(1)
    head = CaptionHead(
        MAPS * PLACES,
        4,
        hidden_size=5,
        embedding_size=6,
        cell=cell,
        code_at_every_step=fed,
        places=PLACES,
        dropout=dropout,
    ).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.uniform_(-1.2, 1.2, generator=generator)
        head.query.weight /= 4  # neither even nor at one place
    return head


def codes(n: int) -> Tensor:
    return torch.randn(n, MAPS * PLACES, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def naive(head: CaptionHead, caption: list[int], s: Tensor) -> Tensor:
    """One symbol and one place at a time, with torch's own cells."""
    w_ih, w_hh, b_ih, b_hh = head.recurrent.all_weights[0]
    places = [s.view(MAPS, PLACES)[:, i] for i in range(PLACES)]
    mean = torch.stack(places).mean(0)
    h, c = torch.tanh(head.code(mean)), head.code(mean)
    total = s.new_zeros(())
    for symbol in caption:
        alike = torch.stack([head.query(h) @ head.key(place) for place in places]) / math.sqrt(KEYS)
        alpha = alike.softmax(0)
        seen = sum((a * place for a, place in zip(alpha, places, strict=True)), torch.zeros_like(mean))
        read = torch.tanh(head.readout(torch.cat([h, seen])))
        total = total + torch.log_softmax(head.words(read), -1)[symbol]
        x = head.embedding.weight[symbol]
        x = torch.cat([x, mean]) if head.code_at_every_step else x
        if head.cell == "gru":
            h = torch.gru_cell(x[None], h[None], w_ih, w_hh, b_ih, b_hh)[0]
        else:
            h, c = (one[0] for one in torch.lstm_cell(x[None], (h[None], c[None]), w_ih, w_hh, b_ih, b_hh))
    return total


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("fed", [False, True])
def test_whole_captions_and_word_by_word_equal_one_place_at_a_time(cell: Cell, fed: bool) -> None:
    head = attending_head(cell, fed)
    captions = torch.tensor([[2, 0, -1, -1], [1, 2, 3, 0], [-1] * 4, [0, -1, -1, -1], [3, 3, 1, 2]])
    s = codes(len(captions))
    rows = [[i for i in row if i >= 0] for row in captions.tolist()]
    expected = torch.stack([naive(head, row, x) for row, x in zip(rows, s, strict=True)])
    torch.testing.assert_close(head.log_prob(captions, s), expected, atol=1e-12, rtol=0)
    whole = captions[[1, 4]]
    state, total = head.start(s[[1, 4]]), s.new_zeros(2)
    for symbols in whole.T:
        total = total + head.log_words(state).gather(1, symbols[:, None]).squeeze(1)
        state = head.step(symbols, state)
    torch.testing.assert_close(total, expected[[1, 4]], atol=1e-12, rtol=0)


def test_what_is_attended_to_matters_and_in_which_order_does_not() -> None:
    head, s = attending_head(), codes(2)
    captions = torch.tensor([[1, 2, 3, 0], [3, 1, 1, 0]])
    expected = head.log_prob(captions, s)
    turned = s.view(2, MAPS, PLACES).flip(2).flatten(1)
    torch.testing.assert_close(head.log_prob(captions, turned), expected, atol=1e-12, rtol=0)
    blurred = s.view(2, MAPS, PLACES).mean(2, keepdim=True).expand(-1, -1, PLACES).flatten(1)  # the same mean
    assert float((head.log_prob(captions, blurred) - expected).abs().min().detach()) > 1e-3


def test_a_missing_caption_touches_nothing_of_its_image() -> None:
    head, s = attending_head(), codes(3)
    s[1] = torch.nan
    s.requires_grad_()
    head.log_prob(torch.tensor([[1, 2, 0], [-1, -1, -1], [3, 0, -1]]), s).sum().backward()
    assert s.grad is not None and bool((s.grad[1] == 0).all()) and bool(torch.isfinite(s.grad).all())
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).any()), name


def test_the_search_finds_what_enumerating_finds_and_scores_it_exactly() -> None:
    head, drawn = attending_head().requires_grad_(False), codes(6).view(3, 2, -1)  # three codes of two images
    found = beam_search(head, drawn, beam=200, max_words=3)
    every = torch.cartesian_prod(*[torch.arange(1, 4)] * 2)
    sentences = [[END], *([word, END] for word in range(1, 4)), *([*pair, END] for pair in every.tolist())]
    sentences += [[*triple, END] for triple in torch.cartesian_prod(*[torch.arange(1, 4)] * 3).tolist()]
    table = torch.full((len(sentences), 4), -1)
    for row, sentence in enumerate(sentences):
        table[row, : len(sentence)] = torch.tensor(sentence)
    for image in range(2):
        values = torch.stack([head.log_prob(table, code[image].expand(len(table), -1)) for code in drawn])
        best = int((mixed := values.logsumexp(0) - math.log(3)).argmax())
        symbols = found.symbols[image, 0]
        assert symbols[symbols >= 0].tolist() == sentences[best]
        assert float(found.log_prob[image, 0]) == pytest.approx(float(mixed[best]), abs=1e-10)
    exact = mixture_log_prob(head, found.symbols[:, 0], drawn)
    torch.testing.assert_close(exact, found.log_prob[:, 0])


def test_prefixes_that_share_places_attend_with_their_own_queries() -> None:
    head, s, rows = attending_head(), codes(3), torch.tensor([1, 0, 1, 1, 2])
    h = torch.randn(len(rows), 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    shared, apart = head.start(s).at(rows), head.start(s[rows])
    assert shared.places is not None and len(shared.places.keys) == 3
    torch.testing.assert_close(head.log_words(replace(shared, h=h)), head.log_words(replace(apart, h=h)))


def test_dropout_is_for_training_alone() -> None:
    head, captions, s = attending_head(dropout=0.5), torch.tensor([[1, 2, 3, 0]]), codes(1)
    assert float(head.log_prob(captions, s)) != float(head.log_prob(captions, s))
    head.eval()
    assert float(head.log_prob(captions, s)) == float(head.log_prob(captions, s))


def test_numbers_that_do_not_divide_into_places_are_refused() -> None:
    with pytest.raises(ValueError, match="divide"):
        CaptionHead(10, 4, places=4)


# ---- the encoder ----


def test_every_place_is_encoded_as_if_it_were_the_whole_map() -> None:
    x = torch.rand(2, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    encoder = FeatureNetwork(place_architecture((5, 3, 3), 4), hidden_size=7)
    encoder.start_from(torch.full((5, 3, 3, 1), 0.4), torch.tensor(0.3))
    encoder.eval()
    assert encoder.code_shape == (4, 3, 3) and not encoder.has_places
    mu, log_sigma = encoder.moments(batch_last(x))
    for row in range(3):
        for column in range(3):
            rows = (x[:, :, row, column] - 0.4) / encoder.scale
            both = encoder.top(F.gelu(encoder.first(rows))) + encoder.direct(rows)
            here = torch.cat([one[:, row, column].T for one in (mu, log_sigma)], 1)
            torch.testing.assert_close(here, both.detach())
    # maps first, then places: as the caption head reads it
    assert flat_code(mu).shape == (2, 36) and torch.equal(flat_code(mu)[0].view(4, 9)[2, 5], mu[2, 1, 2, 0])


def test_image_model_and_captions_learn_through_the_places() -> None:
    from semisight.objectives.captions import Captions, EncodedCaptions

    x = torch.rand(12, 5, 3, 3, generator=torch.Generator().manual_seed(0))
    model = features.build(place_architecture((5, 3, 3), 4), hidden_size=7)
    model.start_from(x)
    symbols = torch.tensor([2, 3, 0] * 12, dtype=torch.int32)
    encoded = EncodedCaptions(symbols, torch.arange(13) * 3, torch.arange(13), 5)
    head = CaptionHead(model.code_size, 5, hidden_size=6, embedding_size=6, start="wide", places=9)
    joint = Joint(model, [Captions(head, encoded)]).train()
    step = joint(Batch(x, torch.arange(12)), torch.Generator().manual_seed(0), Rows(0, 12, 12))
    step.loss.backward()
    assert {"reconstruction", "kl_s", "captions"} <= set(step.terms)
    for name, parameter in joint.named_parameters():
        assert parameter.grad is not None and bool((parameter.grad != 0).any()), name


def test_other_codes_are_refused() -> None:
    with pytest.raises(UserError, match="flat, or has the places"):
        FeatureNetwork(Architecture((5, 4, 4), (Layer(3, 3),)))
    with pytest.raises(UserError, match="1 x 1 filters"):
        FeatureNetwork(Architecture((5, 4, 4), (Layer(3, 1), Layer(3, 1))))
