"""`semisight backbones`: the pretrained networks that can be had by name."""

from typing import Annotated, Literal

import typer

from semisight.cli.console import note, say


def backbones(
    measure: Annotated[bool, typer.Option("--measure", help="Time those that are installed on this machine.")] = False,
    trust: Annotated[
        str | None,
        typer.Option(
            metavar="NETWORK",
            help="Let runs that name this .onnx file, folder or hf:OWNER/NAME use it, as after train --backbone.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[Literal["table", "json"], typer.Option(help="For people, or for programs.")] = "table",
) -> None:
    """List the pretrained networks known by name: licence, size, input, and how fast they are here.

    Nothing is downloaded. An ONNX file, a folder of transformers or, in Python, a torch module will do as well.

    Example:

        semisight backbones --measure

        semisight backbones --trust networks/dino.onnx
    """
    import dataclasses
    import json

    from semisight.backbones import DEFAULT, installed, resolve
    from semisight.backbones.trusted import trust as remember

    if trust is not None:
        network = resolve(trust)
        remember(trust)
        say(f"{network.name} may be used by runs that name it: {network.input_size} pixels, {network.licence}.")
        return
    found = installed(measure)
    if format == "json":
        say(json.dumps([dataclasses.asdict(entry) for entry in found], indent=2))
        return
    say(f"{'name':20} {'licence':12} {'weights':>10} {'input':>11} {'features':>14} {'ms per image':>13}")
    for entry in found:
        size = "missing" if entry.n_bytes is None else f"{entry.n_bytes / 1e6:.0f} MB"
        side = f"{entry.input_size} x {entry.input_size}"
        shape = " x ".join(str(length) for length in entry.feature_shape)
        speed = "-" if entry.ms is None else f"{entry.ms:.1f}"
        say(f"{entry.name:20} {entry.licence:12} {size:>10} {side:>11} {shape:>14} {speed:>13}")
    missing = [entry for entry in found if entry.n_bytes is None]
    for entry in missing:
        note(f"{entry.name} is not installed: {entry.install}")
    if not measure and len(missing) < len(found):
        note("How fast they are here: semisight backbones --measure")
    if not any(entry.name == DEFAULT for entry in missing):
        note(f"{DEFAULT} is what is taken where no other is named.")
