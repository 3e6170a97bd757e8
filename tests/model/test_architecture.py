"""Table 5 and its geometry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisight.errors import UserError
from semisight.model.architecture import (
    PRESETS,
    Architecture,
    Layer,
    preset,
    sizes_that_fit,
    suggest_architecture,
)

TABLE_5 = {  # image size, channels, (dictionary number, dictionary size, pooling) per layer
    "mnist": (28, 1, [(30, 8, 3), (80, 6, 1)]),
    "cifar-10": (32, 3, [(48, 5, 2), (128, 5, 2), (128, 5, 1)]),
    "cifar-100": (32, 3, [(48, 5, 2), (128, 5, 2), (128, 5, 1)]),
    "caltech-101": (128, 3, [(48, 7, 4), (84, 5, 2), (84, 5, 1)]),
    "caltech-256": (128, 3, [(48, 7, 4), (128, 5, 2), (128, 5, 1)]),
    "imagenet": (256, 3, [(96, 5, 4), (256, 5, 2), (512, 5, 2), (1024, 5, 2), (512, 5, 1)]),
    "flickr8k": (256, 3, [(48, 5, 4), (84, 5, 2), (128, 5, 2), (192, 5, 2), (128, 5, 1)]),
    "flickr30k": (256, 3, [(48, 5, 4), (84, 5, 2), (128, 5, 2), (384, 5, 2), (256, 5, 1)]),
    "coco": (256, 3, [(48, 5, 4), (84, 5, 2), (128, 5, 2), (512, 5, 2), (384, 5, 1)]),
}


def test_the_presets_are_the_nine_rows_of_table_5() -> None:
    assert set(PRESETS) == set(TABLE_5)
    for name, (size, channels, rows) in TABLE_5.items():
        architecture = preset(name)
        assert architecture.image_shape == (channels, size, size)
        assert [(layer.maps, layer.kernel, layer.pool) for layer in architecture.layers] == rows
        assert architecture.nonlinearity == "none"


def test_the_geometry_of_the_design() -> None:
    mnist = preset("mnist")
    assert [(s.convolved[0], s.pooled[0]) for s in mnist.shapes] == [(21, 7), (2, 2)]
    assert mnist.code_shape == (80, 2, 2)
    cifar = preset("cifar-10")
    assert [(s.convolved[0], s.pooled[0]) for s in cifar.shapes] == [(28, 14), (10, 5), (1, 1)]
    assert cifar.n_pixels == 3072


def test_a_size_that_does_not_divide_is_refused_with_the_sizes_that_would() -> None:
    layers = preset("mnist").layers
    with pytest.raises(UserError, match=r"height 29 .* blocks of 3\. Sizes that would: .*28.*31"):
        Architecture((1, 29, 29), layers)
    with pytest.raises(UserError, match="width 30"):
        Architecture((1, 28, 30), layers)
    with pytest.raises(UserError, match="larger than its 7-pixel map"):
        Architecture((1, 7, 7), layers)


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.integers(1, 4), st.sampled_from(["valid", "same"])), min_size=1, max_size=3
    ),
    st.integers(1, 80),
)
def test_the_sizes_named_in_a_refusal_are_accepted(rows: list[tuple[int, int, str]], size: int) -> None:
    layers = (*(Layer(2, kernel, pool, padding) for kernel, pool, padding in rows), Layer(2, 1))  # type: ignore[arg-type]
    sizes = sizes_that_fit(layers, size)
    assert sizes
    for n in sizes:
        Architecture((1, n, n), layers)


@given(st.integers(4, 300), st.sampled_from([1, 3, 4]))
def test_any_square_size_gets_a_sensible_architecture(size: int, channels: int) -> None:
    architecture = suggest_architecture((channels, size, size))
    assert architecture.image_shape == (channels, size, size)
    assert architecture.code_size <= 16_384
    if size >= 8:
        assert max(architecture.code_shape[1:]) <= 16


@given(st.integers(4, 100), st.integers(4, 100))
def test_oblong_images_get_one_too(height: int, width: int) -> None:
    assert suggest_architecture((3, height, width)).image_shape == (3, height, width)


def test_a_suggested_architecture_keeps_the_paper_s_where_there_is_one() -> None:
    assert suggest_architecture((1, 28, 28)).layers == preset("mnist").layers
    assert len(suggest_architecture((1, 28, 28), "norm-relu").layers) == 3
    assert suggest_architecture((3, 32, 32)).layers == preset("cifar-10").layers


def test_round_trip_and_unknown_keys() -> None:
    architecture = preset("caltech-101")
    assert Architecture.from_dict(architecture.to_dict()) == architecture
    values = architecture.to_dict()
    values["layers"][0]["kernal"] = 3
    with pytest.raises(UserError, match="unknown layer key 'kernal'; did you mean 'kernel'"):
        Architecture.from_dict(values)
    with pytest.raises(UserError, match="did you mean 'mnist'"):
        preset("mnits")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"maps": 0}, "maps must be a whole number"),
        ({"kernel": 2.5}, "kernel must be a whole number"),
        ({"padding": "reflect"}, "'valid' or 'same'"),
    ],
)
def test_a_layer_that_makes_no_sense(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Layer(**({"maps": 2, "kernel": 3} | change))


def test_an_architecture_that_makes_no_sense() -> None:
    with pytest.raises(UserError, match="at least one layer"):
        Architecture((1, 8, 8), ())
    with pytest.raises(UserError, match="top layer has no pooling"):
        Architecture((1, 8, 8), (Layer(2, 3, 2),))
    with pytest.raises(UserError, match="channels, height, width"):
        Architecture((0, 8, 8), (Layer(2, 3),))
