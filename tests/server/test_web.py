"""The API: predictions, suggestions, labels in the table, and what is said when something is wrong."""

import asyncio
import base64
import io
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from semisight.data.label_table import Table
from semisight.files import write_json
from semisight.server.answering import Answerer
from semisight.server.batching import Full
from semisight.server.limits import Limits
from semisight.server.predicting import small_png
from semisight.server.web import _Writing
from tests.server.conftest import bomb, client_of, png, wait_until_read

RAW = {"Content-Type": "application/octet-stream"}


def table(client: TestClient) -> dict[str, tuple[str, str]]:
    """As whoever starts the next server finds it."""
    with Table(Path(client.get("/api/status").json()["table"]["path"])) as found:
        return {file: (entry.label, entry.caption) for file, entry in found.entries().items()}


def test_status(client: TestClient) -> None:
    found = client.get("/api/status").json()
    assert found["classes"] == [str(digit) for digit in range(10)]
    assert found["image"] == [1, 8, 8]
    assert not found["captions"] and "not calibrated" in found["advice"]
    assert found["table"]["images"] == 250
    assert found["table"]["counts"] == {str(digit): 3 for digit in range(10)}  # the run's own, to begin with
    assert found["training"]["state"] == "none"


def test_predict_takes_a_form_or_bytes(client: TestClient) -> None:
    form = client.post("/api/predict?top=3", files=[("images", (f"{i}.png", png(i))) for i in range(3)])
    assert form.status_code == 200
    images = form.json()["images"]
    assert [one["name"] for one in images] == ["0.png", "1.png", "2.png"]
    for i, one in enumerate(images):
        raw = client.post("/api/predict?top=3", content=png(i), headers=RAW).json()["images"][0]
        assert [guess["label"] for guess in raw["labels"]] == [guess["label"] for guess in one["labels"]]
        assert len(one["labels"]) == 3 and len(one["nearest"]) == 5
        for picture in (one["seen"], one["reconstruction"]):
            kind, _, content = picture.partition(",")
            assert kind == "data:image/png;base64"
            assert Image.open(io.BytesIO(base64.b64decode(content))).size == (8, 8)


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 1), (4, 7, 3), (300, 200, 3)])
def test_small_pictures_are_png(shape: tuple[int, int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    image = Image.open(io.BytesIO(small_png(pixels)))
    assert image.format == "PNG" and image.mode == ("L" if shape[2] == 1 else "RGB")
    assert np.array_equal(np.asarray(image).reshape(shape), pixels)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_predict_reads_common_formats(client: TestClient, kind: str) -> None:
    answer = client.post("/api/predict", content=png(3, size=40, kind=kind), headers=RAW)
    assert answer.status_code == 200


def test_predict_says_what_is_wrong(client: TestClient) -> None:
    cases = [
        (client.post("/api/predict", content=b"no image", headers=RAW), 422, "not an image"),
        (client.post("/api/predict", content=b"", headers=RAW), 422, "empty"),
        (client.post("/api/predict", content=png()[:60], headers=RAW), 422, "truncated"),
        (client.post("/api/predict", content=png(), headers={"Content-Type": "text/plain"}), 415, "form"),
        (client.post("/api/predict", files={"photos": png()}), 422, "called images"),
        (client.post("/api/predict", data={"images": "text"}, files={"images": png()}), 422, "must be files"),
        (client.post("/api/predict", files=[("images", png())] * 5), 422, "at most 4"),
        (client.post("/api/predict", content=bytes(400_000), headers=RAW), 413, "300,000 bytes"),
        (client.post("/api/predict?top=0", content=png(), headers=RAW), 422, "top"),
        (client.post("/api/predict", content=b"--x", headers={"Content-Type": "multipart/form-data"}), 400, ""),
        (client.post("/api/predict", files=[("images", ("a.png", png())), ("images", ("b.png", b"x"))]), 422, "b.png"),
    ]
    for answer, status, fragment in cases:
        assert answer.status_code == status, (fragment, answer.text)
        assert fragment in answer.json()["detail"]


def test_a_bomb_is_never_unpacked(client: TestClient) -> None:
    content = bomb()
    assert len(content) < 1000
    started = time.perf_counter()
    answer = client.post("/api/predict", content=content, headers=RAW)
    assert (answer.status_code, "too many pixels" in answer.json()["detail"]) == (413, True)
    assert time.perf_counter() - started < 2


def test_suggestions_get_labels(client: TestClient) -> None:
    first, second, third = client.get("/api/suggestions?n=3").json()["images"]
    assert len(first["guesses"]) == 9 and first["label"] == ""
    image = client.get("/api/images", params={"file": first["file"]})
    assert Image.open(io.BytesIO(image.content)).size == (8, 8)
    answer = client.post("/api/labels", json={"file": first["file"], "label": " seven\n", "caption": "a  7\x00"})
    assert answer.json() == {"file": first["file"], "label": "seven", "caption": "a 7", "labelled": 31}
    assert client.post("/api/labels/skip", json={"file": second["file"]}).status_code == 200
    files = [one["file"] for one in client.get("/api/suggestions?n=50").json()["images"]]
    assert first["file"] not in files and second["file"] not in files and third["file"] in files
    assert table(client)[first["file"]] == ("seven", "a 7")
    assert client.get("/api/status").json()["classes"][-1] == "seven"
    # and back
    assert client.post("/api/labels/undo", json={"file": first["file"]}).json()["label"] == ""
    assert first["file"] not in table(client)
    assert client.get("/api/suggestions?n=1").json()["images"][0]["file"] == first["file"]
    assert client.post("/api/labels/undo", json={"file": first["file"]}).status_code == 404


def test_a_label_can_be_changed_and_sent_twice(client: TestClient) -> None:
    file = client.get("/api/suggestions?n=1").json()["images"][0]["file"]
    for label in ("3", "5", "5"):
        assert client.post("/api/labels", json={"file": file, "label": label}).status_code == 200
    client.post("/api/labels", json={"file": file, "caption": "a five"})
    assert table(client)[file] == ("5", "a five")
    assert len(table(client)) == 31
    for _ in range(4):
        client.post("/api/labels/undo", json={"file": file})
    assert file not in table(client)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "nothing.png", "\x00"])
