"""`semisight embed` and `semisight export`: codes and the model itself, for other programs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from semisight.cli import options
from semisight.cli.console import note, prepare_process, reading, say, to_file_or_screen


def export(
    run: options.RunArgument,
    out: Annotated[Path, typer.Option(help="The file to write, such as model.onnx.", show_default=False)],
    max_words: Annotated[int, typer.Option(min=1, max=100, help="Longest caption, where captions were learned.")] = 20,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to tell what was written.")] = "text",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write the encoder with its label and caption heads as one ONNX file, checked against torch.

    Example:

        semisight export runs/photos --out photos.onnx
    """
    import dataclasses
    import json

    from semisight.runs.exporting import export_onnx
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run

    prepare_process()
    refuse_existing([out], overwrite)
    done = export_onnx(load_run(run, checkpoint), out, max_words)
    if format == "json":
        say(json.dumps({**dataclasses.asdict(done), "file": str(done.file)}))
        return
    say(f"{', '.join(done.outputs)} in {out} ({done.n_bytes / 1e6:.1f} MB).")
    say(
        f"Checked against torch: at most {done.difference:.1g} apart. One image takes {done.onnx_ms:.2g} ms here, "
        f"{done.torch_ms:.2g} ms in torch."
    )


def embed(
    run: options.RunArgument,
    images: options.ImagesArgument,
    out: Annotated[
        Path | None, typer.Option(help="A file: .npz, or text for csv.", show_default="the screen, for csv")
    ] = None,
    format: Annotated[
        Literal["npz", "csv"] | None, typer.Option(help="How to write the codes.", show_default="by the name of --out")
    ] = None,
    limit: options.SomeImages = None,
    device: options.FixedDevice = "auto",
    checkpoint: options.WhichCheckpoint = "auto",
    overwrite: options.Overwrite = False,
) -> None:
    """Write the code of each image, the mean and the spread of each of its numbers, for use elsewhere.

    Example:

        semisight embed runs/photos photos/ --out codes.npz
    """
    from semisight.data.image_set import skipped_summary
    from semisight.errors import UserError
    from semisight.runs.embedding import as_csv, embed_images, write_npz
    from semisight.runs.outputs import load_for
    from semisight.runs.pictures import refuse_existing
    from semisight.runs.run import load_run

    prepare_process()
    kind = format or ("npz" if out is not None and out.suffix == ".npz" else "csv")
    if kind == "npz" and out is None:
        raise UserError("say where the codes should be written: --out codes.npz, or --format csv for the screen.")
    if out is not None:
        refuse_existing([out], overwrite)
    loaded = load_run(run, checkpoint, device)
    with reading() as progress:
        found = load_for(loaded, images, limit, progress)
    codes = embed_images(loaded.model, found)
    if kind == "npz" and out is not None:
        write_npz(codes, out)
    else:
        to_file_or_screen(as_csv(codes), out)
    if found.skipped:
        note(skipped_summary(found.skipped))
    if out is not None:
        say(f"Codes of {len(found):,} images, {codes.mean.shape[1]} numbers each, in {out}.")
