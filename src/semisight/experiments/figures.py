"""Figures 1 and 3: accuracy by the share of images that have a label, from the rows of Table 4.

    semisight reproduce figure1            results/figure1.png from results/table4.csv
    semisight reproduce figure3            the same with error bars, and with the softmax

Left top-1, right top-5. Figure 1 has one line for each method of the main text; figure 3, of the appendix, adds the
softmax and the standard deviation over splits. Nothing is measured here: `semisight reproduce table4` does that.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semisight.errors import UserError
from semisight.experiments import results, table4
from semisight.experiments.results import Summary
from semisight.experiments.table import Request

TITLES = {
    "alexnet": "AlexNet",
    "googlenet": "GoogLeNet",
    "bsvm": "ours, Bayesian SVM",
    "softmax": "ours, softmax",
}
FIGURES: dict[str, tuple[str, ...]] = {"figure1": ("alexnet", "googlenet", "bsvm"), "figure3": tuple(TITLES)}


def draw(name: str, request: Request) -> Path:
    """The picture, beside the results file of Table 4; at smoke size that is measured first."""
    plots = pyplot()
    out = request.file(table4.TABLE)
    if request.smoke:
        table4.run(request)
    curves = curves_of(results.summaries(results.read(out)), FIGURES[name])
    if not curves:
        raise UserError(f"{out} has no rows of Table 4 to draw: measure them first (semisight reproduce table4 ...).")
    figure, panels = plots.subplots(1, 2, figsize=(9, 3.6), sharex=True)
    for panel, metric in zip(panels, (table4.TOP1, table4.TOP5), strict=True):
        for row, cells in curves.items():
            points = sorted((float(cell.N), cell.mean, cell.spread or 0.0) for cell in cells if cell.metric == metric)
            shares, means, spreads = zip(*points, strict=True)
            bars = {"yerr": spreads, "capsize": 2} if name == "figure3" else {}
            panel.errorbar(shares, means, marker="o", markersize=3, label=TITLES[row], **bars)
        panel.set_xlabel("labelled images (%)")
        panel.set_ylabel(f"{metric} accuracy (%)")
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    picture = out.with_name(f"{name}.png")
    figure.tight_layout()
    figure.savefig(picture, dpi=110, metadata={"Software": None})
    plots.close(figure)
    return picture


def curves_of(cells: Sequence[Summary], rows: Sequence[str]) -> dict[str, list[Summary]]:
    """By row, for the data set of the newest of them: a figure has one."""
    sets = [cell.row.partition("/")[0] for cell in cells]
    wanted = {f"{sets[-1]}/{row}": row for row in rows} if sets else {}
    found: dict[str, list[Summary]] = {}
    for cell in cells:
        if cell.row in wanted:
            found.setdefault(wanted[cell.row], []).append(cell)
    return found


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("figures are drawn by matplotlib: pip install 'semisight[figures]'.") from error
    matplotlib.use("agg")
    import matplotlib.pyplot

    return matplotlib.pyplot
