"""*Scenes*: pictures of coloured shapes, drawn from a seed, with labels and captions.

    layout     ~ scene_layout.py
    background ~ a dark grey, one for each picture
    colour     = that of its name, each of red, green and blue varied a little from object to object
    pixel      = background and objects, smooth at their edges, plus a little noise

The label of a picture is the **shape of its main (largest) object**; colour, place, size and the second object are what
a classifier has to see past. Its tags are all colours and shapes in it. The captions are those of scene_captions.py.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from semisight.data.arrays import memory_limit, refuse_beyond
from semisight.data.builtin.scene_captions import captions_of
from semisight.data.builtin.scene_layout import COLOURS, SHAPES, Scene, SceneObject, make_scenes
from semisight.data.columns import TagColumn
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.random import Stream, scene_numbers

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
