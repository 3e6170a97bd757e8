"""`semisight inspect`: what is there before anything is learned from it."""

from typing import Annotated, Literal

import typer

from semisight.app import options
from semisight.app.console import prepare_process, reading, say, to_file_or_screen

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
    from semisight.app.inspected import written
    from semisight.app.inspecting import inspect as look
    from semisight.app.pictures import refuse_existing
    from semisight.app.settings import DataSettings

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
