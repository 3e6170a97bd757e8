"""`semisight search`: images by words."""

from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.console import count, note, open_run, put, reading


def search(
    run: options.RunArgument,
    words: Annotated[str, typer.Argument(metavar="WORDS", help="What the images should show.", show_default=False)],
    images: Annotated[
        str | None,
        typer.Option(help="Anything that train takes as DATA.", show_default="the images that the run has"),
    ] = None,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many images.")] = 10,
    format: options.Format = "table",
    out: options.TextFile = None,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Find images by words: those for which a run that learned captions gives the words the highest probability.

    The first search of a set of images takes a while; what it worked out is kept in the run's folder.

    Example:

        semisight search runs/captions "a dog on the grass" -n 20

        semisight search runs/captions "two people at the beach" --images new-photos/ --format csv --out found.csv
    """
    from semisight.cli.render import matches
    from semisight.runs.searching import searchable

    loaded = open_run(run, checkpoint, device, out, overwrite)
    with reading("looking at the images") as progress:
        found = searchable(loaded, images, progress)
    query = found.search.query(words)
    if query.unknown:
        note(f"no caption that was learned from has {', '.join(map(repr, query.unknown))}: left out.")
    best = found.search(query, n)
    put(matches(found.names, best, format), out, count(len(best), "image"))
