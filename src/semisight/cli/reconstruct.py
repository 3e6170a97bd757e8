"""`semisight reconstruct` and `semisight generate`: pictures that a run draws, of images and of its own."""

from pathlib import Path
from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.console import count, open_run, read_images, say

FolderOrGrid = Annotated[
    Path,
    typer.Option(
        help="A picture's name (.png, .jpg, .webp) for a grid, or a folder for a PNG each.", show_default=False
    ),
]


def reconstruct(
    run: options.RunArgument,
    images: options.ImagesArgument,
    out: FolderOrGrid,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many images.", show_default="all; 64 for a grid")
    ] = None,
    seed: int = 0,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Bring images down to their codes and draw them again from these.

    A run on the features of a pretrained network draws small, blurred pictures: its codes hold what is there more than
    what it looks like.

    Example:

        semisight reconstruct runs/photos photos/ --out grid.png
    """
    from semisight.runs.outputs import write_reconstructions
    from semisight.runs.pictures import is_picture_name

    loaded = open_run(run, checkpoint, device, out if is_picture_name(out) else None, overwrite)
    found = read_images(loaded, images, limit)
    done = write_reconstructions(loaded, found, out, overwrite=overwrite, seed=seed, source=images)
    share = "" if done.explained is None else f"; {done.explained:.1%} of what sets these images apart is redrawn"
    say(f"{count(done.n, 'reconstruction')} in {done.out}. A typical pixel is off by {done.rmse:.3f}{share}.")


def generate(
    run: options.RunArgument,
    out: FolderOrGrid,
    n: Annotated[int, typer.Option("--number", "-n", min=1, max=100_000, help="How many pictures.")] = 64,
    seed: int = 0,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Draw pictures from what the model believes before it sees an image.

    Example:

        semisight generate runs/photos -n 64 --out samples.png
    """
    from semisight.runs.outputs import write_samples

    write_samples(open_run(run, checkpoint, device), n, out, overwrite=overwrite, seed=seed)
    say(f"{count(n, 'sample')} in {out}.")
