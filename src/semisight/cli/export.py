"""`semisight export`: the model itself, for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.console import open_run, say


def export(
    run: options.RunArgument,
    out: Annotated[Path | None, typer.Option(help="The file to write, such as model.onnx.", show_default=False)] = None,
    triton: Annotated[
        Path | None,
        typer.Option(
            metavar="REPOSITORY",
            help="Write a folder for NVIDIA's Triton server (or KServe) below this one instead: "
            "NAME/config.pbtxt and NAME/1/model.onnx.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="With --triton: what the model is called there.", show_default="the run's folder")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="With --triton: images answered together at most.")] = 32,
    max_words: Annotated[int, typer.Option(min=1, max=100, help="Longest caption, where captions were learned.")] = 20,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to tell what was written.")] = "text",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write the encoder with all that it has learned to say of images as one ONNX file, checked against torch.

    Example:

        semisight export runs/photos --out photos.onnx

        semisight export runs/photos --triton models
    """
    import dataclasses
    import json

    from semisight.errors import UserError
    from semisight.inference.export import Exported, export_onnx
    from semisight.inference.triton import model_name, write_repository
    from semisight.runs.run_images import network_of

    if (out is None) == (triton is None):
        raise UserError("say where to write: --out FILE.onnx, or --triton REPOSITORY for a folder that Triton serves.")
    folder = None if triton is None else triton / model_name(name or run.absolute().name)
    loaded = open_run(run, checkpoint, out=out if folder is None else folder / "config.pbtxt", overwrite=overwrite)

    def write(file: Path) -> Exported:
        readers = list(loaded.readers.values())
        return export_onnx(loaded.model, readers, file, loaded.step, max_words, network_of(loaded))

    if folder is not None:
        done = dataclasses.replace(write_repository(folder, max_batch, write), file=folder / "1" / "model.onnx")
    else:
        assert out is not None
        done = write(out)
    if format == "json":
        say(json.dumps({**dataclasses.asdict(done), "file": str(done.file)}))
        return
    say(f"{', '.join(done.outputs)} in {folder or out} ({done.n_bytes / 1e6:.1f} MB).")
    say(
        f"Checked against torch: at most {done.difference:.1g} apart. One image takes {done.onnx_ms:.2g} ms here, "
        f"{done.torch_ms:.2g} ms in torch."
    )
    if triton is not None:
        say(f"Serve it: tritonserver --model-repository {triton.absolute()}")
