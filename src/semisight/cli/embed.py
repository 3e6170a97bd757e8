"""`semisight embed`: the codes of images, for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.bulk import AddressOption, EngineOption, WorkersOption, answer_pile, is_pile
from semisight.cli.console import count, open_run, put, read_images, reading, say
from semisight.errors import UserError


def embed(
    run: options.RunArgument,
    images: options.ImagesArgument,
    out: Annotated[
        Path | None, typer.Option(help="A file: .npz, or text for csv.", show_default="the screen, for csv")
    ] = None,
    format: Annotated[
        Literal["npz", "csv"] | None, typer.Option(help="How to write the codes.", show_default="by the name of --out")
    ] = None,
    limit: int | None = None,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Write the code of each image, the mean and the spread of each of its numbers, for use elsewhere.

    An .npz file has the arrays files, codes and spread; a CSV file the columns file, code_0, ..., spread_0, ...

    Example:

        semisight embed runs/photos photos/ --out codes.npz

        semisight embed runs/photos shards/ --out codes.parquet/ --workers 8
    """
    import numpy as np

    from semisight.cli.render import codes_csv
    from semisight.files import atomic_path

    if format is None and is_pile(out, engine, address):
        from semisight.runs.bulk import Asked

        asked = Asked("embed", str(run), images, "", checkpoint, device)
        return answer_pile(asked, out, engine, workers, address, overwrite)
    arrays = (format or ("npz" if out is not None and out.suffix == ".npz" else "csv")) == "npz"
    if arrays and out is None:
        raise UserError("say where the codes should be written: --out codes.npz, or --format csv for the screen.")
    loaded = open_run(run, checkpoint, device, out, overwrite)
    found = read_images(loaded, images, limit)
    with reading("encoding") as progress:
        codes = loaded.encode(found, progress)
    what = f"Codes of {count(len(found), 'image')}, {codes.mean.shape[1]} numbers each,"
    if arrays and out is not None:
        with atomic_path(out) as temporary, temporary.open("wb") as file:
            mean, spread = codes.mean.numpy(), codes.spread.numpy()
            np.savez_compressed(file, files=np.array(found.names), codes=mean, spread=spread)
        say(f"{what} in {out}.")
    else:
        put(codes_csv(found.names, codes), out, what)
