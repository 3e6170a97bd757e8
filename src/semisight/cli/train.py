"""`semisight train`. Its options are the settings, as they are declared (options.py); here stand only its own."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semisight.cli.console import note, prepare_process, reading, say, stopping
from semisight.errors import UserError

if TYPE_CHECKING:
    from semisight.runs.train import Trained

_RUN = "Run folder"


def train(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A folder of images, an image, .npz, .npy, MNIST or CIFAR files, builtin:digits or builtin:scenes. "
            "With --resume it may be left out.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write the run to. Required.", rich_help_panel=_RUN, show_default=False),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on where the run in --out stopped, with its settings.",
            rich_help_panel=_RUN,
            show_default=False,
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the run in --out.", rich_help_panel=_RUN, show_default=False),
    ] = False,
    report: Annotated[bool, typer.Option(help="Write RUN/report.html at the end.", rich_help_panel=_RUN)] = True,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings from a YAML or JSON file, by the names of these options, which win over it. The config.json "
            "of a run works too.",
            rich_help_panel=_RUN,
            show_default=False,
        ),
    ] = None,
    paper: Annotated[
        bool | None,
        typer.Option(
            "--paper",
            help="The settings of the paper: the SVM, its xi, no consistency, no nonlinearity, a constant rate of "
            "0.0002, batches of 64, no averaged weights.",
            rich_help_panel="Learning",
            show_default=False,
        ),
    ] = None,
    **settings: Any,
) -> None:
    """Learn from images, and from the labels, tags and captions that some or all have, and write the run to a folder.

    Labels that the set carries (MNIST, CIFAR, .npz, built-in sets) are used unless [bold]--no-labels[/] is given.
    All that images carry can be learned together. Ctrl-C saves first; [bold]--resume[/] goes on exactly there.

    Example:

        semisight train photos/ --labels labels.csv --out runs/photos --size 64

        semisight train photos/ --tags tags.csv --out runs/tags --size 64

        semisight train photos/ --captions captions.csv --out runs/captions --size 64

        semisight train photos/ --out runs/photos --size 64

        semisight train --out runs/photos --resume --minutes 60
    """
    from semisight.runs.run import former_settings
    from semisight.runs.settings import resolve
    from semisight.runs.train import is_restarted, train_run
    from semisight.training.devices import is_first_process
    from semisight.training.folder import RunFolder, check_folder

    if out is None:
        raise UserError("say where the run should be written: semisight train DATA --out RUN.")
    out = out.expanduser()
    prepare_process()
    restarted, former = is_restarted(out), None
    resume, overwrite = resume or restarted, overwrite and not restarted  # it has overwritten when it first started
    if resume:
        check_folder(RunFolder(out), resume=resume, overwrite=overwrite)
        former = former_settings(RunFolder(out), {**settings, "source": data})
    # one option for both sizes of the caption network
    given = {**settings, "embedding_size": settings["hidden_size"], "source": data, "paper": paper}
    resolved, quiet = resolve(given, config, former), not is_first_process()
    with stopping(f"To go on: semisight train --out {out} --resume"), reading() as progress:
        trained = train_run(
            resolved,
            out,
            resume=resume,
            overwrite=overwrite,
            say=(lambda line: None) if quiet else say,
            progress=None if quiet else progress,
        )
    if not quiet:
        _tell(trained, out, report)


def _tell(trained: "Trained", out: Path, report: bool) -> None:
    """How it ended, and what can be done with the run."""
    fitted, sets = trained.fitted, trained.sets
    say(f"\nStopped because {fitted.reason}: step {fitted.step:,}, epoch {fitted.epoch:.1f}. Run: {out}")
    if fitted.bad_steps:
        note(f"{fitted.bad_steps} steps were left out because they were not finite.")
    if report:
        from semisight.report.build import write_report
        from semisight.runs.run import REPORT, load_run

        try:
            found = write_report(load_run(out), sets, out / REPORT)
        except UserError as error:
            raise UserError(
                f"the run is complete and saved in {out}, but its report was not written: {error}"
            ) from error
        for line in found.words():
            say(f"  - {line}")
        say(f"Report: {out / REPORT}")
    following = [f"semisight {command} {out} IMAGES" for name, command in _NEXT.items() if sets.has(name)]
    say(f"Next: {(following or [f'semisight generate {out} --out samples.png'])[-1]}")


_NEXT = {"labels": "predict", "tags": "predict", "captions": "caption"}
