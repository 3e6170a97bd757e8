"""How commands speak: lines on stdout, errors in red on stderr, a bar while images are read."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from semisight.untrusted import printable


def say(message: str) -> None:
    """A line for people, on stdout; paths stay in one piece."""
    typer.echo(_shown(message))


def note(message: str) -> None:
    """A line for people beside what a program may read on stdout."""
    typer.echo(_shown(message), err=True)


def _shown(message: str) -> str:
    """Lines that a terminal shows and does not obey: a file's name may hold anything."""
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in message.split("\n"))


def to_file_or_screen(text: str, out: Path | None) -> None:
    """The result itself: to a file, whole or not at all, or to stdout."""
    if out is None:
        typer.echo(_shown(text) if sys.stdout.isatty() else text, nl=False)
    else:
        from semisight.files import write_atomic

        write_atomic(out, text)


def ignore(message: str) -> None:
    pass


def prepare_process() -> None:
    from semisight.training.allocator import keep_memory

    keep_memory()


@contextmanager
def stopping(advice: str) -> Iterator[None]:
    """A training that was stopped by a signal has saved: says how to go on, and exits as a shell expects."""
    from semisight.training.interrupts import Interrupted

    try:
        yield
    except Interrupted as stop:
        typer.echo(f"{stop}\n{advice}", err=True)
        raise typer.Exit(stop.exit_code) from None


@contextmanager
def reading(what: str = "reading images") -> Iterator[Callable[[int, int], None]]:
    """A bar, on a terminal, for images as they are read, or for what else is done with them."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
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
        if task is not None:
            bar.stop()


def complain(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    # Text, not markup: a message may hold square brackets of its own. soft_wrap keeps paths in one piece.
    Console(stderr=True).print(Text.assemble(("error: ", "bold red"), (_shown(message), "red")), soft_wrap=True)
