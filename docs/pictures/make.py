"""Makes the README's pictures from a finished `semisight demo`: `python docs/pictures/make.py [DEMO] [OUT]`.

digits.png    digits that were not learned from, what the model draws from their codes, and the labels it gives them
scenes.png    scenes that were not learned from, with the captions that it writes
table1.png    error and time of the samplers and encoders, from results/table1.csv
try.png       the page of `semisight serve` with an answer, if there is a chromium
label.png     the page to label images, likewise

`make pictures` runs the demo first.
"""

import contextlib
import hashlib
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

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from semisight.data.image_set import ImageSet
from semisight.experiments import results
from semisight.random import Stream, random_order
from semisight.runs.images import sets_of
from semisight.runs.pictures import enlarged, picture, to_pixels
from semisight.runs.run import Run, load_run

HERE = Path(__file__).parent
MOST_BYTES = 150_000
DRAWN_FROM = "drawn from"  # a note in a picture of results
_WHITE, _GREY, _GREEN, _RED = (255, 255, 255), (110, 110, 110), (20, 120, 50), (185, 40, 40)
_TILE, _GAP = 72, 8


def main(demo: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    save(digits(load_run(demo)), out / "digits.png")
    save(scenes(load_run(demo / "scenes")), out / "scenes.png")
    save(table1(results.read(HERE.parents[1] / "results" / "table1.csv")), out / "table1.png")
    browser = os.environ.get("SEMISIGHT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("no chromium: the pictures of the pages stay as they are", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as scratch, served(demo, Path(scratch)) as address:
        pages(address, browser, load_run(demo), out)


def set_aside(run: Run) -> ImageSet:
    """Images that were not learned from, with the labels or captions that were hidden from the run."""
    sets = sets_of(run.data().settings, run.config.seed)
    found = sets.measured("labels") if run.has("labels") else sets.valid
    assert found is not None
    return found


def some(images: ImageSet, n: int, seed: int = 0) -> ImageSet:
    """By chance, not by hand."""
    return images.subset(random_order(len(images), seed, Stream.PICTURES)[:n])


@torch.no_grad()
def digits(run: Run, n: int = 10) -> Image.Image:
    """A column each: the image, the drawing, the label with its probability, green if it is right."""
    images = some(set_aside(run), n)
    pixels = images.batch(torch.arange(len(images)))
    drawn = run.model.reconstruct(pixels, torch.Generator().manual_seed(0))
    classifier = run.labels
    said = run.predict(images)
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
    captions = [found[0].text for found in run.caption(images)]
    sheet = Image.new("RGB", (n * (side + _GAP), side + 80), _WHITE)
    pen = ImageDraw.Draw(sheet)
    pixels = to_pixels(images.batch(torch.arange(len(images))))
    for column, (one, caption) in enumerate(zip(pixels, captions, strict=True)):
        x = column * (side + _GAP)
        sheet.paste(enlarged(picture(one), side), (x, 0))
        pen.multiline_text((x, side + 6), "\n".join(textwrap.wrap(caption, 22)), (30, 30, 30), font(14), spacing=3)
    return sheet


def table1(rows: list[results.Row]) -> Image.Image:
    """Left: what an error costs in time, ours and the paper's. Right: VAE beside VAE-d, a line for each seed."""
    from matplotlib.figure import Figure

    def values(row: str, metric: str) -> dict[int, float]:
        return {r.seed: r.value for r in rows if (r.row, r.metric) == (f"mnist/{row}", metric)}

    paper = {(r.row, r.metric): float(r.paper) for r in rows if r.paper}
    figure = Figure(figsize=(9, 3), dpi=110, layout="constrained")
    plane, *sides = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    samplers = (("Gibbs sampling", "gibbs", "C3"), ("Monte Carlo EM", "mcem", "C1"))
    for name, row, colour in (*samplers, ("VAE-d", "vae-d", "C7"), ("VAE", "vae", "C0")):
        ms, error = values(row, "ms")[0], np.mean(list(values(row, "error").values()))
        plane.plot(ms, error, "o", color=colour, label=name)
        plane.plot(paper[f"mnist/{row}", "ms"], paper[f"mnist/{row}", "error"], "x", color=colour)
    plane.plot([], [], "x", color="0.4", label="the paper's, on its GPU")
    plane.set(
        xscale="log", ylim=(0, None), xlabel="ms per test image", ylabel="test error, %", title="all labels of MNIST"
    )
    plane.legend(fontsize=8)
    for side, metric, title in zip(sides, ("error", "nats"), ("error, %", "nats per label"), strict=True):
        without, with_places = values("vae-d", metric), values("vae", metric)
        shared = sorted(without.keys() & with_places.keys())
        pairs = np.array([[without[seed], with_places[seed]] for seed in shared]).reshape(-1, 2)
        side.plot([0, 1], pairs.T, "o-", color="C0", alpha=0.4, markersize=4)
        side.plot([0, 1], pairs.mean(0), "_-", color="black", markersize=18, markeredgewidth=2)
        side.set(xticks=[0, 1], xticklabels=["VAE-d", "VAE"], xlim=(-0.3, 1.3), title=f"{title}; {len(shared)} seeds")
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    sheet = Image.open(stream).convert("RGB")
    sheet.info = {DRAWN_FROM: fingerprint(rows)}
    return sheet


def fingerprint(rows: list[results.Row]) -> str:
    """Of the numbers that `table1` draws: written into the picture, it tells whether this is still up to date."""
    drawn = [f"{r.key}: {r.value}" for r in rows if r.row.removeprefix("mnist/") in ("gibbs", "mcem", "vae-d", "vae")]
    return hashlib.sha256("\n".join(sorted(drawn)).encode()).hexdigest()[:16]


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def save(image: Image.Image, path: Path) -> None:
    stream, notes = io.BytesIO(), PngInfo()
    if DRAWN_FROM in image.info:
        notes.add_text(DRAWN_FROM, image.info[DRAWN_FROM])
    image.save(stream, "PNG", optimize=True, pnginfo=notes)
    if stream.tell() > MOST_BYTES:
        stream = io.BytesIO()
        image.convert("RGB").quantize(128).save(stream, "PNG", optimize=True, pnginfo=notes)
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
