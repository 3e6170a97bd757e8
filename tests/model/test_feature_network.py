"""The encoder of features, pooled and on a grid; and a caption head that sees the code at every word."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.errors import UserError
from semisight.inference.beam_search import beam_search
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.feature_network import FeatureNetwork, grid_architecture
from semisight.model.heads.captions import END, CaptionHead
from semisight.model.posterior import Noise, batch_last, flat_code
from semisight.objectives.joint import Joint
from semisight.objectives.step import Batch, Rows
from semisight.runs import features


def maps(side: int, n: int = 6, channels: int = 5) -> Tensor:
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(side))


def network(side: int, dropout: float = 0.0) -> FeatureNetwork:
    encoder = FeatureNetwork(grid_architecture((5, side, side), 4), hidden_size=7, dropout=dropout)
    encoder.start_from(maps(side).mean(0)[..., None], torch.tensor(0.3))
    return encoder


def test_layers_for_a_vector_and_for_grids() -> None:
    assert grid_architecture((5, 1, 1), 4).layers == (Layer(4, 1),)
    for side, pool in ((4, 2), (7, 7), (9, 3)):
        architecture = grid_architecture((5, side, side), 4)
        assert architecture.layers[0].pool == pool and architecture.code_shape == (4, 1, 1)
    with pytest.raises(UserError, match="square"):
        grid_architecture((5, 2, 3), 4)
    with pytest.raises(UserError, match="1 x 1 filters"):
        FeatureNetwork(Architecture((5, 4, 4), (Layer(3, 3, 2, "same"), Layer(4, 2))))


def test_a_vector_goes_through_plain_matrices() -> None:
    encoder, x = network(1).eval(), maps(1)
    rows = ((x.flatten(1) - encoder.centre.flatten()) / encoder.scale).detach()
    both = encoder.top(F.gelu(encoder.first(rows))) + encoder.direct(rows)
    mu, log_sigma = encoder.moments(batch_last(x))
    torch.testing.assert_close(torch.cat([flat_code(mu), flat_code(log_sigma)], 1), both.detach())


@pytest.mark.parametrize("side", [4, 9])
def test_a_grid_is_pooled_by_the_expected_place_of_each_block(side: int) -> None:
    encoder, x = network(side).eval(), maps(side)
    p = encoder.architecture.layers[0].pool
    scaled = (x - encoder.centre[..., 0]) / encoder.scale
    values = F.conv2d(scaled, encoder.first.weight[..., None, None], encoder.first.bias)
    blocks = F.unfold(values.flatten(0, 1)[:, None], p, stride=p).movedim(1, 0)  # [P, B K, blocks]
    weights = encoder.places.weights()
    q = weights.logits(blocks.flatten(1))[1].softmax(0).view(blocks.shape)
    pooled = (q * blocks).sum(0).view(len(x), -1)  # [B, K blocks]
    both = encoder.top(F.gelu(pooled)) + encoder.direct(scaled.mean((2, 3)))
    mu, log_sigma = encoder.moments(batch_last(x))
    torch.testing.assert_close(torch.cat([flat_code(mu), flat_code(log_sigma)], 1), both.detach(), atol=1e-5, rtol=1e-4)
    eps = torch.zeros(4, 1, 1, len(x))
    uniform = torch.rand(256, side // p, side // p, len(x), generator=torch.Generator().manual_seed(1))
    drawn = encoder(batch_last(x), Noise(eps, (uniform,)))
    torch.testing.assert_close(drawn.s, mu, atol=1e-5, rtol=1e-4)
    assert drawn.z[0].shape == (p * p, 256, side // p, side // p, len(x)) and bool((drawn.z[0].sum(0) == 1).all())


@pytest.mark.parametrize("side", [1, 4])
def test_every_parameter_learns_and_dropout_is_for_training_alone(side: int) -> None:
    model = features.build(grid_architecture((5, side, side), 4), hidden_size=7, dropout=0.5)
    x = maps(side, 40)
    model.start_from(x)
    step = Joint(model).train()(Batch(x, torch.arange(40)), torch.Generator().manual_seed(0), Rows(0, 40, 40))
    step.loss.backward()
    assert all(p.grad is not None and bool((p.grad != 0).any()) for p in model.parameters())
    noise = model.noise(40, torch.Generator().manual_seed(0))
    once, again = (model.encoder(batch_last(x), noise).mu for _ in range(2))
    assert not torch.equal(once, again)
    model.eval()
    once, again = (model.encoder(batch_last(x), noise).mu for _ in range(2))
    assert torch.equal(once, again)


def test_views_are_rows_beyond_the_set() -> None:
    from semisight.data.batches import Shuffled
    from semisight.data.image_set import ImageSet

    plain = torch.arange(6.0).view(6, 1, 1, 1)
    images = ImageSet(plain, tuple("abcdef"), views=(plain + 10, plain + 20))
    seen = features.EveryView(images)
    assert seen.batch(torch.tensor([1, 7, 15])).flatten().tolist() == [1, 11, 23] and len(seen) == 6
    plan = features.DrawnViews(Shuffled(6, 3), 6, 3)
    drawn = torch.cat([plan.indices(step, 0) for step in range(40)])
    assert torch.equal(plan.indices(3, 0), plan.indices(3, 0)) and set((drawn // 6).tolist()) == {0, 1, 2}
    assert torch.equal(plan.indices(3, 0) % 6, Shuffled(6, 3).indices(3, 0))


# ---- the code at every word ----


def fed_head(cell: str = "gru", dropout: float = 0.0) -> CaptionHead:
    generator = torch.Generator().manual_seed(1)
    head = CaptionHead(
        3,
        4,
        hidden_size=5,
        embedding_size=6,
        cell=cell,
        code_at_every_step=True,
        dropout=dropout,  # type: ignore[arg-type]
    ).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.uniform_(-1.2, 1.2, generator=generator)
    return head


def codes(n: int) -> Tensor:
    return torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_with_the_code_at_every_word_whole_captions_equal_torchs_cells(cell: str) -> None:
    head, s = fed_head(cell), codes(2)
    captions = torch.tensor([[1, 2, 3, 0], [3, 0, -1, -1]])
    w_ih, w_hh, b_ih, b_hh = head.recurrent.all_weights[0]
    for row, (caption, code) in enumerate(zip(captions.tolist(), s, strict=True)):
        h, c = torch.tanh(head.code(code)), head.code(code)
        total, state = 0.0, head.start(code[None])
        for symbol in caption[: 4 if row == 0 else 2]:
            total = total + float(torch.log_softmax(head.words(h), -1)[symbol].detach())
            torch.testing.assert_close(state.h[0], h)
            x = torch.cat([head.embedding.weight[symbol], code])
            if cell == "gru":
                h = torch.gru_cell(x[None], h[None], w_ih, w_hh, b_ih, b_hh)[0]
            else:
                h, c = (one[0] for one in torch.lstm_cell(x[None], (h[None], c[None]), w_ih, w_hh, b_ih, b_hh))
            state = head.step(torch.tensor([symbol]), state)
        assert float(head.log_prob(captions, s)[row]) == pytest.approx(total, abs=1e-12)


def test_beam_search_finds_the_best_sentence_with_the_code_at_every_word() -> None:
    head = fed_head()
    drawn = torch.stack([codes(3), codes(3) + 0.5])
    rows = [(*words, END) for n in range(4) for words in itertools.product((1, 2, 3), repeat=n)]
    longest = max(map(len, rows))
    captions = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows])
    each = torch.stack(
        [torch.stack([head.log_prob(captions, code.expand(len(rows), -1)) for code in one]) for one in drawn]
    )
    exact = each.logsumexp(0) - math.log(2)
    found = beam_search(head, drawn, beam=60, max_words=3)
    torch.testing.assert_close(found.log_prob[:, 0], exact.max(1).values)


def test_dropout_of_words_is_for_training_alone() -> None:
    head, s = fed_head(dropout=0.5), codes(1).expand(50, 3)
    captions = torch.tensor([[1, 2, 0]]).expand(50, 3)
    assert len(head.train().log_prob(captions, s).unique()) > 5
    assert len(head.eval().log_prob(captions, s).unique()) == 1
    with pytest.raises(ValueError, match="dropout"):
        CaptionHead(3, 4, dropout=1.0)
