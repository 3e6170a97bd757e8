"""`semisight suggest`: what to label next, and which labels to look at again."""

from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.console import note, open_run, put, reading


def suggest(
    run: options.RunArgument,
    images: Annotated[
        str | None,
        typer.Argument(
            metavar="[IMAGES]",
            help="Anything that train takes as DATA; by default the images that the run has.",
            show_default=False,
        ),
    ] = None,
    labels: str | None = None,
    tags: str | None = None,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many, of each kind.")] = 20,
    format: Annotated[
        Literal["table", "csv", "json", "label-studio"], typer.Option(help="How to write the suggestions.")
    ] = "table",
    images_at: Annotated[
        str, typer.Option(help="What comes before a file's name in tasks for Label Studio.")
    ] = "/data/local-files/?d=",
    out: options.TextFile = None,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Say which images to label next, and which of the given labels are probably wrong.

    Next are images whose labels are in doubt over codes of the image, and which are unlike each other and unlike those
    that have a label. A run with tags and no labels goes by the mean doubt of its tags. How far to believe the list of
    labels to check is estimated with labels made wrong on purpose; while the model is weak, none are listed.

    Example:

        semisight suggest runs/photos -n 50 --format csv --out next.csv

        semisight suggest runs/photos --format label-studio --out tasks.json
    """
    from semisight.cli.render import labelling_config, suggestions
    from semisight.runs.suggesting import images_to_choose_from
    from semisight.runs.suggesting import suggest as choose

    loaded = open_run(run, checkpoint, device, out, overwrite)
    with reading() as progress:
        found = images_to_choose_from(loaded, images, labels, tags, progress)
    said: list[str] = []
    with reading("looking at them") as progress:
        chosen = choose(loaded, found, n, progress, said.append)
    n_check = sum(one.what == "check" for one in chosen)
    what = f"{len(chosen) - n_check:,} images to label and {n_check:,} labels to check"
    put(suggestions(chosen, format, images_at), out, what)
    for line in said:
        note(line)
    if not (loaded.has("labels") or loaded.has("tags")):
        note("This run knows no labels: the images are chosen to be unlike each other.")
    elif format == "label-studio":
        several = not loaded.has("labels")
        names = loaded.tags.names if several else loaded.labels.class_names
        note(f"Labelling setup for these tasks: {labelling_config(names, several)}")
