"""Two thousand generated uploads that mean no good, over HTTP, on connections that stay open: each gets a 4xx."""

import contextlib
import functools
import json
import random
import socket
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server import conftest
from tests.server.conftest import bomb
from tests.server.server import Served

COUNT = 2000
CONNECTIONS = 4
LIMIT = 20_000_000  # bytes that a request may have
KINDS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")
RAW = "Content-Type: application/octet-stream"
FORM = "Content-Type: multipart/form-data; boundary=edge"
Chance = random.Random
Request = tuple[str, bytes]  # what it is, and all of its bytes


png = functools.cache(conftest.png)


def request(body: bytes, *headers: str, path: str = "/api/predict", method: str = "POST", length: int = -1) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    lines.append(f"Content-Length: {len(body) if length < 0 else length}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def part(content: bytes, name: str = "images", file: str | None = "a.png") -> bytes:
    of_file = "" if file is None else f'; filename="{file}"'
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'
    return head.encode("latin-1") + content + b"\r\n"


def either_way(body: bytes, chance: Chance) -> bytes:
    """As the bytes of an image, or as a file in a form."""
    if chance.random() < 0.5:
        return request(body, chance.choice((RAW, "Content-Type: image/png", "Content-Type: image/jpeg")))
    return request(part(body, file=chance.choice(("../../x", "a\x00.png", "con", "x" * 300))) + b"--edge--\r\n", FORM)


def garbage(chance: Chance) -> bytes:
    return either_way(chance.randbytes(chance.randrange(3000)), chance)


def garbage_after_a_good_start(chance: Chance) -> bytes:
    """Of a good header at most: what follows it is pixels, of which any bytes make some."""
    start = png(chance.randrange(10), kind=chance.choice(("PNG", "JPEG2000")))[: chance.randrange(8, 33)]
    return either_way(start + chance.randbytes(chance.randrange(1000)), chance)


def truncated(chance: Chance) -> bytes:
    whole = png(chance.randrange(10), size=chance.choice((8, 40, 200)), kind=chance.choice(KINDS))
    return either_way(whole[: int(chance.uniform(0, 0.6) * len(whole))], chance)


def unpacked_huge(chance: Chance) -> bytes:
    """A few bytes that say they are more than 25 million pixels, or that hold megabytes of text."""
    side = chance.choice((5001, 20_000, 50_000, 2**31 - 1))
    gif = (
        b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0x80, 0, 0) + bytes(6) + b"," + bytes(4) + b"\xff" * 5 + b"\x02"
    )
    bmp = b"BM" + struct.pack("<IHHIIiiHH", 100, 0, 0, 54, 40, -(2**31), 2**31 - 1, 1, 24) + bytes(40)
    return either_way(chance.choice((bomb(side, side), bomb(1, 2**31 - 1), gif, bmp, long_text())), chance)


@functools.cache
def long_text() -> bytes:
    text = b"zTXtkey\x00\x00" + zlib.compress(bytes(30_000_000), 1)
    return png()[:33] + struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))


def too_large(chance: Chance) -> bytes:
    """The header alone is enough to refuse it."""
    return request(b"", chance.choice((RAW, FORM)), length=LIMIT + 1 + chance.randrange(10**12))


def wrong_kind(chance: Chance) -> bytes:
    kind = chance.choice(("text/plain", "application/json", "text/html", "video/mp4", "", "x" * 200))
    return request(png(), f"Content-Type: {kind}")


def wrong_fields(chance: Chance) -> bytes:
    parts = chance.choice(
        (
            [part(png(), name=chance.choice(("image", "file", "images[]", "", "__proto__", "x" * 500)))],
            [part(png()), part(b"1", name="admin", file=None)],
            [part(b"text", file=None)],
            [part(png())] * 17,  # too many
            [part(png()), part(b"no image")],
            [part(b"")],
            [],
        )
    )
    return request(b"".join(parts) + b"--edge--\r\n", FORM)


def broken_form(chance: Chance) -> bytes:
    whole = part(png()) + b"--edge--\r\n"
    body = chance.choice(
        (whole[: chance.randrange(60)], chance.randbytes(300), whole.replace(b"edge", b"egde"), b"--edge")
    )
    kinds = (FORM, "Content-Type: multipart/form-data", "Content-Type: multipart/form-data; boundary=" + "y" * 500)
    return request(body, chance.choice(kinds))


def wrong_questions(chance: Chance) -> bytes:
    asked = ("top=0", "top=x", "top=99999", "nearest=21", "captions=6", "captions=-1", "reconstruct=perhaps", "top=1e9")
    return request(png(), RAW, path="/api/predict?" + chance.choice(asked))


def wrong_address(chance: Chance) -> bytes:
    if chance.random() < 0.5:
        return request(png(), RAW, method=chance.choice(("PUT", "DELETE", "PATCH", "GET")))
    path = chance.choice(("/api/predict/", "/api/../etc/passwd", "/static/%2e%2e/web.py", "/api/predict%00", "//"))
    return request(png(), RAW, path=path)


