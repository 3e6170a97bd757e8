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
from pathlib import Path
from typing import Any, Literal

from semisight.data.builtin.scene_captions import names_rightly, parse_caption
from semisight.data.caption_files import read_captions
from semisight.data.columns import CaptionColumn
from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.errors import UserError
from semisight.metrics.captions import CaptionScores, score_captions
from semisight.runs.caption_sets import BUILTIN, EVERY_SPLIT, TRAIN_SPLITS
from semisight.runs.captioner import Caption, Captioner, Search
from semisight.runs.outputs import load_for
from semisight.runs.predicting import columns
from semisight.runs.run import Run
from semisight.runs.sets import Progress, noted
from semisight.runs.train import lasting, reload_sets

Format = Literal["text", "csv", "json"]
SCENES = "builtin:scenes"
REPORT_SPLITS = ("test", "val")  # of a caption file: the first that there is
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


def captioned_images(
    run: Run,
    source: str | None,
    *,
    captions: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Images as the model takes them, with captions of their own; without `source`, those that the run did not learn
    from. What people should know of them is in the notes."""
    if source is None:
        if captions is not None or split is not None or limit is not None:
            raise UserError("say which images the captions belong to: semisight evaluate RUN DATA --captions FILE.")
        return _not_learned_from(run, progress)
    images = load_for(run, source, None if captions not in (None, BUILTIN) else limit, progress)
    if captions in (None, BUILTIN):
        if images.captions is None:
            raise UserError(f"{source} carries no captions: give a file of them with --captions.")
        found = images
    else:
        found = _with_captions(images, Path(captions).expanduser(), split, limit)
    if lasting(source) == run.data().settings.source and found.notes == images.notes:
        known = "the run learned from some of these images: leave out DATA to measure on the others only"
        found = noted(found, [known])
    return found


def _with_captions(images: ImageSet, path: Path, split: str | None, limit: int | None) -> ImageSet:
    """The images that the file has captions for; of one that parts its images, those to report on."""
    table = read_captions(path)
    warnings = table.warnings
    known = {name for name in table.splits if name}
    if split is None:
        split = next((name for name in REPORT_SPLITS if name in known), None)
        if split is not None:
            warnings = (*warnings, f"measured on the split {split} of {path}; --split chooses another")
    if split not in (None, EVERY_SPLIT):
        table = dataclasses.replace(table.subset(*str(split).split(",")), warnings=())
    captions, matched = table.match(images.names, f"the images of {images.source}")
    warnings = (*warnings, *matched.warnings[len(table.warnings) :])
    if known & set(TRAIN_SPLITS) and (split in (None, EVERY_SPLIT) or known & set(TRAIN_SPLITS) & {split}):
        warnings = (*warnings, "these include captions of the training split, which the run may have learned from")
    places = [i for i, of_image in enumerate(captions) if of_image][:limit]
    return noted(images.with_column(CaptionColumn(captions)).subset(places), warnings)


def _not_learned_from(run: Run, progress: Progress | None) -> ImageSet:
    sets = reload_sets(run, progress=progress)
    images = sets.measured_captions
    if images is None:
        raise UserError(
            f"every caption of {run.folder.path} was learned from: give other images with captions "
            "(semisight evaluate RUN DATA --captions captions.csv)."
        )
    hidden = sets.hidden_captions is not None
    what = "whose captions were hidden from the training" if hidden else "whose held-out captions chose the weights"
    return noted(images, [f"measured on {len(images):,} images {what}"])


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
