"""Every mode and orientation of an image file becomes upright grey or colour; what cannot be read says why."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisight.data.formats.pictures import FORMATS, Header, Unreadable, read_header, read_pixels
from tests.data.writers import random_image, tiny_png_of, write_image


@pytest.mark.parametrize("suffix", ["png", "jpg", "gif", "bmp", "tiff", "webp", "ppm", "jp2"])
def test_formats_are_told_by_contents_not_by_name(tmp_path: Path, suffix: str) -> None:
    pixels = random_image(1, 24, 32)
    path = write_image(tmp_path / f"a.{suffix}", pixels)
    nameless = path.rename(tmp_path / "nameless")
    assert read_header(nameless) == Header(24, 32, grey=False)
    back = read_pixels(nameless, 24, 32, 3).transpose(1, 2, 0)
    assert np.abs(back.astype(int) - pixels).mean() < 4


@pytest.mark.parametrize(
    ("mode", "value", "grey", "expected"),
    [
        ("1", 1, True, (255, 255, 255)),
        ("L", 100, True, (100, 100, 100)),
        ("P", 7, False, (70, 80, 90)),
        ("RGB", (70, 80, 90), False, (70, 80, 90)),
        ("LA", (100, 255), True, (100, 100, 100)),
        ("LA", (100, 0), True, (255, 255, 255)),
        ("RGBA", (70, 80, 90, 255), False, (70, 80, 90)),
        ("RGBA", (70, 80, 90, 0), False, (255, 255, 255)),
        ("RGBA", (70, 80, 90, 128), False, (162, 167, 172)),
        ("I;16", 100 * 257, True, (100, 100, 100)),
        ("CMYK", (0, 255, 255, 0), False, (255, 0, 0)),
        ("I", 100 * 257, True, (100, 100, 100)),
        ("I", 200, True, (200, 200, 200)),
        ("F", 0.4, True, (102, 102, 102)),
        ("F", 200.0, True, (200, 200, 200)),
    ],
)
def test_every_mode(tmp_path: Path, mode: str, value: object, grey: bool, expected: tuple[int, ...]) -> None:
    image = Image.new(mode, (6, 4), value)
    if mode == "P":
        image.putpalette([v for i in range(256) for v in ((70, 80, 90) if i == 7 else (i, 0, 0))])
    path = tmp_path / ("a.tif" if mode in ("CMYK", "I", "F") else "a.png")
    image.save(path)
    assert read_header(path).grey == grey
    colour, single = read_pixels(path, 4, 6, 3), read_pixels(path, 4, 6, 1)
    assert colour.shape == (3, 4, 6) and single.shape == (1, 4, 6) and colour.dtype == np.uint8
    assert np.abs(colour.reshape(3, -1).T - np.array(expected)).max() <= 1
    luminance = np.dot(expected, (0.299, 0.587, 0.114))
    assert np.abs(single - luminance).max() <= 1.5


def test_a_palette_with_a_transparent_colour_shows_white_there(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50] + [0] * 762)
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "a.png", transparency=0)
    assert read_pixels(tmp_path / "a.png", 1, 2, 3)[:, 0].T.tolist() == [[255, 255, 255], [200, 100, 50]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_undone(tmp_path: Path, orientation: int) -> None:
    upright = np.zeros((32, 48, 3), np.uint8)
    upright[:16, :24] = 255  # the upper left corner is white
    turns = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # what a camera did, as Pillow's transposes, to be undone
    image = Image.fromarray(upright)
    if orientation > 1:
        image = image.transpose(Image.Transpose(turns[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for suffix in ("jpg", "png"):
        path = tmp_path / f"a.{suffix}"
        image.save(path, exif=exif)
        header = read_header(path)
        assert (header.height, header.width) == (32, 48)
        back = read_pixels(path, 32, 48, 1)[0]
        assert back[4:12, 4:20].min() > 240 and back[20:].max() < 16 and back[:, 28:].max() < 16


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_a_garbled_exif_block_does_not_lose_the_picture(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.jpg", random_image(0), exif=b"Exif\0\0II*\0\xff\xff\xff\xff garbage")
    assert read_pixels(path, 20, 20, 3).shape == (3, 20, 20)


def test_scaling_keeps_the_middle_and_large_photographs_keep_their_colours(tmp_path: Path) -> None:
    pixels = np.zeros((900, 1500, 3), np.uint8)
    pixels[:, 300:1200] = (200, 100, 50)
    path = write_image(tmp_path / "a.jpg", pixels, quality=95)
    small = read_pixels(path, 32, 32, 3)
    middle = small[:, :, 2:-2]  # the black sides are cropped but for the filter's last bit of them
    assert np.abs(middle.reshape(3, -1).T.astype(int) - (200, 100, 50)).max() < 12 and small[0].min() > 100
    tall = read_pixels(path, 48, 16, 3)
    assert tall.shape == (3, 48, 16)


@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])  # beyond our limit, Pillow's warning, Pillow's own limit
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_are_never_decoded(tmp_path: Path, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(tiny_png_of(side, side))
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded"))
    for read in (lambda: read_header(path), lambda: read_pixels(path, 8, 8, 1)):
        with pytest.raises(Unreadable, match="too many pixels"):
            read()


def test_the_limit_on_pixels_can_be_set(tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png", random_image(0, 30, 40))
    assert read_header(path, max_pixels=1200).width == 40
    with pytest.raises(Unreadable, match="too many pixels: 40 x 30 is more than 1,199"):
        read_header(path, max_pixels=1199)


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("file,label\n")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere")
    (tmp_path / "document.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    os.mkfifo(tmp_path / "pipe.png")
    Image.fromarray(np.array([[-5.0, 1e6]], np.float32)).save(tmp_path / "floats.tif")
    Image.fromarray(np.array([[np.nan, 1]], np.float32)).save(tmp_path / "nan.tif")
    for name, reason in {
        "empty.png": "empty file",
        "text.png": "not an image",
        "dangling.png": "link to nothing",
        "missing.png": "vanished",
        "document.png": "not an image",
        "pipe.png": "not a regular file",
        "floats.tif": "pixel range unknown: values from -5 to 1e\\+06",
        "nan.tif": "pixel range unknown",
    }.items():
        with pytest.raises(Unreadable, match=f"^{reason}"):
            read_pixels(tmp_path / name, 4, 4, 1)
    assert "EPS" not in FORMATS


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "GIF", "WEBP"])
def test_truncated_images_are_refused(tmp_path: Path, suffix: str) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(buffer, suffix)
    path = tmp_path / "a"
    path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    with pytest.raises(Unreadable, match=r"truncated or corrupt|not an image"):
        read_pixels(path, 40, 40, 3)
