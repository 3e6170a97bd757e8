"""`semisight predict`: what a run says of images, labels and tags."""

from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.bulk import AddressOption, EngineOption, WorkersOption, answer_pile, is_pile
from semisight.cli.console import count, note, open_run, put, read_images, reading
from semisight.errors import UserError


def predict(
    run: options.RunArgument,
    images: options.ImagesArgument,
    format: options.Format = "table",
    out: options.TextFile = None,
    top: Annotated[int, typer.Option(min=1, help="So many of the most probable labels.")] = 3,
    limit: int | None = None,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Label images: the label of each, its probability and how much it varies over codes of the image (spread).

    A run with tags gives the tags of each image with their probabilities, beside the label if it has learned both.

    Example:

        semisight predict runs/photos new-photos/ --format csv --out labels.csv

    Of piles of images, shards or Parquet, also elsewhere, answers go to a Parquet data set, by several processes or a
    Ray cluster; the same command goes on where it was interrupted.

        semisight predict runs/photos s3://bucket/shards/ --out answers.parquet/ --engine ray --address auto
    """
    from semisight.cli.render import predictions
    from semisight.inference.encode import encode_set

    if is_pile(out, engine, address):
        from semisight.runs.bulk import Asked

        asked = Asked("predict", str(run), images, "", checkpoint, device)
        return answer_pile(asked, out, engine, workers, address, overwrite)
    loaded = open_run(run, checkpoint, device, out, overwrite)
    names = [name for name in loaded.readers if name != "captions"]
    if not names:
        other = "semisight caption writes its captions" if loaded.has("captions") else "semisight embed gives its codes"
        raise UserError(f"{loaded.folder.path} has learned neither labels nor tags: {other}.")
    found = read_images(loaded, images, limit)
    with reading("predicting") as progress:  # one code of an image for all that is said of it
        parts = [
            [loaded.readers[name](codes, generator) for name in names]
            for _, codes, generator in encode_set(loaded.model, found, progress=progress)
        ]
    answers = {name: loaded.readers[name].joined(of) for name, of in zip(names, zip(*parts, strict=True), strict=True)}
    put(predictions(found, answers, loaded, format, top), out, f"{' and '.join(names)} of {count(len(found), 'image')}")
    for name in names:
        note(loaded.readers[name].believable())
