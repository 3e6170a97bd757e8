"""The pages in a browser: drop an image and read the answer; label by keyboard, also across a killed server."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semisight.data.label_csv import Entry
from semisight.data.label_table import Table
from tests.server.conftest import chromium, learn, png
from tests.server.server import Served, served

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import Browser, Page, expect, sync_playwright

pytestmark = pytest.mark.timeout(600)  # a busy machine takes long to start a server three times
expect.set_options(timeout=60_000)

DROP = """([bytes, name]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
  document.querySelector("#drop").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true }));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def server(browser: Browser, digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(digits_run, tmp_path_factory.mktemp("pages") / "labels.csv") as found:
        found.wait_until_read()
        yield found


@pytest.fixture
def page(browser: Browser, server: Served) -> Iterator[Page]:
    """A page that fails the test if a script of it fails or asks another host for anything."""
    context = browser.new_context(viewport={"width": 1100, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if "Content Security" in message.text else None)
    page.on("request", lambda request: None if request.url.startswith((server.address, "data:", "blob:")) else
            wrong.append(request.url))  # fmt: skip
    yield page
    context.close()
    assert wrong == []


def test_drop_an_image_and_read_the_answer(page: Page, server: Served) -> None:
    page.goto(server.address)
    page.evaluate(DROP, [list(png(3)), "three.png"])
    page.evaluate(DROP, [list(b"no image"), "<b>broken</b>.png"])
    card = page.locator("article", has_text="three.png")
    card.locator(".bars dt").first.wait_for()
    assert card.locator(".bars dt").count() == 5
    assert card.locator(".bars .number b").first.inner_text().endswith("%")
    assert card.locator(".bar u").count() == 5  # the ranges
    assert card.locator(".pictures img").count() == 3
    assert card.locator(".near img").count() == 5
    for picture in card.locator("img").all():
        expect(picture).to_have_js_property("complete", True)
        assert picture.evaluate("image => image.naturalWidth") > 0
    broken = page.locator("article", has_text="<b>broken</b>.png")  # as text, not as HTML
    broken.locator(".error").wait_for()
    assert broken.locator(".error").inner_text() == "not an image"


@pytest.mark.parametrize("path", ["/", "/label", "/api"])
def test_pages_fit_a_phone(page: Page, server: Served, path: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(server.address + path)
    if path == "/":
        page.evaluate(DROP, [list(png(3)), "three.png"])
    page.wait_for_selector({"/": ".near img", "/label": "#choices button", "/api": ".call"}[path])
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_api_is_described(page: Page, server: Served) -> None:
    page.goto(f"{server.address}/api")
    page.locator(".call", has_text="/api/predict").wait_for()
    card = page.locator(".call", has_text="/api/training").first
    card.get_by_role("button").click()
    card.locator("pre", has_text='"state": "none"').wait_for()


def saved(page: Page) -> None:
    expect(page.locator("#saved")).to_have_text("saved")


def moved_on(page: Page, name: str) -> str:
    """The image that follows `name`, once the page shows it."""
    expect(page.locator("#file")).not_to_have_text(name)
    page.wait_for_selector("#choices button")  # none while the page looks for more images
    return page.locator("#file").inner_text()


def test_label_ten_by_keyboard_across_a_killed_server(page: Page, server: Served) -> None:
    page.goto(f"{server.address}/label")
    page.wait_for_selector("#choices button")
    given: dict[str, str] = {}

    def press(key: str, label: str) -> None:
        name = page.locator("#file").inner_text()
        given[name] = label
        page.keyboard.press(key)
        moved_on(page, name)

    for digit in "3150":
        press(digit, digit)
    saved(page)
    server.kill()
    for digit in "27":  # nobody listens: these wait in the page
        press(digit, digit)
    expect(page.locator("#saved")).to_have_class("bad")
    server.start()
    server.wait_until_read()
    saved(page)
    assert Table(server.table).entries().items() >= {name: Entry(label) for name, label in given.items()}.items()
    for digit in "946":
        press(digit, digit)
    # the tenth has a label of its own and a caption
    tenth = page.locator("#file").inner_text()
    page.keyboard.press("c")
    page.keyboard.type("a scribble, says 7")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("scribble")
    page.keyboard.press("Enter")
    expect(page.locator("#new")).to_be_visible()  # asked about before it exists
    page.keyboard.press("Enter")
    moved_on(page, tenth)
    saved(page)
    # skipped, and one that is taken back
    skipped = page.locator("#file").inner_text()
    page.keyboard.press("s")
    name = moved_on(page, skipped)
    page.keyboard.press("8")
    moved_on(page, name)
    page.keyboard.press("u")
    expect(page.locator("#file")).to_have_text(name)
    saved(page)
    server.kill()
    server.start()
    server.wait_until_read()
    found = Table(server.table).entries()
    assert found.items() >= {name: Entry(label) for name, label in given.items()}.items()
    assert found[tenth] == Entry("scribble", "a scribble, says 7")
    assert len(given) == 9 and name not in found
    page.reload()
    expect(page.locator("#labelled")).to_have_text("40 labelled")


def test_a_key_pressed_right_after_a_new_class_does_not_hand_it_to_the_next_image(page: Page, server: Served) -> None:
    page.goto(f"{server.address}/label")
    page.wait_for_selector("#choices button")
    name = page.locator("#file").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("squiggle")
    page.keyboard.press("Enter")
    expect(page.locator("#new")).to_be_visible()
    page.evaluate("""() => {
        document.getElementById("make").click();
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "s", bubbles: true }));
    }""")
    moved_on(page, name)
    saved(page)
    found = Table(server.table).entries()
    assert [file for file, entry in found.items() if entry.label == "squiggle"] == [name]


# ---- a hundred classes ----

NAMES = ("pyramid", "pyjamas", *(f"kind {number:03}" for number in range(98)))


@pytest.fixture(scope="module")
def hundred(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """120 small wide pictures, one label of each of a hundred classes."""
    folder = tmp_path_factory.mktemp("hundred")
    (folder / "photos").mkdir()
    random = np.random.default_rng(0)
    for number in range(120):
        pixels = random.integers(0, 255, (12, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(folder / "photos" / f"{number:03}.png")
    rows = [f"{number:03}.png,{NAMES[number % 100]}" for number in range(100)]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows]))
    learn(folder / "run", source=str(folder / "photos"), labels=str(folder / "labels.csv"), size=8, epochs=1,
          batch_size=64, valid_fraction=0.0)  # fmt: skip
    with served(folder / "run", folder / "new.csv") as found:
        found.wait_until_read()
        yield found


def open_hundred(page: Page, server: Served, width: int, height: int) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.goto(f"{server.address}/label")
    page.wait_for_selector("#choices button")


def labelled_as(server: Served, name: str) -> str:
    """The page may still show that the label before was saved: the table has the last word."""
    until = time.monotonic() + 10
    while name not in Table(server.table).entries() and time.monotonic() < until:
        time.sleep(0.05)
    return Table(server.table).entries()[name].label


@pytest.fixture
def wide(browser: Browser, hundred: Served) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


def test_the_best_guesses_have_the_keys_and_are_in_view(wide: Page, hundred: Served) -> None:
    open_hundred(wide, hundred, 1280, 800)
    shown = wide.locator("#choices button")
    expect(shown).to_have_count(9)
    assert [kbd.inner_text() for kbd in shown.locator("kbd").all()] == list("123456789")
    shares = [float(text.rstrip("%")) for text in shown.locator(".share").all_inner_texts()]
    assert len(shares) == 9 and shares == sorted(shares, reverse=True)
    image = wide.locator("#image").bounding_box()
    for button in shown.all():  # beside the image, without scrolling
        box = button.bounding_box()
        assert box is not None and image is not None
        assert box["y"] + box["height"] <= 800 and box["x"] >= image["x"] + image["width"] - 1
    name, third = wide.locator("#file").inner_text(), shown.nth(2).get_attribute("title")
    wide.keyboard.press("3")
    saved(wide)
    assert labelled_as(hundred, name) == third


def test_typing_finds_a_class_and_never_makes_one_unasked(wide: Page, hundred: Served) -> None:
    open_hundred(wide, hundred, 1280, 800)
    name = wide.locator("#file").inner_text()
    wide.keyboard.press("/")
    wide.keyboard.type("pyr")
    expect(wide.locator("#rest button.guess")).to_have_attribute("title", "pyramid")
    assert wide.locator("#rest button").count() == 2  # it, and the way to a new class
    wide.keyboard.press("Enter")
    saved(wide)
    assert labelled_as(hundred, name) == "pyramid"
    # nothing is like this one: it is asked about, and No leaves all as it was
    before = wide.locator("#file").inner_text()
    wide.keyboard.press("/")
    wide.keyboard.type("pyx")
    wide.keyboard.press("Enter")
    expect(wide.locator("#new")).to_be_visible()
    wide.keyboard.press("Escape")
    expect(wide.locator("#new")).to_be_hidden()
    assert wide.locator("#file").inner_text() == before and before not in Table(hundred.table).entries()
    wide.keyboard.press("Enter")
    wide.locator("#make").click()
    saved(wide)
    assert labelled_as(hundred, before) == "pyx"
    wide.keyboard.press("u")
    expect(wide.locator("#file")).to_have_text(before)
    saved(wide)
    assert before not in Table(hundred.table).entries()


def test_on_a_phone_the_image_is_whole_and_stays_in_view(wide: Page, hundred: Served) -> None:
    open_hundred(wide, hundred, 360, 740)
    assert wide.evaluate("document.documentElement.scrollWidth") <= 360
    fit = wide.locator("#image").evaluate("image => getComputedStyle(image).objectFit")
    assert fit == "contain"
    for down in (0, 250):
        wide.evaluate(f"window.scrollTo(0, {down})")
        box = wide.locator("#image").bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 740 and box["height"] > 120
    last = wide.locator("#choices button").nth(8).bounding_box()
    wide.evaluate("window.scrollTo(0, 0)")
    assert last is not None
