"""Pixels of images that are known by their features: read again where they lie, and drawn from their codes.

RUN/pixels.safetensors holds the decoder that draws them (model/pixel_decoder.py). It is learned after the model, from
at most _MOST images, and from as many as can be read in _SECONDS; a run without it works, and draws nothing.
"""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from semisight.data import load
from semisight.data.arrays import fit
from semisight.data.features import is_feature_file
from semisight.data.formats.folders import printable, walk
from semisight.data.formats.pictures import Unreadable, read_pixels
from semisight.data.image_set import ImageSet
from semisight.data.sources import Kind, kind_of
from semisight.errors import UserError
from semisight.inference.encode import mean_codes
from semisight.model.pixel_decoder import PixelDecoder
from semisight.random import Stream, random_order
from semisight.runs.run import Run
from semisight.training.checkpoint import Checkpoint, load_state, read_checkpoint, write_checkpoint
from semisight.training.folder import RunFolder

PIXELS = "pixels.safetensors"
SIDE = 32  # of drawn pictures; smaller images keep their size
_MOST, _LEAST, _SECONDS = 2000, 10, 15.0
_PART = "pixels"

Pictures = str | Path | Sequence[str | Path] | ImageSet  # where the pixels lie: a source, a list of files, or a set


def pixels_at(
    source: Pictures, images: ImageSet, index: Tensor, side: int, channels: int, seconds: float = math.inf
) -> tuple[Tensor, Tensor] | None:
    """Pixels [n, C, h, w] in [0, 1] of the images at these places, and which of the places they are; None without any.

    Pictures in files are scaled and cropped to side x side and `channels`; others have channels of their own, and
    are made smaller only. What cannot be read is left out, and so is what there is no time for. A set as the source
    holds the same images as `images`, in the same order.
    """
    if (files := _files(source)) is not None:
        stop = time.monotonic() + seconds
        found, places = [], []
        for place, i in enumerate(index.tolist()):
            if time.monotonic() > stop:
                break
            try:
                found.append(torch.from_numpy(read_pixels(files[images.names[i]], side, side, channels).copy()))
                places.append(place)
            except (KeyError, Unreadable, OSError):
                continue
        return (torch.stack(found).float() / 255, torch.tensor(places)) if found else None
    places_found = torch.arange(len(index))
    if isinstance(source, ImageSet):
        images = source
    elif images.are_features:  # the pixels are read again
        assert isinstance(source, str | Path)
        if is_feature_file(str(source)):
            return None
        whole = load(source)
        place_of = {name: i for i, name in enumerate(whole.names)}
        if any(images.names[i] not in place_of for i in index.tolist()):
            return None
        images = whole.subset([place_of[images.names[i]] for i in index.tolist()])
        index = places_found
    small = fit(images.images[index], side if max(images.shape[1:]) > side else None, None)
    return (small.float() / 255 if small.dtype == torch.uint8 else small.float()), places_found


def _files(source: Pictures) -> dict[str, Path] | None:
    """The files of a folder or of a list, by the names that images have; None of other sources."""
    if isinstance(source, ImageSet):
        return None
    if not isinstance(source, str | Path):
        return {printable(str(path)): Path(path).expanduser() for path in source}
    if kind_of(source) is not Kind.PICTURES:
        return None
    folder = Path(source).expanduser()
    return {printable(name): folder / name for name in walk(folder).names} if folder.is_dir() else {folder.name: folder}


def learn_pixels(run: Run, source: Pictures, images: ImageSet) -> PixelDecoder | None:
    """The decoder for a run on features, from some of its images; None where their pixels are not to be had."""
    if isinstance(source, str) and is_feature_file(source):
        return None
    index = random_order(len(images), run.config.seed, Stream.PIXELS)[:_MOST].sort().values
    try:
        found = pixels_at(source, images, index, SIDE, 3, _SECONDS)
    except UserError:  # given in Python, or gone: the run itself is whole
        return None
    if found is None or len(found[1]) < _LEAST:
        return None
    pixels, places = found
    return PixelDecoder.fit(mean_codes(run.model, images.subset(index[places])).cpu(), pixels)


def keep_pixels(folder: RunFolder, decoder: PixelDecoder | None) -> None:
    """Written beside the run, where there is one."""
    if decoder is not None:
        meta = {"shape": list(decoder.shape), "code_size": len(decoder.centre)}
        write_checkpoint(folder.file(PIXELS), Checkpoint({_PART: decoder.state_dict()}, meta))


def pixel_decoder(run: Run) -> PixelDecoder | None:
    """That of a run on features; None of one that learned from pixels, or that has none."""
    path = run.folder.file(PIXELS)
    if run.backbone is None or not path.exists():
        return None
    found = read_checkpoint(path, [_PART])
    try:
        channels, height, width = (int(side) for side in found.meta["shape"])
        room = path.stat().st_size
        if min(channels, height, width) < 1 or channels * height * width * run.model.code_size > room:
            raise ValueError("it describes more numbers than it holds")
        decoder = PixelDecoder(run.model.code_size, (channels, height, width))
        load_state(decoder, found.part(_PART), path)
    except (KeyError, TypeError, ValueError, RuntimeError, UserError) as error:
        raise UserError(f"{path} is not of this run ({error}); delete it to go without pictures.") from error
    if not all(bool(torch.isfinite(value).all()) for value in decoder.state_dict().values()):
        raise UserError(f"{path} holds numbers that are not finite; delete it to go without pictures.")
    return decoder.to(run.device).eval()


def needed_decoder(run: Run) -> PixelDecoder | None:
    """None of a run from pixels, which draws by itself; an error of one on features that cannot draw."""
    found = pixel_decoder(run)
    if found is None and run.backbone is not None:
        raise UserError(
            f"{run.folder.path} learned from features, and has no {PIXELS} to draw pictures with: images must be at "
            "hand when it is trained."
        )
    return found


def beside(run: Run, source: str, images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Of images known by their features, those whose pixels can be read: as features, and as pixels of the size that
    the run draws."""
    decoder = needed_decoder(run)
    assert decoder is not None
    channels, height, width = decoder.shape
    found = pixels_at(source, images, torch.arange(len(images)), max(height, width), channels)
    if found is None:
        raise UserError(f"the pictures of {source} could not be read again.")
    pixels, places = found
    if pixels.shape[1:] != decoder.shape:
        pixels = fit(pixels, height if height == width else None, channels)
    if pixels.shape[1:] != decoder.shape:
        raise UserError(f"the run draws pictures of {width} x {height}, those of {source} have another form.")
    kept = images.subset(places)
    return kept, dataclasses.replace(kept, images=pixels, views=())
