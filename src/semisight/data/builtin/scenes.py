"""*Scenes*: pictures of coloured shapes, drawn from a seed, with labels, tags and captions.

    number     ~ 1 or 2 objects
    shape, colour, size, relation   ~ uniform over the lists below
    radius     ~ uniform within the range of its size
    place      ~ uniform over where the shape lies wholly inside and the relation is plain to see
    background ~ a dark grey, one for each picture
    colour     = that of its name, each of red, green and blue varied a little from object to object
    pixel      = background and objects, smooth at their edges, plus a little noise

In a scene of two objects one is large and one is small: the large one is the *main* object, so that the picture itself
decides which it is. All randomness of scene i is row i of one table: the first n scenes of a seed are the same however
many are made.

The label of a picture is the **shape of its main (largest) object**; colour, place, size and the second object are what
a classifier has to see past. Its tags are all colours and shapes in it. Every caption names size, colour and shape of
each object and, of two, their relation. The first is plain ("a large blue square below a small red circle", the main
object first); others say the same in other words. `parse_caption` reads any sentence of these words, also one that a
model wrote, into `Facts` that can be compared.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from semisight.data.arrays import memory_limit, refuse_beyond
from semisight.data.columns import TagColumn
from semisight.data.image_set import ImageSet
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


# ---- pictures ----

Floats = npt.NDArray[np.float32]

_RGB = (
    np.array([(222, 40, 40), (40, 180, 60), (50, 90, 235), (235, 210, 40), (175, 60, 205), (235, 235, 235)], np.float32)
    / 255
)
_BACKGROUND, _TINT, _NOISE = (0.02, 0.14), 0.06, 0.02
_CHUNK_PIXELS = 1 << 21


def draw_scenes(scenes: Sequence[Scene], size: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """The pictures, uint8 [N,3,size,size], with smooth edges. `seed` decides backgrounds, tints and noise."""
    n = len(scenes)
    _check(n, size)
    chance = scene_numbers(seed, Stream.SCENE_PAINT).random((n, 7), dtype=np.float32)
    random = scene_numbers(seed, Stream.SCENE_GRAIN)
    pictures = np.empty((n, 3, size, size), np.uint8)
    step = max(1, _CHUNK_PIXELS // (size * size))
    for start in range(0, n, step):
        part = slice(start, start + step)
        picture = _paint(scenes[part], chance[part], size)
        picture += _NOISE * random.standard_normal(picture.shape, dtype=np.float32)
        pictures[part] = np.rint(np.clip(picture, 0, 1) * 255)
    return pictures


def _check(n: int, size: int) -> None:
    if not 8 <= size <= 1024:
        raise UserError(f"scenes can be drawn at 8 to 1024 pixels, not {size}")
    refuse_beyond(memory_limit(), 3 * n * size * size, f"{n} scenes of {size} x {size} pixels")


def _paint(scenes: Sequence[Scene], chance: Floats, size: int) -> Floats:
    """Pictures before the noise, float32 [n,3,size,size]; `chance` [n,7] is one background and two tints of three."""
    low, high = _BACKGROUND
    background = low + (high - low) * chance[:, 0]
    picture = np.broadcast_to(background[:, None, None, None], (len(scenes), 3, size, size)).copy()
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    for slot in (0, 1):
        tint = 1 + _TINT * (2 * chance[:, 1 + 3 * slot : 4 + 3 * slot] - 1)
        for shape in SHAPES:
            drawn = [
                (i, thing)
                for i, scene in enumerate(scenes)
                if (thing := _in_slot(scene, slot)) and thing.shape == shape
            ]
            if not drawn:
                continue
            rows = np.array([i for i, _ in drawn])
            places = np.array([(thing.x, thing.y, thing.radius) for _, thing in drawn], np.float32)
            x, y, radius = places.T[:, :, None, None]
            edge = _distance(shape, centres[None, None, :] - x, centres[None, :, None] - y, radius)
            # A pixel is covered by the share that its distance to the edge, in pixels, says: smooth edges.
            cover = np.clip(0.5 - size * edge, 0, 1)[:, None]
            rgb = _RGB[[COLOURS.index(thing.colour) for _, thing in drawn]] * tint[rows]
            under = picture[rows]
            picture[rows] = under + cover * (rgb[:, :, None, None] - under)
    return picture


def _in_slot(scene: Scene, slot: int) -> SceneObject | None:
    return scene.main if slot == 0 else scene.other


def _distance(shape: str, x: Floats, y: Floats, r: Floats) -> Floats:
    """Distance of (x, y) to the edge of a shape of radius r around the origin, negative inside.

    The shapes are scaled so that they look equally large; each stays within r of its centre along both axes.
    """
    match shape:
        case "circle":
            return np.hypot(x, y) - r
        case "ring":
            return np.abs(np.hypot(x, y) - 0.76 * r) - 0.24 * r
        case "square":
            return np.maximum(np.abs(x), np.abs(y)) - 0.88 * r
        case "cross":
            along, across = np.abs(x), np.abs(y)
            bar = 0.32 * r
            return np.minimum(np.maximum(along - r, across - bar), np.maximum(along - bar, across - r))
        case "triangle":
            # Base below, apex above, both sides sloping 2 : 1; the constant makes the slanted distance a true one.
            return np.maximum(y - 0.85 * r, (2 * np.abs(x) - y - r) / np.float32(np.sqrt(5)))
    raise ValueError(f"there is no shape {shape!r}")


# ---- captions ----

MAX_CAPTIONS = 6

_OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_PHRASES = {
    "left of": ("left of", "to the left of"),
    "right of": ("right of", "to the right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
_SIZE_WORDS = {"small": ("small", "little"), "large": ("large", "big")}

_SIZE_OF = {word: size for size, words in _SIZE_WORDS.items() for word in words}
_RELATION_OF = {
    "left": "left of",
    "right": "right of",
    "above": "above",
    "over": "above",
    "below": "below",
    "under": "below",
}


@dataclass(frozen=True)
class Described:
    """What a caption says of one object; None where it says nothing."""

    shape: str
    colour: str | None = None
    size: str | None = None


@dataclass(frozen=True)
class Facts:
    """What a caption says: its objects and, of two, the relation of the first to the second.

    "a left of b" and "b right of a" are the same facts: the relation is always turned into "left of" or "above".
    """

    objects: tuple[Described, ...]
    relation: str | None = None

    def without_sizes(self) -> "Facts":
        return replace(self, objects=tuple(replace(described, size=None) for described in self.objects))


def plain_caption(scene: Scene) -> str:
    """The first caption of a scene."""
    return _paraphrases(scene)[0]


def captions_of(scene: Scene, n_captions: int, seed: int, index: int) -> tuple[str, ...]:
    """The plain caption and `n_captions - 1` different paraphrases of it, drawn by (seed, index)."""
    if not 0 <= n_captions <= MAX_CAPTIONS:
        raise UserError(f"a scene can have 0 to {MAX_CAPTIONS} captions, not {n_captions}")
    if n_captions <= 1:
        return (plain_caption(scene),)[:n_captions]
    plain, *others = _paraphrases(scene)
    chosen = scene_numbers(seed, Stream.SCENE_CAPTIONS, index).choice(len(others), n_captions - 1, replace=False)
    return (plain, *(others[i] for i in chosen))


def _paraphrases(scene: Scene) -> list[str]:
    """Every caption of a scene, the plain one first."""
    mains = _noun_phrases(scene.main)
    if scene.other is None or scene.relation is None:
        return [
            form.format(a=a) for a, form in itertools.product(mains, ("a {a}", "there is a {a}", "a picture of a {a}"))
        ]
    captions = []
    for a, b in itertools.product(mains, _noun_phrases(scene.other)):
        for relation, opposite in zip(_PHRASES[scene.relation], _PHRASES[_OPPOSITE[scene.relation]], strict=True):
            captions += [
                f"a {a} {relation} a {b}",
                f"there is a {a} {relation} a {b}",
                f"a {b} {opposite} a {a}",
                f"{relation} a {b} there is a {a}",
            ]
    return captions


def _noun_phrases(thing: SceneObject) -> list[str]:
    return [f"{word} {thing.colour} {thing.shape}" for word in _SIZE_WORDS[thing.size]]


def facts_of(scene: Scene) -> Facts:
    """What there is to say of a scene."""
    objects = [Described(thing.shape, thing.colour, thing.size) for thing in (scene.main, scene.other) if thing]
    return _turned(objects, scene.relation)


def parse_caption(text: str) -> Facts | None:
    """The facts a caption states; None if it states none that can be graded.

    It must name one object, or two and exactly one relation, before the first or between them, and give no object two
    colours or two sizes.
    """
    objects: list[Described] = []
    relation: str | None = None
    relation_first = False
    colour = size = None
    for word in re.findall(r"[^\W\d_]+", text.lower()):
        if word in SHAPES:
            objects.append(Described(word, colour, size))
            colour = size = None
        elif word in COLOURS:
            if colour is not None:
                return None
            colour = word
        elif word in _SIZE_OF:
            if size is not None:
                return None
            size = _SIZE_OF[word]
        elif word in _RELATION_OF:
            if relation is not None or len(objects) > 1 or colour is not None or size is not None:
                return None
            relation, relation_first = _RELATION_OF[word], not objects
    if (
        colour is not None
        or size is not None
        or len(objects) not in (1, 2)
        or (len(objects) == 2) != (relation is not None)
    ):
        return None
    return _turned(objects[::-1] if relation_first else objects, relation)


def names_rightly(caption: str, truth: Facts, sizes: bool = False) -> bool:
    """Whether a caption names every shape, colour and relation (and size, if asked) of the truth, and nothing else."""
    said = parse_caption(caption)
    if said is None:
        return False
    return said == truth if sizes else said.without_sizes() == truth.without_sizes()


def _turned(objects: list[Described], relation: str | None) -> Facts:
    if relation in ("right of", "below"):
        return Facts(tuple(reversed(objects)), _OPPOSITE[relation])
    return Facts(tuple(objects), relation)


# ---- the set ----


def tags_of(scenes: Sequence[Scene]) -> TagColumn:
    """The colours and shapes of a scene's objects, all known."""
    names = (*COLOURS, *SHAPES)
    seen = [
        {word for thing in (scene.main, scene.other) if thing for word in (thing.colour, thing.shape)}
        for scene in scenes
    ]
    return TagColumn(torch.tensor([[name in words for name in names] for words in seen], dtype=torch.int8), names)


def read_scenes(n: int = 2000, size: int = 32, seed: int = 0, n_captions: int = 1) -> ImageSet:
    """n scenes as an image set with labels (shape of the main object), tags (its colours and shapes) and `n_captions`
    captions each."""
    _check(n, size)  # before the scenes are made, which takes the longest
    scenes = make_scenes(n, seed)
    return ImageSet.of(
        images=torch.from_numpy(draw_scenes(scenes, size, seed)),
        names=tuple(f"scenes/{i:05d}" for i in range(n)),
        labels=torch.tensor([SHAPES.index(scene.main.shape) for scene in scenes]),
        class_names=SHAPES,
        captions=tuple(captions_of(scene, n_captions, seed, i) for i, scene in enumerate(scenes)),
        tags=tags_of(scenes),
        source=f"builtin:scenes?n={n}&size={size}&seed={seed}",
    )
