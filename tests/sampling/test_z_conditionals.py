"""z's conditionals: every single probability against brute force, and the sweep against enumeration of all joint z."""

import pytest
import torch
from torch import Tensor

from semisight.model.architecture import Architecture, Layer
from semisight.model.decoder import Decoder
from semisight.sampling import z_conditionals as module
from semisight.sampling.z_conditionals import draw_index, draw_nearest_places, draw_places_above, lower_triangle
from tests.sampling.oracle import (
    DEEP,
    ONE_Z,
    SAME,
    TWO_Z,
    draw_images,
    generator,
    hot,
    joint_number,
    places_given_code,
    random_places,
    tiny_decoder,
)

# 4 x 4 blocks of windows of 3: drawn four at a time.
COLOURED = Architecture((1, 9, 9), (Layer(2, 2, 2), Layer(2, 2)))
# The same with windows over the edge, and 4 x 4 windows of 4 that reach over 2 blocks.
COLOURED_SAME = Architecture((2, 8, 8), (Layer(2, 3, 2, "same"), Layer(2, 2)))
# Two blocks above a first layer that has but one place.
TWO_POSITIONS = Architecture((1, 2, 4), (Layer(2, 1), Layer(2, 1, 2), Layer(2, 1)))


def brute_force(
    decoder: Decoder, x: Tensor, s: Tensor, places: tuple[Tensor, ...], index: int, block: tuple[int, int, int]
) -> Tensor:
    """p(z = a | rest) of one block by decoding once for every place, [P, B]."""
    architecture = decoder.architecture
    values = []
    for a in range(architecture.layers[index].pool ** 2):
        moved = tuple(p.clone() for p in places)
        moved[index][block] = a
        values.append(decoder.log_prob(x, decoder(s, hot(architecture, moved)).mean))
    return torch.stack(values).softmax(0)


