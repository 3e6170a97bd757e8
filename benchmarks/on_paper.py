"""What a training step costs, worked out from the architecture: multiplications and bytes.

For layer l with K maps, c maps below, P = p*p places, kernel k, and n = blocks * batch:

    one product     2 P K c k^2 n       flops; Windows (model/ops/im2col.py) multiplies zeros too: 2 P K c k (k+p-1) n,
                                        and over frequencies (model/fourier.py) there are several times fewer
    encoder         3 products          forward, gradient of the filters, gradient of the input (not for the image)
    decoder         3 products          forward, gradient of the dictionary, gradient of the unpooled values
    pooling MLP     8 of 2 P^2 K n      2 forward, 2 again in backward, 4 gradients; drawing z adds one of that size,
                                        and so does the curvature of `local`

    memory          3 P K n             floats, at the worst moment, for the layer nearest the image: the blocks, the
                                        gradient of z and that of the blocks; 2 P K n for the pooled layers above it. z
                                        itself is an index, one number per block. Over frequencies, the transforms of
                                        filters and dictionary and a gradient of them. The heap's holes, about a tenth,
                                        come on top
"""

from dataclasses import dataclass

from semisight.model.architecture import Architecture, Layer, LayerShape
from semisight.model.ops.fourier import Fourier, fourier_for
from semisight.model.ops.im2col import Geometry, Windows, layout_for

FLOAT = 4  # bytes
CHUNK = 4_000_000  # floats, model/pooling.py


@dataclass(frozen=True)
class Flops:
    done: float  # what the fast path multiplies
    needed: float  # what the sums of (3) and (5) hold: less where zeros are multiplied, more over frequencies


def _fourier(layer: Layer, shape: LayerShape, batch: int) -> Fourier | None:
    """How the layer is worked out over frequencies, if it is."""
    geometry = Geometry(layer.kernel, layer.pool, range(layer.pool))
    padded = (shape.below[0] + layer.pad_total, shape.below[1] + layer.pad_total)
    return fourier_for(geometry, layer.maps, shape.maps_below, padded, batch) if layer.pool > 1 else None


def _product(layer: Layer, shape: LayerShape, batch: int) -> Flops:
    blocks = shape.pooled[0] * shape.pooled[1] * batch
    needed = 2.0 * layer.pool**2 * layer.maps * shape.maps_below * layer.kernel**2 * blocks
    geometry, fourier = Geometry(layer.kernel, layer.pool, range(layer.pool)), _fourier(layer, shape, batch)
    if fourier is not None:
        return Flops(2.0 * batch * fourier.multiplications(layer.maps, shape.maps_below, batch), needed)
    layout = layout_for(geometry, shape.maps_below)
    return Flops(needed * layer.window / layer.kernel if isinstance(layout, Windows) else needed, needed)


def step_flops(architecture: Architecture, batch: int) -> Flops:
    """Forward and backward of one training step, gradient "local", pooling "expected"."""
    done = needed = 0.0
    for index, (layer, shape) in enumerate(zip(architecture.layers, architecture.shapes, strict=True)):
        products = 6 if index else 5  # nobody asks for the gradient of the image
        one, places = _product(layer, shape, batch), 0.0
        if index in architecture.pooled_layers:
            places = 10 * 2.0 * layer.pool**2 * _block_values(layer, shape) * batch
        done, needed = done + products * one.done + places, needed + products * one.needed + places
    maps, height, width = architecture.code_shape
    size = height * width
    code_mlp = 9 * 2.0 * maps * min(max(size, 8), 64) * size * batch  # 3 products, and 2 gradients of each
    return Flops(done + code_mlp, needed + code_mlp)


def _block_values(layer: Layer, shape: LayerShape) -> int:
    """P K n for one image: the values after convolution."""
    return layer.maps * shape.convolved[0] * shape.convolved[1]


def n_parameters(architecture: Architecture) -> int:
    filters = sum(
        layer.maps * shape.maps_below * layer.kernel**2
        for layer, shape in zip(architecture.layers, architecture.shapes, strict=True)
    )
    maps, height, width = architecture.code_shape
    size = height * width
    code_mlp = 3 * maps * min(max(size, 8), 64) * size
    return 2 * filters + code_mlp + architecture.n_pixels


def step_bytes(architecture: Architecture, batch: int) -> float:
    """Peak of a training step, gradient "local", pooling "expected"; see the top of this file."""
    pooled = [
        (_block_values(architecture.layers[i], architecture.shapes[i]), architecture.layers[i].pool ** 2)
        for i in architecture.pooled_layers
    ]
    blocks = 2 * sum(values for values, _ in pooled) + (pooled[0][0] if pooled else 0)
    # drawn places, their random numbers and log total; pooled and unpooled maps, padded, and gradients
    per_block = 7 * sum(values / places for values, places in pooled)
    # what is gathered, and the unpooled values beside it, a few rows of blocks at a time
    scratch = 4 * min(CHUNK, batch * pooled[0][0] / pooled[0][1] ** 0.5) if pooled else 0.0
    parameters = 5 * n_parameters(architecture)  # value, gradient, two averages, a copy in the order of the products
    spectra = 0
    for i in architecture.pooled_layers:
        layer, shape = architecture.layers[i], architecture.shapes[i]
        fourier = _fourier(layer, shape, batch)
        if fourier is not None:  # of filters and dictionary, and a gradient; Gauss's three numbers per frequency
            spectra += 3 * 3 * fourier.rows * fourier.width * layer.maps * shape.maps_below
    return FLOAT * (batch * (blocks + per_block + 6 * architecture.n_pixels) + scratch + parameters + spectra)
