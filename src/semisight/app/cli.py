"""The command line. Commands import what they need when they run: `semisight --help` must not wait for torch."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from semisight import __version__
from semisight.app import options
from semisight.errors import UserError

app = typer.Typer(
    name="semisight",
    help="Learns from a pile of images of which only a few carry a label or a caption.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a bug should print a plain traceback that people can paste
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"semisight {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Options that come before the name of a command."""


@app.command(rich_help_panel="Start here")
def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the demo's run.", show_default="semisight-demo")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="How long to train.", show_default="about one")
    ] = None,
    seed: options.FixedSeed = 0,
) -> None:
    """Learn from generated pictures in about a minute, and write a report to look at.

    Example:

        semisight demo
    """
    from semisight.app.demo import run_demo
    from semisight.app.report.observe import plain_words

    _prepare_process()
    say("Learning from generated pictures of coloured shapes, without labels or captions; about a minute and a half.")
    with _stopping("Run semisight demo again to start anew."), _reading() as progress:
        shown = run_demo(out, minutes=minutes, seed=seed, say=say, progress=progress)
    say("\nWhat it learned:")
    for line in plain_words(shown.numbers):
        say(f"  - {line}")
    say(f"\nReport: {shown.report}")
    say("Open it in a browser: reconstructions, samples, dictionaries, places and curves.")


@app.command(rich_help_panel="Start here")
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
    """Learn from images and write the run to a folder.

    Stops by itself when validation no longer improves. Ctrl-C saves first; [bold]--resume[/] goes on exactly there.

    Example:

        semisight train photos/ --out runs/photos --size 64

        semisight train --out runs/photos --resume --epochs 200
    """
    given = {
        "source": data, "size": size, "channels": channels, "limit": limit, "valid_fraction": valid_fraction,
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
    from semisight.app.runs import former_settings
    from semisight.app.settings import resolve
    from semisight.app.training import check_folder, is_first_process, train_run
    from semisight.learning.runs import RunFolder

    _prepare_process()
    folder = RunFolder(out)
    check_folder(folder, resume, overwrite)
    settings = resolve(given, config, former_settings(folder) if resume else None)
    quiet = not is_first_process()
    with _stopping(f"To go on: semisight train --out {out} --resume"), _reading() as progress:
        trained = train_run(
            settings,
            out,
            resume=resume,
            overwrite=overwrite,
            say=_ignore if quiet else say,
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
    say(f"Next: semisight generate {out} --out samples.png")


def _report_of_training(out: Path, sets: Any) -> None:
    from semisight.app.report.build import write_report
    from semisight.app.report.observe import plain_words
    from semisight.app.runs import load_run, report_file

    try:
        run = load_run(out)
        numbers = write_report(run, sets, report_file(run.folder))
    except UserError as error:
        raise UserError(f"the run is complete and saved in {out}, but its report was not written: {error}") from error
    for line in plain_words(numbers):
        say(f"  - {line}")
    say(f"Report: {report_file(run.folder)}")


@app.command(rich_help_panel="Use a run")
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
    from semisight.app.outputs import load_for, write_reconstructions
    from semisight.app.pictures import is_picture_name, refuse_existing
    from semisight.app.runs import load_run
    from semisight.data.image_set import skipped_summary

    _prepare_process()
    if is_picture_name(out):
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    with _reading() as progress:
        found = load_for(loaded, images, limit, progress)
    if found.skipped:
        say(skipped_summary(found.skipped))
    done = write_reconstructions(loaded, found, out, overwrite=overwrite, seed=seed)
    share = "" if done.explained is None else f"; {done.explained:.1%} of what sets these images apart is redrawn"
    many = "s" * (done.n != 1)
    say(f"{done.n:,} reconstruction{many} in {done.out}. A typical pixel is off by {done.rmse:.3f}{share}.")


@app.command(rich_help_panel="Use a run")
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
    from semisight.app.outputs import write_samples
    from semisight.app.runs import load_run

    _prepare_process()
    write_samples(load_run(run, checkpoint, device), n, out, overwrite=overwrite, seed=seed)
    say(f"{n:,} sample{'s' * (n != 1)} in {out}.")


@app.command(rich_help_panel="Use a run")
def report(
    run: options.RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the page.", show_default="RUN/report.html, replaced")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Where the images are now, if they have moved.", show_default="where they were")
    ] = None,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write one page that shows what a run learned: reconstructions, samples, dictionaries, places, curves.

    Example:

        semisight report runs/photos --out photos.html
    """
    from semisight.app.pictures import refuse_existing
    from semisight.app.report.build import write_report
    from semisight.app.report.observe import plain_words
    from semisight.app.runs import load_run, report_file
    from semisight.app.training import reload_sets

    _prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    with _reading() as progress:
        sets = reload_sets(loaded, data, progress)
    target = out or report_file(loaded.folder)
    for line in plain_words(write_report(loaded, sets, target)):
        say(f"  - {line}")
    say(f"Report: {target}")


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits: 0 if all went well, 2 for a mistake the user can mend, 130 or 143 after a signal."""
    try:
        app(args=arguments, prog_name="semisight")
    except UserError as error:
        _complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        _complain("stopped by Ctrl-C.")
        sys.exit(130)


def say(message: str) -> None:
    """A line for people, on stdout; paths stay in one piece."""
    typer.echo(message)


def _ignore(message: str) -> None:
    pass


def _prepare_process() -> None:
    from semisight.learning.allocator import keep_memory

    keep_memory()


@contextmanager
def _stopping(advice: str) -> Iterator[None]:
    """A training that was stopped by a signal has saved: says how to go on, and exits as a shell expects."""
    from semisight.learning.interrupts import Interrupted

    try:
        yield
    except Interrupted as stop:
        typer.echo(f"{stop}\n{advice}", err=True)
        raise typer.Exit(stop.exit_code) from None


@contextmanager
def _reading() -> Iterator[Callable[[int, int], None]]:
    """A bar, on a terminal, for the images of a folder as they are read."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading images"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True)
    task = None

    def progress(done: int, total: int) -> None:
        nonlocal task
        if not console.is_terminal:
            return
        if task is None:
            bar.start()
            task = bar.add_task("", total=total)
        bar.update(task, completed=done)
        if done >= total:
            bar.stop()  # the trainer draws its own bar after this one

    try:
        yield progress
    finally:
        bar.stop()


def _complain(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Text, not markup: a message may hold square brackets of its own. soft_wrap keeps paths in one piece.
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), (message, "red")), soft_wrap=True)
