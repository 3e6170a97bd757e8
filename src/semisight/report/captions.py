"""Sections of the page on captions: the scores, and images with their captions, best and worst."""

from html import escape

import torch

from semisight.data.image_set import ImageSet
from semisight.report import page
from semisight.report.captions_seen import SEARCH, CaptionsSeen, caption_words
from semisight.report.material import Material, tile
from semisight.report.page import Section
from semisight.runs.captioner import Caption

_EACH = 12  # images at each end
_WIDTH = "9.5rem"  # a sentence needs its place


def overview(m: Material) -> Section:
    seen = _seen(m)
    of = seen.captioner
    entries = [
        (f"{of.n_captions:,}", f"captions of {of.n_captioned:,} images were learned from"),
        (f"{len(of.vocabulary) - 2:,}", "words are known"),
    ]
    if seen.n_uncaptioned and not of.settings.two_step:
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
    return Section("captions", "Captions", "", page.paragraphs(caption_words(seen)) + page.cards(entries))


def examples(m: Material) -> Section:
    seen = _seen(m)
    how = (
        f"Each caption is the most probable one under a mixture over {SEARCH.n_codes} codes of its image "
        f"(beam {SEARCH.beam}). Below it, its probability"
    )
    if seen.evaluation is None:
        tiles = [_tile(seen.shown, i, caption) for i, caption in enumerate(seen.captions)]
        body = page.figure(page.tiles(tiles, _WIDTH), f"{how}.")
        return Section("caption-examples", "Images with their captions", "", body)
    best, worst = best_and_worst(seen)
    body = "".join(
        f"<h3>{title}</h3>" + page.figure(page.tiles([_scored(seen, i) for i in which], _WIDTH), caption)
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


def _scored(seen: CaptionsSeen, i: int) -> str:
    found = seen.evaluation
    assert found is not None
    own, score = found.own(i)[0], found.scores.cider.each[i]
    wrong = found.grades is not None and not found.grades[i].everything
    return _tile(seen.shown, i, seen.captions[i], f"CIDEr {score:.2f}<br>own: {escape(own)}", wrong)


def _tile(images: ImageSet, i: int, caption: Caption, more: str = "", wrong: bool = False) -> str:
    text = caption.text or "(no word)"
    probability = f"log p {caption.log_prob:.1f}"
    hint = f"{images.names[i]}: {text}"
    below = f"<b>{escape(text)}</b><br><i>{probability}{'; ' if more else ''}{more}</i>"
    return page.named(tile(images.batch(torch.tensor([i]))[0], hint), below, wrong)


def _seen(m: Material) -> CaptionsSeen:
    assert m.captions is not None
    return m.captions


def sections(m: Material) -> list[Section]:
    """Those of a run with captions."""
    return [] if m.captions is None else [overview(m), examples(m)]
