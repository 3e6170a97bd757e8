"""Section 2.1 as a linear map: what a unit value anywhere in the decoder adds to the picture, given the places z.

Given z, the mean image is A(z) s + image bias, and just as linear in the unpooled values of every layer. The samplers
need columns of such maps, one set per image because z differs. A block's value paints one of the P shifted copies of
its dictionary element; gathering those copies by z leaves one small matrix product per block, P times less work than
decoding one-hot places.

Here images come FIRST and units last, [B, K, h, w, J]: J unit values go through the decoder side by side.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.decoder import Decoder
from semisight.model.ops.pooling import deconvolve_blocks, shifted_copies


@dataclass(frozen=True)
class Patch:
    """What J units add to a part of a layer's maps, [B or 1, K, h, w, J], whose corner is at (top, left) of the map.

    The first axis is 1 where no z has come in yet: then all images share the patch.
    """

    values: Tensor
    top: int = 0
    left: int = 0

    def inside(self, size: tuple[int, int]) -> "Patch":
        """The part that lies on a map of that size; 'same' layers paint beyond the edge, where nothing is seen."""
        height, width = self.values.shape[2:4]
        rows = slice(max(0, -self.top), min(height, size[0] - self.top))
        columns = slice(max(0, -self.left), min(width, size[1] - self.left))
        if (rows, columns) == (slice(0, height), slice(0, width)):
            return self
        return Patch(self.values[:, :, rows, columns], self.top + rows.start, self.left + columns.start)


def one_hot(places: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Places [K, h, w, B] as the decoder reads them, [P, K, h, w, B]."""
    z = torch.zeros(count, *places.shape, dtype=dtype, device=places.device)
    return z.scatter_(0, places.long()[None], 1.0)


def paint(patch: Patch, places: Tensor, dictionary: Tensor, layer: Layer) -> Patch:
    """Pooled values of a layer, put at `places` [K, h, w, B] of the whole layer and deconvolved; not yet cropped."""
    _, maps, h, w, units = patch.values.shape
    pool, window, batch = layer.pool, layer.window, places.shape[-1]
    channels = dictionary.shape[1]
    copies = shifted_copies(dictionary, pool).flatten(2).flatten(0, 1)  # [P*K, c*window*window]
    rows, columns = slice(patch.top, patch.top + h), slice(patch.left, patch.left + w)
    which = places[:, rows, columns].long() * maps + torch.arange(maps, device=places.device)[:, None, None, None]
    high, wide = (h - 1) * pool + window, (w - 1) * pool + window
    out = copies.new_zeros(batch, channels, high, wide, units)
    shared = patch.values.shape[0] == 1
    for i in range(h):
        for j in range(w):
            chosen = copies[which[:, i, j].T].transpose(1, 2)  # [B, c*window*window, K]
            if shared:  # one large product; a broadcast one would copy the values for every image
                painted = chosen.reshape(-1, maps) @ patch.values[0, :, i, j]
            else:
                painted = torch.bmm(chosen, patch.values[:, :, i, j])
            part = out[:, :, i * pool : i * pool + window, j * pool : j * pool + window]
            part += painted.view(batch, channels, window, window, units)
    return Patch(out, patch.top * pool - layer.pad_before, patch.left * pool - layer.pad_before)


def paint_down(decoder: Decoder, patch: Patch, index: int, places: tuple[Tensor, ...]) -> Patch:
    """Pooled values of layer `index` down to the picture; with index -1 they are a piece of picture already."""
    shapes = decoder.architecture.shapes
    for l in range(index, -1, -1):
        layer = decoder.architecture.layers[l]
        patch = paint(patch, places[l], decoder.dictionaries[l], layer).inside(shapes[l].below)
    return patch


def paint_code(decoder: Decoder, places: tuple[Tensor, ...], maps: slice) -> Tensor:
    """Columns of A(z) for the code's maps `maps`, [B or 1, pixels, J]; units are ordered as in `flat_code`."""
    architecture = decoder.architecture
    top = len(architecture.layers) - 1
    total, h, w = architecture.code_shape
    chosen = torch.arange(total, device=decoder.log_alpha0.device)[maps]
    units = torch.eye(len(chosen) * h * w, dtype=decoder.log_alpha0.dtype, device=decoder.log_alpha0.device)
    units = units.view(len(chosen), h, w, -1)
    values = deconvolve_blocks(units[None], decoder.dictionaries[top][chosen], architecture.layers[top])
    return paint_down(decoder, Patch(values[None]), top - 1, places).values.flatten(1, 3)


def block_patch(dictionary: Tensor, layer: Layer, row: int, column: int, below: tuple[int, int]) -> Patch:
    """What a unit in one pooling block adds to the maps below, for all maps and places; J is ordered [K, P]."""
    copies = shifted_copies(dictionary, layer.pool)  # [P, K, c, window, window]
    values = copies.permute(2, 3, 4, 1, 0).flatten(3)
    top, left = row * layer.pool - layer.pad_before, column * layer.pool - layer.pad_before
    return Patch(values[None], top, left).inside(below)


def paint_map(places: Tensor, element: Tensor, layer: Layer) -> Patch:
    """What a unit value in each block of one map adds to the maps below: J = h w blocks, places [h, w, B].

    `element` [c, k, k] is that map's dictionary element; not yet cropped.
    """
    h, w, batch = places.shape
    pool, window, channels = layer.pool, layer.window, element.shape[0]
    copies = shifted_copies(element[None], pool)[:, 0]  # [P, c, window, window]
    # Blocks before pixels: each copy is then written in runs, and the products that follow take either order.
    out = copies.new_zeros(batch, h, w, channels, (h - 1) * pool + window, (w - 1) * pool + window)
    for i in range(h):
        for j in range(w):
            at = (slice(i * pool, i * pool + window), slice(j * pool, j * pool + window))
            out[(slice(None), i, j, slice(None), *at)] = copies[places[i, j].long()]
    return Patch(out.flatten(1, 2).permute(0, 2, 3, 4, 1), -layer.pad_before, -layer.pad_before)