class Watch:
    """Stands in for `draw_index`: notes the probabilities it was given, then draws as ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []
        monkeypatch.setattr(module, "draw_index", self)

    def __call__(self, logits: Tensor, uniform: Tensor, below: Tensor) -> Tensor:
        drawn = draw_index(logits, uniform, below)
        self.seen.append((logits.softmax(0), drawn.clone()))
        return drawn


def start(architecture: Architecture, batch: int = 3) -> tuple[Decoder, Tensor, Tensor, tuple[Tensor, ...]]:
    decoder = tiny_decoder(architecture)
    x = draw_images(decoder, batch).permute(1, 2, 3, 0).contiguous()
    s = torch.randn(*architecture.code_shape, batch, generator=generator(5), dtype=torch.float64)
    return decoder, x, s, random_places(architecture, batch, generator(6))


@torch.no_grad()
@pytest.mark.parametrize("architecture", [ONE_Z, SAME, COLOURED, COLOURED_SAME, DEEP])
def test_every_probability_nearest_the_image_is_that_of_brute_force(
    architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks drawn at once are checked given the state before any of them moved: they must not see each other."""
    decoder, x, s, places = start(architecture)
    decoded = decoder(s, hot(architecture, places))
    residual, alpha0 = x - decoded.mean, decoder.log_alpha0.exp()
    now = tuple(p.clone() for p in places)
    watch = Watch(monkeypatch)
    layer = architecture.layers[0]
    draw_nearest_places(residual, decoded.values[0], places[0], decoder.dictionaries[0], layer, alpha0, generator())
    maps, h, w, batch = places[0].shape
    apart = -(-layer.window // layer.pool)
    calls = iter(watch.seen)
    for i in range(min(apart, h)):
        for j in range(min(apart, w)):
            rows, columns = range(i, h, apart), range(j, w, apart)
            for k in range(maps):
                probability, drawn = next(calls)
                probability = probability.view(-1, len(rows), len(columns), batch)
                for a, row in enumerate(rows):
                    for b, column in enumerate(columns):
                        exact = brute_force(decoder, x, s, now, 0, (k, row, column))
                        torch.testing.assert_close(probability[:, a, b], exact, rtol=1e-9, atol=1e-11)
                now[0][k, i::apart, j::apart] = drawn.view(len(rows), len(columns), batch)
    assert next(calls, None) is None
    assert torch.equal(now[0], places[0])
    torch.testing.assert_close(residual, x - decoder(s, hot(architecture, places)).mean, rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(("architecture", "index"), [(ONE_Z, 0), (SAME, 0), (TWO_Z, 1), (DEEP, 1)])
def test_every_probability_further_up_is_that_of_brute_force(
    architecture: Architecture, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, x, s, places = start(architecture, batch=2)
    decoded = decoder(s, hot(architecture, places))
    residual, alpha0 = x - decoded.mean, decoder.log_alpha0.exp()
    now = tuple(p.clone() for p in places)
    monkeypatch.setattr(module, "_PATCH_ELEMENTS", 1)  # one image at a time: the parts must fit together
    watch = Watch(monkeypatch)
    draw_places_above(decoder, index, residual, decoded.values[index], places, alpha0, generator())
    maps, h, w, batch = places[index].shape
    calls = iter(watch.seen)
    for row in range(h):
        for column in range(w):
            for n in range(batch):
                for k in range(maps):
                    probability, drawn = next(calls)
                    exact = brute_force(decoder, x, s, now, index, (k, row, column))[:, n : n + 1]
                    torch.testing.assert_close(probability, exact, rtol=1e-9, atol=1e-11)
                    now[index][k, row, column, n] = drawn[0]
    assert next(calls, None) is None
    assert all(torch.equal(a, b) for a, b in zip(now, places, strict=True))
    torch.testing.assert_close(residual, x - decoder(s, hot(architecture, places)).mean, rtol=1e-10, atol=1e-12)


@torch.no_grad()
def sweep_all(
    decoder: Decoder, x: Tensor, s: Tensor, places: tuple[Tensor, ...], random: torch.Generator, share: float = 1.0
) -> None:
    architecture, alpha0 = decoder.architecture, decoder.log_alpha0.exp()
    for index in reversed(architecture.pooled_layers):
        decoded = decoder(s, hot(architecture, places))
        residual, values = x - decoded.mean, decoded.values[index]
        if index:
            draw_places_above(decoder, index, residual, values, places, alpha0, random, share=share)
        else:
            layer = architecture.layers[0]
            draw_nearest_places(residual, values, places[0], decoder.dictionaries[0], layer, alpha0, random)


def chi_square(counts: Tensor, probability: Tensor, least: float = 5.0) -> float:
    """In standard deviations above its mean; rare joint z are taken together."""
    expected = probability * counts.sum()
    order = expected.argsort(descending=True)
    common = order[expected[order] >= least]
    observed = torch.cat([counts[common].double(), (counts.sum() - counts[common].sum())[None].double()])
    wanted = torch.cat([expected[common], (counts.sum() - expected[common].sum())[None]]).clamp_min(1e-9)
    freedom = len(common)
    return float((((observed - wanted) ** 2 / wanted).sum() - freedom) / (2 * freedom) ** 0.5)


class Chains:
    """8000 chains of z for one image and one code, from a uniform start, beside the enumerated posterior."""

    def __init__(self, architecture: Architecture, seed: int) -> None:
        self.decoder, count, self.random = tiny_decoder(architecture), 8000, generator(seed)
        image = draw_images(self.decoder, 1)[0]
        s = torch.randn(*architecture.code_shape, 1, generator=generator(5), dtype=torch.float64)
        self.exact = places_given_code(self.decoder, image, s)
        self.places = random_places(architecture, count, self.random)
        self.x, self.codes = (each.expand(-1, -1, -1, count).contiguous() for each in (image[..., None], s))

    def sweep(self, places: tuple[Tensor, ...], **options: float) -> None:
        sweep_all(self.decoder, self.x, self.codes, places, self.random, **options)

    def distance(self) -> float:
        joint = joint_number(self.decoder.architecture, self.places)
        return chi_square(torch.bincount(joint, minlength=len(self.exact)), self.exact)


@pytest.mark.parametrize("architecture", [ONE_Z, TWO_Z, SAME], ids=["one z", "two z", "same"])
def test_sweeps_from_a_uniform_start_reach_the_enumerated_posterior(architecture: Architecture) -> None:
    chains = Chains(architecture, seed=7)
    exact = chains.exact
    assert 3 < float((-exact * exact.log()).sum().exp()) < 300  # perplexity: neither a spike nor flat
    assert chains.distance() > 10
    for _ in range(12):
        chains.sweep(chains.places)
    assert chains.distance() < 4


def test_a_random_share_of_the_positions_leaves_the_posterior_as_it_is() -> None:
    chains = Chains(TWO_POSITIONS, seed=8)
    for _ in range(16):
        chains.sweep(chains.places, share=0.5)
    assert chains.distance() < 4


def test_drawing_neighbours_at_once_would_be_caught() -> None:
    """The test above has the power to see the mistake that the colouring is there to avoid."""
    chains = Chains(ONE_Z, seed=7)
    for _ in range(12):
        # Both columns of blocks from the same state: of two sweeps, each gives one.
        drawn = [chains.places[0].clone() for _ in range(2)]
        for column, copy in enumerate(drawn):
            chains.sweep((copy,))
            chains.places[0][:, :, column] = copy[:, :, column]
    assert chains.distance() > 8


def test_draw_index_never_leaves_the_block() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 50.0], [-torch.inf, 0.0, -50.0], [-torch.inf, -torch.inf, 0.0]])
    drawn = draw_index(logits, torch.tensor([1.0, 1.0, 1.0]), lower_triangle(3, logits))
    assert int(drawn.max()) <= 2
    drawn = draw_index(logits, torch.tensor([0.5, 0.0, 0.5]), lower_triangle(3, logits))
    assert drawn.tolist() == [0, 1, 0]
