"""The command line. Commands import what they need when they run: `semisight --help` must not wait for torch."""

import sys
from typing import Annotated

import typer

from semisight import __version__
from semisight.cli.backbones import backbones
from semisight.cli.cache import cache
from semisight.cli.caption import caption
from semisight.cli.console import complain
from semisight.cli.demo import demo
from semisight.cli.embed import embed
from semisight.cli.evaluate import evaluate
from semisight.cli.export import export
from semisight.cli.inspect import inspect
from semisight.cli.options import register
from semisight.cli.predict import predict
from semisight.cli.reconstruct import generate, reconstruct
from semisight.cli.report import report
from semisight.cli.reproduce import reproduce
from semisight.cli.search import search
from semisight.cli.serve import serve
from semisight.cli.shard import shard
from semisight.cli.suggest import suggest
from semisight.cli.train import train
from semisight.errors import UserError

COMMANDS = {
    "Start here": (demo, inspect, train),
    "Use a run": (predict, caption, search, evaluate, suggest, embed, reconstruct, generate, report, export, serve),
    "Photographs": (backbones, cache),
    "Piles of images": (shard,),
    "Science": (reproduce,),
}

app = typer.Typer(
    name="semisight",
    help="Learns from a pile of images of which only a few carry a label or a caption.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a bug should print a plain traceback that people can paste
    context_settings={"help_option_names": ["-h", "--help"]},
)

for panel, commands in COMMANDS.items():
    for command in commands:
        register(app, command, panel)


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


def main(arguments: list[str] | None = None) -> None:
    """Runs a command and exits: 0 if all went well, 2 for a mistake the user can mend, 130 or 143 after a signal."""
    try:
        app(args=arguments, prog_name="semisight")
    except UserError as error:
        complain(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        complain("stopped by Ctrl-C.")
        sys.exit(130)
