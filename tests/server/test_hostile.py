"""Thousands of uploads that are no images, or half of one, or mean harm: each is refused, and the server goes on."""

import io
import random
import struct
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from semisight.server.uploads import Decoder, Refused
from tests.server.conftest import bomb, png

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow says much about damaged files

RAW = {"Content-Type": "application/octet-stream"}
KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "ICO", "JPEG2000")


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Cut off, or some bytes changed, or a piece doubled or left out."""
    content = bytearray(whole)
    kind = chance.randrange(4)
    if kind == 0:
        del content[chance.randrange(len(content)) :]
    elif kind == 1:
        for _ in range(chance.randrange(1, 20)):
            content[chance.randrange(len(content))] = chance.randrange(256)
    else:
        start = chance.randrange(len(content))
        piece = content[start : start + chance.randrange(1, 60)]
        content[start : start + (len(piece) if kind == 2 else 0)] = b"" if kind == 2 else piece * chance.randrange(1, 5)
    return bytes(content)


def test_thousands_of_damaged_files_are_read_or_refused(client: TestClient) -> None:
    """A file with a changed byte may still be an image; whatever it is, the answer is one of the two."""
    chance = random.Random(0)
    decode = Decoder((1, 8, 8), client.app.state.limits)  # type: ignore[attr-defined]
    wholes = [png(3, size=12, kind=kind) for kind in KINDS]
    refused = 0
    for _ in range(3000):
        try:
            assert decode(damaged(chance.choice(wholes), chance), "x").shape == (1, 8, 8)
        except Refused as reason:
            refused += 1
            assert 400 <= reason.status < 500
    assert refused > 1000


def test_hostile_requests_get_a_4xx_and_leave_it_running(client: TestClient) -> None:
    chance = random.Random(1)
    start = [png(1, kind=kind)[: chance.randrange(8, 60)] for kind in ("PNG", "JPEG2000")]  # of others bytes are pixels
    bodies = [chance.randbytes(chance.randrange(2000)) for _ in range(100)]
    bodies += [chance.choice(start) + chance.randbytes(chance.randrange(500)) for _ in range(100)]
    for whole in (png(1), png(1, size=40, kind="JPEG"), png(1, size=40, kind="GIF")):
        bodies += [whole[: len(whole) * n // 12] for n in range(8)]
    bodies += [
        bomb(), bomb(2**31 - 1, 2**31 - 1), bomb(1, 2**31 - 1), bomb(0, 0), b"\xff\xd8" + b"\xff\xda" * 5000,
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n(id) system\n",
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', b"GIF89a" + b"\xff" * 50,
        b"BM" + struct.pack("<IHHIIiiHH", 100, 0, 0, 54, 40, -(2**31), 2**31 - 1, 1, 24) + bytes(40),
        b"II*\x00" + struct.pack("<I", 8) + b"\xff" * 200, b"<!doctype html>", b"MZ" + bytes(300), b"PK\x03\x04" * 50,
    ]  # fmt: skip
    for number, body in enumerate(bodies):
        if number % 2:
            answer = client.post("/api/predict", content=body, headers=RAW)
        else:
            answer = client.post("/api/predict", files={"images": ("../../x\r\n\x00.png", body)})
        assert 400 <= answer.status_code < 500, (answer.status_code, body[:40])
        assert answer.json()["detail"]
    forms = [b"", b"--x--", b"--x\r\n", b"--x\r\nContent-Disposition: form-data; name=images\r\n\r\n", b"\xff" * 500,
             b'--x\r\nContent-Disposition: form-data; name="images"; filename="a"\r\n\r\nhalf']  # fmt: skip
    kinds = [
        "multipart/form-data; boundary=x",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "y" * 500,
    ]
    forms += [chance.randbytes(300) for _ in range(20)]
    for form in forms:
        for kind in kinds:
            answer = client.post("/api/predict", content=form, headers={"Content-Type": kind})
            assert 400 <= answer.status_code < 500, (answer.status_code, form[:40], kind)
    assert client.post("/api/predict", content=png(1), headers=RAW).status_code == 200


def test_a_jpeg_of_many_scans_is_refused_quickly(client: TestClient) -> None:
    """A progressive JPEG of few kilobytes can ask for thousands of passes over its pixels."""
    stream = io.BytesIO()
    Image.effect_noise((64, 64), 80).save(stream, "JPEG", progressive=True)
    whole = stream.getvalue()
    assert client.post("/api/predict", content=whole, headers=RAW).status_code == 200
    last = whole.rindex(b"\xff\xda")
    many = whole[:last] + whole[last:-2] * 200 + whole[-2:]
    answer = client.post("/api/predict", content=many[:290_000], headers=RAW)
    assert answer.status_code == 422 and "scans" in answer.json()["detail"]


def test_only_small_pngs_are_unpacked_at_once(client: TestClient) -> None:
    """What the event loop does itself must be quick; all else is for other threads."""
    decode = Decoder((1, 8, 8), client.app.state.limits)  # type: ignore[attr-defined]
    assert decode.is_quick(png(1)) and decode.is_quick(png(1, size=128))
    slow = [bomb(), bomb(1, 129), png(1)[:20], b"", png(1, kind="JPEG"), png(1, kind="GIF"), png(1) + bytes(10_000)]
    assert not any(map(decode.is_quick, slow))


def test_names_are_text_not_paths(client: TestClient, tmp_path: Path) -> None:
    for name in ("../../../etc/passwd", "<script>alert(1)</script>.png", "a" * 5000, "\u202egnp.exe", "con"):
        answer = client.post("/api/predict", files={"images": (name, png())})
        assert answer.status_code in (200, 400)
        if answer.status_code == 200:
            assert len(answer.json()["images"][0]["name"]) <= 200
            assert answer.headers["content-type"] == "application/json"
