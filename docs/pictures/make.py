"""Makes the README's pictures from a finished `semisight demo`: `python docs/pictures/make.py [DEMO] [OUT]`.

digits.png    digits that were not learned from, what the model draws from their codes, and the labels it gives them
scenes.png    scenes that were not learned from, with the captions that it writes
try.png       the page of `semisight serve` with an answer, if there is a chromium
label.png     the page to label images, likewise

`make pictures` runs the demo first.
"""

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from semisight.app.captioning import Search
from semisight.app.captioning_sets import sets_of
from semisight.app.pictures import enlarged, picture, to_pixels
from semisight.app.runs import Run, load_run
from semisight.data.image_set import ImageSet, random_order

HERE = Path(__file__).parent
MOST_BYTES = 150_000
_WHITE, _GREY, _GREEN, _RED = (255, 255, 255), (110, 110, 110), (20, 120, 50), (185, 40, 40)
_TILE, _GAP = 72, 8
_STREAM = 16  # of the seed


def main(demo: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    save(digits(load_run(demo)), out / "digits.png")
    save(scenes(load_run(demo / "scenes")), out / "scenes.png")
    browser = os.environ.get("SEMISIGHT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("no chromium: the pictures of the pages stay as they are", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch, served(demo, Path(scratch)) as address:
        pages(address, browser, load_run(demo), out)


def set_aside(run: Run) -> ImageSet:
    """Images that were not learned from, with the labels or captions that were hidden from the run."""
    sets = sets_of(run.data().settings, run.config.seed)
    found = sets.measured if run.classifier is not None else sets.valid
    assert found is not None
    return found


def some(images: ImageSet, n: int, seed: int = 0) -> ImageSet:
    """By chance, not by hand."""
    return images.subset(random_order(len(images), seed, _STREAM)[:n])


@torch.no_grad()
def digits(run: Run, n: int = 10) -> Image.Image:
    """A column each: the image, the drawing, the label with its probability, green if it is right."""
    images = some(set_aside(run), n)
    pixels = images.batch(torch.arange(len(images)))
    drawn = run.model.reconstruct(pixels, torch.Generator().manual_seed(0))
    classifier = run.labels()
    said = classifier(images)
    assert images.labels is not None
    left = 70
    sheet = Image.new("RGB", (left + n * (_TILE + _GAP), 2 * (_TILE + _GAP) + 30), _WHITE)
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(("image", "drawn", "label")):
        pen.text((0, row * (_TILE + _GAP) + (_TILE // 2 - 8 if row < 2 else 2)), name, _GREY, font(14))
    for column in range(len(images)):
        x = left + column * (_TILE + _GAP)
        for row, of in enumerate((pixels, drawn)):
            sheet.paste(enlarged(picture(to_pixels(of[column : column + 1])[0]), _TILE), (x, row * (_TILE + _GAP)))
        label = int(said.label[column])
        colour = _GREEN if label == int(images.labels[column]) else _RED
        text = f"{classifier.class_names[label]}  {float(said.probability[column]):.0%}"
        pen.text((x + 6, 2 * (_TILE + _GAP) + 2), text, colour, font(15))
    return sheet


@torch.no_grad()
def scenes(run: Run, n: int = 5) -> Image.Image:
    """Each with the most probable caption."""
    images, side = some(set_aside(run), n), 160
    captions = [found[0].text for found in run.captions()(images, search=Search())]
    sheet = Image.new("RGB", (n * (side + _GAP), side + 80), _WHITE)
    pen = ImageDraw.Draw(sheet)
    pixels = to_pixels(images.batch(torch.arange(len(images))))
    for column, (one, caption) in enumerate(zip(pixels, captions, strict=True)):
        x = column * (side + _GAP)
        sheet.paste(enlarged(picture(one), side), (x, 0))
        pen.multiline_text((x, side + 6), "\n".join(textwrap.wrap(caption, 22)), (30, 30, 30), font(14), spacing=3)
    return sheet


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def save(image: Image.Image, path: Path) -> None:
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    if stream.tell() > MOST_BYTES:
        stream = io.BytesIO()
        image.convert("RGB").quantize(128).save(stream, "PNG", optimize=True)
    if stream.tell() > MOST_BYTES:
        raise SystemExit(f"{path.name} has {stream.tell():,} bytes: too many for a repository.")
    path.write_bytes(stream.getvalue())
    print(f"{path}: {image.width} x {image.height}, {stream.tell():,} bytes")


@contextlib.contextmanager
def served(demo: Path, scratch: Path) -> Iterator[str]:
    """A copy of the demo's digits: labels that are given here are nobody's."""
    shutil.copytree(demo, scratch / "semisight-demo", ignore=shutil.ignore_patterns("scenes"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "semisight", "serve", "semisight-demo", "--port", str(port)]
    child = subprocess.Popen(words, cwd=scratch)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api/status", timeout=10) as answer:
                if b'"state":"ready"' in answer.read():
                    break
            time.sleep(0.2)
        yield address
    finally:
        child.terminate()
        child.wait(60)


def pages(address: str, browser: str, run: Run, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    images = some(set_aside(run), 1, seed=3)
    stream = io.BytesIO()
    picture(to_pixels(images.batch(torch.arange(1)))[0]).resize((160, 160), Image.Resampling.BICUBIC).save(
        stream, "PNG"
    )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1000, "height": 700})
        page.goto(address)
        page.set_input_files(
            "input[type=file]", {"name": "digit.png", "mimeType": "image/png", "buffer": stream.getvalue()}
        )
        page.wait_for_selector("article .near img")
        page.wait_for_timeout(500)
        save(Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB"), out / "try.png")
        page.goto(f"{address}/label")
        page.wait_for_selector("#image:not([hidden])")
        page.wait_for_timeout(1000)
        # the folder is a temporary one, whose name is of no interest
        page.evaluate("t => { t.textContent = t.textContent.replace(/in .*semisight-demo/, 'in semisight-demo') }",
                      page.query_selector("#table"))  # fmt: skip
        save(Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB"), out / "label.png")
        chromium.close()


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    main(given[0] if given else Path("semisight-demo"), given[1] if len(given) > 1 else HERE)
