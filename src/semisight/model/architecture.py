"""Table 5 and the geometry behind it: which image sizes an architecture takes, and how large every map is.

For layer l = 1..L, bottom to top, with n(0) the image:

    m(l) = n(l-1) - k + 1    valid convolution with k x k filters       (same: m(l) = n(l-1))
    n(l) = m(l) / p          p x p pooling; the top layer has p = 1 and n(L) is the size of the code's maps
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

from semisight.errors import UserError

Padding = Literal["valid", "same"]
Nonlinearity = Literal["none", "relu", "norm-relu"]  # after pooling; the paper has none


@dataclass(frozen=True)
class Layer:
    """One row entry of Table 5: `maps` dictionary elements of `kernel` x `kernel`, pooled by `pool` x `pool`.

    Args:
        maps: dictionary elements, K.
        kernel: their side.
        pool: side of a pooling block; 1 for no pooling.
        padding: "valid", or "same" to keep height and width.

    Example:
        >>> import semisight as ss
        >>> ss.Layer(32, kernel=5, pool=2).window
        6
    """

    maps: int
    kernel: int
    pool: int = 1
    padding: Padding = "valid"

    def __post_init__(self) -> None:
        for name in ("maps", "kernel", "pool"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UserError(f"a layer's {name} must be a whole number of at least 1, not {value!r}")
        if self.padding not in ("valid", "same"):
            raise UserError(f"a layer's padding must be 'valid' or 'same', not {self.padding!r}")

    @property
    def window(self) -> int:
        """Side of the image patch that one pooling block sees: the kernel at all its p x p places."""
        return self.kernel + self.pool - 1

    @property
    def pad_before(self) -> int:
        return (self.kernel - 1) // 2 if self.padding == "same" else 0

    @property
    def pad_total(self) -> int:
        return self.kernel - 1 if self.padding == "same" else 0

    def convolved(self, size: int) -> int:
        return size + self.pad_total - self.kernel + 1


@dataclass(frozen=True)
class LayerShape:
    """The sizes of one layer, (height, width): the map it reads, the map after convolution, the map after pooling."""

    maps_below: int
    below: tuple[int, int]
    convolved: tuple[int, int]
    pooled: tuple[int, int]


@dataclass(frozen=True)
class Architecture:
    """Image shape (channels, height, width) and layers, bottom to top; refused at once if the sizes do not fit.

    Args:
        image_shape: channels, height, width.
        layers: bottom to top; the top one has no pooling.
        nonlinearity: of the encoder: "none" (the paper's), "relu" or "norm-relu".

    Example:
        >>> import semisight as ss
        >>> ss.Architecture((1, 8, 8), (ss.Layer(8, 3, pool=3), ss.Layer(16, 2))).code_shape
        (16, 1, 1)
    """

    image_shape: tuple[int, int, int]
    layers: tuple[Layer, ...]
    nonlinearity: Nonlinearity = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_shape", tuple(self.image_shape))
        object.__setattr__(self, "layers", tuple(self.layers))
        if len(self.image_shape) != 3 or any(not isinstance(n, int) or n < 1 for n in self.image_shape):
            raise UserError(f"an image shape is (channels, height, width), each at least 1, not {self.image_shape!r}")
        if not self.layers:
            raise UserError("an architecture needs at least one layer")
        if self.nonlinearity not in get_args(Nonlinearity):
            raise UserError(f"nonlinearity must be 'none', 'relu' or 'norm-relu', not {self.nonlinearity!r}")
        if self.layers[-1].pool != 1:
            raise UserError("the top layer has no pooling (Table 5): give it pool=1, or add a layer above it")
        for axis, name in ((1, "height"), (2, "width")):
            if not _fits(self.image_shape[axis], self.layers):
                raise UserError(_refusal(self.image_shape[axis], name, self.layers))

    @property
    def shapes(self) -> tuple[LayerShape, ...]:
        maps, height, width = self.image_shape
        shapes = []
        for layer in self.layers:
            convolved = (layer.convolved(height), layer.convolved(width))
            pooled = (convolved[0] // layer.pool, convolved[1] // layer.pool)
            shapes.append(LayerShape(maps, (height, width), convolved, pooled))
            maps, (height, width) = layer.maps, pooled
        return tuple(shapes)

    @property
    def code_shape(self) -> tuple[int, int, int]:
        """Shape of s: K_L maps of n(L)."""
        return (self.layers[-1].maps, *self.shapes[-1].pooled)

    @property
    def code_size(self) -> int:
        maps, height, width = self.code_shape
        return maps * height * width

    @property
    def n_weights(self) -> int:
        """About how many numbers encoder and decoder have together."""
        filters = sum(
            layer.maps * shape.maps_below * layer.kernel**2
            for layer, shape in zip(self.layers, self.shapes, strict=True)
        )
        return 2 * (filters + self.n_pixels) + 3 * 64 * self.code_size

    @property
    def n_pixels(self) -> int:
        """N_X: pixels times channels."""
        channels, height, width = self.image_shape
        return channels * height * width

    @property
    def pooled_layers(self) -> tuple[int, ...]:
        """Indices (from 0) of the layers that have a z."""
        return tuple(range(len(self.layers) - 1))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> "Architecture":
        check_keys(values, [f.name for f in fields(Architecture)], "architecture")
        rows = values.get("layers", ())
        for row in rows:
            check_keys(row, [f.name for f in fields(Layer)], "layer")
        layers = tuple(Layer(**row) for row in rows)
        return Architecture(tuple(values["image_shape"]), layers, values.get("nonlinearity", "none"))


def check_keys(values: Mapping[str, Any], known: Sequence[str], what: str) -> None:
    """Refuses an unknown key and names the nearest known one."""
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UserError(f"unknown {what} key {key!r}{hint} Known keys: {', '.join(known)}")


def _fits(size: int, layers: Sequence[Layer]) -> bool:
    for layer in layers:
        convolved = layer.convolved(size)
        if convolved < 1 or convolved % layer.pool:
            return False
        size = convolved // layer.pool
    return True


def sizes_that_fit(layers: Sequence[Layer], near: int, count: int = 4) -> list[int]:
    """Image sizes that divide, nearest to `near` first; there is one at least every product of the pools."""
    reach = 1
    for layer in layers:
        reach = reach * layer.pool + layer.kernel * reach
    candidates = [n for n in range(1, near + 2 * reach) if _fits(n, layers)]
    return sorted(sorted(candidates, key=lambda n: (abs(n - near), n))[:count])


def _refusal(size: int, axis: str, layers: Sequence[Layer]) -> str:
    steps, n = [f"{size}"], size
    for number, layer in enumerate(layers, start=1):
        convolved = layer.convolved(n)
        if convolved < 1:
            trouble = f"layer {number}'s {layer.kernel} x {layer.kernel} filters are larger than its {n}-pixel map"
            break
        if convolved % layer.pool:
            trouble = f"layer {number}'s map of {convolved} does not divide into blocks of {layer.pool}"
            break
        n = convolved // layer.pool
        steps.append(f"{n}")
    sizes = ", ".join(str(n) for n in sizes_that_fit(layers, size))
    return (
        f"image {axis} {size} does not fit these layers ({'-'.join(steps)}-...): {trouble}. Sizes that would: {sizes}"
    )


def _stack(padding: Padding, *rows: tuple[int, int, int]) -> tuple[Layer, ...]:
    return tuple(Layer(maps, kernel, pool, padding) for maps, kernel, pool in rows)


# Table 5. Padding is not printed there: with 'valid' MNIST and CIFAR divide exactly (28-21-7-2 and 32-28-14-10-5-1),
# the larger sets divide only with 'same'.
PRESETS: Mapping[str, Architecture] = {
    "mnist": Architecture((1, 28, 28), _stack("valid", (30, 8, 3), (80, 6, 1))),
    "cifar-10": Architecture((3, 32, 32), _stack("valid", (48, 5, 2), (128, 5, 2), (128, 5, 1))),
    "cifar-100": Architecture((3, 32, 32), _stack("valid", (48, 5, 2), (128, 5, 2), (128, 5, 1))),
    "caltech-101": Architecture((3, 128, 128), _stack("same", (48, 7, 4), (84, 5, 2), (84, 5, 1))),
    "caltech-256": Architecture((3, 128, 128), _stack("same", (48, 7, 4), (128, 5, 2), (128, 5, 1))),
    "imagenet": Architecture(
        (3, 256, 256), _stack("same", (96, 5, 4), (256, 5, 2), (512, 5, 2), (1024, 5, 2), (512, 5, 1))
    ),
    "flickr8k": Architecture(
        (3, 256, 256), _stack("same", (48, 5, 4), (84, 5, 2), (128, 5, 2), (192, 5, 2), (128, 5, 1))
    ),
    "flickr30k": Architecture(
        (3, 256, 256), _stack("same", (48, 5, 4), (84, 5, 2), (128, 5, 2), (384, 5, 2), (256, 5, 1))
    ),
    "coco": Architecture((3, 256, 256), _stack("same", (48, 5, 4), (84, 5, 2), (128, 5, 2), (512, 5, 2), (384, 5, 1))),
}


# Beyond the paper, where a nonlinearity makes depth worth having: 28-24-12-8-4-1 (docs/experiments.md).
DEEPER: Mapping[tuple[int, int, int], tuple[Layer, ...]] = {
    (1, 28, 28): _stack("valid", (24, 5, 2), (48, 5, 2), (96, 4, 1)),
}


def preset(name: str) -> Architecture:
    """A row of Table 5 by its data set's name."""
    if name not in PRESETS:
        near = get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UserError(f"no architecture named {name!r}{hint} There are: {', '.join(PRESETS)}")
    return PRESETS[name]


def suggest_architecture(image_shape: tuple[int, int, int], nonlinearity: Nonlinearity = "none") -> Architecture:
    """A sensible architecture for any image size and channel count, in the manner of Table 5.

    Pools by 2 (the first layer by 4 from 96 pixels on) until the code's maps are about 2 to 8 pixels wide, widening the
    layers on the way up. A size that does not divide by the pools is reached by letting a valid first layer with a
    kernel of suitable size absorb the remainder, so every size from 4 pixels on gets an answer without cropping.
    """
    _, height, width = image_shape
    deeper = DEEPER.get(image_shape)
    if nonlinearity != "none" and deeper is not None:
        return Architecture(image_shape, deeper, nonlinearity)
    for name in ("mnist", "cifar-10"):
        if PRESETS[name].image_shape == tuple(image_shape):
            return Architecture(image_shape, PRESETS[name].layers, nonlinearity)
    small, large = min(height, width), max(height, width)
    if small < 4:
        raise UserError(
            f"images of {height} x {width} are too small to learn from; the smallest side must be 4 or more"
        )
    pools = _pools(small)
    factor = 1
    for pool in pools:
        factor *= pool
    while pools and not any(_absorbs(kernel, factor, height, width) for kernel in _kernels(small)):
        factor //= pools.pop()  # height and width want different remainders: pool less
    maps = [48, 84, 128, 192] if large >= 64 else [32, 64, 96, 128]
    if not pools:
        kernel = min(5, small)
        return Architecture(
            image_shape, (Layer(maps[0], kernel, 1, "same"), Layer(maps[1], kernel, 1, "same")), nonlinearity
        )
    first = next(kernel for kernel in _kernels(small) if _absorbs(kernel, factor, height, width))
    layers = []
    for depth, pool in enumerate(pools):
        exact = height % factor == 0 and width % factor == 0
        if depth == 0:
            layers.append(Layer(maps[0], 5 if exact else first, pool, "same" if exact else "valid"))
        else:
            layers.append(Layer(maps[min(depth, 3)], 5, pool, "same"))
    top = Architecture(image_shape, (*layers, Layer(1, 1)), nonlinearity).shapes[-1].below
    layers.append(Layer(maps[min(len(pools), 3)], min(5, *top), 1, "valid"))  # valid: keeps the code small
    return Architecture(image_shape, tuple(layers), nonlinearity)


def _pools(size: int) -> list[int]:
    """Pool sizes, bottom to top, that bring `size` down to roughly 4 to 8."""
    pools = [4] if size >= 96 else [2] if size >= 8 else []
    size //= pools[0] if pools else 1
    while size >= 12 and len(pools) < 4:
        pools.append(2)
        size //= 2
    return pools


def _kernels(size: int) -> range:
    return range(min(4, size), min(size, 36) + 1)


def _absorbs(kernel: int, factor: int, height: int, width: int) -> bool:
    return (height - kernel + 1) % factor == 0 and (width - kernel + 1) % factor == 0 and min(height, width) >= kernel
