"""`semisight evaluate --captions` without its command line: how good a run's captions are.

BLEU, METEOR, ROUGE-L and CIDEr compare them with the images' own captions; perplexity says how probable these are to
the model; two shares say how varied its captions are, and how many it has by heart. Of *scenes* it is known what there
is to see, so their captions can also be graded: named rightly is the share that names every shape, colour and relation.
"""

import csv
import dataclasses
import io
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

from semisight.data.builtin.scenes import names_rightly, parse_caption
from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.errors import UserError
from semisight.metrics.captions import CaptionScores, score_captions
from semisight.runs.captioner import Caption, Captioner, Search
from semisight.runs.images import Progress
from semisight.runs.predicting import columns

Format = Literal["text", "csv", "json"]
SCENES = "builtin:scenes"
_DIGITS = 4
_MEANINGS = {
    "BLEU-1": "words that are also in a caption of the image; BLEU-2 to 4: runs of words",
    "METEOR": "words matched also by stem and meaning",
    "ROUGE-L": "longest common sequence of words",
    "CIDEr": "runs of words, rare ones weighing more; 0 to 10, people reach about 1",
    "perplexity": "of the images' own captions: among so many words the model hesitates; 1 is best",
    "distinct": "different captions, per image",
    "seen in training": "captions that were learned from, word for word",
    "named rightly": "captions that name every shape, colour and relation, and nothing else",
}


@dataclass(frozen=True)
class Grade:
    """What a caption of a scene names rightly: how many objects, their relation, all colours, all shapes, all of it."""

    number: bool = False
    relation: bool = False
    colours: bool = False
    shapes: bool = False
    everything: bool = False


PARTS = ("number", "relation", "colours", "shapes")


@dataclass(frozen=True)
class CaptionEvaluation:
    """Scores of the best caption of every image that has captions of its own; `grades` for scenes alone."""

    images: ImageSet
    captions: tuple[Caption, ...]
    scores: CaptionScores
    grades: tuple[Grade, ...] | None

    @property
    def share_rightly(self) -> float | None:
        """Of the captions of scenes that name everything rightly."""
        return None if self.grades is None else sum(grade.everything for grade in self.grades) / len(self.grades)

    def shares(self) -> dict[str, float]:
        """What the captions of scenes name rightly, part by part."""
        grades = self.grades or ()
        return {name: sum(getattr(grade, name) for grade in grades) / max(1, len(grades)) for name in PARTS}

    def values(self) -> dict[str, float]:
        found = self.scores.as_dict()
        return found if self.share_rightly is None else {**found, "named rightly": self.share_rightly}

    def own(self, i: int) -> tuple[str, ...]:
        """The captions that people gave to image i."""
        assert self.images.captions is not None
        return self.images.captions[i]


def evaluate_captions(
    captioner: Captioner,
    images: ImageSet,
    search: Search | None = None,
    *,
    with_meteor: bool = True,
    progress: Progress | None = None,
) -> CaptionEvaluation:
    """On the images that have a caption of their own."""
    captioned = [i for i, of_image in enumerate(images.captions or ()) if of_image]
    if not captioned:
        raise UserError(f"{images.source or 'these images'}: no image has a caption to compare with.")
    if len(captioned) < len(images):
        images = images.subset(captioned)
    assert images.captions is not None
    best = tuple(found[0] for found in captioner(images, 1, search, progress))
    words = [caption.words for caption in best]
    references = [[tokenize(caption) for caption in of_image] for of_image in images.captions]
    scores = score_captions(words, references, perplexity=captioner.perplexity(images, search), with_meteor=with_meteor)
    scores = dataclasses.replace(scores, seen_in_training=captioner.share_seen(words))
    scenes = images.source.startswith(SCENES)
    grades = tuple(grade(c.text, own[0]) for c, own in zip(best, images.captions, strict=True)) if scenes else None
    return CaptionEvaluation(images, best, scores, grades)


def grade(caption: str, own: str) -> Grade:
    """How far a caption says what the scene's own caption says, sizes left aside."""
    said, truth = parse_caption(caption), parse_caption(own)
    if said is None or truth is None or len(said.objects) != len(truth.objects):
        return Grade()
    return Grade(
        number=True,
        relation=said.relation == truth.relation,
        colours=Counter(thing.colour for thing in said.objects) == Counter(thing.colour for thing in truth.objects),
        shapes=Counter(thing.shape for thing in said.objects) == Counter(thing.shape for thing in truth.objects),
        everything=names_rightly(caption, truth),
    )


# ---- as text ----


def written(found: CaptionEvaluation, kind: Format) -> str:
    """As text that ends in a line break."""
    if kind == "json":
        return json.dumps(_as_json(found), indent=1, ensure_ascii=False) + "\n"
    values = {name: round(value, _DIGITS) for name, value in found.values().items()}
    if kind == "csv":
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["metric", "value"])
        writer.writerows([("n", len(found.images)), *values.items()])
        return text.getvalue()
    rows = [(name, f"{value:.4g}", _MEANINGS.get(name, "")) for name, value in values.items()]
    return "\n".join([*columns(rows, right=(1,)), f"on {len(found.images):,} images"]) + "\n"


def _as_json(found: CaptionEvaluation) -> dict[str, Any]:
    return {
        "n": len(found.images),
        **found.values(),
        "notes": list(found.scores.notes),
        "images": [
            {
                "file": name,
                "caption": caption.text,
                "log_probability": round(caption.log_prob, _DIGITS),
                "own": list(found.own(i)),
                "CIDEr": round(found.scores.cider.each[i], _DIGITS),
                "BLEU-4": round(found.scores.bleu[3].each[i], _DIGITS),
            }
            for i, (name, caption) in enumerate(zip(found.images.names, found.captions, strict=True))
        ],
    }
