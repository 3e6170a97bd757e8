"""The guide names commands, options, addresses and limits that exist."""

import inspect
import re
from pathlib import Path

from fastapi.testclient import TestClient

from semisight.app.commands.serve import serve
from semisight.app.serve.limits import Limits
from semisight.app.serve.pages import PAGES

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "serving.md").read_text(encoding="utf-8")


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
