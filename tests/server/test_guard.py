"""Who may ask: hosts, tokens, origins; and how much: sizes and times."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from semisight.errors import UserError
from semisight.server.access import COOKIE, Access
from semisight.server.guard import Guard
from semisight.server.limits import Limits
from semisight.server.running import access_for, greeting, is_loopback
from tests.server.conftest import client_of, png

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    table = tmp_path_factory.mktemp("table") / "labels.csv"
    with client_of(digits_run, Access(TOKEN), labels=table) as client:
        yield client


@pytest.mark.parametrize("host", ["localhost", "localhost:8765", "127.0.0.1", "127.0.0.1:1", "[::1]:80", "LOCALHOST."])
def test_names_of_this_machine_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/api/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[", "a b"])
def test_other_names_are_not(client: TestClient, host: str) -> None:
    """A page at evil.example whose name points to 127.0.0.1 sends its own name."""
    for path in ("/", "/api/status"):
        assert client.get(path, headers={"Host": host}).status_code == 421


OTHER_PAGES = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:9999"},
    {"Origin": "http://localhost.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", OTHER_PAGES)
def test_other_pages_change_nothing(client: TestClient, headers: dict[str, str]) -> None:
    for method, path in (
        ("POST", "/api/labels"), ("POST", "/api/predict"), ("POST", "/api/training"), ("DELETE", "/api/training"),
        ("POST", "/api/labels/undo"), ("POST", "/api/session"),
    ):  # fmt: skip
        assert client.request(method, path, headers=headers).status_code == 403


def test_our_own_pages_do(client: TestClient) -> None:
    headers = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin", "Content-Type": "image/png"}
    assert client.post("/api/predict", content=png(), headers=headers).status_code == 200


def test_no_other_page_may_read(client: TestClient) -> None:
    answer = client.get("/api/status", headers={"Origin": "http://evil.example"})
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert client.options("/api/labels", headers={"Origin": "http://evil.example"}).status_code == 405


def test_every_answer_is_dressed(client: TestClient) -> None:
    for path in ("/", "/static/label.js", "/api/status", "/nothing", "/api/openapi.json"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
    assert client.get("/api/status").headers["cache-control"] == "no-store"
    assert "content-security-policy" in client.get("/", headers={"Host": "evil.example"}).headers


def test_a_token_is_asked_for(guarded: TestClient) -> None:
    for path in ("/api/status", "/api/suggestions", "/api/images?file=x", "/api/openapi.json", "/api/training"):
        answer = guarded.get(path)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
    assert guarded.post("/api/predict", content=png()).status_code == 401
    for path in ("/", "/label", "/api", "/static/common.js"):
        assert guarded.get(path).status_code == 200
    for wrong in (
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        "Bearer \u00e4".encode("latin-1"),
    ):
        assert guarded.get("/api/status", headers={"Authorization": wrong}).status_code == 401  # type: ignore[dict-item]
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/status", headers=right).status_code == 200
    # With a token any name will do: the machine has others, and a strange page has no token.
    assert guarded.get("/api/status", headers={**right, "Host": "photos.example"}).status_code == 200


def test_the_page_changes_the_token_for_a_cookie(guarded: TestClient) -> None:
    assert guarded.post("/api/session", json={"token": "wrong"}).status_code == 401
    answer = guarded.post("/api/session", json={"token": TOKEN})
    assert answer.status_code == 200
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and TOKEN not in cookie
    value = answer.cookies[COOKIE]
    guarded.cookies.clear()
    assert guarded.get("/api/status", headers={"Cookie": f"{COOKIE}={value}"}).status_code == 200
    for wrong in (f"{COOKIE}={value[:-1]}", f"{COOKIE}=", "a=b", f"{COOKIE}=\u00ff", ";;==="):
        assert guarded.get("/api/status", headers={b"Cookie": wrong.encode("latin-1")}).status_code == 401


def test_beyond_this_machine_there_is_always_a_token() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.3.2.1"):
        assert is_loopback(host) and access_for(host, None).token is None
    for host in ("0.0.0.0", "::", "192.168.1.7", "photos.example", ""):
        made = access_for(host, None)
        assert made.token is not None and len(made.token) >= 24
        assert f"#token={made.token}" in greeting(host, 80, made, True)[0]
        given = access_for(host, TOKEN)
        assert given.token == TOKEN and TOKEN not in " ".join(greeting(host, 80, given, False))
    assert access_for("localhost", TOKEN).token == TOKEN
    for weak in ("", "short", "with\nline breaks in it", "ümläuts-in-a-token"):
        with pytest.raises(UserError, match="at least 16"):
            access_for("0.0.0.0", weak)


# --- bodies that do not say how long they are, or trickle in


def ask(guard: Guard, chunks: list[bytes], delay: float = 0.0) -> int:
    """The status for a request whose body arrives in these chunks."""
    left = list(chunks)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(delay)
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/octet-stream")]
    scope = {
        "type": "http", "method": "POST", "path": "/api/predict", "raw_path": b"/api/predict", "query_string": b"",
        "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("localhost", 80),
        "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    asyncio.run(guard(scope, receive, send))
    return int(sent[0]["status"])


def test_bytes_are_counted_as_they_come(client: TestClient) -> None:
    guard = Guard(client.app, Access(), Limits(upload_bytes=1000, body_seconds=0.3))
    assert ask(guard, [bytes(400), bytes(400)]) == 422
    assert ask(guard, [bytes(400)] * 10) == 413
    assert ask(guard, [b"x"] * 50, delay=0.05) == 408
