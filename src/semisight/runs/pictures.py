"""Tensors to pictures: single files, grids, and pictures inside a page."""

import base64
import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.inference.encode import check_answer

Pixels = npt.NDArray[np.uint8]

FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_GAP = 2
_BACKGROUND = 255
_TILE_SIDE = 64  # small pictures are enlarged to about this, by a whole factor, so that pixels stay squares


def to_pixels(images: Tensor) -> Pixels:
    """[N, C, H, W] in [0, 1] (clipped) to uint8 [N, H, W, C]."""
    check_answer(images)
    scaled = images.detach().float().clamp(0, 1).mul(255).round().to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).cpu().numpy()


def picture(pixels: Pixels) -> Image.Image:
    """uint8 [H, W, C]: one channel is grey, three are colour."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def enlarged(image: Image.Image, side: int = _TILE_SIDE) -> Image.Image:
    """By the largest whole factor that keeps the shorter side within `side`; larger pictures stay as they are."""
    factor = max(1, side // min(image.size))
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def grid(images: Tensor, columns: int, side: int = _TILE_SIDE) -> Image.Image:
    """Images [N, C, H, W] row by row, with gaps between them."""
    tiles = [enlarged(picture(pixels), side) for pixels in to_pixels(images)]
    columns = min(columns, len(tiles))
    rows = -(-len(tiles) // columns)
    width, height = tiles[0].width + _GAP, tiles[0].height + _GAP
    sheet = Image.new("RGB", (columns * width + _GAP, rows * height + _GAP), (_BACKGROUND,) * 3)
    for number, tile in enumerate(tiles):
        row, column = divmod(number, columns)
        sheet.paste(tile, (_GAP + column * width, _GAP + row * height))
    return sheet


def pairs_in_columns(above: Tensor, below: Tensor, columns: int) -> Tensor:
    """Rows of `above`, each over its row of `below`, as one batch for `grid`; the last row is filled with white."""
    n = len(above)
    missing = -n % columns
    white = above.new_ones(missing, *above.shape[1:])
    rows = [torch.cat([part, white]).split(columns) for part in (above, below)]
    return torch.cat([row for pair in zip(*rows, strict=True) for row in pair])


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **({"optimize": True} if kind == "PNG" else {"quality": 92}))
    return stream.getvalue()


def data_uri(image: Image.Image, kind: str = "PNG") -> str:
    """The picture itself as an address, so that a page needs no second file."""
    return f"data:image/{kind.lower()};base64," + base64.b64encode(encoded(image, kind)).decode("ascii")


def save_picture(image: Image.Image, path: Path) -> None:
    """In the format that the name's ending says, whole or not at all."""
    write_atomic(path, encoded(image, FORMATS[path.suffix.lower()]))


def is_picture_name(path: Path) -> bool:
    """Whether --out names one picture (a grid) rather than a folder; an ending that is neither is refused."""
    if path.suffix.lower() in FORMATS:
        return True
    if path.suffix and not path.is_dir():
        endings = ", ".join(FORMATS)
        raise UserError(
            f"--out {path}: give a picture's name ({endings}) for a grid, or a folder's name without an ending."
        )
    return False


def refuse_existing(paths: list[Path], overwrite: bool) -> None:
    """Nobody's file is replaced unasked."""
    existing = [path for path in paths if path.exists()]
    if existing and not overwrite:
        more = f" (and {len(existing) - 1} more)" if len(existing) > 1 else ""
        raise UserError(f"{existing[0]}{more} already exists: give --overwrite to replace it, or another --out.")
