"""The pages in a browser: drop an image and read the answer; label by keyboard, also across a killed server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from semisight.data.label_csv import Entry
from semisight.data.label_table import Table
from tests.server.conftest import chromium, png
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


def test_label_ten_by_keyboard_across_a_killed_server(page: Page, server: Served) -> None:
    page.goto(f"{server.address}/label")
    page.wait_for_selector("#choices button")
    given: dict[str, str] = {}

    def press(key: str, label: str) -> None:
        name = page.locator("#file").inner_text()
        given[name] = label
        page.keyboard.press(key)
        expect(page.locator("#file")).not_to_have_text(name)
        page.wait_for_selector("#choices button")  # none while the page looks for more images

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
    saved(page)
    # skipped, and one that is taken back
    page.keyboard.press("s")
    name = page.locator("#file").inner_text()
    page.keyboard.press("8")
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
