"""Section 2, (3) and (5): how convolution read in pooling blocks becomes products of matrices without zeros.

The value of block (i, j) at place (u, v) needs the pixels (p i + u + a, p j + v + b) for the kernel's taps a, b < k:

    C~[u, v, K, i, j] = sum_{a, b, c} F[K, c, a, b] X[c, p i + u + a, p j + v + b]

A layout copies X once so that, for fixed (u, v, a), what the sum over (b, c) needs is a matrix that lies there already:

    Lines      G[s, c, r, i, j] = X[c, p i + r, p j + s],  s < k + p - 1
               its rows s = v .. v + k - 1 of all c, with r = (u + a) mod p and lines i from (u + a) div p on.
               k products of [K, k c] per place; nothing is multiplied that is not in the sum.
    Windows    G[t, s, c, i, j] = X[c, p i + t, p j + s]
               its rows t = u .. u + k - 1: one product for all a and v, with copies of the filters shifted along b. For
               images, whose few channels would make the matrices of Lines too thin.

Going back (the adjoint) adds to G what products give and then adds G to the maps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """A kernel laid at some of the p x p places of a block: places (u, v) with u and v in `offsets`, u first."""

    kernel: int
    pool: int
    offsets: range

    @property
    def window(self) -> int:
        return self.kernel + self.pool - 1

    @property
    def n_places(self) -> int:
        return len(self.offsets) ** 2

    def blocks(self, size: int) -> int:
        """Blocks along an axis of `size` pixels."""
        return (size - self.window) // self.pool + 1

    def pixels(self, blocks: slice) -> slice:
        """The pixels along an axis that these blocks see."""
        return slice(blocks.start * self.pool, (blocks.stop - 1) * self.pool + self.window)


@dataclass(frozen=True)
class Group:
    """The values of `places` are the sum over terms of matrices[term] @ columns."""

    places: slice
    terms: tuple[tuple[int, Tensor], ...]


class Layout(Protocol):
    @property
    def geometry(self) -> Geometry: ...

    @property
    def together(self) -> int:
        """How many places one product gives."""

    def matrices(self, filters: Tensor) -> Tensor:
        """[K, c, k, k] -> [terms, together * K, rows of G in a term]."""

    def channels(self, matrices: Tensor) -> int:
        """c, from the matrices."""

    def elements(self, maps: Tensor) -> int:
        """Size of G per row of blocks."""

    def empty(self, maps: Tensor) -> Tensor:
        """G for maps [c, H, W, B], not yet filled."""

    def gather(self, maps: Tensor) -> Tensor:
        """G from maps."""

    def scatter_add(self, gathered: Tensor, maps: Tensor) -> None:
        """The adjoint of `gather`: adds G to the maps it was gathered from."""

    def groups(self, gathered: Tensor) -> Iterator[Group]: ...


@dataclass(frozen=True)
class Lines:
    """G is [k + p - 1, c, p, lines, w, B]."""

    geometry: Geometry
    together: int = 1

    def matrices(self, filters: Tensor) -> Tensor:
        # [K, a, b, c] in memory: the cheapest order to bring filters into in which a tap's matrix has rows (b, c)
        return filters.permute(0, 2, 3, 1).flatten(2).transpose(0, 1)

    def channels(self, matrices: Tensor) -> int:
        return matrices.shape[2] // self.geometry.kernel

    def elements(self, maps: Tensor) -> int:
        g = self.geometry
        return g.window * g.pool * g.blocks(maps.shape[2]) * maps.shape[0] * maps.shape[3]

    def empty(self, maps: Tensor) -> Tensor:
        g, (channels, height, width, batch) = self.geometry, maps.shape
        return maps.new_empty(g.window, channels, g.pool, -(-height // g.pool), g.blocks(width), batch)

    def gather(self, maps: Tensor) -> Tensor:
        g, gathered = self.geometry, self.empty(maps)
        shifts = maps.unfold(2, g.window, g.pool).permute(4, 0, 1, 2, 3)  # [s, c, H, w, B]
        for parity in range(g.pool):
            lines = shifts[:, :, parity :: g.pool]
            gathered[:, :, parity, : lines.shape[2]] = lines  # the last line may not exist; then no term reads it
        return gathered

    def scatter_add(self, gathered: Tensor, maps: Tensor) -> None:
        g = self.geometry
        for parity in range(g.pool):
            lines = maps[:, parity :: g.pool]
            for shift in range(g.window):
                columns = slice(shift, shift + (gathered.shape[4] - 1) * g.pool + 1, g.pool)
                lines[:, :, columns] += gathered[shift, :, parity, : lines.shape[1]]

    def groups(self, gathered: Tensor) -> Iterator[Group]:
        g, place = self.geometry, 0
        rows = gathered.shape[3] - -(-(g.kernel - 1) // g.pool)  # blocks that these lines hold
        for u in g.offsets:
            for v in g.offsets:
                terms = []
                for a in range(g.kernel):
                    first, parity = divmod(u + a, g.pool)
                    columns = gathered[v : v + g.kernel, :, parity, first : first + rows]
                    terms.append((a, columns.view(g.kernel * gathered.shape[1], -1)))
                yield Group(slice(place, place + 1), tuple(terms))
                place += 1


@dataclass(frozen=True)
class Windows:
    """G is [k + p - 1, k + p - 1, c, h, w, B]."""

    geometry: Geometry

    @property
    def together(self) -> int:
        return len(self.geometry.offsets)

    def matrices(self, filters: Tensor) -> Tensor:
        g = self.geometry
        shifted = torch.stack([F.pad(filters, (v, g.pool - 1 - v)) for v in g.offsets])  # [v, K, c, k, window]
        return shifted.permute(0, 1, 3, 4, 2).reshape(1, self.together * filters.shape[0], -1)

    def channels(self, matrices: Tensor) -> int:
        return matrices.shape[2] // (self.geometry.kernel * self.geometry.window)

    def elements(self, maps: Tensor) -> int:
        g = self.geometry
        return g.window**2 * g.blocks(maps.shape[2]) * maps.shape[0] * maps.shape[3]

    def empty(self, maps: Tensor) -> Tensor:
        g, (channels, height, width, batch) = self.geometry, maps.shape
        return maps.new_empty(g.window, g.window, channels, g.blocks(height), g.blocks(width), batch)

    def gather(self, maps: Tensor) -> Tensor:
        g = self.geometry
        windows = maps.unfold(1, g.window, g.pool).unfold(2, g.window, g.pool)  # [c, h, w, B, t, s]
        return windows.permute(4, 5, 0, 1, 2, 3).contiguous()

    def scatter_add(self, gathered: Tensor, maps: Tensor) -> None:
        g = self.geometry
        height, width = gathered.shape[3:5]
        lines = gathered.new_zeros(g.window, *gathered.shape[2:4], *maps.shape[2:])  # [t, c, h, W, B]
        for s in range(g.window):
            lines[:, :, :, s : s + (width - 1) * g.pool + 1 : g.pool] += gathered[:, s]
        for t in range(g.window):
            maps[:, t : t + (height - 1) * g.pool + 1 : g.pool] += lines[t]

    def groups(self, gathered: Tensor) -> Iterator[Group]:
        g = self.geometry
        for row, u in enumerate(g.offsets):
            columns = gathered[u : u + g.kernel].view(g.kernel * g.window * gathered.shape[2], -1)
            yield Group(slice(row * self.together, (row + 1) * self.together), ((0, columns),))


_THIN = 64  # rows of Lines' matrices below which products are too thin to be fast


def layout_for(geometry: Geometry, channels: int) -> Layout:
    return Lines(geometry) if geometry.kernel * channels >= _THIN else Windows(geometry)
