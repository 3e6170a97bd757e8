"""How commands speak: lines on stdout, errors in red on stderr, a bar (or a line now and then) while images are read;
and how those that use a run begin: a run that is opened, images as its model takes them."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from semisight.data.image_set import ImageSet
    from semisight.runs.run import Run, Which

LINE_SECONDS = 15.0  # between two lines where there is no terminal


def say(message: str) -> None:
    """Lines for people, on stdout; paths stay in one piece, and names that strangers gave are not obeyed."""
    typer.echo(_shown(message))


def note(message: str) -> None:
    """Lines for people beside what a program may read on stdout."""
    typer.echo(_shown(message), err=True)


def _shown(message: str) -> str:
    from semisight.untrusted import printable

    """Lines that a terminal shows and does not obey: a file's name may hold anything."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in message.split("\n"))


def put(text: str, out: Path | None, what: str) -> None:
    """The result itself: to stdout, or to a file, whole or not at all, with a line that says so."""
    if out is None:
        typer.echo(_shown(text) if sys.stdout.isatty() else text, nl=False)
        return
    from semisight.files import write_atomic

    write_atomic(out, text)
    say(f"{what} in {out}.")


def count(n: int, what: str) -> str:
    """1 image, 2 images."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def prepare_process() -> None:
    from semisight.training.allocator import keep_memory

    keep_memory()


def open_run(
    run: Path, checkpoint: "Which" = "auto", device: str = "cpu", out: Path | None = None, overwrite: bool = False
) -> "Run":
    """The run, once it is clear that nobody's file is in the way of the result."""
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run

    prepare_process()
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    if loaded.unfinished:
        note(f"note: {loaded.unfinished}")
    return loaded


def read_images(run: "Run", source: str, limit: int | None = None) -> "ImageSet":
    """Images as the run's model takes them; what was left out is told."""
    from semisight.runs.run_images import load_for

    with reading() as progress:
        found = load_for(run, source, limit, progress)
    tell_notes(found, notes=False)
    return found


def tell_notes(images: "ImageSet", notes: bool = True) -> None:
    from semisight.data.image_set import skipped_summary

    for line in images.notes if notes else ():
        note(f"note: {line}")
    if images.skipped:
        note(skipped_summary(images.skipped))


@contextmanager
def stopping(advice: str) -> Iterator[None]:
    """A training that was stopped by a signal has saved: says how to go on, and exits as a shell expects."""
    from semisight.training.interrupts import Interrupted

    try:
        yield
    except Interrupted as stop:
        note(f"{stop}\n{advice}")
        raise typer.Exit(stop.exit_code) from None


@contextmanager
def reading(what: str = "reading images") -> Iterator[Callable[[int, int], None]]:
    """A bar for images as they are read, or for what else is done; without a terminal, a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=True)
    task, told = None, time.monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal task, told
        if not console.is_terminal:
            if time.monotonic() - told >= LINE_SECONDS:
                told = time.monotonic()
                note(f"{what}: {done:,} of {total:,}")
            return
        if task is None:
            bar.start()
            task = bar.add_task("", total=total)
        bar.update(task, completed=done)

    try:
        yield progress
    finally:
        if task is not None:
            bar.stop()


def complain(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Text, not markup: a message may hold square brackets of its own. soft_wrap keeps paths in one piece.
    text = Text.assemble(("error: ", "bold red"), (_shown(message), "red"))
    Console(stderr=True).print(text, soft_wrap=True)
