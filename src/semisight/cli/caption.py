"""`semisight caption`: captions of images."""

from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.bulk import AddressOption, EngineOption, WorkersOption, answer_pile, is_pile
from semisight.cli.console import count, open_run, put, read_images, reading


def caption(
    run: options.RunArgument,
    images: options.ImagesArgument,
    n_best: Annotated[int, typer.Option(min=1, max=100, help="So many captions of each image, the best first.")] = 1,
    format: options.Format = "table",
    out: options.TextFile = None,
    codes: Annotated[
        int, typer.Option(min=1, max=1000, help="Codes of an image that captions are averaged over.")
    ] = 20,
    beam: Annotated[int, typer.Option(min=1, max=100, help="Width of the search for captions.")] = 5,
    max_words: Annotated[int, typer.Option(min=1, max=1000, help="A caption has at most so many words.")] = 30,
    limit: int | None = None,
    seed: int = 0,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
) -> None:
    """Write captions for images: the most probable sentences with their log-probabilities, averaged over codes.

    Example:

        semisight caption runs/captions new-photos/ --n-best 3 --format csv --out captions.csv

        semisight caption runs/captions shards/ --out captions.parquet/ --engine ray
    """
    from semisight.cli.render import captions
    from semisight.inference.captions import Search

    if is_pile(out, engine, address):
        import dataclasses

        from semisight.runs.bulk import Asked

        how = dataclasses.asdict(Search(codes, max(beam, n_best), max_words, n_best, seed))
        asked = Asked("caption", str(run), images, "", checkpoint, device, how)
        return answer_pile(asked, out, engine, workers, address, overwrite)
    loaded = open_run(run, checkpoint, device, out, overwrite)
    reader, search = loaded.captions, Search(codes, max(beam, n_best), max_words, n_best, seed)
    found = read_images(loaded, images, limit)
    with reading("writing captions") as progress:
        written = loaded.caption(found, search, progress)
    many = f"{count(sum(map(len, written)), 'caption')} of {count(len(found), 'image')}"
    put(captions(found, written, reader, search, format), out, many)
