"""The frame of the page and what its sections are made of: jinja2 templates (templates/), where everything is escaped
but what another template has made. One HTML file that asks nobody for anything."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from semisight.runs.pictures import data_uri

_SMOOTH_FROM = 64  # pixels: larger pictures are shown smooth, smaller ones with their pixels as squares


@dataclass(frozen=True)
class Section:
    """Part of the page; one that is folded shows its title only until it is opened."""

    identity: str
    title: str
    lead: str
    body: Markup
    folded: bool = False


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("semisight.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _macros(template: str) -> Any:
    return _environment().get_template(template).module


def part(template: str, name: str, *values: Any) -> Markup:
    """What a template's macro makes of these values."""
    made: Markup = getattr(_macros(template), name)(*values)
    return made


def page(title: str, subtitle: str, sections: Sequence[Section], warnings: Sequence[str] = ()) -> str:
    """The whole page; warnings stand above everything else."""
    frame = _environment().get_template("page.html")
    return frame.render(title=title, subtitle=subtitle, sections=sections, warnings=warnings)


def figure(content: Markup, caption: str) -> Markup:
    return part("parts.html", "figure", content, caption)


def headed(title: str, content: Markup) -> Markup:
    """Under a heading within a section."""
    return part("parts.html", "headed", title, content)


def fold(title: str, content: Markup) -> Markup:
    """Behind a line that opens it."""
    return part("parts.html", "fold", title, content)


def img(image: Image.Image, text: str) -> Markup:
    return part("parts.html", "img", data_uri(image), image.width, image.height, text, min(image.size) < _SMOOTH_FROM)


def tiles(items: Iterable[Markup], width: str) -> Markup:
    """Pictures that fill the row, as many as fit beside each other, each at least `width` (CSS) wide."""
    return part("parts.html", "tiles", items, width)


def stacked(*items: Markup) -> Markup:
    return part("parts.html", "box", "pair", items)


def in_row(*items: Markup) -> Markup:
    return part("parts.html", "box", "row", items)


def matrix(picture: Markup) -> Markup:
    return part("parts.html", "box", "matrix", [picture])


def beside(left: Markup, right: Markup) -> Markup:
    return part("parts.html", "beside", left, right)


def cards(entries: Iterable[tuple[str, str]]) -> Markup:
    """Big numbers, each with what it means."""
    return part("parts.html", "cards", entries)


def table(rows: Iterable[tuple[str, str]]) -> Markup:
    return part("parts.html", "table", rows)


def heat_table(shares: Sequence[Sequence[float]]) -> Markup:
    """A p x p table of shares that sum to 1, shaded, with the percentage in each cell."""
    peak = max(max(row) for row in shares) or 1.0

    def cell(share: float) -> tuple[str, str]:
        tint = round(100 * share / peak)
        style = f"background: color-mix(in srgb, var(--second) {tint}%, var(--card))"
        return style + ("; color: #1d1f23" if tint > 50 else ""), f"{share:.0%}"  # on orange, in light and in dark

    return part("parts.html", "heat_table", [[cell(share) for share in row] for row in shares])


def confusion_table(names: Sequence[str], counts: Sequence[Sequence[int]]) -> Markup:
    """Counts with true labels down and given ones across, shaded by the share of their row; right ones in blue."""

    def cell(true: int, called: int) -> tuple[str, str, int]:
        count, share = counts[true][called], counts[true][called] / max(sum(counts[true]), 1)
        colour = "var(--first)" if called == true else "var(--second)"
        # a rare mistake must still be seen
        tint = round(100 * share) if called == true else min(100, round(100 * share**0.5))
        tint = max(tint, 8) if count else 0
        ink = "var(--paper)" if called == true else "#1d1f23"  # on blue, and on orange, in light and in dark
        style = f"background: color-mix(in srgb, {colour} {tint}%, var(--card))"
        style += f"; color: {ink}" if tint > 55 else ""
        return style, f"{names[true]} called {names[called]}: {count:,}", count

    rows = [(name, [cell(true, called) for called in range(len(names))]) for true, name in enumerate(names)]
    return part("parts.html", "confusion_table", names, rows)


def grid_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """Columns under headings; numbers end at one place."""
    return part("parts.html", "grid_table", head, rows)


def named(picture: Markup, strong: str, lines: Sequence[str] = (), wrong: bool = False) -> Markup:
    """A picture with a word or sentence below it, and softer lines; a wrong one is marked."""
    return part("parts.html", "named", picture, strong, lines, wrong)


def paragraphs(lines: Iterable[str]) -> Markup:
    return part("parts.html", "paragraphs", lines)


def charts(*figures: tuple[str, str, Markup]) -> Markup:
    """(title, small print, drawing) beside each other; without a title, the drawing alone."""
    return part("parts.html", "charts", figures)


def key(names: Sequence[tuple[str, str]]) -> Markup:
    """(colour, name) of the lines of charts."""
    return part("parts.html", "key", names)