def from_elsewhere(chance: Chance) -> bytes:
    name = chance.choice(("Origin: http://evil.example", "Sec-Fetch-Site: cross-site", "Origin: null"))
    return request(png(), RAW, name)


def no_http(chance: Chance) -> bytes:
    return chance.choice(
        (
            b"\x16\x03\x01" + chance.randbytes(200),  # TLS
            b"POST /api/predict HTTP/9.9\r\n\r\n",
            b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
            b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            b"POST /api/predict HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n",
            b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        )
    )


MAKERS: tuple[tuple[Callable[[Chance], bytes], int], ...] = (
    (garbage, 4), (garbage_after_a_good_start, 4), (truncated, 5), (unpacked_huge, 1), (too_large, 1), (wrong_kind, 1),
    (wrong_fields, 2), (broken_form, 2), (wrong_questions, 1), (wrong_address, 1), (from_elsewhere, 1), (no_http, 1),
)  # fmt: skip


def hostile(count: int) -> Iterator[Request]:
    chance = Chance(0)
    makers = chance.choices([maker for maker, _ in MAKERS], [weight for _, weight in MAKERS], k=count)
    return ((maker.__name__, maker(chance)) for maker in makers)


class Connection:
    """Stays open from one request to the next, as long as the server keeps it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self.opened = 0

    def ask(self, content: bytes) -> tuple[int, bytes]:
        """The status and the body."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), 60)
            self.opened += 1
        self._socket.sendall(content)
        stream = self._socket.makefile("rb")
        status, length, closes = int(stream.readline().split()[1]), None, False
        while line := stream.readline().strip().lower():
            name, _, value = line.partition(b":")
            length = int(value) if name == b"content-length" else length
            closes |= name == b"connection" and value.strip() == b"close"
        body = stream.read() if length is None else stream.read(length)
        if closes:
            self.close()
        return status, body

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def without_end(port: int) -> None:
    """A body that does not say how long it is, and is too long."""
    with socket.create_connection(("127.0.0.1", port), 60) as sending:
        head = f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\n{RAW}\r\nTransfer-Encoding: chunked\r\n\r\n"
        sending.sendall(head.encode())
        chunk = b"%x\r\n" % 500_000 + bytes(500_000) + b"\r\n"
        with contextlib.suppress(OSError):  # it is closed before all is sent
            for _ in range(LIMIT // 500_000 + 4):
                sending.sendall(chunk)
        assert sending.recv(100).split()[1] == b"413"


def half_sent(port: int) -> None:
    """Whoever goes away in the middle gets no answer, and holds nothing up."""
    whole = request(png(), RAW)
    for end in range(0, len(whole), 5):
        with socket.create_connection(("127.0.0.1", port), 60) as sending:
            sending.sendall(whole[:end])


def peak_megabytes(server: Served) -> float:
    """0 where Linux does not tell."""
    status = Path(f"/proc/{server.process}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM")), 0.0)


@pytest.mark.timeout(300)  # a few seconds; a busy machine takes longer
def test_thousands_of_hostile_uploads_get_a_4xx(digits_server: Served) -> None:
    requests, server = list(hostile(COUNT)), digits_server
    assert len({kind for kind, _ in requests}) == len(MAKERS)
    found: list[tuple[str, int, bytes, bytes]] = []
    before = peak_megabytes(server)
    connections = [Connection(server.port) for _ in range(CONNECTIONS)]

    def send(mine: list[Request], connection: Connection) -> None:
        for kind, content in mine:
            try:
                found.append((kind, *connection.ask(content), content))
            except (OSError, IndexError, ValueError) as error:
                found.append((kind, 0, repr(error).encode(), content))
                connection.close()

    threads = [
        threading.Thread(target=send, args=(requests[number::CONNECTIONS], connection))
        for number, connection in enumerate(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = [(kind, status, body[:200], sent[:300]) for kind, status, body, sent in found if not 400 <= status < 500]
    assert not wrong, (len(wrong), wrong[:5])
    assert len(found) == COUNT
    statuses = Counter(status for _, status, _, _ in found)
    assert statuses.keys() >= {400, 403, 404, 405, 413, 415, 422}, statuses
    told = [json.loads(body)["detail"] for kind, status, body, _ in found if kind != "no_http" and status != 405]
    assert all(told)
    assert sum(connection.opened for connection in connections) < COUNT / 4
    without_end(server.port)
    half_sent(server.port)
    for number in range(3):
        status, body = connections[number].ask(request(png(number), RAW))
        assert status == 200 and json.loads(body)["images"][0]["labels"]
    assert server.get("/api/status")["waiting"] == 0
    assert peak_megabytes(server) - before < 300
