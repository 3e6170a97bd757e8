"""The page on captions: the scores, and images with their captions, best and worst.

Scores are measured on images that were not learned from: those whose captions --captioned-images has hidden, or else
the held-out ones. Where there are none, only what the model writes is shown, not how good it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from semisight.data.image_set import ImageSet
from semisight.inference.captions import Caption, CaptionReader, Search, collapse
from semisight.random import Stream, random_order
from semisight.report import page
from semisight.report.material import Material, shown, tile
from semisight.report.page import Section
from semisight.runs.evaluate import CaptionEvaluation, evaluate_captions
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

    captioner: CaptionReader
    two_step: bool
    n_uncaptioned: int
    hidden: bool
    evaluation: CaptionEvaluation | None
    shown: ImageSet
    captions: tuple[Caption, ...]


def look(run: Run, sets: Sets) -> CaptionsSeen:
    captioner, seed = run.captions, run.config.seed
    measured, evaluation = sets.measured("captions"), None
    if measured is not None:
        shown = _some(measured, _MEASURED, seed)
        evaluation = evaluate_captions(run, shown, SEARCH, with_meteor=False)
        captions = evaluation.captions
    else:
        shown = _some(sets.train if sets.valid is None else sets.valid, _SHOWN, seed)
        captions = tuple(best[0] for best in run.caption(shown, SEARCH))
    return CaptionsSeen(
        captioner=captioner,
        two_step=bool(run.about.get("frozen")),
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


def words(seen: CaptionsSeen) -> list[str]:
    """What was learned about captions, in sentences; first of all, if so, that it is worth nothing."""
    said = collapse([caption.words for caption in seen.captions])
    return [*([said] if said else []), *_learned(seen)]


def _learned(seen: CaptionsSeen) -> list[str]:
    of = seen.captioner
    beside = f" and {seen.n_uncaptioned:,} images without one" if seen.n_uncaptioned else ""
    frozen = ", on the codes of an image model that had not seen a caption" if seen.two_step else ""
    learned = f"From {of.n_captions:,} captions of {of.n_learned:,} images{'' if seen.two_step else beside}"
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


# ---- sections ----

_EACH = 12  # images at each end
_WIDTH = "9.5rem"  # a sentence needs its place


def overview(seen: CaptionsSeen) -> Section:
    of = seen.captioner
    entries = [
        (f"{of.n_captions:,}", f"captions of {of.n_learned:,} images were learned from"),
        (f"{len(of.vocabulary) - 2:,}", "words are known"),
    ]
    if seen.n_uncaptioned and not seen.two_step:
        entries.insert(1, (f"{seen.n_uncaptioned:,}", "images without a caption were learned from"))
    if seen.evaluation is not None:
        values = seen.evaluation.values()
        entries += [
            (
                f"{values['BLEU-1']:.2f} / {values['BLEU-4']:.2f}",
                "BLEU-1 and BLEU-4: words and runs of words in common",
            ),
            (f"{values['ROUGE-L']:.2f}", "ROUGE-L: longest common sequence of words"),
            (f"{values['CIDEr']:.2f}", "CIDEr: words in common, rare ones weighing more (0 to 10)"),
            (f"{values['perplexity']:.1f}", "perplexity of the images' own captions"),
            (f"{values['distinct']:.0%}", "of the captions are distinct"),
        ]
        if "seen in training" in values:
            entries.append((f"{values['seen in training']:.0%}", "of the captions occur word for word in training"))
        if seen.evaluation.share_rightly is not None:
            share = f"{seen.evaluation.share_rightly:.0%}"
            entries.append((share, "of the captions name every shape, colour and relation rightly"))
    return Section("captions", "Captions", "", page.paragraphs(_learned(seen)) + page.cards(entries))


def examples(seen: CaptionsSeen) -> Section:
    how = (
        f"Each caption is the most probable one under a mixture over {SEARCH.n_codes} codes of its image "
        f"(beam {SEARCH.beam}). Below it, its probability"
    )
    if seen.evaluation is None:
        tiles = [_tile(seen.shown, i, caption) for i, caption in enumerate(seen.captions)]
        body = page.figure(page.tiles(tiles, _WIDTH), f"{how}.")
        return Section("caption-examples", "Images with their captions", "", body)
    best, worst = best_and_worst(seen)
    body = Markup().join(
        page.headed(title, page.figure(page.tiles([_scored(seen, i) for i in which], _WIDTH), caption))
        for title, which, caption in (
            ("Best", best, f"{how}, its CIDEr score, and a caption of the image's own."),
            ("Worst", worst, "The captions that have least in common with the images' own."),
        )
    )
    return Section(
        "caption-examples",
        "Images with their captions, best and worst",
        "Images that were not learned from, in the order of their captions' CIDEr score.",
        body,
    )


def best_and_worst(seen: CaptionsSeen, each: int = _EACH) -> tuple[list[int], list[int]]:
    """Positions of images by the score of their captions; of equal ones the more probable counts as better."""
    assert seen.evaluation is not None
    scores = seen.evaluation.scores.cider.each
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], -seen.captions[i].log_prob))
    n = min(each, len(order) // 2) or len(order)
    return order[:n], order[len(order) - n :][::-1]


def _scored(seen: CaptionsSeen, i: int) -> Markup:
    found = seen.evaluation
    assert found is not None
    own, score = found.own(i)[0], found.scores.cider.each[i]
    wrong = found.grades is not None and not found.grades[i].everything
    return _tile(seen.shown, i, seen.captions[i], (f"CIDEr {score:.2f}", f"own: {own}"), wrong)


def _tile(images: ImageSet, i: int, caption: Caption, more: Sequence[str] = (), wrong: bool = False) -> Markup:
    text = caption.text or "(no word)"
    picture = tile(shown(images, i), f"{images.names[i]}: {text}")
    return page.named(picture, text, [f"log p {caption.log_prob:.1f}", *more], wrong)


def sections(m: Material, seen: CaptionsSeen) -> list[Section]:
    """Those of a run with captions."""
    return [overview(seen), examples(seen)]


def further(m: Material, seen: CaptionsSeen) -> list[Section]:
    return []


def warnings(m: Material, seen: CaptionsSeen) -> list[str]:
    """A captioner that has collapsed, saying the same of most images, is called so."""
    said = collapse([caption.words for caption in seen.captions])
    return [said] if said else []


def learned_with(seen: CaptionsSeen) -> str:
    return f"{seen.captioner.n_captions:,} captions"
