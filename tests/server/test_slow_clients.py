"""Clients that say half a word, too much, or nothing at all: before a token was shown, and without end."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from semisight.runs.run import load_run
from semisight.server.access import Access
from semisight.server.connections import Crowd, protocol_for
from semisight.server.limits import Limits
from semisight.server.running import open_socket
from semisight.server.service import Options, Service
from semisight.server.web import create_app
from tests.server.conftest import png
from tests.server.server import Served

TOKEN = "correct-horse-battery"
HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
LIMITS = Limits(head_seconds=1.5, body_seconds=1.0, waiting_per_address=400, connections=500)


class Running:
    def __init__(self, port: int, crowd: Crowd) -> None:
        self.port, self.crowd = port, crowd

    def open(self, sent: bytes = b"") -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.port), 20)
        found.sendall(sent)
        return found

    def answer(self, *sent: bytes) -> bytes:
        """All that comes back, until the server closes."""
        with self.open(b"".join(sent)) as asking:
            return b"".join(iter(lambda: asking.recv(65536), b""))

    def is_well(self) -> bool:
        return self.answer(HEAD + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def running(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    table = tmp_path_factory.mktemp("slow") / "labels.csv"
    service = Service(load_run(digits_run), Options(labels=table, limits=LIMITS))
    listening, crowd = open_socket("127.0.0.1", 0), Crowd(LIMITS)
    config = uvicorn.Config(
        create_app(service, Access(TOKEN)), http=protocol_for(crowd), log_level="error", ws="none", backlog=2048
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Running(listening.getsockname()[1], crowd)
    server.should_exit = True
    thread.join()


def until(what: str, condition: object) -> None:
    end = time.monotonic() + 30
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.05)


def test_half_open_connections_keep_nobody_out(running: Running) -> None:
    """More than there may be, from one address: each new one makes the oldest go, and all are gone in the end."""
    before = running.crowd.evicted
    with contextlib.ExitStack() as stack:
        for number in range(450):
            stack.enter_context(running.open(HEAD if number % 2 else b""))
            if number % 150 == 149:
                started = time.monotonic()
                assert running.is_well()
                assert time.monotonic() - started < 5
        assert running.crowd.evicted > before
        until("they are never given up", lambda: not running.crowd.open)
    assert running.is_well()


def test_a_header_that_takes_too_long_is_told_so(running: Running) -> None:
    assert running.answer(HEAD).startswith(b"HTTP/1.1 408")
    with running.open(HEAD + b"\r\n") as kept:  # answered, and then half of another one, a little at a time
        assert kept.recv(65536).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        with contextlib.suppress(OSError):
            for number in range(100):
                kept.sendall(b"X" if number else HEAD)
                time.sleep(0.1)
        assert time.monotonic() - started < 8, "every byte put it off"


def test_a_header_without_end_is_too_large(running: Running) -> None:
    assert running.answer(HEAD + b"X: " + b"x" * 50_000).startswith(b"HTTP/1.1 431")
    assert running.answer(b"GET /" + b"x" * 50_000).startswith(b"HTTP/1.1 431")


def test_a_body_that_takes_too_long_is_told_so(running: Running) -> None:
    head = b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\nConnection: close\r\n\r\n"
    assert running.answer(head, b'{"tok').startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("size", [2001, 21_000_000, 10**15])
def test_whoever_has_no_token_may_send_little(running: Running, size: int) -> None:
    """Answered at once, whether or not they send what they announce."""
    head = f"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n".encode()
    with running.open(head) as asking:
        answer = b""
        while b"2,000 bytes" not in answer and (more := asking.recv(65536)):  # not until the connection is closed
            answer += more
        assert answer.startswith(b"HTTP/1.1 413") and b"2,000 bytes" in answer


@pytest.mark.parametrize("path", ["/api/predict", "/api/session"])
def test_too_large_an_upload_is_answered_not_reset(running: Running, path: str) -> None:
    """As a simple client does it: all is sent before anything is read."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
    answer = running.answer(f"{head}Content-Length: 21000000\r\n\r\n".encode(), bytes(21_000_000))
    assert answer.startswith(b"HTTP/1.1 413") and json.loads(answer.split(b"\r\n\r\n")[1])["detail"]


def test_a_body_of_unknown_length_is_counted(running: Running) -> None:
    head = b"POST /api/session HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert running.answer(head, b"%x\r\n" % 3000 + bytes(3000) + b"\r\n").startswith(b"HTTP/1.1 413")


@pytest.mark.timeout(240)
def test_memory_comes_back(digits_server: Served) -> None:
    """Bodies that are announced, half sent and withheld, before a token and after it."""

    def megabytes(process: int) -> float:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))

    server = digits_server
    server.post("/api/labels", {"file": server.get("/api/suggestions?n=1")["images"][0]["file"], "label": "x"})
    before = megabytes(server.process)
    for path in ("/api/session", "/api/predict"):
        with contextlib.ExitStack() as stack:
            for _ in range(15):
                sending = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
                head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 19000000\r\n"
                sending.sendall(f"{head}Content-Type: image/png\r\n\r\n".encode())
                with contextlib.suppress(OSError):
                    sending.sendall(bytes(18_000_000))
            assert server.get("/healthz")["ready"]
            assert megabytes(server.process) - before < 700
    end = time.monotonic() + 60
    while megabytes(server.process) - before > 100:
        assert time.monotonic() < end, (before, megabytes(server.process))
        time.sleep(1)
    assert server.get("/api/status")["waiting"] == 0


def test_a_large_picture_holds_up_no_small_one(running: Running) -> None:
    """Formats that take long are unpacked beside the others, a few at a time."""
    large = png(1, size=2400, kind="JPEG2000")  # so long that a fast processor has a queue, too
    results: list[tuple[bytes, float]] = []

    def send(content: bytes) -> None:
        head = f"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        head += f"Content-Type: image/png\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        started = time.monotonic()
        results.append((running.answer(head.encode(), content)[9:12], time.monotonic() - started))

    threads = [threading.Thread(target=send, args=(large,)) for _ in range(24)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    send(png(2, size=200, kind="JPEG"))
    small = results[-1]
    for thread in threads:
        thread.join()
    statuses = [status for status, _ in results]
    assert small[0] == b"200"
    assert set(statuses) == {b"200", b"503"}, "those beyond the queue are asked to come again"
    assert small[1] < max(seconds for _, seconds in results) / 2
