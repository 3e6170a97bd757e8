"""Line charts as SVG that takes its colours from the page, so that it is readable in light and in dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from semisight.report import page

_WIDTH, _HEIGHT = 320, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 8, 8, 32
_MOST_POINTS = 400  # per line: more than the chart has pixels


@dataclass(frozen=True)
class Line:
    """A name, a CSS class that colours it, and points (x, y) with x rising."""

    name: str
    css: str
    points: Sequence[tuple[float, float]]


def chart(
    title: str, lines: Sequence[Line], x_label: str, identity: str, names: Mapping[float, str] | None = None
) -> Markup:
    """An SVG; `identity` is unique on the page. Empty lines are left out. `names`: what to write at which x."""
    lines = [Line(line.name, line.css, _thinned(line.points)) for line in lines if line.points]
    xs = [x for line in lines for x, _ in line.points]
    low_x, high_x = min(xs, default=0.0), max(xs, default=1.0)
    low_y, high_y = _range([y for line in lines for _, y in line.points])
    high_x = high_x if high_x > low_x else low_x + 1
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def across(x: float) -> float:
        return round(_LEFT + (x - low_x) / (high_x - low_x) * width, 1)

    def down(y: float) -> float:
        return round(_HEIGHT - _BOTTOM - (y - low_y) / (high_y - low_y) * height, 1)

    def below(x: float, name: str) -> tuple[float, str, str]:
        at_end = across(x) > _WIDTH - _RIGHT - 3 * len(name)  # else its last letters would be cut off
        return (_WIDTH - 1, "end", name) if at_end else (across(x), "middle", name)

    def dots(line: Line) -> list[tuple[float, float, str]]:
        if len(line.points) > 40:
            return []
        named = names or {}
        return [
            (across(x), down(y), f"{line.name}, {x_label} {named.get(x, number(x))}: {number(y)}")
            for x, y in line.points
        ]

    return page.part(
        "charts.html", "lines", title, identity, _WIDTH, _HEIGHT,
        {"left": _LEFT, "top": _TOP, "width": width, "height": height},
        [below(x, name) for x, name in (names or {x: number(x) for x in ticks(low_x, high_x)}).items()],
        [(down(y), number(y)) for y in ticks(low_y, high_y)],
        x_label,
        [(line.css, " ".join(f"{across(x)},{down(y)}" for x, y in line.points), dots(line)) for line in lines],
    )  # fmt: skip


def ticks(low: float, high: float, about: int = 4) -> list[float]:
    """Round numbers between low and high, about so many."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def number(value: float) -> str:
    """Short: 12,300, 45.6, 0.00020 as 0.0002."""
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def nats(value: float) -> str:
    """A term of the bound: whole, unless it is small."""
    return number(round(value)) if abs(value) >= 100 else number(value)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Low and high of the frame. The wild first steps may lie outside, or nothing else could be read."""
    finite = sorted(value for value in values if math.isfinite(value))
    if not finite:
        return 0.0, 1.0
    low, high = finite[len(finite) // 20], finite[-1 - len(finite) // 20]
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low - margin, high + margin
    # what is only a little outside is let in
    reach = 0.5 * (high - low)
    return max(finite[0] - margin, low - reach), min(finite[-1] + margin, high + reach)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    step = -(-len(finite) // _MOST_POINTS) or 1
    return finite[:-1:step] + finite[-1:]
