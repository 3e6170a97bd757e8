"""The page on codes: what is wrong or in doubt, beside the labelled images most like it; what to label next; the map.

The map is t-SNE (van der Maaten and Hinton, 2008; scikit-learn's) of the codes of at most MOST images: near each other
on the map is near each other for the model. Distances across the map mean little. A point shows its picture under the
pointer, by CSS alone: all pictures are one sheet, and the page holds no script.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from semisight.data.columns import LABELS, LabelColumn
from semisight.data.image_set import ImageSet
from semisight.inference.acquisition import Seen, choose_next, see
from semisight.inference.encode import encode_set
from semisight.inference.neighbours import Neighbours
from semisight.random import Stream, random_order
from semisight.report import page
from semisight.report.material import shown, tile
from semisight.report.page import Section
from semisight.runs.images import Sets
from semisight.runs.pictures import data_uri, picture, to_pixels
from semisight.runs.run import Run

MOST = 1500  # images: a few seconds of t-SNE, a page of a few megabytes
LEAST = 8  # images that a map is drawn of
_DRAWS = 5  # of z, where the code depends on them
_SIDE = 44  # pixels of a picture on the map
_CELLS = 13  # across: of the pictures that are always shown, one in each cell
_NEXT, _WRONG, _NEAREST = 12, 8, 4
_LEGEND = 24  # classes: with more of them, colours are told by pointing
_UNKNOWN = "var(--soft)"


@dataclass(frozen=True)
class CodesSeen:
    """Images of the run with their codes [N, J]; of a run with labels also what it says of each.

    given   [N]: labels that were learned from, -1 for the others
    truth   [N]: those that were not, where they are known; else -1
    free    bool [N]: nobody has labelled it
    points  [N, 2] on the map, from 0 to 1; None of too few images, or of codes that are all alike
    """

    images: tuple[ImageSet, ...]
    codes: Tensor
    probabilities: Tensor | None
    given: Tensor
    truth: Tensor
    free: Tensor
    class_names: tuple[str, ...]
    points: npt.NDArray[np.float64] | None

    def at(self, i: int) -> tuple[ImageSet, int]:
        """The set that image i is of, and its place there."""
        for images in self.images:
            if i < len(images):
                return images, i
            i -= len(images)
        raise IndexError(i)

    @property
    def answer(self) -> Tensor:
        """[N], -1 without labels."""
        return torch.full((len(self.codes),), -1) if self.probabilities is None else self.probabilities.argmax(1)

    def name(self, c: int) -> str:
        return self.class_names[c] if c >= 0 else ""


def look(run: Run, sets: Sets) -> CodesSeen:
    """Labelled images, others, and those that were set aside: a third of the places for each."""
    train, valid, seed = sets.train, sets.valid, run.config.seed
    known = _values(train.columns.get(LABELS), len(train))
    hidden = [_values(column, 0) for column in sets.truth.get(LABELS, ())]
    free = known < 0
    parts = [
        _part(train, ~free, known, None, free, seed),
        _part(train, free, known, hidden[0] if hidden else None, free, seed),
    ]
    if valid is not None:
        held_out, nothing = _values(valid.columns.get(LABELS), len(valid)), torch.full((len(valid),), -1)
        parts.append(_part(valid, nothing < 0, nothing, hidden[1] if hidden else held_out, held_out < 0, seed))
    parts = [part for part in parts if len(part.images)]
    seen = [_see(run, part.images) for part in parts]
    codes = torch.cat([one.codes for one in seen])
    return CodesSeen(
        images=tuple(part.images for part in parts),
        codes=codes,
        probabilities=torch.cat([one.probabilities for one in seen]) if run.has(LABELS) else None,
        given=torch.cat([part.given for part in parts]),
        truth=torch.cat([part.truth for part in parts]),
        free=torch.cat([part.free for part in parts]),
        class_names=run.labels.class_names if run.has(LABELS) else (),
        points=points_on_a_map(codes, seed),
    )


@dataclass(frozen=True)
class _Part:
    images: ImageSet
    given: Tensor
    truth: Tensor
    free: Tensor


def _part(images: ImageSet, which: Tensor, given: Tensor, truth: Tensor | None, free: Tensor, seed: int) -> _Part:
    places = which.nonzero().squeeze(1)
    places = places[random_order(len(places), seed, Stream.MAPPED)[: MOST // 3].sort().values]
    of = torch.full((len(images),), -1) if truth is None else truth
    return _Part(images.subset(places), given[places], of[places], free[places])


def _values(column: object, n: int) -> Tensor:
    return column.values if isinstance(column, LabelColumn) else torch.full((n,), -1)


def _see(run: Run, images: ImageSet) -> Seen:
    if run.has(LABELS):
        return see(run.model, run.labels.head, images, run.labels.calibration.probabilities, _DRAWS)
    means = [codes.mean.cpu() for _, codes, _ in encode_set(run.model, images, n_draws=_DRAWS)]
    return Seen(torch.cat(means), torch.zeros(len(images), 0))


def points_on_a_map(codes: Tensor, seed: int) -> npt.NDArray[np.float64] | None:
    """[N, 2] from 0 to 1; None where there is nothing to see."""
    from sklearn.manifold import TSNE

    if len(codes) < LEAST or float((codes - codes[0]).abs().amax()) < 1e-6:
        return None
    rows = torch.nn.functional.normalize(codes.double() - codes.double().mean(0), dim=1).numpy()
    perplexity = min(30.0, (len(rows) - 1) / 3)
    with warnings.catch_warnings():  # of codes that lie on a line, say; the map is no worse for it
        warnings.simplefilter("ignore")
        found = TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=seed).fit_transform(rows)
    found = found.astype(np.float64)  # in float32 the rounded width puts the last point beyond 1
    low, high = found.min(0), found.max(0)
    scaled: npt.NDArray[np.float64] = (found - low) / np.maximum(high - low, 1e-9)
    return scaled if bool(np.isfinite(scaled).all()) else None


# ---- sections ----


def wrong(seen: CodesSeen) -> Section | None:
    """Wrong answers, the surest first, or else those in doubt; beside each the labelled images nearest."""
    labelled = (seen.given >= 0).nonzero().squeeze(1)
    if seen.probabilities is None or not len(labelled):
        return None
    sure, answer = seen.probabilities.amax(1), seen.answer
    measured = bool((seen.truth >= 0).any())
    asked = (seen.truth >= 0) & (seen.truth != answer) if measured else seen.given < 0
    order = (sure if measured else -sure).where(asked, -math.inf).argsort(descending=True)[: int(asked.sum())]
    chosen = order[:_WRONG].tolist()
    if not chosen:
        return None
    near = Neighbours(seen.codes[labelled], [""] * len(labelled), seen.codes.mean(0))
    rows = []
    for i, found in zip(chosen, near.nearest(seen.codes[chosen], _NEAREST), strict=True):
        is_ = [f"is {seen.name(int(seen.truth[i]))}"] if measured else []
        first = _tile(seen, i, seen.name(int(answer[i])), [f"{float(sure[i]):.0%}", *is_], wrong=measured)
        places = [(int(labelled[one.place]), one.similarity) for one in found]
        others = [_tile(seen, j, seen.name(int(seen.given[j])), [f"similarity {s:.2f}"]) for j, s in places]
        rows.append(page.in_row(first, *others))
    what = "wrong answers, the surest first" if measured else "answers in most doubt"
    return Section(
        "wrong",
        "What it gets wrong, and why" if measured else "What it is unsure of, and why",
        f"At the left {what}; beside each the labelled images whose codes are nearest, with the label they were given. "
        "A neighbour with a wrong label, or a class without an image like this one, is often the reason.",
        Markup().join(rows),
    )


def next_to_label(seen: CodesSeen) -> Section | None:
    """As `semisight suggest` chooses, among the images of the map."""
    if seen.probabilities is None or not bool(seen.free.any()):
        return None
    doubt = Seen(seen.codes, seen.probabilities).doubt
    chosen = choose_next(seen.codes, doubt, seen.free, _NEXT, known=seen.given >= 0)
    tiles = [
        _tile(seen, i, f"{seen.name(int(seen.answer[i]))}?", [f"{float(seen.probabilities[i].amax()):.0%}"])
        for i in chosen
    ]
    return Section(
        "next",
        "What to label next",
        "",
        page.figure(
            page.tiles(tiles, "7rem"),
            "Images without a label that would teach it most: it is unsure of them, and they are unlike each other and "
            f"unlike what has a label. Chosen among {int(seen.free.sum()):,} images; semisight suggest looks at all of "
            "them, and semisight serve lets you label them.",
        ),
    )


def on_the_map(seen: CodesSeen) -> Section | None:
    if seen.points is None:
        return None
    n, answer, names = len(seen.codes), seen.answer, seen.class_names
    label = torch.where(seen.given >= 0, seen.given, seen.truth)
    taken: set[tuple[int, int]] = set()
    points = []
    for i in range(n):
        x, y = seen.points[i]
        cell = (int(x * _CELLS), int(y * _CELLS))
        flags = {
            "given": seen.given[i] >= 0,
            "wrong": seen.truth[i] >= 0 and seen.truth[i] != answer[i],
            "left": x > 0.6,
            "low": y > 0.6,
            "high": y < 0.12,
            "large": cell not in taken,
        }
        taken.add(cell)
        row, column = divmod(i, _columns(n))
        points.append(
            {
                "css": " ".join(flag for flag, is_so in flags.items() if is_so),
                "x": f"{3 + 94 * x:.1f}",
                "y": f"{3 + 94 * y:.1f}",
                "a": _colour(int(label[i]), names),
                "b": _colour(int(answer[i]), names),
                "across": -_SIDE * column,
                "down": -_SIDE * row,
                "text": _text(seen, i),
            }
        )
    legend = [(_colour(c, names), name) for c, name in enumerate(names)] if len(names) <= _LEGEND else []
    body = page.part("map.html", "map", points, data_uri(_sheet(seen), "JPEG"), _SIDE, legend, bool(names))
    return Section(
        "map",
        "Map of the codes",
        f"{n:,} images; those that the model finds alike lie near each other. Point at one to see it.",
        page.figure(
            body,
            "t-SNE of the codes. Points with a ring were learned with their label"
            + (", squares are wrong answers" if names else "")
            + ". What lies together belongs together; distances between far groups, and directions, mean nothing.",
        ),
    )


def _text(seen: CodesSeen, i: int) -> str:
    images, place = seen.at(i)
    parts = [images.names[place]]
    if seen.given[i] >= 0:
        parts.append(f"labelled {seen.name(int(seen.given[i]))}")
    if seen.probabilities is not None:
        parts.append(f"answer {seen.name(int(seen.answer[i]))} ({float(seen.probabilities[i].amax()):.0%})")
    if seen.truth[i] >= 0 and seen.truth[i] != seen.answer[i]:
        parts.append(f"is {seen.name(int(seen.truth[i]))}")
    return ", ".join(parts)


def _colour(c: int, names: Sequence[str]) -> str:
    """Hues of neighbouring numbers lie far apart; a third of them is darker, a third lighter."""
    if c < 0:
        return _UNKNOWN if names else "var(--first)"
    return f"hsl({c * 137.508 % 360:.0f} 70% {(50, 38, 62)[c % 3]}%)"


def _columns(n: int) -> int:
    return math.ceil(n**0.5)


def _sheet(seen: CodesSeen) -> Image.Image:
    """All pictures on one, row by row."""
    n, columns = len(seen.codes), _columns(len(seen.codes))
    sheet = Image.new("RGB", (columns * _SIDE, -(-n // columns) * _SIDE), (200, 200, 200))
    for i in range(n):
        small = picture(to_pixels(shown(*seen.at(i), side=_SIDE)[None])[0]).convert("RGB")
        how = Image.Resampling.NEAREST if max(small.size) < _SIDE else Image.Resampling.BILINEAR
        scale = _SIDE / max(small.size)
        small = small.resize((max(1, round(small.width * scale)), max(1, round(small.height * scale))), how)
        row, column = divmod(i, columns)
        sheet.paste(small, (column * _SIDE + (_SIDE - small.width) // 2, row * _SIDE + (_SIDE - small.height) // 2))
    return sheet


def _tile(seen: CodesSeen, i: int, strong: str, lines: Sequence[str], wrong: bool = False) -> Markup:
    images, place = seen.at(i)
    return page.named(tile(shown(images, place), _text(seen, i)), strong, lines, wrong)


def sections(seen: CodesSeen) -> list[Section]:
    found = (wrong(seen), next_to_label(seen), on_the_map(seen))
    return [section for section in found if section is not None]
