"""Section 2.1: what one unit of a layer paints, in pixels: (1)-(3) from that layer down, z at its usual places."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from markupsafe import Markup
from torch import Tensor

from semisight.model.decoder import Decoder
from semisight.model.ops.pooling import fixed_place
from semisight.report import page
from semisight.report.material import Material, tile
from semisight.report.page import Section

ELEMENTS = 96  # shown per layer at most, the most used ones
_CHUNK_VALUES = 1 << 24  # values of the largest map that is made at once


def usual_places(decoder: Decoder, shares: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The place, [K_l] per pooled layer, that an element's values go to most; VAE-d has one place for all."""
    layers = decoder.architecture.layers[:-1]
    if not shares:
        return tuple(torch.full((layer.maps,), fixed_place(layer.pool)) for layer in layers)
    return tuple(share.argmax(0) for share in shares)


@torch.no_grad()
def element_pictures(decoder: Decoder, layer: int, elements: Tensor, places: Sequence[Tensor]) -> Tensor:
    """One picture [C, side, side] per element of layer `layer` (from 0): the patch that a unit value there paints.

    Made on a patch without borders, so that an element looks the same wherever it is used.
    """
    side = field(decoder, layer)
    widest = max(below.maps for below in decoder.architecture.layers[: layer + 1])
    step = max(1, _CHUNK_VALUES // (widest * side * side))
    return torch.cat([_paint(decoder, layer, part, places) for part in elements.split(step)])


def field(decoder: Decoder, layer: int) -> int:
    """Side of the patch of the image that a unit of this layer can paint on."""
    side = 1
    for index in range(layer, -1, -1):
        below = decoder.architecture.layers[index]
        side = side * (below.pool if index < layer else 1) + below.kernel - 1
    return side


def _paint(decoder: Decoder, layer: int, elements: Tensor, places: Sequence[Tensor]) -> Tensor:
    layers, dictionaries = decoder.architecture.layers, [d.detach().cpu() for d in decoder.dictionaries]
    maps = torch.zeros(len(elements), layers[layer].maps, 1, 1)
    maps[torch.arange(len(elements)), elements] = 1.0
    for index in range(layer, -1, -1):
        if index < layer:
            maps = _unpool(maps, places[index], layers[index].pool)
        maps = F.conv_transpose2d(maps, dictionaries[index])
    return maps


def _unpool(maps: Tensor, places: Tensor, pool: int) -> Tensor:
    """[n, K, h, w] -> [n, K, h*p, w*p], every value at its map's place of its block."""
    n, k, h, w = maps.shape
    at = F.one_hot(places, pool * pool).view(k, 1, pool, 1, pool).to(maps)
    return (maps[:, :, :, None, :, None] * at).reshape(n, k, h * pool, w * pool)


def shown(pictures: Tensor) -> Tensor:
    """Each picture for itself brought to [0, 1]: grey is nothing, lighter is added, darker is taken away."""
    peak = pictures.abs().flatten(1).amax(1).clamp_min(1e-12)
    return 0.5 + 0.5 * pictures / peak[:, None, None, None]


def _cropped(patches: Tensor, image_shape: tuple[int, int, int]) -> Tensor:
    """The middle of patches that are larger than the image."""
    height, width = (min(a, b) for a, b in zip(patches.shape[2:], image_shape[1:], strict=True))
    top, left = (patches.shape[2] - height) // 2, (patches.shape[3] - width) // 2
    return patches[:, :, top : top + height, left : left + width]


def dictionaries(m: Material) -> Section:
    decoder, layers = m.run.model.decoder, m.run.architecture.layers
    places = usual_places(decoder, m.pixels.places)
    body = []
    for layer in range(len(layers)):
        order = m.pixels.paint[layer].argsort(descending=True)[:ELEMENTS]
        patches = _cropped(element_pictures(decoder, layer, order, places), m.run.architecture.image_shape)
        share = m.pixels.paint[layer] / m.pixels.paint[layer].sum().clamp_min(1e-12)
        items = [
            tile(patch, f"layer {layer + 1}, element {int(k)}: {float(share[k]):.1%} of the paint")
            for patch, k in zip(shown(patches), order, strict=True)
        ]
        of = (
            f"all {layers[layer].maps}"
            if len(order) == layers[layer].maps
            else f"the {len(order)} most used of {layers[layer].maps}"
        )
        side = field(decoder, layer)
        top = " The top layer's elements are what one number of the code paints." if layer == len(layers) - 1 else ""
        usual = (
            ""
            if layer == 0
            else " Below it, every value goes to the place of its block that is most usual for its map."
        )
        body.append(
            page.headed(
                f"Layer {layer + 1}: {layers[layer].maps} elements, {layers[layer].kernel} x {layers[layer].kernel}"
                f"{'' if layer == 0 else ' of the layer below'}",
                page.figure(
                    page.tiles(items, "2.6rem" if side <= 16 else "4.6rem"),
                    f"Patches of {side} x {side} pixels, {of} elements, most used first. Grey is nothing, lighter is "
                    f"added, darker is taken away; each is scaled by itself.{usual}{top}",
                ),
            )
        )
    return Section(
        "dictionary",
        "Dictionary of every layer",
        "An image is a sum of such patches. Each shows what a single unit of its layer paints, brought down to pixels.",
        Markup().join(body),
        folded=True,
    )
