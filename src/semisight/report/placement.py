"""Section 2.2, around (6): where z put the values of an image, drawn over it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image, ImageDraw
from torch import Tensor

from semisight.model.architecture import Architecture
from semisight.model.decoder import Decoded, Decoder
from semisight.model.posterior import Posterior
from semisight.report import page
from semisight.report.dictionary import ELEMENTS
from semisight.report.material import Material, tile
from semisight.report.page import Section
from semisight.runs.pictures import picture, to_pixels

_SIDE = 192  # pixels of the drawn picture
_DOT = (255, 120, 20)
_OVERLAYS = 6  # images
_STRONGEST = 60  # values drawn per image: all of them would hide it


_HEAT_LOW, _HEAT_HIGH = np.array([244, 240, 234]), np.array([200, 84, 16])


@dataclass(frozen=True)
class Dots:
    """Centres (row, column) in image pixels [n, 2] of the strongest values of a layer, and their paint [n]."""

    centres: Tensor
    paint: Tensor


def strongest(
    posterior: Posterior, decoded: Decoded, decoder: Decoder, layer: int, image: int, most: int = _STRONGEST
) -> Dots:
    """Where z put the values of one image that paint most, at pooled layer `layer` (from 0)."""
    norms = decoder.dictionaries[layer].detach().square().sum((1, 2, 3)).cpu()
    paint = decoded.values[layer][..., image].cpu().square() * norms[:, None, None]  # [K, h, w]
    places = posterior.places()[layer][image].cpu()
    kept = paint.flatten().topk(min(most, paint.numel()))
    flat = kept.indices
    width = paint.shape[2]
    rows, columns = flat // width % paint.shape[1], flat % width
    place, pool = places.flatten()[flat], decoder.architecture.layers[layer].pool
    position = torch.stack([rows * pool + place // pool, columns * pool + place % pool], 1).double()
    return Dots(to_image(position, layer, decoder.architecture), kept.values)


def to_image(position: Tensor, layer: int, architecture: Architecture) -> Tensor:
    """Positions in the map of layer `layer` to the centre, in image pixels, of the patch that they paint."""
    for index in range(layer, -1, -1):
        here = architecture.layers[index]
        if index < layer:  # a pixel of the map above is a block of this one; its middle stands for its place
            position = position * here.pool + (here.pool - 1) / 2
        position = position + (here.kernel - 1) / 2 - here.pad_before
    return position


def overlay(image: Tensor, dots: Dots) -> Image.Image:
    """The image [C, H, W], faded, with a dot for every value; the larger, the more it paints."""
    height, width = image.shape[1:]
    factor = max(1.0, _SIDE / min(height, width))
    faded = picture(to_pixels(0.3 + 0.55 * image[None])[0]).convert("RGB")
    sheet = faded.resize((round(width * factor), round(height * factor)), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(sheet, "RGBA")
    size = (dots.paint / dots.paint.max().clamp_min(1e-12)).sqrt()
    for (row, column), share in zip(dots.centres.tolist(), size.tolist(), strict=True):
        x, y, radius = (column + 0.5) * factor, (row + 0.5) * factor, 1.5 + 5 * share
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=(*_DOT, 150), outline=(*_DOT, 255))
    return sheet


def _heat_tile(shares: Tensor, text: str) -> Markup:
    weight = (shares / shares.max().clamp_min(1e-12)).numpy()[..., None]
    pixels = np.rint(_HEAT_LOW + weight * (_HEAT_HIGH - _HEAT_LOW)).astype(np.uint8)
    return page.img(Image.fromarray(pixels), text)


@torch.no_grad()
def places(m: Material) -> Section:
    title = "Where z placed its values"
    model, pooled = m.run.model, m.run.architecture.pooled_layers
    if not m.pixels.places:
        return Section(
            "places",
            title,
            "This model pools by the maximum and has no z: every value goes to the middle of its block.",
            Markup(),
            folded=True,
        )
    images, names = m.examples(_OVERLAYS)
    posterior = model.encode(images.to(m.run.device), m.generator())
    decoded = model.decoder(posterior.mu, posterior.z)
    body = [_same_code_other_places(m, images, names, posterior)]
    for layer in reversed(pooled):
        pool = m.run.architecture.layers[layer].pool
        shares = m.pixels.places[layer]  # [P, K]
        paint = m.pixels.paint[layer]
        mean = (shares * (paint / paint.sum().clamp_min(1e-12))).sum(1)
        order = paint.argsort(descending=True)[:ELEMENTS]
        maps = [_heat_tile(shares[:, k].view(pool, pool), f"layer {layer + 1}, element {int(k)}") for k in order]
        drawn = [
            page.img(overlay(image, strongest(posterior, decoded, model.decoder, layer, number)), name)
            for number, (image, name) in enumerate(zip(images, names, strict=True))
        ]
        decided = m.pixels.decided[layer]
        body.append(
            page.headed(
                f"Layer {layer + 1}: blocks of {pool} x {pool} places",
                page.figure(
                    page.tiles(drawn, "8.5rem"),
                    f"Dots mark the middle of the patches that layer {layer + 1} paints in these images, at the place "
                    f"z chose; the larger the dot, the more it paints. The {_STRONGEST} strongest of each image.",
                )
                + page.figure(
                    page.beside(page.heat_table(mean.view(pool, pool).tolist()), page.tiles(maps, "2rem")),
                    "The table is the share of the paint that went to each place of a block, all elements together; "
                    "the small squares are the same for each element, in the order of the dictionary above, darker for "
                    f"more. Where it paints, z is {decided:.0%} decided (0%: every place equally likely, 100%: one "
                    "certain).",
                ),
            )
        )
    return Section(
        "places",
        title,
        "On the way from code to picture every value is put at one place of a block of places, and z says which. It is "
        "chosen when the image is read, and lets a patch sit exactly where it belongs.",
        Markup().join(body),
        folded=True,
    )


def _same_code_other_places(m: Material, images: Tensor, names: Sequence[str], posterior: Posterior) -> Markup:
    """The picture with z as it was chosen, and with the same code and z drawn blindly."""
    model = m.run.model
    kept = model.decode(posterior.mean, posterior.z).cpu()
    blind = model.decode(posterior.mean, model.prior_places(len(images), m.generator())).cpu()
    items = [
        page.stacked(tile(a, f"{name}: image"), tile(b, f"{name}: z as chosen"), tile(c, f"{name}: z at random"))
        for a, b, c, name in zip(images, kept, blind, names, strict=True)
    ]
    return page.figure(
        page.tiles(items, "8.5rem"),
        "From top to bottom: the image; its reconstruction; the same code with places drawn at random. "
        "The difference between the last two is what z holds.",
    )
