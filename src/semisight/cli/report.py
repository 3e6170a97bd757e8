"""`semisight report`: one page that shows a run."""

from pathlib import Path
from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.console import open_run, reading, say


def _moved(what: str) -> "typer.models.OptionInfo":
    return typer.Option(help=f"Where the {what} are now, if they have moved.", show_default="where they were")


def report(
    run: options.RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page.", show_default="RUN/report.html, replaced")
    ] = None,
    data: Annotated[str | None, _moved("images")] = None,
    labels: Annotated[str | None, _moved("labels")] = None,
    tags: Annotated[str | None, _moved("tags")] = None,
    captions: Annotated[str | None, _moved("captions")] = None,
    truth: Annotated[
        bool,
        typer.Option("--truth", help="Hold the encoder against long sampling too; takes minutes.", show_default=False),
    ] = False,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write one page that shows what a run learned: captions, labels, reconstructions, samples and more.

    Example:

        semisight report runs/photos --out photos.html
    """
    from semisight.report.build import SECTIONS, write_report
    from semisight.runs.run import REPORT
    from semisight.runs.run_images import reload_sets

    loaded = open_run(run, checkpoint, device, out, overwrite)
    with reading() as progress:
        sets = reload_sets(loaded, data, labels, progress, captions, tags)
    target = out or loaded.folder.file(REPORT)
    shows, words = SECTIONS, []
    if truth:
        from semisight.report.truth import see_truth, shows_with_truth, truth_words

        with reading("sampling") as progress:
            seen = see_truth(loaded, sets, progress=progress)
        shows, words = shows_with_truth(seen), truth_words(seen)
    for line in [*write_report(loaded, sets, target, shows).words(), *words]:
        say(f"  - {line}")
    say(f"Report: {target}")
