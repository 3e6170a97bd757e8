"""`semisight predict` and `semisight evaluate`: the labels that a run gives, and how good they are."""

from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.commands_captions import evaluate_captions_of
from semisight.cli.console import note, prepare_process, reading, say, to_file_or_screen
from semisight.errors import UserError


def predict(
    run: options.RunArgument,
    images: options.ImagesArgument,
    format: Annotated[Literal["table", "csv", "json"], typer.Option(help="How to write the labels.")] = "table",
    out: options.TextFile = None,
    top: Annotated[int, typer.Option(min=1, help="So many of the most probable labels.")] = 3,
    limit: options.SomeImages = None,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Label images: the label of each, its probability, and how much it varies over codes of the image (spread).

    Example:

        semisight predict runs/photos new-photos/ --format csv --out labels.csv
    """
    from semisight.data.image_set import skipped_summary
    from semisight.runs.outputs import load_for
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.predicting import guess, written
    from semisight.runs.run import load_run

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    classifier = loaded.labels()
    with reading() as progress:
        found = load_for(loaded, images, limit, progress)
    guesses = guess(classifier, found, top)
    to_file_or_screen(written(guesses, found.skipped, classifier, format), out)
    if found.skipped:
        note(skipped_summary(found.skipped))
    note(classifier.believable())
    if out is not None:
        say(f"{len(guesses):,} label{'s' * (len(guesses) != 1)} in {out}.")


def evaluate(
    run: options.RunArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="Labelled images, anything that train takes; by default those that the run did not learn from.",
            show_default=False,
        ),
    ] = None,
    labels: options.LabelFile = None,
    class_per_folder: options.ClassPerFolder = None,
    captions: options.CaptionFile = None,
    split: options.Split = None,
    meteor: Annotated[
        bool, typer.Option(help="METEOR, too, if Java and semisight[metrics] are there.", rich_help_panel="Captions")
    ] = True,
    part: Annotated[
        Literal["train", "test"] | None,
        typer.Option(help="Which part of MNIST or CIFAR.", show_default="train"),
    ] = None,
    format: Annotated[Literal["text", "csv", "json"], typer.Option(help="How to write the numbers.")] = "text",
    out: options.TextFile = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="K of the top-K error.", show_default="5, or 2 with few classes")
    ] = None,
    limit: options.SomeImages = None,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Compare a run's labels with the true ones: error, top-K error, confusion, calibration, Brier score.

    Or its captions with people's ([bold]--captions[/], or a run without labels): BLEU, METEOR, ROUGE-L, CIDEr,
    perplexity, and how many are distinct or known by heart.

    Example:

        semisight evaluate runs/mnist mnist/ --part test

        semisight evaluate runs/captions photos/ --captions dataset_flickr8k.json --split test

        semisight evaluate runs/photos more-photos/ --labels labels.csv --format json --out numbers.json
    """
    from semisight.data.image_set import skipped_summary
    from semisight.runs.evaluating import evaluate as measure
    from semisight.runs.evaluating import written
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run
    from semisight.runs.truth import labelled_images

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    if captions is not None or split is not None or (loaded.classifier is None and loaded.captioner is not None):
        loaded.captions()
        unused = [("--labels", labels), ("--class-per-folder", class_per_folder), ("--part", part), ("--top", top)]
        for word, value in unused:
            if value is not None:
                raise UserError(f"{word} is about labels, and captions are evaluated here: leave it out.")
        evaluate_captions_of(
            loaded, data, captions=captions, split=split, limit=limit, meteor=meteor, format=format, out=out
        )
        return
    loaded.labels()
    with reading() as progress:
        found = labelled_images(
            loaded, data, labels=labels, class_per_folder=bool(class_per_folder), part=part, limit=limit,
            progress=progress,
        )  # fmt: skip
    for line in found.notes:
        note(f"note: {line}")
    if found.skipped:
        note(skipped_summary(found.skipped))
    to_file_or_screen(written(measure(loaded.labels(), found, top), format), out)
    if out is not None:
        say(f"Numbers in {out}.")
