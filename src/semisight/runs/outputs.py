"""`semisight reconstruct` and `semisight generate` without their command lines: a run in, pictures out."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.runs.pictures import (
    grid,
    is_picture_name,
    pairs_in_columns,
    picture,
    refuse_existing,
    save_picture,
    to_pixels,
)
from semisight.runs.pixels import beside, needed_decoder
from semisight.runs.run import Run

_BATCH = 64
GRID_PAIRS = 64  # more than this no screen shows


@dataclass(frozen=True)
class Reconstructed:
    """Where the pictures lie, how many, and how near they came: share of the variance over pixels and images."""

    out: Path
    n: int
    explained: float | None
    rmse: float


@torch.no_grad()
def reconstructions(
    run: Run, images: ImageSet, seed: int = 0, pixels: ImageSet | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and their reconstructions, [B, C, H, W] each, a batch at a time to spare memory; `pixels` are those of
    images that are known by their features."""
    generator, decoder = torch.Generator().manual_seed(seed), needed_decoder(run)
    for index in torch.arange(len(images)).split(_BATCH):
        batch = images.batch(index)
        if decoder is None:
            yield batch, run.model.reconstruct(batch.to(run.device), generator).cpu()
        else:
            assert pixels is not None
            yield pixels.batch(index), decoder(run.model.mean_code(batch.to(run.device), generator)).cpu()


def write_reconstructions(
    run: Run, images: ImageSet, out: Path, *, overwrite: bool, seed: int = 0, source: str = ""
) -> Reconstructed:
    """A grid of pairs if `out` names a picture, else a folder with a PNG for each image, named as the image is.

    `source` is where the pixels lie of images that are known by their features.
    """
    single = is_picture_name(out)
    if single and len(images) > GRID_PAIRS:
        images = images.subset(torch.arange(GRID_PAIRS))
    pixels = images
    if run.backbone is not None:
        images, pixels = beside(run, source, images)
    targets = [out] if single else [out / name for name in png_names(images.names)]
    refuse_existing(targets, overwrite)
    mean, kept = pixels.mean_image(), []
    squares = spread = 0.0
    done = 0
    for originals, results in reconstructions(run, images, seed, pixels):
        squares += float((originals - results).square().sum())
        spread += float((originals - mean).square().sum())
        if single:
            kept.append((originals, results))
            continue
        for drawn in to_pixels(results):
            save_picture(picture(drawn), targets[done])
            done += 1
    if single:
        above, below = (torch.cat(part) for part in zip(*kept, strict=True))
        columns = min(8, len(images))
        save_picture(grid(pairs_in_columns(above, below, columns), columns), out)
    explained = None if len(images) < 2 or spread <= 0 else 1 - squares / spread
    return Reconstructed(out, len(images), explained, (squares / pixels.images.numel()) ** 0.5)


@torch.no_grad()
def write_samples(run: Run, n: int, out: Path, *, overwrite: bool, seed: int = 0) -> None:
    """n pictures drawn from the prior: a grid if `out` names a picture, else a folder of PNGs."""
    single = is_picture_name(out)
    digits = max(4, len(str(n - 1)))
    targets = [out] if single else [out / f"{number:0{digits}d}.png" for number in range(n)]
    refuse_existing(targets, overwrite)
    generator = torch.Generator().manual_seed(seed)
    parts = [len(part) for part in torch.arange(n).split(_BATCH)]
    decoder = needed_decoder(run)
    draw = run.model.generate if decoder is None else decoder.sample
    samples = torch.cat([draw(part, generator).cpu() for part in parts])
    if single:
        save_picture(grid(samples, columns=max(1, round(n**0.5))), out)
    else:
        for target, pixels in zip(targets, to_pixels(samples), strict=True):
            save_picture(picture(pixels), target)


def png_names(names: Sequence[str]) -> list[str]:
    """A file name per image: its own with .png for its ending; where two would meet, they keep their endings too."""
    clean = [PurePosixPath(*(part for part in PurePosixPath(name).parts if part not in ("/", ".."))) for name in names]
    meeting = Counter(name.with_suffix(".png") for name in clean)
    result: dict[str, None] = {}
    for number, name in enumerate(clean):
        alone = meeting[name.with_suffix(".png")] == 1
        target = str(name.with_suffix(".png") if alone else name.with_name(f"{name.name}.png"))
        result[target if target not in result else f"{name}.{number}.png"] = None
    return list(result)
