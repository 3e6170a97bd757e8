"""Tiny runs behind a server: digits with a few labels, scenes with captions."""

import io
import os
import shutil
import struct
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from semisight.data import load
from semisight.runs.run import load_run
from semisight.runs.settings import resolve
from semisight.runs.train import train_run
from semisight.server.access import Access
from semisight.server.limits import Limits
from semisight.server.service import Options, Service
from semisight.server.web import create_app
from tests.server.server import Served, served

HERE = "http://localhost"


def learn(run: Path, **settings: Any) -> None:
    """As `semisight train` does, without its report."""
    train_run(resolve(settings), run, resume=False, overwrite=False, say=lambda line: None)


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three labels of each digit, 250 images."""
    run = tmp_path_factory.mktemp("serve") / "digits"
    learn(run, source="builtin:digits", labels_per_class=3, limit=250, epochs=3, batch_size=64)
    return run


@pytest.fixture(scope="session")
def scenes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of generated scenes; nobody expects good ones."""
    run = tmp_path_factory.mktemp("serve") / "scenes"
    learn(run, source="builtin:scenes?n=60&size=16", captions="builtin", use_labels=False, max_steps=6, batch_size=16)
    return run


@pytest.fixture(scope="session")
def digits_server(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`semisight serve` as a process of its own; tests that leave it running share it."""
    with served(digits_run, tmp_path_factory.mktemp("server") / "labels.csv") as server:
        server.wait_until_read()
        yield server


@pytest.fixture
def own_digits(digits_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits_run, tmp_path / "digits"))


def client_of(run: Path, access: Access | None = None, **options: object) -> TestClient:
    service = Service(load_run(run), Options(**options))  # type: ignore[arg-type]
    client = TestClient(create_app(service, access or Access()), base_url=HERE, raise_server_exceptions=False)
    return client


def wait_until_read(client: TestClient) -> None:
    for _ in range(600):
        state = client.get("/api/status").json()["reading"]
        if state["state"] in ("ready", "failed"):
            assert state["state"] == "ready", state
            return
        time.sleep(0.05)
    pytest.fail("the images were never read")


@pytest.fixture(scope="module")
def client(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A server whose table is its own; tests of a module share it."""
    table = tmp_path_factory.mktemp("table") / "labels.csv"
    with client_of(digits_run, labels=table, limits=Limits(upload_bytes=300_000, pixels=1_000_000, images=4)) as found:
        wait_until_read(found)
        yield found


def png(number: int = 0, size: int | None = None, kind: str = "PNG") -> bytes:
    """A digit as a file."""
    pixels = load("builtin:digits").images[number, 0].numpy()
    image = Image.fromarray(pixels.astype(np.uint8))
    if size is not None:
        image = image.resize((size, size))
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def bomb(width: int = 50_000, height: int = 50_000) -> bytes:
    """A PNG of few bytes that says it is huge."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(100_000)))
        + chunk(b"IEND", b"")
    )


def chromium() -> str:
    """The browser's path; without one the test is skipped."""
    found = os.environ.get("SEMISIGHT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no chromium here: install Debian's (apt-get install chromium), or set SEMISIGHT_CHROMIUM")
    return found
