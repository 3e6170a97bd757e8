"""What the result is held against: every way to learn that was tried, with its cross-validated error."""

from semisight.report import page
from semisight.report.material import Material
from semisight.report.page import Section
from semisight.runs.references import read_ways, verdict


def compared(m: Material) -> Section:
    ways = read_ways(m.run)
    rows = [
        (way.name + (" (this run)" if way.chosen else ""), f"{way.error:.1%}",
         f"{way.interval[0]:.0%} to {way.interval[1]:.0%}", f"{way.nll:.2f}", f"{way.n:,}")
        for way in ways
    ]  # fmt: skip
    body = page.paragraphs(verdict(ways)) + page.grid_table(
        ["way to learn", "error", "95 % interval", "nats per label", "labels"], rows
    )
    text = (
        "Cross-validation: each given label was held out once and asked of a model that had not seen the image. These "
        "models had fewer labels than the run, so that its own error is rather lower."
    )
    return Section("ways", "Held against other ways", text, body)


def has_ways(m: Material) -> bool:
    return bool(read_ways(m.run))
