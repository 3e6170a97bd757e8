"""`semisight inspect`: what is there, before learning from it."""

from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.console import prepare_process, put, reading


def inspect(
    data: Annotated[str, typer.Argument(metavar="DATA", help="Anything that train takes as DATA.", show_default=False)],
    labels: str | None = None,
    class_per_folder: bool | None = None,
    use_labels: bool | None = None,
    tags: str | None = None,
    captions: str | None = None,
    split: str | None = None,
    size: int | None = None,
    channels: int | None = None,
    limit: int | None = None,
    backbone: str | None = None,
    encoder: str | None = None,
    max_minutes: float | None = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="For people, or for programs.")] = "table",
    out: options.TextFile = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Look at images before learning from them: sizes, labels, tags, captions, what cannot be read, likely mistakes.

    Also says what train would do with these options, how long it would take here, and what would be better with more
    time or an extra. Nothing is changed.

    Example:

        semisight inspect photos/ --labels labels.csv
    """
    from semisight.cli.render import inspection
    from semisight.runs.inspecting import inspect as look
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.settings import resolve

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    given = {
        "source": data, "labels": labels, "class_per_folder": class_per_folder, "use_labels": use_labels, "tags": tags,
        "captions": captions, "split": split, "size": size, "channels": channels, "limit": limit,
        "backbone": backbone, "encoder": encoder, "max_minutes": max_minutes,
    }  # fmt: skip
    with reading() as progress:
        found = look(resolve(given), progress)
    put(inspection(found, format), out, "What was found is")
