"""Captions of *scenes*, and the way back: what a caption says, so that it can be graded.

Every caption of a scene names size, colour and shape of each object and, of two, their relation. The first is plain
("a large blue square below a small red circle", the main object first); others say the same in other words.
`parse_caption` reads any sentence of these words, also one that a model wrote, into `Facts` that can be compared.
"""

import itertools
import re
from dataclasses import dataclass, replace

from semisight.data.builtin.scene_layout import COLOURS, SHAPES, Scene, SceneObject
from semisight.errors import UserError
from semisight.random import Stream, scene_numbers

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
