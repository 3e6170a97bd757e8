"""The reliability curve as SVG that takes its colours from the page."""

from markupsafe import Markup

from semisight.metrics.calibration import ReliabilityCurve
from semisight.report import page

_SIDE, _LEFT, _RIGHT, _TOP, _BOTTOM = 260, 44, 18, 8, 34


def reliability_chart(curve: ReliabilityCurve) -> Markup:
    """Bars of accuracy over bins of confidence, the fuller the more images, and the line of perfect calibration."""

    def x(share: float) -> float:
        return round(_LEFT + share * (_SIDE - _LEFT - _RIGHT), 1)

    def y(share: float) -> float:
        return round(_SIDE - _BOTTOM - share * (_SIDE - _TOP - _BOTTOM), 1)

    most, edges = max(int(curve.count.max()), 1), curve.edges.tolist()
    bins = zip(edges, edges[1:], curve.count.tolist(), curve.confidence.tolist(), curve.accuracy.tolist(), strict=False)
    bars = [
        {
            "x": round(x(low) + 0.5, 1),
            "y": y(right),
            "width": round(x(high) - x(low) - 1, 1),
            "height": round(max(y(0) - y(right), 1), 1),
            "full": round(0.25 + 0.75 * (count / most) ** 0.5, 2),
            "sure": x(sure),
            "hint": f"{count:,} images, {sure:.1%} sure on average, {right:.1%} right",
        }
        for low, high, count, sure, right in bins
        if count
    ]
    ticks = [(x(tick), y(tick), f"{tick:.0%}") for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
    return page.part("charts.html", "reliability", _SIDE, ticks, bars, (x(0), y(0), x(1), y(1)))
