"""Section 2, (3) and (5): the sums of im2col.py, worked out on the maps' frequencies, for layers with many maps.

A convolution is a product at every frequency. With e(t) = exp(2 pi i t), for maps of H x W and kernels of k x k,

    V[f, g, c] = sum_{y, x} X[c, y, x] e(-f y/H - g x/W)                 f <= H/2: X is real, the rest is conjugate
    U[f, g]    = sum_{a, b} F[:, :, a, b] e(f a/H + g b/W)               [K, c] at every frequency
    C~[y, x]   = 1/HW sum_{f, g} (U[f, g] V[f, g]) e(f y/H + g x/W)      right wherever the kernel lies within the map

That is about 2 H W K c multiplications per image, whatever the kernel; the sum itself needs k^2 (H-k+1) (W-k+1) K c.

A complex product is three real ones (Gauss): with (re, im) the parts of U V, and v, w those of V, r, i those of U,

    k1 = (r + i) v,  k2 = r (w - v),  k3 = i (v + w);      re = k1 - k3,  im = k1 + k2

The sums and differences are linear, so they are part of the transforms, which are products with small real matrices.
All is linear: the adjoint is the same products with transposed matrices. The work goes row by row (f) of the
frequencies, which then stay in a core's cache.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from semisight.model.ops.curvature import Energies, finish_gradients
from semisight.model.ops.im2col import Geometry

_IMAGES_AT_ONCE = 64
_LARGEST_SPECTRUM = 8_000_000  # values of U; above, its transform costs more than is gained
_IN_FULL_PRECISION = torch.autocast("cpu", enabled=False)  # products take what mixed precision hands in
_GAIN = 2.0  # how many times fewer multiplications make up for smaller matrices


@dataclass(frozen=True)
class Transforms:
    """Real matrices. An axis `2` holds real and imaginary part, an axis `3` Gauss's three; f and g are frequencies.

    Pixels of the blocks are ordered as their places: along y [u, i], along x [v, j].
    """

    rows_in: Tensor  # [(f, 2), y]
    columns_in: Tensor  # [(3, g), (2, x)]
    columns_out: Tensor  # [(2, v, j), (3, g)]
    rows_out: Tensor  # [u, i, (f, 2)]
    taps: Tensor  # [(f, 3, g), (a, b)]


@lru_cache(maxsize=32)
def _transforms(geometry: Geometry, height: int, width: int, dtype: torch.dtype, device: torch.device) -> Transforms:
    f, g = torch.arange(height // 2 + 1).double(), torch.arange(width).double()
    taps, offsets = torch.arange(geometry.kernel).double(), torch.tensor(list(geometry.offsets))

    def pixels(size: int) -> Tensor:
        return (offsets[:, None] + geometry.pool * torch.arange(geometry.blocks(size))).double()  # [u, i]

    def turn(frequency: Tensor, place: Tensor, size: int) -> Tensor:
        return torch.polar(torch.ones((), dtype=torch.float64), 2 * math.pi * frequency * place / size)

    def parts(complex_matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of a complex [m, n] that give real parts and those that give imaginary parts, [m, (2, n)] each."""
        re, im = complex_matrix.real, complex_matrix.imag
        return torch.cat([re, -im], 1), torch.cat([im, re], 1)

    y_in = turn(f[:, None], -torch.arange(height).double(), height)
    v, w = parts(turn(g[:, None], -g, width))
    x_out = turn(g, pixels(width).flatten()[:, None], width)
    of_re, of_im = torch.cat([x_out.real, x_out.imag]), torch.cat([-x_out.imag, x_out.real])  # [(2, v, j), g]
    # f and H - f give conjugate values: together twice the real part; f = 0 and H/2 stand alone
    alone = (f == 0) | (2 * f == height)
    y_out = turn(f, pixels(height)[..., None], height) * ((2 - alone.double()) / (height * width))  # [u, i, f]
    u = turn(f[:, None, None, None], taps[:, None], height) * turn(g[:, None, None], taps, width)  # [f, g, a, b]
    matrices = (
        torch.stack([y_in.real, y_in.imag], 1).flatten(0, 1),
        torch.cat([v, w - v, v + w]),
        torch.cat([of_re + of_im, of_im, -of_re], 1),
        torch.stack([y_out.real, -y_out.imag], -1).flatten(2),
        torch.stack([u.real + u.imag, u.real, u.imag], 1).flatten(0, 2).flatten(1),
    )
    return Transforms(*(matrix.to(device, dtype).contiguous() for matrix in matrices))


