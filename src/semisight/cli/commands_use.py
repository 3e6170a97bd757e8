"""`semisight reconstruct`, `generate` and `report`: what a run makes of images."""

from pathlib import Path
from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.console import prepare_process, reading, say


def reconstruct(
    run: options.RunArgument,
    images: options.ImagesArgument,
    out: options.FolderOrGrid,
    limit: Annotated[
        int | None, typer.Option(min=1, help="At most so many images.", show_default="all; 64 for a grid")
    ] = None,
    seed: options.FixedSeed = 0,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Bring images down to their codes and draw them again from these.

    Example:

        semisight reconstruct runs/photos photos/ --out grid.png
    """
    from semisight.data.image_set import skipped_summary
    from semisight.runs.outputs import load_for, write_reconstructions
    from semisight.runs.pictures import is_picture_name, refuse_existing
    from semisight.runs.run import load_run

    prepare_process()
    if is_picture_name(out):
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    with reading() as progress:
        found = load_for(loaded, images, limit, progress)
    if found.skipped:
        say(skipped_summary(found.skipped))
    done = write_reconstructions(loaded, found, out, overwrite=overwrite, seed=seed)
    share = "" if done.explained is None else f"; {done.explained:.1%} of what sets these images apart is redrawn"
    many = "s" * (done.n != 1)
    say(f"{done.n:,} reconstruction{many} in {done.out}. A typical pixel is off by {done.rmse:.3f}{share}.")


def generate(
    run: options.RunArgument,
    out: options.FolderOrGrid,
    n: Annotated[int, typer.Option("--number", "-n", min=1, max=100_000, help="How many pictures.")] = 64,
    seed: options.FixedSeed = 0,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Draw pictures from what the model believes before it sees an image.

    Example:

        semisight generate runs/photos -n 64 --out samples.png
    """
    from semisight.runs.outputs import write_samples
    from semisight.runs.run import load_run

    prepare_process()
    write_samples(load_run(run, checkpoint, device), n, out, overwrite=overwrite, seed=seed)
    say(f"{n:,} sample{'s' * (n != 1)} in {out}.")


def report(
    run: options.RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page.", show_default="RUN/report.html, replaced")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the images are now, if they have moved.", show_default="where they were")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Where the labels are now, if they have moved.", show_default="where they were"),
    ] = None,
    captions: Annotated[
        str | None,
        typer.Option(help="Where the captions are now, if they have moved.", show_default="where they were"),
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Hold the encoder against long sampling too; takes minutes.")
    ] = False,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write one page that shows what a run learned: captions, labels, reconstructions, samples and more.

    Example:

        semisight report runs/photos --out photos.html
    """
    from semisight.report.build import SECTIONS, write_report
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run, report_file
    from semisight.runs.train import reload_sets

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    with reading() as progress:
        sets = reload_sets(loaded, data, labels, progress, captions)
    target = out or report_file(loaded.folder)
    shows, words = SECTIONS, []
    if truth:
        from semisight.report.truth import see_truth, shows_with_truth, truth_words

        with reading("sampling") as progress:
            seen = see_truth(loaded, sets, progress=progress)
        shows, words = shows_with_truth(seen), truth_words(seen)
    for line in [*write_report(loaded, sets, target, shows).words(), *words]:
        say(f"  - {line}")
    say(f"Report: {target}")
