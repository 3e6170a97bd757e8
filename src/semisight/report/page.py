"""The frame of the page: sections with a heading, a lead and a body, in one HTML file that asks nobody for anything."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

from semisight.runs.pictures import data_uri

_SMOOTH_FROM = 64  # pixels: larger pictures are shown smooth, smaller ones with their pixels as squares

_STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf8; --card: #ffffff; --ink: #1d1f23; --soft: #62666f; --line: #dfdcd6;
  --first: #1f6fb4; --second: #d9661f; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --card: #1f2228; --ink: #e8e6e1; --soft: #a2a6ae;
  --line: #353941; --first: #6db3f2; --second: #ff9d5c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 62rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; line-height: 1.3; margin: 0 0 .5rem; }
h3 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
.soft, figcaption, nav { color: var(--soft); font-size: .9rem; }
nav { margin: .75rem 0 0; display: flex; flex-wrap: wrap; gap: .2rem 1rem; } a { color: var(--first); }
section { border-top: 1px solid var(--line); margin-top: 2.25rem; padding-top: 1.5rem; }
figure { margin: 1rem 0 0; } figcaption { margin-top: .6rem; max-width: 46rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(15.5rem, 100%), 1fr)); gap: .75rem;
  margin: 1.25rem 0 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .75rem .9rem; }
.card b { display: block; font-size: 1.45rem; line-height: 1.25; font-variant-numeric: tabular-nums; }
.card span, .charts small { line-height: 1.35; }
.card span { color: var(--soft); font-size: .85rem; display: block; }
.tiles { display: grid; gap: .35rem; grid-template-columns: repeat(auto-fill, minmax(var(--tile), 1fr)); }
.tiles img, .pair img { display: block; width: 100%; height: auto; border-radius: 2px;
  outline: 1px solid color-mix(in srgb, var(--soft) 22%, transparent); outline-offset: -1px; }
img.sharp { image-rendering: crisp-edges; image-rendering: pixelated; }
.pair { display: grid; gap: .15rem; }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); }
.charts figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: .5rem;
  padding: .75rem; display: flex; flex-direction: column; justify-content: space-between; }
.charts figcaption { margin: 0 0 .35rem; color: var(--ink); }
.charts small { color: var(--soft); }
svg.chart { display: block; width: 100%; max-width: 26rem; height: auto; }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.line.first { stroke: var(--first); } .line.second { stroke: var(--second); }
.dot.first { fill: var(--first); } .dot.second { fill: var(--second); }
.key { display: inline-block; width: .9em; height: .2em; vertical-align: middle; margin: 0 .35em 0 0;
  border-radius: 1px; }
.key.first { background: var(--first); } .key.second { background: var(--second); }
.heat { border-collapse: separate; border-spacing: 2px; } .heat td { width: 3.4rem; height: 3.4rem; text-align: center;
  border-radius: 3px; font-size: .85rem; font-variant-numeric: tabular-nums; }
.side { display: flex; flex-wrap: wrap; gap: 1.25rem 2rem; align-items: flex-start; } .side > * { flex: 1 1 16rem; }
.side > .heatbox { flex: 0 0 auto; }
.scroll { overflow-x: auto; }
table.plain { border-collapse: collapse; font-size: .92rem; width: 100%; }
table.plain th, table.plain td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
table.plain th { font-weight: 600; color: var(--soft); width: 14rem; }
table.grid { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
table.grid th, table.grid td { padding: .25rem .9rem .25rem 0; text-align: right;
  border-bottom: 1px solid var(--line); }
table.grid th { color: var(--soft); font-weight: 600; } table.grid :first-child { text-align: left; }
table.confusion { border-collapse: separate; border-spacing: 2px; font-size: .85rem;
  font-variant-numeric: tabular-nums; }
.confusion td { min-width: 2.3rem; height: 2.1rem; text-align: center; border-radius: 3px; padding: 0 .25rem; }
.confusion th { color: var(--soft); font-weight: 600; padding: 0 .45rem; }
.confusion tr th:first-child { text-align: right; }
.matrix img { max-width: 100%; height: auto; border: 1px solid var(--line); }
.named { font-size: .78rem; line-height: 1.3; text-align: center; overflow-wrap: anywhere; }
.named span { display: block; margin-top: .2rem; }
.named i { color: var(--soft); font-style: normal; }
.named.wrong img { outline: 2px solid var(--second); } .named.wrong b { color: var(--second); }
svg .bar { fill: var(--first); } svg .ideal { stroke: var(--soft); stroke-dasharray: 4 3; }
details { margin-top: 1rem; } summary { cursor: pointer; }
@media (max-width: 32rem) { body { font-size: 15px; } main { padding-top: 1.25rem; } h1 { font-size: 1.5rem; }
  .tiles { grid-template-columns: repeat(auto-fill, minmax(calc(.7 * var(--tile)), 1fr)); }
  .cards { grid-template-columns: 1fr 1fr; gap: .5rem; } .card { padding: .6rem .7rem; } .card b { font-size: 1.2rem; }
  table.plain th { width: 8.5rem; } .heat td { width: 2.8rem; height: 2.8rem; } }
@media print { section { break-inside: avoid; } nav { display: none; } }
"""


