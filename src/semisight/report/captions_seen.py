"""What a run knows about captions: the numbers of the report's caption sections, and what their pictures show.

Scores are measured on images that were not learned from: those whose captions --captioned-images has hidden, or else
the held-out ones. Where there are none, only what the model writes is shown, not how good it is.
"""

from dataclasses import dataclass

from semisight.data.image_set import ImageSet
from semisight.random import Stream, random_order
from semisight.runs.caption_scores import CaptionEvaluation, evaluate_captions
from semisight.runs.captioner import Caption, Captioner, Search
from semisight.runs.images import Sets
from semisight.runs.run import Run

_MEASURED, _SHOWN = 300, 24  # images at most: for scores, and to show where nothing can be measured
SEARCH = Search(n_codes=10, beam=3)  # a page must not take longer than a short training
_PARTS = {
    "number": "the number of objects",
    "relation": "their relation",
    "colours": "all colours",
    "shapes": "all shapes",
}


@dataclass(frozen=True)
class CaptionsSeen:
    """`shown` are images with the caption that each was given, in `captions`; `evaluation` is about these, too."""

    captioner: Captioner
    n_uncaptioned: int
    hidden: bool
    evaluation: CaptionEvaluation | None
    shown: ImageSet
    captions: tuple[Caption, ...]


def see_captions(run: Run, sets: Sets) -> CaptionsSeen:
    captioner, seed = run.captions(), run.config.seed
    measured, evaluation = sets.measured("captions"), None
    if measured is not None:
        shown = _some(measured, _MEASURED, seed)
        evaluation = evaluate_captions(captioner, shown, SEARCH, with_meteor=False)
        captions = evaluation.captions
    else:
        shown = _some(sets.train if sets.valid is None else sets.valid, _SHOWN, seed)
        captions = tuple(best[0] for best in captioner(shown, 1, SEARCH))
    return CaptionsSeen(
        captioner=captioner,
        n_uncaptioned=len(sets.train) - sets.n_present("captions"),
        hidden="captions" in sets.truth,
        evaluation=evaluation,
        shown=shown,
        captions=captions,
    )


def _some(images: ImageSet, most: int, seed: int) -> ImageSet:
    if len(images) <= most:
        return images
    return images.subset(random_order(len(images), seed, Stream.CAPTIONS_SHOWN)[:most].sort().values)


def caption_words(seen: CaptionsSeen) -> list[str]:
    """What was learned about captions, in sentences."""
    of = seen.captioner
    beside = f" and {seen.n_uncaptioned:,} images without one" if seen.n_uncaptioned else ""
    frozen = ", on the codes of an image model that had not seen a caption" if of.settings.two_step else ""
    learned = f"From {of.n_captions:,} captions of {of.n_captioned:,} images{'' if of.settings.two_step else beside}"
    if seen.evaluation is None:
        return [
            f"{learned} it learned to caption images{frozen}. How good the captions are cannot be said: none were held "
            "out. Measure it with semisight evaluate RUN DATA --captions FILE on other images."
        ]
    found = seen.evaluation
    values, n = found.values(), len(found.images)
    who = "whose captions were hidden from it" if seen.hidden else "whose captions were held out"
    lines = [f"{learned} it learned to caption images{frozen}; measured on {n:,} images {who}."]
    if found.share_rightly is not None:
        lines.append(
            f"{found.share_rightly:.0%} of its captions name every shape, colour and relation of the scene rightly, "
            "and nothing that is not there. Part by part: "
            + ", ".join(f"{_PARTS[name]} {share:.0%}" for name, share in found.shares().items())
            + "."
        )
    lines.append(
        f"Compared with the images' own captions: BLEU-4 {values['BLEU-4']:.2f}, CIDEr {values['CIDEr']:.2f}; in these "
        f"it hesitates among {values['perplexity']:.1f} words on average (perplexity)."
    )
    seen_before = values.get("seen in training")
    by_heart = "" if seen_before is None else f", and {seen_before:.0%} occur word for word in training"
    lines.append(f"{values['distinct']:.1%} of its captions are distinct{by_heart}.")
    return lines
