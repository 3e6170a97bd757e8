"""Line charts as SVG that takes its colours from the page, so that it is readable in light and in dark."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

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
) -> str:
    """An SVG; `identity` is unique on the page. Empty lines are left out. `names`: what to write at which x."""
    lines = [Line(line.name, line.css, _thinned(line.points)) for line in lines if line.points]
    xs = [x for line in lines for x, _ in line.points]
    low_x, high_x = min(xs, default=0.0), max(xs, default=1.0)
    low_y, high_y = _range([y for line in lines for _, y in line.points])
    high_x = high_x if high_x > low_x else low_x + 1

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - low_x) / (high_x - low_x) * (_WIDTH - _LEFT - _RIGHT)
        down = _HEIGHT - _BOTTOM - (y - low_y) / (high_y - low_y) * (_HEIGHT - _TOP - _BOTTOM)
        return across, down

    parts = [
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<clipPath id="{identity}"><rect x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" '
        f'height="{_HEIGHT - _TOP - _BOTTOM}"/></clipPath>',
    ]
    for y in ticks(low_y, high_y):
        _, down = place(low_x, y)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{down:.1f}" y2="{down:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{down + 3.5:.1f}" text-anchor="end">{number(y)}</text>')
    for x, name in (names or {x: number(x) for x in ticks(low_x, high_x)}).items():
        across, _ = place(x, low_y)
        at_end = across > _WIDTH - _RIGHT - 3 * len(name)  # else its last letters would be cut off
        where = f'x="{_WIDTH - 1}" text-anchor="end"' if at_end else f'x="{across:.1f}" text-anchor="middle"'
        parts.append(f'<text {where} y="{_HEIGHT - 18}">{escape(name)}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    for line in lines:
        at = " ".join(f"{a:.1f},{d:.1f}" for a, d in (place(x, y) for x, y in line.points))
        parts.append(f'<g clip-path="url(#{identity})"><polyline class="line {line.css}" points="{at}"/>')
        if len(line.points) <= 40:
            for x, y in line.points:
                across, down = place(x, y)
                hint = escape(f"{line.name}, {x_label} {(names or {}).get(x, number(x))}: {number(y)}")
                spot = f'class="dot {line.css}" cx="{across:.1f}" cy="{down:.1f}" r="2"'
                parts.append(f"<circle {spot}><title>{hint}</title></circle>")
        parts.append("</g>")
    return "".join([*parts, "</svg>"])


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
