"""`semisight evaluate`: a run's labels, tags or captions against those that people gave."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from semisight.cli import options
from semisight.cli.console import note, open_run, put, reading, tell_notes
from semisight.errors import UserError

if TYPE_CHECKING:
    from semisight.runs.run import Run


def evaluate(
    run: options.RunArgument,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="Images with labels, tags or captions, anything that train takes; by default those that the run did "
            "not learn from.",
            show_default=False,
        ),
    ] = None,
    labels: str | None = None,
    class_per_folder: bool | None = None,
    tags: str | None = None,
    captions: str | None = None,
    split: str | None = None,
    meteor: Annotated[bool, typer.Option(help="METEOR, too, if Java and semisight[metrics] are there.")] = True,
    part: Annotated[
        Literal["train", "test"] | None, typer.Option(help="Which part of MNIST or CIFAR.", show_default="train")
    ] = None,
    format: Annotated[Literal["text", "csv", "json"], typer.Option(help="How to write the numbers.")] = "text",
    out: options.TextFile = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="K of the top-K error.", show_default="5, or 2 with few classes")
    ] = None,
    limit: int | None = None,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Compare a run's labels with the true ones: error, top-K error, confusion, calibration, Brier score.

    Or its tags ([bold]--tags[/]): mean average precision and F1. Or its captions ([bold]--captions[/]): BLEU, METEOR,
    ROUGE-L, CIDEr, perplexity, and how many are distinct or known by heart. Without any of these options, the first
    of labels, tags and captions that the run has learned and that there is something to compare with.

    Example:

        semisight evaluate runs/mnist mnist/ --part test

        semisight evaluate runs/tags more-photos/ --tags tags.csv

        semisight evaluate runs/captions photos/ --captions dataset_flickr8k.json --split test

        semisight evaluate runs/photos more-photos/ --labels labels.csv --format json --out numbers.json
    """
    from semisight.cli.render import evaluation, notes_of
    from semisight.runs.evaluate import evaluate_captions, evaluate_labels, evaluate_tags
    from semisight.runs.images import BUILTIN
    from semisight.runs.run_images import captioned_images, labelled_images, tagged_images

    given: dict[str, dict[str, Any]] = {
        "labels": {"--labels": labels, "--class-per-folder": class_per_folder, "--top": top},
        "tags": {"--tags": tags},
        "captions": {"--captions": captions, "--split": split},
    }
    if part is not None and any(value is not None for value in given["captions"].values()):
        raise UserError("--part is about labels and tags, and captions are evaluated here: leave it out.")
    if data is None:  # those that the run has
        tags, captions = (None if word == BUILTIN else word for word in (tags, captions))
    folders, loaded = bool(class_per_folder), open_run(run, checkpoint, device, out, overwrite)
    read: dict[str, Any] = {
        "labels": lambda bar: labelled_images(
            loaded, data, labels=labels, class_per_folder=folders, part=part, limit=limit, progress=bar
        ),
        "tags": lambda bar: tagged_images(
            loaded, data, loaded.tags.names, tags=tags, part=part, limit=limit, progress=bar
        ),
        "captions": lambda bar: captioned_images(
            loaded, data, captions=captions, split=split, limit=limit, progress=bar
        ),
    }
    measure: dict[str, Any] = {
        "labels": lambda images, bar: evaluate_labels(loaded, images, top, bar),
        "tags": lambda images, bar: evaluate_tags(loaded, images, bar),
        "captions": lambda images, bar: evaluate_captions(loaded, images, with_meteor=meteor, progress=bar),
    }
    failures: list[UserError] = []
    for name in _asked(loaded, given):
        try:
            loaded.reader(name)
            with reading() as progress:
                found = read[name](progress)
            with reading("measuring") as progress:
                numbers = measure[name](found, progress)
        except UserError as error:  # the next may be measured
            failures.append(error)
        else:
            tell_notes(found)
            for line in notes_of(numbers):
                note(f"note: {line}")
            put(evaluation(numbers, format), out, f"Numbers of {name}")
            return
    raise failures[0]


def _asked(run: "Run", given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the options are about, or else all that the run has learned, in order."""
    used = {name: [word for word, value in words.items() if value is not None] for name, words in given.items()}
    asked = [name for name, words in used.items() if words]
    if len(asked) > 1:
        first, second = (asked[-1], asked[0])
        raise UserError(f"{used[second][0]} is about {second}, and {used[first][0]} about {first}: give one of them.")
    return asked or [name for name in given if run.has(name)] or ["labels"]
