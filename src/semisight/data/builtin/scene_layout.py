"""The layout of *scenes*: which shapes, colours, sizes and relations a generated picture has, and where.

    number     ~ 1 or 2 objects
    shape, colour, size, relation   ~ uniform over the lists below
    radius     ~ uniform within the range of its size
    place      ~ uniform over where the shape lies wholly inside and the relation is plain to see

In a scene of two objects one is large and one is small: the large one is the *main* object, so that the picture itself
decides which it is. All randomness of scene i is row i of one table: the first n scenes of a seed are the same however
many are made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from semisight.data.arrays import memory_limit, refuse_beyond
from semisight.errors import UserError
from semisight.random import Stream, scene_numbers

SHAPES = ("circle", "square", "triangle", "cross", "ring")
COLOURS = ("red", "green", "blue", "yellow", "purple", "white")
SIZES = ("small", "large")
RELATIONS = ("left of", "right of", "above", "below")

_RADII = {"small": (0.12, 0.15), "large": (0.19, 0.23)}  # half the extent of a shape, the picture being 1 wide
_MARGIN, _GAP = 0.01, 0.03  # to the border, and between two shapes
_SLANT = 0.5  # two objects side by side differ at most half as much in height, and so on
_BYTES = 1000  # that one scene takes as Python objects, about
_COLUMNS = 16  # numbers per scene, some to spare: another column must not change the scenes of a seed


@dataclass(frozen=True)
class SceneObject:
    """One shape: centre (x to the right, y downwards) and radius in parts of the picture's width."""

    shape: str
    colour: str
    size: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Scene:
    """One or two objects. `relation` says where the main one is, seen from the other."""

    main: SceneObject
    other: SceneObject | None = None
    relation: str | None = None


def make_scenes(n: int, seed: int = 0) -> tuple[Scene, ...]:
    """n scenes; the first ones are the same for every n."""
    if n < 1:
        raise UserError(f"at least 1 scene must be made, not {n}")
    refuse_beyond(memory_limit(), _BYTES * n, f"the layout of {n} scenes")
    table = scene_numbers(seed, Stream.SCENE_LAYOUT).random((n, _COLUMNS))
    return tuple(_scene(row) for row in table.tolist())


def _scene(u: list[float]) -> Scene:
    shape, colour = _pick(SHAPES, u[0]), _pick(COLOURS, u[1])
    if u[2] < 0.5:
        size = _pick(SIZES, u[3])
        radius = _between(*_RADII[size], u[4])
        x, y = (_between(_MARGIN + radius, 1 - _MARGIN - radius, v) for v in u[5:7])
        return Scene(SceneObject(shape, colour, size, x, y, radius))
    relation = _pick(RELATIONS, u[3])
    radius, radius_2 = _between(*_RADII["large"], u[4]), _between(*_RADII["small"], u[7])
    # Along the axis of the relation the objects keep their distance; across it they differ by less than that.
    first, second = (radius, radius_2) if relation in ("left of", "above") else (radius_2, radius)
    distance = _between(first + second + _GAP, 1 - first - second - 2 * _MARGIN, u[5])
    along_1 = _between(_MARGIN + first, 1 - _MARGIN - second - distance, u[6])
    across_1 = _between(_MARGIN + first, 1 - _MARGIN - first, u[8])
    low, high = across_1 - _SLANT * distance, across_1 + _SLANT * distance
    across_2 = _between(max(low, _MARGIN + second), min(high, 1 - _MARGIN - second), u[9])
    places = [(along_1, across_1), (along_1 + distance, across_2)]
    if relation in ("above", "below"):
        places = [(across, along) for along, across in places]
    if relation in ("right of", "below"):
        places.reverse()
    main = SceneObject(shape, colour, "large", *places[0], radius)
    other = SceneObject(_pick(SHAPES, u[10]), _pick(COLOURS, u[11]), "small", *places[1], radius_2)
    return Scene(main, other, relation)


def _pick(words: Sequence[str], u: float) -> str:
    return words[int(u * len(words))]


def _between(low: float, high: float, u: float) -> float:
    return low + (high - low) * u
