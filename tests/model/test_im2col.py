"""(3), (5): all ways to the products against the naive twin, and the pass for prediction against the posterior."""

from functools import partial

import pytest
import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling
from semisight.model.image_model import ImageModel
from semisight.model.ops import curvature, fourier, im2col, pooling
from semisight.model.ops import places as placing
from semisight.model.ops.curvature import energies
from semisight.model.ops.im2col import Geometry, Lines, Windows
from semisight.model.ops.places import Drawn, PoolingWeights, choose_places, naive_choose_places
from semisight.model.ops.pooling import FAST, NAIVE

LAYERS = [
    (Layer(3, 4, 3), (12, 9)),
    (Layer(3, 5, 2, "same"), (8, 6)),
    (Layer(2, 3, 4, "same"), (8, 8)),
    (Layer(3, 5, 1), (5, 7)),
    (Layer(2, 1, 1), (3, 3)),
    (Layer(2, 1, 2), (4, 6)),
    (Layer(2, 2, 3), (10, 7)),
]


@pytest.fixture(params=["whole", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in pieces":
        monkeypatch.setattr(pooling, "_CHUNK_ELEMENTS", 10)
        monkeypatch.setattr(pooling, "_POOLED_AT_ONCE", 10)
        monkeypatch.setattr(placing, "_PIECE", 7)
        monkeypatch.setattr(curvature, "_AT_ONCE", 7)
        monkeypatch.setattr(fourier, "_IMAGES_AT_ONCE", 2)


@pytest.fixture(params=["Lines", "Windows", "Fourier"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(im2col, "_THIN", 1 if request.param == "Lines" else 10**9)
    monkeypatch.setattr(fourier, "_GAIN", 0 if request.param == "Fourier" else 10**9)


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def assert_twins(fast: Tensor, naive: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(fast, naive, rtol=0, atol=1e-10)
    weights = random(*fast.shape, seed=9).detach()
    gradients = [torch.autograd.grad(out, inputs, weights, retain_graph=True) for out in (fast, naive)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("layer", "size"), LAYERS)
@pytest.mark.usefixtures("pieces", "layout")
def test_all_ways_equal_the_naive_twin(layer: Layer, size: tuple[int, int]) -> None:
    x, filters = random(2, *size, 3, seed=1), random(layer.maps, 2, layer.kernel, layer.kernel, seed=2)
    bias = random(layer.maps, 1, 1, 1, seed=3)
    blocks = pooling.convolve_blocks(x, filters, layer, bias)
    assert_twins(blocks, pooling.naive_convolve_blocks(x, filters, layer, bias), [x, filters, bias])

    u = random(*blocks.shape, seed=4)
    maps = pooling.deconvolve_blocks(u, filters, layer)
    assert_twins(maps, pooling.naive_deconvolve_blocks(u, filters, layer), [u, filters])

    values = random(*u.shape[1:], seed=5)
    maps = pooling.unpool_deconvolve(values, u, filters, layer)
    assert_twins(maps, pooling.naive_unpool_deconvolve(values, u, filters, layer), [values, u, filters])

    drawn = torch.nn.functional.one_hot(torch.arange(values.numel()).view(values.shape) % len(u), len(u))
    z = drawn.movedim(-1, 0).double().contiguous().requires_grad_()
    weight = torch.ones(2, dtype=torch.float64)
    of = partial(energies, filters.detach(), weight, layer, size)
    fast, naive = (
        curved(values, z, filters, layer, of) for curved in (pooling.unpool_curved, pooling.naive_unpool_curved)
    )
    both = [(maps.sum((0, 1, 2)) + torch.tensor([1.0, -2.0, 0.5]) * zero)[None] for maps, zero in (fast, naive)]
    assert_twins(both[0], both[1], [values, z, filters])
    alone = [torch.autograd.grad(zero.sum(), z, retain_graph=True)[0] for _, zero in (fast, naive)]
    torch.testing.assert_close(*alone, rtol=0, atol=1e-10)

    fixed = torch.zeros_like(u)
    fixed[pooling.fixed_place(layer.pool)] = 1.0
    maps = pooling.unpool_fixed(values, filters, layer)
    assert_twins(maps, pooling.naive_unpool_deconvolve(values, fixed, filters, layer), [values, filters])


def test_frequencies_are_taken_where_they_save_work_and_stay_as_exact() -> None:
    """The second layer of CIFAR-10 (48 maps of 14 x 14, 128 filters of 5 x 5), in float32 against float64."""
    geometry = Geometry(5, 2, range(2))
    assert fourier.fourier_for(geometry, 128, 48, (14, 14), batch=64) is not None
    assert fourier.fourier_for(geometry, 48, 3, (32, 32), batch=64) is None  # few channels
    assert fourier.fourier_for(geometry, 128, 48, (14, 14), batch=1) is None  # the filters' transform does not pay
    layer, batch = Layer(128, 5, 2), 20
    x, filters = random(48, 14, 14, batch, seed=1).detach(), random(128, 48, 5, 5, seed=2).detach() / 1200**0.5
    blocks = pooling.naive_convolve_blocks(x, filters, layer)
    fast = pooling.convolve_blocks(x.float(), filters.float(), layer)
    torch.testing.assert_close(fast.double(), blocks, rtol=1e-5, atol=1e-5)
    values = random(128, 5, 5, batch, seed=3).detach()
    z = torch.nn.functional.one_hot(torch.arange(values.numel()).view(values.shape) % 4, 4).movedim(-1, 0).double()
    maps = pooling.naive_unpool_deconvolve(values, z, filters, layer)
    fast = pooling.unpool_deconvolve(values.float(), z.float(), filters.float(), layer)
    torch.testing.assert_close(fast.double(), maps, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Lines, Windows])
@pytest.mark.parametrize(("kernel", "pool"), [(5, 2), (4, 3), (1, 2), (3, 1), (2, 4)])
def test_scattering_is_the_adjoint_of_im2col(kind: type[Lines] | type[Windows], kernel: int, pool: int) -> None:
    layout = kind(Geometry(kernel, pool, range(pool)))
    maps = random(2, 3 * pool + kernel - 1, 2 * pool + kernel - 1, 3, seed=1).detach()
    there = layout.empty(maps).zero_()
    for n, group in enumerate(layout.groups(there)):  # only what some product reads: the rest is never filled
        for _, columns in group.terms:
            columns.copy_(random(*columns.shape, seed=n).detach())
    back = torch.zeros_like(maps)
    layout.scatter_add(there, back)
    gathered = torch.where(there == 0, 0, layout.gather(maps))
    torch.testing.assert_close((gathered * there).sum(), (maps * back).sum(), rtol=1e-12, atol=1e-12)


def test_unpooling_takes_a_z_of_any_memory_order() -> None:
    layer, values, dictionary = Layer(3, 4, 2), random(3, 2, 2, 5, seed=1), random(3, 1, 4, 4, seed=2)
    z = torch.nn.functional.one_hot(torch.arange(60).view(3, 2, 2, 5) % 4, 4).movedim(-1, 0).double()
    assert not z.is_contiguous()
    torch.testing.assert_close(
        pooling.unpool_deconvolve(values, z, dictionary, layer),
        pooling.naive_unpool_deconvolve(values, z, dictionary, layer),
    )


@pytest.mark.parametrize("gain", [1.0, 300.0])  # below and above what exp can take without help
def test_choosing_places_with_weak_and_strong_preferences(gain: float) -> None:
    blocks, uniform = random(4, 2, 3, 2, 5, seed=1), torch.rand(2, 3, 2, 5, dtype=torch.float64)
    parts = [random(4, 4, seed=2), random(4, 1, seed=3), gain * random(4, 4, seed=4).detach(), random(4, 1, seed=5)]
    weights = PoolingWeights(*parts)
    assert weights.bounded() == (gain == 1.0)
    fast, naive = (choose(blocks, weights, uniform, True, True) for choose in (choose_places, naive_choose_places))
    inputs = [blocks, *parts[:2], parts[3]]
    assert torch.equal(fast.z.detach().round(), naive.z.detach().round())
    assert_twins(fast.pooled, naive.pooled, inputs)
    assert_twins(fast.negative_entropy, naive.negative_entropy, inputs)
    torch.testing.assert_close(placing.pool_expected(blocks.detach(), weights), naive.pooled, rtol=0, atol=1e-10)


@pytest.mark.parametrize("pooling_kind", ["expected", "max"])
@pytest.mark.usefixtures("pieces", "layout")
def test_the_pass_for_prediction_gives_the_mean_of_the_posterior(pooling_kind: Pooling) -> None:
    architecture = Architecture((2, 12, 16), (Layer(3, 3, 2), Layer(4, 2, 2), Layer(5, 2)), "relu")
    model = ImageModel.of(architecture, pooling_kind, seed=3, operators=NAIVE).double()
    images = torch.rand(6, 2, 12, 16, dtype=torch.float64)
    model.start_from(images)
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    code = model.mean_code(images, generator)
    assert torch.equal(generator.get_state(), before)  # nothing was drawn
    assert not code.requires_grad
    torch.testing.assert_close(code, model.encode(images, generator).mean.detach(), rtol=0, atol=1e-10)


def test_with_sampled_pooling_the_mean_needs_a_draw() -> None:
    architecture = Architecture((1, 8, 8), (Layer(3, 3, 2), Layer(4, 3)))
    model = ImageModel.of(architecture, "sampled", seed=3)
    images = torch.rand(6, 1, 8, 8)
    code = model.mean_code(images, torch.Generator().manual_seed(0))
    assert torch.equal(code, model.encode(images, torch.Generator().manual_seed(0)).mean)
    with pytest.raises(UserError, match="generator"):
        model.encoder.moments(images.permute(1, 2, 3, 0))[0]


@pytest.mark.parametrize("pooling_kind", ["expected", "sampled", "max"])
@pytest.mark.usefixtures("layout")
def test_a_step_in_mixed_precision_stays_near_the_full_one(pooling_kind: Pooling) -> None:
    architecture = Architecture((2, 12, 16), (Layer(3, 3, 2), Layer(4, 2, 2), Layer(5, 2)))
    images = torch.rand(6, 2, 12, 16, generator=torch.Generator().manual_seed(1))
    gradients = []
    for mixed in (False, True):
        model = ImageModel.of(architecture, pooling_kind, seed=3)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            posterior = model.encode(images, torch.Generator().manual_seed(0))
            mean = model.decode(posterior.mean, posterior.z)
        (mean.float() - images).square().sum().backward()
        gradients.append(model.encoder.filters[0].grad)
    full, half = gradients
    assert full is not None and half is not None
    assert torch.nn.functional.cosine_similarity(full.flatten(), half.flatten(), dim=0) > 0.99


@pytest.mark.parametrize(("layer", "size"), LAYERS)
@pytest.mark.parametrize("expected", [True, False])
@pytest.mark.parametrize("through", [True, False])
@pytest.mark.usefixtures("pieces", "layout")
def test_places_that_are_never_written_out_equal_the_naive_twin(
    layer: Layer, size: tuple[int, int], expected: bool, through: bool
) -> None:
    """From the image to the places, to the picture, and all the way back, with z as an index."""
    x, filters = random(2, *size, 3, seed=1), random(layer.maps, 2, layer.kernel, layer.kernel, seed=2)
    bias, dictionary = random(layer.maps, 1, 1, 1, seed=3), random(*filters.shape, seed=4)
    p = layer.pool**2
    parts = [random(p, n, seed=5 + i) for i, n in enumerate((p, 1, p, 1))]
    of = partial(energies, dictionary.detach(), torch.ones(2, dtype=torch.float64), layer, size)
    inputs, results, gradients = [x, filters, bias, *parts, dictionary], [], []
    for operators in (FAST, NAIVE):
        blocks = operators.convolve(x, filters, layer, bias)
        generator = torch.Generator().manual_seed(6)
        uniform = torch.rand(blocks.shape[1:], dtype=torch.float64, generator=generator)
        chosen = operators.choose(blocks, PoolingWeights(*parts), uniform, expected, through)
        maps, zero = operators.unpool_curved(2 * chosen.pooled, chosen.drawn, dictionary, layer, of)
        assert chosen.z.requires_grad == through and isinstance(chosen.drawn, Drawn) == (operators is FAST)
        outs = [chosen.pooled, chosen.negative_entropy, maps] + ([zero] if through else [chosen.log_q_z])
        weights = [random(*out.shape, seed=n).detach() for n, out in enumerate(outs)]
        gradients.append(torch.autograd.grad(outs, inputs, weights))
        results.append([chosen.z, *outs])
    for a, b in [*zip(*results, strict=True), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-10)
