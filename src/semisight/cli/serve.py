"""`semisight serve`: a run in the browser and behind an API."""

from pathlib import Path
from typing import Annotated

import typer

from semisight.cli import options
from semisight.cli.console import prepare_process, say


def serve(
    run: options.RunArgument,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE.csv",
            help="The table that labels are added to (columns file,label,caption); begun if it is not there.",
            show_default="the table that the run learned from, or RUN/labels.csv",
        ),
    ] = None,
    images: Annotated[
        str | None,
        typer.Option(
            help="Images to label: anything that train takes.", show_default="those that the run learned from"
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 lets other machines in, with a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="SEMISIGHT_TOKEN",
            help="What others have to know to be let in.",
            show_default="none on this machine; made up and printed for any other --host",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="People who are let in, each with a token of their own; python -m semisight.server.access adds one.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes that answer, each with a model of its own, at one port.")
    ] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of the model, in each process.")] = 1,
    device: str = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
) -> None:
    """Serve a run: a page to try it on images, a page to label more of them, and a JSON API.

    Example:

        semisight serve runs/photos

        semisight serve runs/photos --labels labels.csv --host 0.0.0.0 --port 8080 --workers 4
    """
    import torch

    from semisight.server.running import serve as run_server
    from semisight.server.service import Options

    prepare_process()
    torch.set_num_threads(threads)
    chosen = Options(images=images, labels=labels, checkpoint=checkpoint, device=device)
    run_server(run, chosen, host=host, port=port, token=token, say=say, tokens=tokens, workers=workers)
