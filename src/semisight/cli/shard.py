"""`semisight shard`: images to shards, which are read from start to end wherever they lie."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisight.cli.console import count, note, reading, say


def shard(
    images: Annotated[str, typer.Argument(metavar="IMAGES", help="Anything that train takes as DATA.")],
    out: Annotated[Path, typer.Option(help="The folder to write the shards to.", show_default=False)],
    format: Annotated[
        Literal["webdataset", "parquet"], typer.Option(help="Tar files as WebDataset reads them, or Parquet.")
    ] = "webdataset",
    per_shard: Annotated[int, typer.Option(min=1, help="Images of a shard.")] = 1000,
    labels: Annotated[
        Path | None, typer.Option(help="A table of labels, as train takes it.", show_default=False)
    ] = None,
    captions: Annotated[
        Path | None, typer.Option(help="A file of captions, as train takes it.", show_default=False)
    ] = None,
    class_per_folder: Annotated[
        bool, typer.Option("--class-per-folder", help="The first folder of an image's path is its label.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the shards that are there.")] = False,
) -> None:
    """Write images, with their labels and captions, to shards: a few large files instead of millions of small ones.

    Images keep their bytes. train, predict, caption and embed read shards from any place, also s3:// and the like.

    Example:

        semisight shard photos/ --labels labels.csv --out shards/
    """
    from semisight.data.shards import write_shards

    known = {} if labels is None else _labels(images, labels)
    said = {} if captions is None else _captions(captions)
    with reading("writing shards") as progress:
        found = write_shards(
            images, out.expanduser(), format=format, per_shard=per_shard, labels=known, captions=said,
            class_per_folder=class_per_folder, overwrite=overwrite, progress=progress,
        )  # fmt: skip
    say(f"{count(found.samples, 'image')} in {count(len(found.files), 'shard')} in {out}.")
    if found.left_out:
        name, reason = found.left_out[0]
        note(f"{count(len(found.left_out), 'file')} left out, for instance {name}: {reason}")


def _labels(images: str, table: Path) -> dict[str, str]:
    from semisight.data.samples import parts_of, read_part
    from semisight.data.tables import read_labels

    names = [name for part in parts_of(images) for name in part.names or [one.name for one in read_part(part)]]
    found = read_labels(table.expanduser(), names)
    for warning in found.warnings:
        note(f"note: {warning}")
    pairs = zip(names, found.labels.tolist(), strict=True)
    return {name: found.class_names[label] for name, label in pairs if label >= 0}


def _captions(file: Path) -> dict[str, list[str]]:
    from semisight.data.caption_files import read_captions

    table = read_captions(file.expanduser())
    return {name: list(texts) for name, texts in zip(table.names, table.captions, strict=True)}
