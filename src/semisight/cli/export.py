"""`semisight export`: the model itself, for other programs."""

from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from semisight.cli import options
from semisight.cli.console import open_run, say


def export(
    run: options.RunArgument,
    out: Annotated[Path, typer.Option(help="The file to write, such as model.onnx.", show_default=False)],
    max_words: Annotated[int, typer.Option(min=1, max=100, help="Longest caption, where captions were learned.")] = 20,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to tell what was written.")] = "text",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write the encoder with all that it has learned to say of images as one ONNX file, checked against torch.

    Example:

        semisight export runs/photos --out photos.onnx
    """
    import dataclasses
    import json

    from semisight.inference.export import export_onnx

    loaded = open_run(run, checkpoint, out=out, overwrite=overwrite)
    done = export_onnx(loaded.model, cast(Any, list(loaded.readers.values())), out, loaded.step, max_words)
    if format == "json":
        say(json.dumps({**dataclasses.asdict(done), "file": str(done.file)}))
        return
    say(f"{', '.join(done.outputs)} in {out} ({done.n_bytes / 1e6:.1f} MB).")
    say(
        f"Checked against torch: at most {done.difference:.1g} apart. One image takes {done.onnx_ms:.2g} ms here, "
        f"{done.torch_ms:.2g} ms in torch."
    )
