"""A real server before slow clients, many requests, and a steady load beside a training."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.torture.rows import Row, Torture, learn


@contextlib.contextmanager
def serving(run: Path, table: Path, *words: str) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """The port of a server whose workers have read their images, and its process."""
    command = [sys.executable, "-m", "semisight", "serve", str(run), "--labels", str(table), "--port", "0", *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        line = next(line for line in child.stdout if line.startswith("Serving at "))
        port = int(line.split()[2].rstrip("/").rsplit(":", 1)[1])
        ready = 0
        while ready < 50:  # in a row: a connection may reach any worker
            ready = ready + 1 if b'"state":"ready"' in _ask(port, b"GET /api/status HTTP/1.1\r\n")[1] else 0
            time.sleep(0.02)
        yield port, child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def clients(torture: Torture) -> list[Row]:
    """Slow connections, and many requests, at a real server; its memory before and after."""
    run = torture.folder / "run"
    learn(run)
    ended = Row("ends of a server after all this")
    with serving(run, torture.folder / "served.csv") as (port, child):
        rows = [_slow(torture, port), _many(torture, port, child.pid)]
    ended.count(child.returncode in (0, -signal.SIGTERM), str(child.returncode))
    return [*rows, ended]


# --- a steady load

_RATE, _SECONDS, _LABELS = 300, 60, 5  # requests and labels a second
_CONNECTIONS = 48


def steady_load(torture: Torture) -> list[Row]:
    """Small images at a steady rate to two workers while labels are written; then the same beside a training.

    A request's time counts from when it was due, not from when it could be sent. `worst` is the 99th percentile; the
    goal is 100 ms. The unit says how busy the machine was: other programs share its cores.
    """
    run = torture.folder / "run"
    learn(run, epochs=10**6, minutes=0.05)  # one of a single pass would make the training beside the load end early
    rows = []
    for training in (False, True):
        with serving(run, torture.folder / f"{training}.csv", "--workers", "2") as (port, _):
            if training:
                body = b'{"minutes": 60}'
                head = b"POST /api/training HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
                assert b" 202 " in _ask(port, head % len(body), body)[1][:20]
                while (learned := _training(port))["step"] == 0 and learned["state"] == "running":
                    time.sleep(0.2)
            times, failed = asyncio.run(_steady(port, max(2.0, _SECONDS * torture.share)))
            if training:  # a load beside a training that has ended says nothing
                failed += stood_still(learned, _training(port))
            beside = "labels and a training" if training else "labels"
            share = sorted(times)
            at = [round(1000 * share[int(p * (len(share) - 1))], 1) for p in (0.5, 0.95, 0.99)]
            load = round(os.getloadavg()[0], 1)
            row = Row(
                f"{_RATE} requests a second, two workers, beside {beside}",
                len(times) + len(failed),
                len(times),
                at[2],
                f"ms 99th percentile (median {at[0]}, 95th {at[1]}); load average {load}",
                failed,
            )
            rows.append(row)
    return rows


def stood_still(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is wrong, if a training did not run all the time between two looks at it; else nothing."""
    went_on = before["state"] == after["state"] == "running" and after["step"] > before["step"]
    return [] if went_on else [f"the training did not go on: {before}, then {after}"]


async def _steady(port: int, seconds: float) -> tuple[list[float], list[str]]:
    """Seconds of the requests that were answered with 200, and what became of the others."""
    times: list[float] = []
    failed: list[str] = []
    due: asyncio.Queue[tuple[float, bytes] | None] = asyncio.Queue()
    predict, labels = _predict_request(), itertools.cycle(_label_requests(port))

    async def connection() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (asked := await due.get()) is not None:
            when, request = asked
            try:
                writer.write(request)
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.split(b":")[1]))
                if head.startswith(b"HTTP/1.1 200"):
                    times.append(time.perf_counter() - when)
                else:
                    failed.append(head.split(b"\r\n")[0].decode())
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                failed.append(repr(error))
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    asking = [asyncio.create_task(connection()) for _ in range(_CONNECTIONS)]
    started = time.perf_counter()
    for number in range(round(seconds * _RATE)):
        when = started + number / _RATE
        if (wait := when - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        due.put_nowait((when, next(labels) if number % (_RATE // _LABELS) == 0 else predict))
    for _ in asking:
        due.put_nowait(None)
    await asyncio.gather(*asking)
    return times, failed


def _ask(port: int, head: bytes, body: bytes = b"") -> tuple[float, bytes]:
    """Seconds, and the whole answer."""
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), 60) as asking:
        asking.sendall(head + b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n" + body)
        answer = b"".join(iter(lambda: asking.recv(65536), b""))
    return time.perf_counter() - started, answer


def _slow(torture: Torture, port: int) -> Row:
    """Half a header each, held open: meanwhile everybody else is answered."""
    row = Row("requests beside slow connections", unit="s")
    with contextlib.ExitStack() as stack:
        for number in range(torture.times(1000)):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            held.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"[: number % 30])
            if number % 10 == 0:
                seconds, answer = _ask(port, b"GET /label HTTP/1.1\r\n")
                row.count(answer.startswith(b"HTTP/1.1 200"), repr(answer[:100]))
                row.worst = max(row.worst, round(seconds, 3))
    return row


def _many(torture: Torture, port: int, process: int) -> Row:
    """Predictions, pages and labels by turns: memory stays what it was after the first tenth of them."""
    kinds = [_predict_request()] * 6 + [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        _label_requests(port)[0],
    ]
    row, lock = Row("requests, memory flat", unit="MB grown"), threading.Lock()
    total, before = torture.times(100_000), 0.0

    def send(count: int, chance: random.Random) -> None:
        with socket.create_connection(("127.0.0.1", port), 60) as asking:
            stream = asking.makefile("rb")
            for _ in range(count):
                asking.sendall(chance.choice(kinds))
                status, length = stream.readline(), 0
                while head := stream.readline().strip().lower():
                    length = int(head.split(b":")[1]) if head.startswith(b"content-length") else length
                stream.read(length)
                with lock:
                    row.count(status.startswith(b"HTTP/1.1 200"), repr(status))

    for part, share in enumerate((0.1, 0.9)):
        threads = [
            threading.Thread(target=send, args=(max(1, round(total * share / 8)), torture.chance(f"{part} {n}")))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if part == 0:
            before = _megabytes(process)
    row.worst = round(_megabytes(process) - before, 1)
    if row.worst > 50:
        row.count(False, f"it grew by {row.worst} MB")
    return row


def _predict_request() -> bytes:
    from PIL import Image

    stream = BytesIO()
    Image.new("L", (8, 8), 90).save(stream, "PNG")
    image = stream.getvalue()
    head = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    return head % len(image) + image


def _label_requests(port: int) -> list[bytes]:
    """Labels of several images, each of them twice and another one the second time: every one changes the table."""
    answer = _ask(port, b"GET /api/suggestions?n=20 HTTP/1.1\r\n")[1]
    names = [image["file"] for image in json.loads(answer.split(b"\r\n\r\n", 1)[1])["images"]]
    head = (
        b"POST /api/labels HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    bodies = [json.dumps({"file": name, "label": label}).encode() for label in "xy" for name in names]
    return [head % len(body) + body for body in bodies]


def _training(port: int) -> dict[str, Any]:
    answer = _ask(port, b"GET /api/training HTTP/1.1\r\n")[1]
    found: dict[str, Any] = json.loads(answer.split(b"\r\n\r\n", 1)[1])
    return found


def _megabytes(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))
