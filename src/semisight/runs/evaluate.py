"""How good a run's answers are, on images with values of their own: labels, tags, captions.

Labels: errors, confusion, calibration. Tags: mAP and F1. Captions: BLEU, METEOR, ROUGE-L and CIDEr compare them with
the images' own; perplexity says how probable these are to the model; two shares say how varied its captions are, and
how many it has by heart. Of *scenes* it is known what there is to see, so their captions can also be graded.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from semisight.data.builtin.scenes import names_rightly, parse_caption
from semisight.data.columns import TAGS, TagColumn
from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.errors import UserError
from semisight.inference.captions import Caption, Search, caption_perplexity, collapse
from semisight.inference.encode import Progress
from semisight.inference.labels import LabelAnswer, LabelReader
from semisight.metrics.calibration import ReliabilityCurve, brier_score, negative_log_likelihood, reliability_curve
from semisight.metrics.captions import CaptionScores, score_captions
from semisight.metrics.classification import confusion_matrix, error_per_class, error_rate, top_k_error
from semisight.metrics.tags import TagScores, score_tags
from semisight.objectives.captions import EncodedCaptions
from semisight.runs.run import Run

SCENES = "builtin:scenes"


class Evaluation(Protocol):
    """What every evaluation says: on how many images, its numbers by name, and all of it as JSON."""

    @property
    def n(self) -> int: ...

    def values(self) -> Mapping[str, float]: ...

    def to_dict(self) -> dict[str, Any]: ...


# ---- labels ----


@dataclass(frozen=True)
class LabelEvaluation:
    """Errors are shares between 0 and 1. confusion[t, p]: images of class t that were called p."""

    n: int
    error: float
    k: int
    top_k_error: float
    confusion: Tensor
    reliability: ReliabilityCurve
    brier: float
    nll: float
    calibrated: bool
    class_names: tuple[str, ...]

    @property
    def calibration_error(self) -> float:
        return self.reliability.expected_error

    def values(self) -> dict[str, float]:
        return {
            "error": self.error,
            f"top_{self.k}_error": self.top_k_error,
            "calibration_error": self.calibration_error,
            "brier": self.brier,
            "nll": self.nll,
        }

    def to_dict(self) -> dict[str, Any]:
        per_class = error_per_class(self.confusion).tolist()
        counts = self.confusion.sum(1).tolist()
        return {
            "n": self.n,
            **self.values(),
            "calibrated": self.calibrated,
            "classes": [
                {"label": name, "n": n, "error": None if n == 0 else error}
                for name, n, error in zip(self.class_names, counts, per_class, strict=True)
            ],
            "confusion": self.confusion.tolist(),
        }


def evaluate_labels(
    run: Run, images: ImageSet, k: int | None = None, progress: Progress | None = None
) -> LabelEvaluation:
    """On the images that have a label, which is a class of the run."""
    labels = images.labels
    if labels is None or not bool((labels >= 0).any()):
        raise UserError(
            f"{images.source or 'these images'}: no image has a label to compare with. Give --labels labels.csv "
            "(columns file,label), or --class-per-folder for a folder with one folder for each class."
        )
    known = images.subset(labels >= 0)
    assert known.labels is not None
    return compare_labels(run.labels, run.predict(known, progress), known.labels, k)


def compare_labels(reader: LabelReader, found: LabelAnswer, labels: Tensor, k: int | None = None) -> LabelEvaluation:
    n_classes = len(reader.class_names)
    k = k if k is not None else 5 if n_classes > 5 else min(2, n_classes)
    return LabelEvaluation(
        n=len(labels),
        error=error_rate(found.label, labels),
        k=k,
        top_k_error=top_k_error(found.probabilities, labels, k),
        confusion=confusion_matrix(found.label, labels, n_classes),
        reliability=reliability_curve(found.probabilities, labels),
        brier=brier_score(found.probabilities, labels),
        nll=negative_log_likelihood(found.probabilities, labels),
        calibrated=reader.calibrated,
        class_names=reader.class_names,
    )


# ---- tags ----


@dataclass(frozen=True)
class TagEvaluation:
    """On `n` images with known entries."""

    scores: TagScores
    calibrated: bool

    @property
    def n(self) -> int:
        return self.scores.n

    def values(self) -> dict[str, float]:
        scores = self.scores
        return {"mAP": scores.mean_average_precision, "F1": scores.mean_f1, "accuracy": scores.accuracy}

    def to_dict(self) -> dict[str, Any]:
        tags = [dataclasses.asdict(one) for one in self.scores.tags]
        return {"n": self.n, **self.values(), "calibrated": self.calibrated, "tags": tags}


def evaluate_tags(run: Run, images: ImageSet, progress: Progress | None = None) -> TagEvaluation:
    """On the images of which some tag is known."""
    column = images.columns.get(TAGS)
    if not isinstance(column, TagColumn) or not bool(column.present.any()):
        raise UserError(f"{images.source or 'these images'}: no image has tags to compare with. Give --tags tags.csv.")
    known = images.subset(column.present)
    answer, reader = run.tag(known, progress), run.tags
    return TagEvaluation(
        score_tags(answer.probabilities, column.values[column.present], reader.names), reader.calibrated
    )


# ---- captions ----


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

    @property
    def n(self) -> int:
        return len(self.images)

    def to_dict(self) -> dict[str, Any]:
        return {
            "n": self.n,
            **self.values(),
            "notes": list(self.scores.notes),
            "images": [
                {
                    "file": name,
                    "caption": caption.text,
                    "log_probability": round(caption.log_prob, 4),
                    "own": list(self.own(i)),
                    "CIDEr": round(self.scores.cider.each[i], 4),
                    "BLEU-4": round(self.scores.bleu[3].each[i], 4),
                }
                for i, (name, caption) in enumerate(zip(self.images.names, self.captions, strict=True))
            ],
        }

    def own(self, i: int) -> tuple[str, ...]:
        """The captions that people gave to image i."""
        assert self.images.captions is not None
        return self.images.captions[i]


def evaluate_captions(
    run: Run,
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
    how, reader = search or Search(), run.captions
    best = tuple(found[0] for found in run.caption(images, how, progress))
    words = [caption.words for caption in best]
    references = [[tokenize(caption) for caption in of_image] for of_image in images.captions]
    encoded = EncodedCaptions.encode(images.captions, reader.vocabulary)
    perplexity = caption_perplexity(run.model, reader.head, images, encoded, n_codes=how.n_codes, seed=how.seed)
    scores = score_captions(words, references, perplexity=perplexity, with_meteor=with_meteor)
    said = collapse(words)
    notes = (*([said] if said else []), *scores.notes)
    scores = dataclasses.replace(scores, seen_in_training=reader.share_seen(words), notes=notes)
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
