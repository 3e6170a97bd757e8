"""The page needs nobody and shows everything; what it says and draws is what the model does."""

import base64
import dataclasses
import io
import itertools
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semisight.model.architecture import Architecture, Layer
from semisight.model.image_model import ImageModel
from semisight.report import charts
from semisight.report.dictionary import element_pictures, field, shown, usual_places
from semisight.report.observe import observe, plain_words
from semisight.report.placement import to_image
from semisight.runs.run import load_run
from semisight.runs.run_images import reload_sets
from semisight.training.validation import validate
from tests.cli.commands import TINY, ok

SECTIONS = ("learned", "reconstructions", "samples", "dictionary", "places", "curves", "settings")
VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Collects what a page asks for, and checks that its tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.open, self.addresses, self.identities = text, list[str](), list[str](), list[str]()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("src", "href", "srcset", "action", "data", "poster"):
                self.addresses.append(value or "")
            if name == "id":
                self.identities.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text(shared_run: Path) -> str:
    return (shared_run / "report.html").read_text()


def test_the_page_asks_nobody_for_anything(text: str) -> None:
    page = Page(text)
    assert all(address.startswith(("data:", "#")) for address in page.addresses)
    assert not re.search(r"https?://|//cdn|@import|<script|<iframe", text)
    for address in re.findall(r"url\(([^)]*)\)", text):
        assert address.startswith(("#", "data:image/"))


def test_every_picture_inside_is_one(text: str) -> None:
    pictures = [address for address in Page(text).addresses if address.startswith("data:image/png;base64,")]
    assert len(pictures) > 100
    for address in pictures[::10]:
        Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).verify()


def test_every_section_is_there_once_and_linked(text: str) -> None:
    page = Page(text)
    assert len(page.identities) == len(set(page.identities))
    for section in SECTIONS:
        assert section in page.identities
        assert f"#{section}" in page.addresses
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_every_layer_and_every_term_is_shown(text: str, shared_run: Path) -> None:
    run = load_run(shared_run)
    dictionary, places = (
        text[text.index(f'id="{name}"') :].split("</section>")[0] for name in ("dictionary", "places")
    )
    for number, layer in enumerate(run.architecture.layers):
        assert f"Layer {number + 1}: {layer.maps} elements" in dictionary
    for index in run.architecture.pooled_layers:
        assert f"Layer {index + 1}: blocks of" in places
    for term in ("Bound", "Reconstruction", "KL of s", "KL of z", "alpha0"):
        assert f'aria-label="{term}"' in text


def test_a_model_without_z_has_its_page_too(tmp_path: Path) -> None:
    ok("train", *TINY, "--out", tmp_path / "run", "--epochs", "1", "--pooling", "max")
    text = (tmp_path / "run" / "report.html").read_text()
    assert "has no z" in text
    Page(text)
    run = load_run(tmp_path / "run")
    sets = reload_sets(run)
    assert sets.valid is not None
    # Nothing is drawn here, so the share that is redrawn can be worked out by hand.
    x = sets.valid.batch(torch.arange(len(sets.valid)))
    with torch.no_grad():
        result = run.model.reconstruct(x, torch.Generator())
    numbers = observe(run, sets).numbers
    wanted = 1 - (x - result).square().sum() / (x - sets.train.mean_image()).square().sum()
    assert numbers.explained == pytest.approx(float(wanted), abs=1e-5)
    assert numbers.rmse == pytest.approx(float((x - result).square().mean().sqrt()), abs=1e-5)


def test_numbers_are_those_of_the_bound(shared_run: Path) -> None:
    run = load_run(shared_run)
    sets = reload_sets(run)
    seen = observe(run, sets)
    assert sets.valid is not None
    assert seen.numbers.after == validate(run.objective, sets.valid, batch_size=32, seed=run.config.seed)
    assert seen.numbers.before["bound"] != seen.numbers.after["bound"]
    x, mean = sets.valid.batch(torch.arange(len(sets.valid))), sets.train.mean_image()
    spread = (x - mean).square().mean().sqrt()
    best = torch.distributions.Normal(mean, spread).log_prob(x).sum((1, 2, 3)).mean()
    assert seen.numbers.mean_image_bound == pytest.approx(float(best), abs=1e-2)
    assert 0 < seen.numbers.used_code <= seen.numbers.code_size
    for shares, decided in zip(seen.places, seen.decided, strict=True):
        assert torch.allclose(shares.sum(0), torch.ones(shares.shape[1]))
        assert 0 <= decided <= 1
    assert "images it had not seen" in " ".join(plain_words(seen.numbers))


