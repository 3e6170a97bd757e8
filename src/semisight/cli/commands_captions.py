"""`semisight caption`, and the part of `semisight evaluate` that is about captions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.console import note, prepare_process, reading, say, to_file_or_screen

if TYPE_CHECKING:
    from semisight.runs.run import Run


def caption(
    run: options.RunArgument,
    images: options.ImagesArgument,
    n_best: Annotated[int, typer.Option(min=1, max=100, help="So many captions of each image, the best first.")] = 1,
    format: Annotated[Literal["table", "csv", "json"], typer.Option(help="How to write the captions.")] = "table",
    out: options.TextFile = None,
    codes: options.NumberOfCodes = 20,
    beam: options.Beam = 5,
    max_words: options.MaxWords = 30,
    limit: options.SomeImages = None,
    seed: options.FixedSeed = 0,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write captions for images: the most probable sentences with their log-probabilities, averaged over codes.

    Example:

        semisight caption runs/captions new-photos/ --n-best 3 --format csv --out captions.csv
    """
    from semisight.cli.caption_written import written
    from semisight.data.image_set import skipped_summary
    from semisight.runs.captioner import Search
    from semisight.runs.outputs import load_for
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    captioner, search = loaded.captions(), Search(codes, max(beam, n_best), max_words, seed)
    with reading() as progress:
        found = load_for(loaded, images, limit, progress)
    with reading("writing captions") as progress:
        captions = captioner(found, n_best, search, progress)
    to_file_or_screen(written(found.names, captions, found.skipped, captioner, search, format), out)
    if found.skipped:
        note(skipped_summary(found.skipped))
    if out is not None:
        many = sum(map(len, captions))
        say(f"{many:,} caption{'s' * (many != 1)} of {len(found):,} image{'s' * (len(found) != 1)} in {out}.")


def evaluate_captions_of(
    loaded: "Run",
    data: str | None,
    *,
    captions: str | None,
    split: str | None,
    limit: int | None,
    meteor: bool,
    format: Literal["text", "csv", "json"],
    out: Path | None,
) -> None:
    """`semisight evaluate` for the captions of a run."""
    from semisight.data.image_set import skipped_summary
    from semisight.runs.caption_scores import evaluate_captions, written
    from semisight.runs.truth import captioned_images

    with reading() as progress:
        found = captioned_images(loaded, data, captions=captions, split=split, limit=limit, progress=progress)
    for line in found.notes:
        note(f"note: {line}")
    if found.skipped:
        note(skipped_summary(found.skipped))
    with reading("writing captions") as progress:
        scored = evaluate_captions(loaded.captions(), found, with_meteor=meteor, progress=progress)
    for line in scored.scores.notes:
        note(f"note: {line}")
    to_file_or_screen(written(scored, format), out)
    if out is not None:
        say(f"Numbers in {out}.")
