"""`semisight reproduce`: the paper's tables and figures."""

from pathlib import Path
from typing import Annotated

import typer

from semisight.cli.console import prepare_process, say, stopping


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            help="image-model, table1, table2, table3, table3-photos, table4, suggest or photos; figure1 or figure3 "
            "(drawn from table4), figure2 (captions of pictures, with --run); status (what is measured); "
            "all (with --smoke).",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None, typer.Option(help="Where the images are, such as the folder of MNIST's files.", show_default=False)
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Rows of the table, separated by commas.", show_default="all")
    ] = None,
    n: Annotated[
        str | None,
        typer.Option(
            "--n",
            help="Labels per class, separated by commas; table4: percent of the images that have a label.",
            show_default="10; table4: 1,5,10,20,30,40,60,80,100",
        ),
    ] = None,
    splits: Annotated[str, typer.Option(help="Numbers of splits (seeds), separated by commas.")] = "0",
    minutes: Annotated[float, typer.Option(min=0.01, help="At most so long for each training.")] = 40.0,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps of each training that --minutes would end otherwise: the same on any machine."),
    ] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A tiny size, only to see that it runs.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="The results file; rows are added to it.", show_default="results/TABLE.csv")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
    size: Annotated[int | None, typer.Option(min=8, help="Of table4's images, in pixels.", show_default="64")] = None,
    run: Annotated[
        Path | None, typer.Option(help="Of figure2: a run that learned captions.", show_default=False)
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Measure nothing; say of two rows of the file whether they differ by more than chance.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure a table of the paper again, row by row, into a CSV file; what the file already holds is left out.

    Can be stopped at any time: rows that are done are kept, and the same command goes on with the others.

    Example:

        semisight reproduce table2 --data mnist/ --rows consistency,local --n 10,60 --splits 0,1

        semisight reproduce table1 --compare mnist/vae,mnist/vae-d

        semisight reproduce figure2 --run runs/captions --data photos/

        semisight reproduce status
    """
    from semisight.experiments import status
    from semisight.experiments.reproduce import (
        ALL,
        DEFAULT_N,
        FIGURES,
        STATUS,
        compared,
        draw,
        everything,
        numbers,
        summary_text,
    )
    from semisight.experiments.reproduce import reproduce as measure
    from semisight.experiments.results import read, summaries
    from semisight.experiments.table import Request

    prepare_process()
    if table == STATUS:
        say(status.text(out or Path("results")))
        return
    wanted = tuple(row.strip() for row in rows.split(",")) if rows else ()
    per_class = numbers(n, "--n") if n is not None else (10,) if smoke else DEFAULT_N.get(table, (10,))
    request = Request(
        data, out, wanted, per_class, numbers(splits, "--splits"), minutes, steps, smoke, threads, size=size, run=run
    )
    if compare is not None:
        say(compared(table, request, compare))
        return
    with stopping("Rows that are done are kept; the same command goes on."):
        if table in FIGURES:
            say(f"drawn: {draw(table, request)}")
            return
        if table == ALL:
            made, pictures = everything(request)
            say(f"{len(made)} rows and {len(pictures)} figures in {pictures[0].parent}")
            return
        added = measure(table, request)
    for row in added:
        of = f"N={row.N} " if row.N else ""
        paper = f" (paper: {row.paper})" if row.paper else ""
        say(f"{row.table} {row.row} {of}{row.metric} seed {row.seed}: {row.value:.4g}{paper}")
    file = request.file(table.replace("-", "_"))
    said = f"{len(added)} row{'s' * (len(added) != 1)} added to" if added else "Nothing to do: all of it is in"
    say(f"{said} {file}")
    if file.exists():
        say("\n" + summary_text(summaries(read(file))))
