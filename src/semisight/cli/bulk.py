"""What `predict`, `embed` and `caption` share where the answers go to a Parquet data set: the engine, and its words."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semisight.cli.console import count, note, prepare_process, reading, say

if TYPE_CHECKING:
    from semisight.runs.bulk import Asked

_PANEL = "Piles of images"
EngineOption = Annotated[
    Literal["local", "ray"] | None,
    typer.Option(
        "--engine",
        help="Worker processes on this machine, or a Ray cluster. --out is then a folder of Parquet files.",
        rich_help_panel=_PANEL,
        show_default="local, where --out is such a folder",
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Of the Ray cluster: HOST:PORT, or auto for the one this machine belongs to.",
        rich_help_panel=_PANEL,
        show_default="one that is started here",
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", min=0, help="Processes or actors.", rich_help_panel=_PANEL, show_default="one per core"),
]


def is_pile(out: Path | None, engine: str | None, address: str | None) -> bool:
    """Whether the answers go to a folder of Parquet files: an engine was named, or --out ends in / or .parquet, is a
    URL, or is a folder of answers already."""
    if engine is not None or address is not None:
        return True
    if out is None:
        return False
    from semisight.data.remote import as_written, is_url

    return is_url(as_written(out)) or out.suffix in (".parquet", ".pq") or out.is_dir()


def answer_pile(
    asked: "Asked", out: Path | None, engine: Literal["local", "ray"] | None, workers: int | None,
    address: str | None, overwrite: bool,
) -> None:  # fmt: skip
    """Does the job and says how it went."""
    import dataclasses

    from semisight.data.remote import as_written
    from semisight.errors import UserError
    from semisight.runs.bulk import answer

    if out is None:
        raise UserError("say where the answers should be written: --out FOLDER/ (a Parquet data set).")
    if engine != "ray" and address is not None:
        raise UserError("--address is that of a Ray cluster: give --engine ray, too.")
    prepare_process()
    asked = dataclasses.replace(asked, out=as_written(out), run=as_written(asked.run))
    with reading("parts of the source") as progress:
        found = answer(
            asked, engine=engine or "local", workers=workers, address=address, overwrite=overwrite, progress=progress
        )
    if found.found:
        note(f"{found.found:,} of {count(found.parts, 'part')} were there from before.")
    say(f"{count(found.rows, 'image')} in {asked.out} (Parquet, {count(found.parts, 'file')}).")
    if found.unreadable:
        note(f"{count(found.unreadable, 'image')} could not be read: the column error says why.")
