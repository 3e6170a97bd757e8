"""The linear map, column by column, against decoding unit values one after the other."""

import pytest
import torch

from semisight.model.architecture import Architecture
from semisight.sampling.decoder_matrix import block_patch, paint_code, paint_down
from tests.sampling.oracle import DEEP, TINY, code_matrices, generator, hot, random_places, tiny_decoder


@pytest.mark.parametrize("architecture", [*TINY.values(), DEEP], ids=[*TINY, "deep"])
def test_columns_of_the_code_are_what_unit_codes_decode_to(architecture: Architecture) -> None:
    decoder = tiny_decoder(architecture)
    places = random_places(architecture, 3, generator(1))
    painted = paint_code(decoder, places, slice(0, architecture.code_shape[0]))
    torch.testing.assert_close(painted, code_matrices(decoder, places), rtol=1e-12, atol=1e-12)


def test_some_maps_of_the_code_are_some_of_the_columns() -> None:
    decoder = tiny_decoder(DEEP)
    places = random_places(DEEP, 2, generator(1))
    per_map = DEEP.code_shape[1] * DEEP.code_shape[2]
    painted = paint_code(decoder, places, slice(1, 2))
    torch.testing.assert_close(painted, code_matrices(decoder, places)[..., per_map : 2 * per_map])


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("corner", [(0, 0), (1, 2), (2, 2)])
def test_moving_a_value_changes_the_picture_by_the_difference_of_two_effects(
    index: int, corner: tuple[int, int]
) -> None:
    decoder = tiny_decoder(DEEP)
    places = random_places(DEEP, 2, generator(2))
    s = torch.randn(*DEEP.code_shape, 2, generator=generator(3), dtype=torch.float64)
    layer, shape = DEEP.layers[index], DEEP.shapes[index]
    row, column = corner
    with torch.no_grad():
        before = decoder(s, hot(DEEP, places))
        patch = block_patch(decoder.dictionaries[index], layer, row, column, shape.below)
        painted = paint_down(decoder, patch, index - 1, places)
        height, width = painted.values.shape[2:4]
        at = (slice(painted.top, painted.top + height), slice(painted.left, painted.left + width))
        for k in range(layer.maps):
            old = places[index][k, row, column].clone()
            places[index][k, row, column] = (old + 1) % layer.pool**2
            after = decoder(s, hot(DEEP, places)).mean
            effects = painted.values[..., k * layer.pool**2 : (k + 1) * layer.pool**2].expand(2, -1, -1, -1, -1)
            expected = before.mean.clone()
            for n in range(2):
                moved = effects[n, ..., places[index][k, row, column, n]] - effects[n, ..., old[n]]
                expected[(slice(None), *at, n)] += before.values[index][k, row, column, n] * moved
            torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-12)
            places[index][k, row, column] = old