@dataclass(frozen=True)
class Fourier:
    """Convolution of maps of height x width, read in pooling blocks at the places of `geometry`."""

    geometry: Geometry
    height: int
    width: int

    @property
    def rows(self) -> int:
        return self.height // 2 + 1

    @property
    def blocks(self) -> tuple[int, int]:
        return self.geometry.blocks(self.height), self.geometry.blocks(self.width)

    def transforms(self, like: Tensor) -> Transforms:
        return _transforms(self.geometry, self.height, self.width, like.dtype, like.device)

    def multiplications(self, maps: int, channels: int, batch: int) -> float:
        """Per image, everything transformed and multiplied once; a batch shares the filters' transform."""
        (h, w), rows, width, places = self.blocks, self.rows, self.width, len(self.geometry.offsets)
        products = 3 * rows * width * maps * channels
        into = channels * 2 * rows * width * (self.height + 3 * width)
        out_of = maps * 2 * rows * places * w * (3 * width + places * h)
        return products + into + out_of + products * self.geometry.kernel**2 / batch

    @_IN_FULL_PRECISION
    def spectrum(self, filters: Tensor) -> Tensor:
        """U, [f, (3, g), K, c]."""
        taps = self.transforms(filters).taps
        return torch.mm(taps, filters.reshape(-1, taps.shape[1]).T).view(self.rows, -1, *filters.shape[:2])

    @_IN_FULL_PRECISION
    def filters(self, spectrum: Tensor) -> Tensor:
        """The adjoint of `spectrum`: the gradient of U to that of the filters."""
        taps, kernel = self.transforms(spectrum).taps, self.geometry.kernel
        return torch.mm(spectrum.view(len(taps), -1).T, taps).view(*spectrum.shape[2:], kernel, kernel)

    @_IN_FULL_PRECISION
    def run(
        self,
        spectrum: Tensor,
        maps: Tensor | None = None,
        blocks: Callable[[int, slice], Tensor] | None = None,
        *,
        bias: Tensor | None = None,
        to_blocks: Tensor | None = None,
        to_maps: Tensor | None = None,
        to_spectrum: Tensor | None = None,
        to_bias: Tensor | None = None,
    ) -> None:
        """All that convolution and its adjoint are asked for, in one pass over the frequencies.

        From `maps` [c, H, W, B], and `bias` [K, 1], to blocks [P, K, h, w, B]; from `blocks`, a function of place and
        images to [K, h, w, images], to maps; from both to the gradients of spectrum and bias.
        """
        t, size = self.transforms(spectrum), self.height * self.width
        channels = {False: spectrum.shape[3], True: spectrum.shape[2]}
        batch = next(tensor.shape[-1] for tensor in (maps, to_maps) if tensor is not None)
        for start in range(0, batch, _IMAGES_AT_ONCE):
            images = slice(start, min(start + _IMAGES_AT_ONCE, batch))
            n = images.stop - start
            in_maps = None if maps is None else self._rows_of_maps(maps[..., images])
            in_blocks = None if blocks is None else self._rows_of_blocks(blocks, images, spectrum)
            back_to_maps = (
                None if to_maps is None else spectrum.new_empty(self.rows, 2 * self.width, channels[False] * n)
            )
            back_to_blocks = None
            if to_blocks is not None:
                back_to_blocks = spectrum.new_empty(self.rows, len(t.columns_out), channels[True] * n)
            for f, u in enumerate(spectrum):
                if in_maps is not None:
                    v = torch.mm(t.columns_in, in_maps[f]).view(len(u), -1, n)
                if in_blocks is not None:
                    m = torch.mm(t.columns_out.T, in_blocks[f]).view(len(u), -1, n)
                if back_to_blocks is not None:
                    product = torch.bmm(u, v)
                    if bias is not None and f == 0:
                        product[2 * self.width] -= size * bias  # k3 of frequency 0: re = k1 - k3
                    torch.mm(t.columns_out, product.view(len(u), -1), out=back_to_blocks[f])
                if back_to_maps is not None:
                    product = torch.bmm(u.transpose(1, 2), m)
                    torch.mm(t.columns_in.T, product.view(len(u), -1), out=back_to_maps[f])
                if to_spectrum is not None:
                    to_spectrum[f].baddbmm_(m, v.transpose(1, 2), beta=min(start, 1))  # the first images write
                if to_bias is not None and f == 0:
                    to_bias.mul_(min(start, 1)).sub_(size * m[2 * self.width].sum(1, keepdim=True))
            if to_blocks is not None and back_to_blocks is not None:
                self._write_blocks(back_to_blocks, to_blocks[..., images])
            if to_maps is not None and back_to_maps is not None:
                pixels = torch.mm(t.rows_in.T, back_to_maps.view(2 * self.rows, -1))
                to_maps[..., images] = pixels.view(self.height, self.width, -1, n).permute(2, 0, 1, 3)

    # Half transformed, along y: maps are [f, (2, x), (c, n)], blocks [f, (2, v, j), (K, n)].

    def _rows_of_maps(self, maps: Tensor) -> Tensor:
        pixels = maps.permute(1, 2, 0, 3).reshape(self.height, -1)
        return torch.mm(self.transforms(maps).rows_in, pixels).view(self.rows, 2 * self.width, -1)

    def _rows_of_blocks(self, blocks: Callable[[int, slice], Tensor], images: slice, like: Tensor) -> Tensor:
        t = self.transforms(like)
        half = like.new_empty(self.rows, len(t.columns_out), like.shape[2] * (images.stop - images.start))
        for place, (u, columns) in enumerate(self._columns(half)):
            values = blocks(place, images).permute(1, 2, 0, 3).reshape(self.blocks[0], -1)
            columns.addmm_(t.rows_out[u].T, values, beta=min(u, 1))  # the first line of places writes, the others add
        return half

    def _write_blocks(self, half: Tensor, out: Tensor) -> None:
        for place, (u, columns) in enumerate(self._columns(half)):
            values = torch.mm(self.transforms(half).rows_out[u], columns)
            out[place] = values.view(*self.blocks, out.shape[1], -1).permute(2, 0, 1, 3)

    def _columns(self, half: Tensor) -> Iterator[tuple[int, Tensor]]:
        """For every place (u, v): u, and what is half transformed of its column v, [(f, 2), (j, K, n)]."""
        places = len(self.geometry.offsets)
        split = half.view(2 * self.rows, places, -1)
        for u in range(places):
            for v in range(places):
                yield u, split[:, v]