def test_only_images_of_the_run_are_shown_and_labelled(client: TestClient, name: str) -> None:
    assert client.get("/api/images", params={"file": name}).status_code == 404
    assert client.post("/api/labels", json={"file": name, "label": "x"}).status_code == 404


@pytest.mark.parametrize("path", ["/static/../web.py", "/static/%2e%2e/web.py", "/static/", "/static/none.js", "/.env"])
def test_no_file_but_the_pages_is_given_out(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_wrong_labels_are_refused(client: TestClient) -> None:
    file = client.get("/api/suggestions?n=1").json()["images"][0]["file"]
    before = table(client)
    json = {"Content-Type": "application/json"}
    for body in (
        {"label": "x"}, {"file": file, "label": ""}, {"file": file, "label": "  "}, {"file": file, "label": "\x07"},
        {"file": file, "label": "x" * 201}, {"file": file, "label": 7}, {"file": file, "labels": "x"}, [], None,
        {"file": file, "caption": "x" * 1001},
    ):  # fmt: skip
        assert client.post("/api/labels", json=body).status_code == 422, body
    for raw in (b"{", b"\xff\xfe", b'{"file": "a", "label": "\\ud800"}', b"[" * 30_000, b"1" * 10_000):
        assert client.post("/api/labels", content=raw, headers=json).status_code in (400, 422), raw[:20]
    assert table(client) == before


def test_pages_and_assets(client: TestClient) -> None:
    for path in ("/", "/label", "/api"):
        page = client.get(path)
        assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
        for start in ('src="', 'href="'):
            for piece in page.text.split(start)[1:]:
                address = piece.split('"')[0]
                assert address.startswith("/") and not address.startswith("//")
                assert client.get(address).status_code == 200, address
    again = client.get("/static/style.css", headers={"If-None-Match": client.get("/static/style.css").headers["etag"]})
    assert again.status_code == 304
    for asset in ("style.css", "common.js", "predict.js", "label.js", "api.js"):
        assert "http" not in client.get(f"/static/{asset}").text


def test_work_is_refused_politely_when_full(digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits(waiting=2, seconds=20)
    hold = threading.Event()
    answer_of_the_model = Answerer.__call__
    monkeypatch.setattr(Answerer, "__call__", lambda self, asked: hold.wait(10) and answer_of_the_model(self, asked))
    with client_of(digits_run, labels=tmp_path / "labels.csv", limits=limits) as client:
        threads = [
            threading.Thread(target=client.post, args=("/api/predict",), kwargs={"content": png(), "headers": RAW})
            for _ in range(2)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        answer = client.post("/api/predict", content=png(), headers=RAW)
        assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
        assert client.get("/api/status").status_code == 200  # the rest goes on
        hold.set()
        for thread in threads:
            thread.join()


def test_an_answer_that_takes_too_long_is_given_up(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answerer, "__call__", lambda self, asked: time.sleep(1) or [])
    with client_of(digits_run, labels=tmp_path / "labels.csv", limits=Limits(seconds=0.2)) as client:
        answer = client.post("/api/predict", content=png(), headers=RAW)
        assert answer.status_code == 503 and "too long" in answer.json()["detail"]


def test_images_that_have_gone_are_said_and_predictions_go_on(
    own_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = own_digits / "data.json"
    values = json.loads(data.read_text().replace("builtin:digits", str(tmp_path / "gone")))
    write_json(data, {name: value for name, value in values.items() if name != "checksum"})
    with client_of(own_digits, labels=tmp_path / "labels.csv") as client:
        for _ in range(100):
            reading = client.get("/api/status").json()["reading"]
            if reading["state"] == "failed":
                break
            time.sleep(0.05)
        assert "gone" in reading["message"] and "--images" in reading["message"]
        answer = client.post("/api/predict", content=png(), headers=RAW).json()["images"][0]
        assert answer["labels"] and not answer["nearest"]
        assert client.get("/api/suggestions").status_code == 503


def test_another_folder_of_images(digits_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    for i in range(12):
        (folder / "deep" / f"{i}.png").write_bytes(png(i, size=50))
    (tmp_path / "labels.csv").write_text("file,label\n3.png,three\n")  # by its last part
    with client_of(digits_run, labels=tmp_path / "labels.csv", images=str(folder)) as client:
        wait_until_read(client)
        files = [one["file"] for one in client.get("/api/suggestions?n=50").json()["images"]]
        assert len(files) == 11 and "deep/3.png" not in files
        shown = client.get("/api/images", params={"file": files[0]})
        assert shown.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(shown.content)).size == (50, 50)  # the photo, not what the model sees
        client.post("/api/labels", json={"file": "deep/3.png", "label": "tree"})
        client.post("/api/labels", json={"file": "deep/4.png", "label": "four"})
    assert (tmp_path / "labels.csv").read_text() == "file,label\n3.png,tree\ndeep/4.png,four\n"


def test_changes_of_labels_beyond_the_queue_are_refused() -> None:
    """A disk that hangs must not gather requests without end."""

    async def ask() -> None:
        writing, go_on = _Writing(2), threading.Event()
        waiting = [asyncio.create_task(writing(go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)  # both have been put in the queue
        with pytest.raises(Full):
            await writing(go_on.wait)
        go_on.set()
        assert await asyncio.gather(*waiting) == [True, True]
        assert await writing(go_on.wait), "there is room again"
        writing.close()

    asyncio.run(asyncio.wait_for(ask(), 20))