def test_words_are_honest_about_a_model_that_learned_nothing(shared_run: Path) -> None:
    run = load_run(shared_run)
    numbers = observe(run, reload_sets(run)).numbers
    worse = dataclasses.replace(numbers, explained=-0.2, mean_image_bound=numbers.after["bound"] + 1)
    text = " ".join(plain_words(worse))
    assert "does not redraw images better than the mean image" in text
    assert "no better than the mean image yet" in text
    better = dataclasses.replace(numbers, explained=0.5, mean_image_bound=numbers.after["bound"] - 1)
    assert "yet" not in " ".join(plain_words(better))


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_an_element_is_what_the_decoder_paints(padding: str) -> None:
    layers = (Layer(3, 3, 2, padding), Layer(4, 3, 2, padding), Layer(5, 2, 1, "valid"))  # type: ignore[arg-type]
    size = 26 if padding == "valid" else 24  # valid: 26-12-5-4, same: 24-12-6-5
    decoder = ImageModel.of(Architecture((1, size, size), layers), seed=1).decoder
    random = torch.Generator().manual_seed(2)
    shares = [torch.rand(layer.pool**2, layer.maps, generator=random) for layer in layers[:-1]]
    places = usual_places(decoder, shares)
    pictures = element_pictures(decoder, 2, torch.arange(5), places)
    side = field(decoder, 2)
    assert pictures.shape == (5, 1, side, side)
    z = []
    for place, index in zip(places, decoder.architecture.pooled_layers, strict=True):
        one_hot = torch.nn.functional.one_hot(place, layers[index].pool ** 2).T.float()  # [P, K]
        z.append(one_hot[:, :, None, None, None].expand(-1, -1, *decoder.architecture.shapes[index].pooled, 5))
    code = torch.zeros(*decoder.architecture.code_shape, 5)
    row, column = 2, 1  # away from the border of a padded model
    code[torch.arange(5), row, column, torch.arange(5)] = 1
    with torch.no_grad():
        painted = (decoder(code, tuple(z)).mean - decoder.image_bias).permute(3, 0, 1, 2)
    top, left = ((n * 2 - layers[1].pad_before) * 2 - layers[0].pad_before for n in (row, column))
    inside = painted[:, :, max(top, 0) : top + side, max(left, 0) : left + side]
    expected = pictures[:, :, max(-top, 0) :, max(-left, 0) :]
    assert torch.allclose(inside, expected[:, :, : inside.shape[2], : inside.shape[3]], atol=1e-6)
    assert inside.square().sum() > 0.5 * painted.square().sum()


def test_elements_are_shown_between_black_and_white() -> None:
    scaled = shown(torch.tensor([[[[0.0, -4.0], [2.0, 1.0]]], [[[0.0, 0.0], [0.0, 0.0]]]]))
    assert scaled[0].flatten().tolist() == [0.5, 0.0, 0.75, 0.625]
    assert scaled[1].flatten().tolist() == [0.5] * 4


@pytest.mark.parametrize("layer", [0, 1])
def test_a_dot_lies_in_the_middle_of_what_is_painted(layer: int) -> None:
    layers = (Layer(1, 3, 3, "valid"), Layer(1, 3, 3, "same"), Layer(1, 1, 1))
    architecture = Architecture((1, 29, 29), layers)
    decoder = ImageModel.of(architecture).decoder
    for dictionary in decoder.dictionaries:
        dictionary.data.fill_(1.0)
    # One value in the map of `layer`; below it, values sit in the middle of their blocks, which is what dots assume.
    h, w = architecture.shapes[layer].convolved
    maps = torch.zeros(1, h, w, 1)
    position = (4, 5)
    maps[0, position[0], position[1], 0] = 1.0
    x = torch.nn.functional.conv_transpose2d(maps.permute(3, 0, 1, 2), decoder.dictionaries[layer].detach())
    if layer == 1:
        x = x[:, :, 1:-1, 1:-1]  # same
        middle = torch.zeros(1, 1, 27, 27)
        middle[:, :, 1::3, 1::3] = x
        x = torch.nn.functional.conv_transpose2d(middle, decoder.dictionaries[0].detach())
    weight = x[0, 0] / x.sum()
    rows = torch.arange(29.0)
    centre = [(weight.sum(1) * rows).sum(), (weight.sum(0) * rows).sum()]
    found = to_image(torch.tensor([position], dtype=torch.float64), layer, architecture)[0]
    assert found.tolist() == pytest.approx([float(c) for c in centre], abs=1e-4)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_and_within(low: float, width: float) -> None:
    found = charts.ticks(low, low + width)
    assert 1 <= len(found) <= 9
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert all(low - slack <= tick <= low + width + slack for tick in found)
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-4) for step in steps)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60))
def test_a_chart_is_drawn_whatever_the_numbers(values: list[float]) -> None:
    points = [(float(number), value) for number, value in enumerate(values)]
    drawing = charts.chart("a <title>", [charts.Line("training", "first", points)], "step", "clip")
    Page(drawing)
    assert "nan" not in drawing
    assert "inf" not in drawing
    assert "<title>a <" not in drawing


def test_wild_first_steps_do_not_flatten_the_rest() -> None:
    values = [-1e6, *(100 + n for n in range(100))]
    low, high = charts._range(values)
    assert low > -100
    assert high > 199