def fourier_for(geometry: Geometry, maps: int, channels: int, size: tuple[int, int], batch: int) -> Fourier | None:
    """The way over frequencies for maps of `size`, if it multiplies much less than the sum itself."""
    fourier = Fourier(geometry, *size)
    h, w = fourier.blocks
    direct = maps * channels * (geometry.kernel * len(geometry.offsets)) ** 2 * h * w
    small = 3 * fourier.rows * fourier.width * maps * channels <= _LARGEST_SPECTRUM
    return fourier if small and _GAIN * fourier.multiplications(maps, channels, batch) < direct else None


class FourierConvolve(torch.autograd.Function):
    """(5): maps [c, H, W, B], filters and bias to blocks [P, K, h, w, B]."""

    @staticmethod
    def forward(ctx: Any, maps: Tensor, filters: Tensor, bias: Tensor | None, fourier: Fourier) -> Tensor:
        spectrum = fourier.spectrum(filters)
        ctx.save_for_backward(maps, spectrum)
        ctx.fourier, ctx.bias_shape = fourier, None if bias is None else bias.shape
        out = maps.new_empty(fourier.geometry.n_places, len(filters), *fourier.blocks, maps.shape[-1])
        fourier.run(spectrum, maps, bias=None if bias is None else bias.view(-1, 1), to_blocks=out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None, None]:
        maps, spectrum = ctx.saved_tensors
        fourier: Fourier = ctx.fourier
        grad_maps = torch.empty_like(maps) if ctx.needs_input_grad[0] else None
        grad_spectrum = torch.empty_like(spectrum)
        grad_bias = maps.new_zeros(spectrum.shape[2], 1)

        def blocks(place: int, images: slice) -> Tensor:
            return grads[0][place, ..., images]

        fourier.run(spectrum, maps, blocks, to_maps=grad_maps, to_spectrum=grad_spectrum, to_bias=grad_bias)
        of_bias = None if ctx.bias_shape is None else grad_bias.view(ctx.bias_shape)
        return grad_maps, fourier.filters(grad_spectrum), of_bias, None


class FourierUnpool(torch.autograd.Function):
    """(2) and (3): values [K, h, w, B] at places z [P, K, h, w, B], deconvolved, and a 0 per image (curvature.py).

    z may come as an index (placing.Drawn); then `z` is the token, and only its gradient matters.
    """

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        z: Tensor,
        index: Tensor | None,
        dictionary: Tensor,
        fourier: Fourier,
        of: Callable[[], Energies] | None,
    ) -> tuple[Tensor, Tensor]:
        spectrum = fourier.spectrum(dictionary)
        ctx.save_for_backward(values, z, index, spectrum)
        ctx.fourier, ctx.of = fourier, of
        ctx.set_materialize_grads(False)
        out = values.new_empty(dictionary.shape[1], fourier.height, fourier.width, values.shape[-1])
        fourier.run(spectrum, blocks=_unpooled(z, index, values), to_maps=out)
        return out, values.new_zeros(values.shape[-1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        values, z, index, spectrum = ctx.saved_tensors
        fourier: Fourier = ctx.fourier
        grad = grads[0]
        if grad is None:  # only the curvature's was asked for
            grad = values.new_zeros(spectrum.shape[3], fourier.height, fourier.width, values.shape[-1])
        grad_u, grad_spectrum = values.new_empty(z.shape), torch.empty_like(spectrum)
        fourier.run(spectrum, grad, _unpooled(z, index, values), to_blocks=grad_u, to_spectrum=grad_spectrum)
        grad_values = finish_gradients(grad_u, z, index, values, ctx.of, grads[1])
        return grad_values, grad_u, None, fourier.filters(grad_spectrum), None, None


def _unpooled(z: Tensor, index: Tensor | None, values: Tensor) -> Callable[[int, slice], Tensor]:
    if index is None:
        return lambda place, images: z[place, ..., images] * values[..., images]
    # in the memory order of `_rows_of_blocks`, which then copies nothing
    places, moved = (tensor.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3) for tensor in (index, values))

    def unpooled(place: int, images: slice) -> Tensor:
        at = places[..., images]
        return torch.eq(at, place, out=torch.empty_like(at)).mul_(moved[..., images])

    return unpooled
