"""The page on tags: how well each is known, and images with the tags that the model gives them."""

from dataclasses import dataclass

import torch
from markupsafe import Markup
from torch import Tensor

from semisight.data.columns import TAGS, TagColumn
from semisight.data.image_set import ImageSet
from semisight.inference.tags import TagAnswer, TagReader
from semisight.metrics.tags import TagScores, score_tags
from semisight.random import Stream, random_order
from semisight.report import page
from semisight.report.material import Material, shown, tile
from semisight.report.page import Section
from semisight.runs.images import Sets
from semisight.runs.run import Run

_MEASURED, _SHOWN = 5_000, 24  # images
_WEAK = 1.2  # times the average precision of chance
_WIDTH = "8rem"


@dataclass(frozen=True)
class TagsSeen:
    """Scores of `shown` images that were not learned from, None where nothing can be measured; truth: [N, C]."""

    reader: TagReader
    n_known: int
    scores: TagScores | None
    shown: ImageSet
    answer: TagAnswer
    truth: Tensor


def look(run: Run, sets: Sets) -> TagsSeen:
    measured, seed = sets.measured(TAGS), run.config.seed
    shown = measured if measured is not None else sets.train if sets.valid is None else sets.valid
    if len(shown) > _MEASURED:
        shown = shown.subset(random_order(len(shown), seed, Stream.TAGS_SHOWN)[:_MEASURED].sort().values)
    answer, column = run.tag(shown), shown.columns.get(TAGS)
    unknown = torch.full(answer.probabilities.shape, -1, dtype=torch.int8)
    truth = column.values if measured is not None and isinstance(column, TagColumn) else unknown
    scores = None if measured is None else score_tags(answer.probabilities, truth, run.tags.names)
    learned = sets.train.columns[TAGS]
    n_known = int((learned.values >= 0).sum()) if isinstance(learned, TagColumn) else 0
    return TagsSeen(run.tags, n_known, scores, shown, answer, truth)


def words(seen: TagsSeen) -> list[str]:
    learned = f"From {seen.n_known:,} known entries of {len(seen.reader.names)} tags it learned to tag images"
    if seen.scores is None:
        return [f"{learned}. How good it is cannot be said: none were held out.", seen.reader.believable()]
    of = seen.scores
    return [
        f"{learned}; on {of.n:,} images that were not learned from its mean average precision is "
        f"{of.mean_average_precision:.2f}, its mean F1 {of.mean_f1:.2f}, and {of.accuracy:.1%} of entries are right.",
        seen.reader.believable(),
    ]


def learned_with(seen: TagsSeen) -> str:
    return f"{len(seen.reader.names)} tags"


def sections(m: Material, seen: TagsSeen) -> list[Section]:
    body = page.paragraphs(words(seen))
    if seen.scores is not None:
        head = ["tag", "known", "have it", "average precision", "F1"]
        rows = [
            (one.name, f"{one.known:,}", f"{one.positive:,}", _number(one.average_precision), _number(one.f1))
            for one in seen.scores.tags
        ]
        body += page.headed("Each tag", page.grid_table(head, rows))
    tiles = [_tile(seen, i) for i in range(min(_SHOWN, len(seen.shown)))]
    examples = page.figure(
        page.tiles(tiles, _WIDTH),
        "The tags that the model gives, with their probabilities. One that the image does not have, or lacks here "
        "though it has it, is marked.",
    )
    return [Section("tags", "Tags", "", body), Section("tag-examples", "Images with their tags", "", examples)]


def further(m: Material, seen: TagsSeen) -> list[Section]:
    return []


def warnings(m: Material, seen: TagsSeen) -> list[str]:
    """Average precision of chance is the share of images that have a tag."""
    if seen.scores is None:
        return []
    chance = sum(one.positive / max(1, one.known) for one in seen.scores.tags) / len(seen.scores.tags)
    found = seen.scores.mean_average_precision
    if not found <= _WEAK * chance:
        return []
    return [
        f"The tags are hardly better than chance: mean average precision {found:.2f}, where guessing has {chance:.2f}. "
        "Do not rely on them; give more tags first."
    ]


def _tile(seen: TagsSeen, i: int) -> Markup:
    given = seen.answer.tags(i)
    said = {name for name, _ in given}
    known = {name: int(value) for name, value in zip(seen.reader.names, seen.truth[i].tolist(), strict=True)}
    wrong = any(known[name] == 0 for name in said) or any(v == 1 and name not in said for name, v in known.items())
    text = [f"{name} {p:.0%}" for name, p in given] or ["(none)"]
    image = shown(seen.shown, i)
    return page.named(tile(image, f"{seen.shown.names[i]}: {', '.join(sorted(said))}"), "", text, wrong)


def _number(value: float) -> str:
    return "" if value != value else f"{value:.2f}"
