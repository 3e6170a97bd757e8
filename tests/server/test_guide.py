"""The guide names commands, options, addresses and limits that exist."""

import inspect
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from semisight.cli.serve import serve
from semisight.server.access import SESSION_SECONDS
from semisight.server.limits import Limits
from semisight.server.pages import PAGES
from tests.server.conftest import png
from tests.server.server import Served

SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")
GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")


def test_options_exist() -> None:
    known = set(inspect.signature(serve).parameters)
    commands = re.findall(r"^    semisight serve (.*)$", GUIDE, re.M)
    assert commands
    words = [word for line in [*commands, *re.findall(r"`(--[a-z]+)", GUIDE)] for word in line.split()]
    assert {word[2:] for word in words if word.startswith("--")} <= known


def test_addresses_exist(client: TestClient) -> None:
    paths = client.get("/api/openapi.json").json()["paths"]
    called = set(re.findall(r"curl http://127.0.0.1:8765(/[a-z/]+)", GUIDE))
    assert called and called <= paths.keys()
    for page in re.findall(r"\((?:`)(/[a-z]*)`\)", GUIDE):
        assert page in PAGES


def test_numbers_are_those_of_the_server() -> None:
    limits = Limits()
    assert f"up to {limits.batch} images at a time" in GUIDE
    assert f"{limits.upload_bytes // 1_000_000} MB" in GUIDE
    assert f"{limits.pixels // 1_000_000} million pixels" in GUIDE
    for row in (
        f"| {limits.upload_bytes // 10**6} MB; {limits.upload_total // 10**6} MB |",
        f"| {limits.message_bytes // 1000} kB; {limits.session_bytes // 1000} kB |",
        f"| {limits.head_bytes // 1000} kB, in {limits.head_seconds:.0f} seconds |",
        f"| {limits.body_seconds:.0f} seconds |",
        f"| {limits.pixels // 10**6} million pixels; {limits.slow_pixels // 10**6} million in JPEG 2000 or AVIF |",
        f"takes {limits.batch} at a time | {limits.waiting} |",
        f"to be unpacked, beside the others | {limits.slow_waiting} |",
        f"wait for the disk | {limits.writes} |",
        f"requests at a time | {limits.requests} |",
        f"| {limits.connections:,}; {limits.waiting_per_address:,} |",
    ):
        assert row in GUIDE, row
    assert f"after {SESSION_SECONDS / 3600:.0f} hours" in GUIDE
    assert f"after {SESSION_SECONDS / 3600:.0f} hours" in SECURITY


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_call_of_the_api_is_answered(digits_server: Served, tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(png(kind="JPEG"))
    commands = re.findall(r"^    (curl http://127.0.0.1:8765.*)$", GUIDE, re.M)
    name = digits_server.get("/api/suggestions?n=1")["images"][0]["file"]
    for command in commands:
        words = shlex.split(command.replace(":8765", f":{digits_server.port}").replace("a.jpg", name))
        done = subprocess.run([*words, "--silent", "--fail"], cwd=tmp_path, capture_output=True, timeout=60)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert len(commands) == 4
    assert any("cat" in file.read_text() for file in digits_server.table.parent.iterdir())  # the table, or its journal
