"""`semisight demo` and `semisight train`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from semisight.cli import options
from semisight.cli.console import ignore, prepare_process, reading, say, stopping
from semisight.errors import UserError


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the demo's run.", show_default="semisight-demo")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="How long each training may take.", show_default="about one")
    ] = None,
    seed: options.FixedSeed = 0,
) -> None:
    """Learn to read digits from two labels of each and to caption scenes most of which have no caption.

    It writes a page to look at, takes less than three minutes and needs no data.

    Example:

        semisight demo
    """
    from semisight.cli.demo import run_demo

    prepare_process()
    say("Learning from handwritten digits, of which two of each kind have a label, and then captions of scenes;")
    say("all in all less than three minutes.")
    with stopping("Run semisight demo again to start anew."), reading() as progress:
        shown = run_demo(out, minutes=minutes, seed=seed, say=say, progress=progress)
    say("\nWhat it learned:")
    for line in shown.words():
        say(f"  - {line}")
    say(f"\nReport: {shown.report}")
    say("Open it in a browser: labels, confusion, images with their captions, reconstructions, dictionaries and more.")


def train(
    data: options.DataArgument = None,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.ReplaceRun = False,
    report: options.WriteReport = True,
    config: options.Config = None,
    size: options.Size = None,
    channels: options.Channels = None,
    limit: options.Limit = None,
    valid_fraction: options.ValidFraction = None,
    labels: options.LabelFile = None,
    class_per_folder: options.ClassPerFolder = None,
    no_labels: options.NoLabels = False,
    labels_per_class: options.LabelsPerClass = None,
    only_labelled: options.OnlyLabelled = None,
    head: options.Head = None,
    xi: options.Xi = None,
    pull: options.Pull = None,
    moves: options.LabelMoves = None,
    paper: options.Paper = None,
    captions: options.CaptionFile = None,
    split: options.Split = None,
    captioned_images: options.CaptionedImages = None,
    only_captioned: options.OnlyCaptioned = None,
    two_step: options.TwoStep = None,
    cell: options.Cell = None,
    hidden_size: options.HiddenSize = None,
    min_count: options.MinCount = None,
    caption_xi: options.CaptionXi = None,
    preset: options.Preset = None,
    pooling: options.Pooling = None,
    nonlinearity: options.Nonlinearity = None,
    gradient: options.Gradient = None,
    epochs: options.Epochs = None,
    minutes: options.Minutes = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    schedule: options.Schedule = None,
    average: options.Average = None,
    seed: options.Seed = None,
    device: options.Device = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
) -> None:
    """Learn from images, and from the labels and captions that some or all have, and write the run to a folder.

    Labels that the set carries (MNIST, CIFAR, .npz, built-in sets) are used unless [bold]--no-labels[/] is given.
    Labels and captions can be learned together. Ctrl-C saves first; [bold]--resume[/] goes on exactly there.

    Example:

        semisight train photos/ --labels labels.csv --out runs/photos --size 64

        semisight train photos/ --captions captions.csv --out runs/captions --size 64

        semisight train photos/ --out runs/photos --size 64

        semisight train --out runs/photos --resume --minutes 60
    """
    given = {
        "source": data, "size": size, "channels": channels, "limit": limit, "valid_fraction": valid_fraction,
        "labels": labels, "class_per_folder": class_per_folder, "use_labels": False if no_labels else None,
        "labels_per_class": labels_per_class, "only_labelled": only_labelled,
        "head": head, "xi": xi, "pull": pull, "moves": moves, "paper": paper,
        "captions": captions, "split": split, "captioned_images": captioned_images, "only_captioned": only_captioned,
        "images_from": two_step, "cell": cell, "hidden_size": hidden_size, "embedding_size": hidden_size,
        "min_count": min_count, "caption_xi": caption_xi,
        "preset": preset, "pooling": pooling, "nonlinearity": nonlinearity, "gradient": gradient,
        "epochs": epochs, "minutes": minutes, "batch_size": batch_size, "learning_rate": learning_rate,
        "schedule": schedule, "average": average, "seed": seed,
        "device": device, "precision": precision, "threads": threads,
    }  # fmt: skip
    if out is None:
        raise UserError("say where the run should be written: semisight train DATA --out RUN.")
    _train(given, out.expanduser(), config, resume=resume, overwrite=overwrite, report=report)


def _train(
    given: dict[str, Any], out: Path, config: Path | None, *, resume: bool, overwrite: bool, report: bool
) -> None:
    from semisight.runs.run import former_settings
    from semisight.runs.settings import resolve
    from semisight.runs.train import check_folder, is_first_process, train_run
    from semisight.training.folder import RunFolder

    prepare_process()
    folder = RunFolder(out)
    check_folder(folder, resume, overwrite)
    settings = resolve(given, config, former_settings(folder) if resume else None)
    quiet = not is_first_process()
    with stopping(f"To go on: semisight train --out {out} --resume"), reading() as progress:
        trained = train_run(
            settings,
            out,
            resume=resume,
            overwrite=overwrite,
            say=ignore if quiet else say,
            progress=None if quiet else progress,
        )
    if quiet:
        return
    fitted = trained.fitted
    say(f"\nStopped because {fitted.reason}: step {fitted.step:,}, epoch {fitted.epoch:.1f}. Run: {out}")
    if fitted.bad_steps:
        say(f"{fitted.bad_steps} steps were left out because they were not finite.")
    if report:
        _report_of_training(out, trained.sets)
    sets = trained.sets
    following = "caption" if sets.has("captions") else "predict" if sets.has("labels") else None
    say(f"Next: semisight {following} {out} IMAGES" if following else
        f"Next: semisight generate {out} --out samples.png")  # fmt: skip


def _report_of_training(out: Path, sets: Any) -> None:
    from semisight.report.build import write_report
    from semisight.runs.run import load_run, report_file

    try:
        run = load_run(out)
        found = write_report(run, sets, report_file(run.folder))
    except UserError as error:
        raise UserError(f"the run is complete and saved in {out}, but its report was not written: {error}") from error
    for line in found.words():
        say(f"  - {line}")
    say(f"Report: {report_file(run.folder)}")
