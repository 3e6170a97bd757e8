"""(2), (3), (5), (6): the fast path against its naive twin, and what pooling and unpooling promise."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.ops import places as placing
from semisight.model.ops import pooling
from semisight.model.ops.places import PoolingWeights, choose_places, draw_places, naive_choose_places


@dataclass(frozen=True)
class Case:
    layer: Layer
    size: tuple[int, int]
    channels: int = 2


CASES = [
    Case(Layer(3, 4, 3), (12, 9)),
    Case(Layer(3, 5, 2, "same"), (8, 6)),
    Case(Layer(3, 4, 4, "same"), (8, 8), 1),
    Case(Layer(3, 5, 1), (5, 7)),
    Case(Layer(2, 1, 1), (3, 3)),
    Case(Layer(2, 2, 3), (10, 7)),
]


@pytest.fixture(params=["whole", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large maps are worked through in pieces: the answer must not depend on it."""
    if request.param == "in pieces":
        monkeypatch.setattr(pooling, "_CHUNK_ELEMENTS", 10)
        monkeypatch.setattr(placing, "_PIECE", 7)


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 0, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}


def assert_same_with_gradients(
    fast: list[Tensor], naive: list[Tensor], inputs: list[Tensor], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(5)
    weights = [torch.randn(out.shape, generator=generator, dtype=dtype) for out in fast]
    for a, b in zip(fast, naive, strict=True):
        torch.testing.assert_close(a, b, **tolerance(dtype))
    gradients = [
        torch.autograd.grad(
            sum((w * out).sum() for w, out in zip(weights, outs, strict=True)), inputs, allow_unused=True
        )
        for outs in (fast, naive)
    ]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, **tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("pieces")
def test_convolution_and_deconvolution_equal_the_naive_twin(case: Case, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = case.layer
    x = torch.randn(case.channels, *case.size, 3, dtype=dtype, requires_grad=True)
    filters = torch.randn(layer.maps, case.channels, layer.kernel, layer.kernel, dtype=dtype, requires_grad=True)
    fast = pooling.convolve_blocks(x, filters, layer)
    assert_same_with_gradients([fast], [pooling.naive_convolve_blocks(x, filters, layer)], [x, filters], dtype)

    u = torch.randn_like(fast).requires_grad_()
    fast = pooling.deconvolve_blocks(u, filters, layer)
    assert fast.shape == x.shape
    assert_same_with_gradients([fast], [pooling.naive_deconvolve_blocks(u, filters, layer)], [u, filters], dtype)

    values = torch.randn_like(u[0]).requires_grad_()
    fast = pooling.unpool_deconvolve(values, u, filters, layer)
    naive = pooling.naive_unpool_deconvolve(values, u, filters, layer)
    assert_same_with_gradients([fast], [naive], [values, u, filters], dtype)

    place = pooling.fixed_place(layer.pool)
    fixed = torch.zeros_like(u)
    fixed[place] = 1.0
    fast = pooling.unpool_fixed(values, filters, layer)
    naive = pooling.naive_unpool_deconvolve(values, fixed, filters, layer)
    assert_same_with_gradients([fast], [naive], [values, filters], dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("through", [True, False])
@pytest.mark.usefixtures("pieces")
def test_choosing_places_equals_the_naive_twin(dtype: torch.dtype, expected: bool, through: bool) -> None:
    torch.manual_seed(1)
    blocks = torch.randn(4, 2, 3, 2, 5, dtype=dtype, requires_grad=True)
    parts = [torch.randn(4, 4, dtype=dtype), torch.randn(4, 1, dtype=dtype)] * 2
    parts = [part.clone().requires_grad_() for part in parts]
    uniform = torch.rand(2, 3, 2, 5, dtype=dtype)
    fast = choose_places(blocks, PoolingWeights(*parts), uniform, expected, through)
    naive = naive_choose_places(blocks, PoolingWeights(*parts), uniform, expected, through)
    names = ("z", "pooled", "negative_entropy") if through else ("pooled", "negative_entropy", "log_q_z")
    assert_same_with_gradients(
        [getattr(fast, name) for name in names], [getattr(naive, name) for name in names], [blocks, *parts], dtype
    )


@pytest.mark.parametrize("pool", [1, 2, 3])
def test_pooling_what_was_unpooled_gives_it_back(pool: int) -> None:
    torch.manual_seed(2)
    x = torch.randn(3, 4, 5, 2)
    z = draw_places(torch.softmax(torch.randn(pool * pool, *x.shape), 0), torch.rand(x.shape))
    unpooled = pooling.unpool_at(x, z)
    assert torch.equal((unpooled * z).sum(0), x)  # (6): the value at place z of each block
    maps = pooling.from_blocks(unpooled, pool)
    assert maps.shape == (3, 4 * pool, 5 * pool, 2)
    assert int((maps != 0).sum()) == x.numel()  # one value per block, zeros elsewhere
    assert torch.equal(pooling.to_blocks(maps, pool), unpooled)


def test_the_drawn_places_follow_q() -> None:
    q = torch.tensor([0.1, 0.0, 0.6, 0.3])
    n = 200_000
    generator = torch.Generator().manual_seed(3)
    z = draw_places(q[:, None].expand(4, n).contiguous(), torch.rand(n, generator=generator))
    assert torch.equal(z.sum(0), torch.ones(n))
    error = (z.mean(1) - q).abs()
    assert float(error.max()) < 4 * (0.25 / n) ** 0.5
    assert float(z[1].sum()) == 0


def test_rounding_never_loses_a_block() -> None:
    q = torch.full((9, 1), 1 / 9) * (1 - 1e-6)
    assert float(draw_places(q, torch.tensor([1 - 1e-7])).sum()) == 1.0
