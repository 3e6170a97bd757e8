"""The reliability curve as SVG that takes its colours from the page."""

from semisight.metrics.calibration import ReliabilityCurve

_SIDE, _LEFT, _RIGHT, _TOP, _BOTTOM = 260, 44, 18, 8, 34


def reliability_chart(curve: ReliabilityCurve) -> str:
    """Bars of accuracy over bins of confidence, the fuller the more images, and the line of perfect calibration."""

    def x(share: float) -> float:
        return _LEFT + share * (_SIDE - _LEFT - _RIGHT)

    def y(share: float) -> float:
        return _SIDE - _BOTTOM - share * (_SIDE - _TOP - _BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {_SIDE} {_SIDE}" role="img" aria-label="Reliability curve">']
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line class="grid" x1="{x(0):.1f}" x2="{x(1):.1f}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{x(0) - 6:.1f}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{tick:.0%}</text>')
        parts.append(f'<text x="{x(tick):.1f}" y="{y(0) + 14:.1f}" text-anchor="middle">{tick:.0%}</text>')
    most = max(int(curve.count.max()), 1)
    edges = curve.edges.tolist()
    for low, high, count, sure, right in zip(
        edges, edges[1:], curve.count.tolist(), curve.confidence.tolist(), curve.accuracy.tolist(), strict=False
    ):
        if not count:
            continue
        width, height = x(high) - x(low) - 1, y(0) - y(right)
        hint = f"{count:,} images, {sure:.1%} sure on average, {right:.1%} right"
        full = 0.25 + 0.75 * (count / most) ** 0.5
        parts.append(
            f'<rect class="bar" x="{x(low) + 0.5:.1f}" y="{y(right):.1f}" width="{width:.1f}" '
            f'height="{max(height, 1):.1f}" fill-opacity="{full:.2f}"><title>{hint}</title></rect>'
        )
        parts.append(
            f'<circle class="dot second" cx="{x(sure):.1f}" cy="{y(right):.1f}" r="2.5"><title>{hint}</title></circle>'
        )
    parts.append(f'<line class="ideal" x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(1):.1f}" y2="{y(1):.1f}"/>')
    parts.append(
        f'<text x="{(x(0) + x(1)) / 2:.1f}" y="{_SIDE - 5}" text-anchor="middle">probability that the model gave</text>'
    )
    return "".join([*parts, "</svg>"])