@dataclass(frozen=True)
class Section:
    """Part of the page; `body` is HTML that is already escaped where it must be."""

    identity: str
    title: str
    lead: str
    body: str


def page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    links = "".join(f'<a href="#{section.identity}">{escape(section.title)}</a>' for section in sections)
    body = "".join(
        f'<section id="{section.identity}"><h2>{escape(section.title)}</h2>'
        + (f"<p>{escape(section.lead)}</p>" if section.lead else "")
        + f"{section.body}</section>"
        for section in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # An empty icon: else a browser asks the folder's server for favicon.ico.
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_STYLE}</style></head>'
        f'<body><main><header><h1>{escape(title)}</h1><p class="soft">{escape(subtitle)}</p><nav>{links}</nav></header>'
        f"{body}</main></body></html>\n"
    )


def figure(content: str, caption: str) -> str:
    return f"<figure>{content}<figcaption>{escape(caption)}</figcaption></figure>"


def img(image: Image.Image, text: str) -> str:
    sharp = ' class="sharp"' if min(image.size) < _SMOOTH_FROM else ""
    about = escape(text)
    size = f'width="{image.width}" height="{image.height}"'
    return f'<img{sharp} src="{data_uri(image)}" {size} alt="{about}" title="{about}">'


def tiles(items: Iterable[str], width: str) -> str:
    """Pictures that fill the row, as many as fit beside each other, each at least `width` (CSS) wide."""
    return f'<div class="tiles" style="--tile: {width}">{"".join(items)}</div>'


def stacked(*items: str) -> str:
    return f'<div class="pair">{"".join(items)}</div>'


def beside(left: str, right: str) -> str:
    return f'<div class="side">{left}<div>{right}</div></div>'


def cards(entries: Iterable[tuple[str, str]]) -> str:
    """Big numbers, each with what it means."""
    inner = "".join(
        f'<div class="card"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in entries
    )
    return f'<div class="cards">{inner}</div>'


def table(rows: Iterable[tuple[str, str]]) -> str:
    inner = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<div class="scroll"><table class="plain">{inner}</table></div>'


def heat_table(shares: Sequence[Sequence[float]]) -> str:
    """A p x p table of shares that sum to 1, shaded, with the percentage in each cell."""
    peak = max(max(row) for row in shares) or 1.0
    rows = []
    for row in shares:
        cells = []
        for share in row:
            tint = round(100 * share / peak)
            style = f"background: color-mix(in srgb, var(--second) {tint}%, var(--card))"
            style += "; color: #1d1f23" if tint > 50 else ""  # on orange, in light and in dark
            cells.append(f'<td style="{style}">{share:.0%}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="heatbox"><table class="heat">{"".join(rows)}</table></div>'


def confusion_table(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Counts with true labels down and given ones across, shaded by the share of their row; right ones in blue."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for true, (name, row) in enumerate(zip(names, counts, strict=True)):
        total, cells = max(sum(row), 1), []
        for called, count in enumerate(row):
            colour = "var(--first)" if called == true else "var(--second)"
            # a rare mistake must still be seen
            tint = round(100 * count / total) if called == true else min(100, round(100 * (count / total) ** 0.5))
            tint = max(tint, 8) if count else 0
            style = f"background: color-mix(in srgb, {colour} {tint}%, var(--card))"
            ink = "var(--paper)" if called == true else "#1d1f23"  # on blue, and on orange, in light and in dark
            style += f"; color: {ink}" if tint > 55 else ""
            title = escape(f"{name} called {names[called]}: {count:,}")
            cells.append(f'<td style="{style}" title="{title}">{count if count else ""}</td>')
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table class="confusion"><tr><th></th>{head}</tr>{"".join(rows)}</table></div>'


def grid_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns under headings; numbers end at one place."""
    first = "".join(f"<th>{escape(word)}</th>" for word in head)
    inner = "".join(f"<tr>{''.join(f'<td>{escape(word)}</td>' for word in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table class="grid"><tr>{first}</tr>{inner}</table></div>'


def named(picture: str, text: str, wrong: bool = False) -> str:
    """A picture with a line of HTML below it."""
    return f'<div class="named{" wrong" if wrong else ""}">{picture}<span>{text}</span></div>'


def paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
