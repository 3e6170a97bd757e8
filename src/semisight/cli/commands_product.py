"""`semisight inspect` and `semisight suggest`: what is there before learning, and what to label next."""

from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.console import note, prepare_process, reading, say, to_file_or_screen

LookedAt = Annotated[str, typer.Argument(metavar="DATA", help="Anything that train takes as DATA.", show_default=False)]
CaptionFile = Annotated[
    str | None,
    typer.Option("--captions", help="A file of captions.", show_default="those that the set carries, if any"),
]
TableOrJson = Annotated[Literal["table", "json"], typer.Option("--format", help="For people, or for programs.")]


def inspect(
    data: LookedAt,
    labels: options.LabelFile = None,
    captions: CaptionFile = None,
    class_per_folder: options.ClassPerFolder = None,
    size: options.Size = None,
    channels: options.Channels = None,
    limit: options.Limit = None,
    format: TableOrJson = "table",
    out: options.TextFile = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Look at images before learning from them: sizes, labels, captions, what cannot be read, likely mistakes.

    Also says which layers train would choose and how long it would take here. Nothing is changed.

    Example:

        semisight inspect photos/ --labels labels.csv
    """
    from semisight.cli.inspected import written
    from semisight.runs.inspecting import inspect as look
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.settings import DataSettings

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    settings = DataSettings(
        data, size=size, channels=channels, limit=limit, labels=labels, class_per_folder=bool(class_per_folder)
    )
    with reading() as progress:
        found = look(settings, captions, progress)
    to_file_or_screen(written(found, format), out)
    if out is not None:
        say(f"What was found is in {out}.")


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
    labels: options.LabelFile = None,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many, of each kind.")] = 20,
    format: Annotated[
        Literal["table", "csv", "json", "label-studio"], typer.Option(help="How to write the suggestions.")
    ] = "table",
    images_at: Annotated[
        str, typer.Option(help="What comes before a file's name in tasks for Label Studio.")
    ] = "/data/local-files/?d=",
    out: options.TextFile = None,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Say which images to label next, and which of the given labels are probably wrong.

    Next are images whose labels are in doubt over codes of the image, and which are unlike each other and unlike those
    that have a label.

    Example:

        semisight suggest runs/photos -n 50 --format csv --out next.csv

        semisight suggest runs/photos --format label-studio --out tasks.json
    """
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run
    from semisight.runs.suggesting import images_to_choose_from, labelling_config, written
    from semisight.runs.suggesting import suggest as choose

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    with reading() as progress:
        found = images_to_choose_from(loaded, images, labels, progress)
    suggestions = choose(loaded, found, n)
    to_file_or_screen(written(suggestions, format, images_at), out)
    if loaded.classifier is None:
        note("This run knows no labels: the images are chosen to be unlike each other.")
    elif format == "label-studio":
        note(f"Labelling setup for these tasks: {labelling_config(loaded.classifier.class_names)}")
    if out is not None:
        n_check = sum(one.what == "check" for one in suggestions)
        say(f"{len(suggestions) - n_check:,} images to label and {n_check:,} labels to check in {out}.")
