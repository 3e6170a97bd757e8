"""Who may ask, and how much: the outermost layer, which looks at headers and counts bytes before anything is done.

host     without a token only names of this machine are answered: a page elsewhere that makes its own name point to
         127.0.0.1 (DNS rebinding) still sends its own name
token    `Authorization: Bearer TOKEN`, or the cookie that /api/session gives for it (access.py); pages themselves,
         /healthz and /readyz are open
origin   a browser says where a request that changes something comes from: other pages are refused (CSRF)
size     refused by Content-Length where it is given, else as soon as too much has come; of all requests together too
time     a request that trickles in is given up (connections.py does so before there is a request)
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semisight.server.access import Access
from semisight.server.limits import Limits
from semisight.server.metrics import Metrics

_BUSY = "too many requests at a time: try again in a moment"
_DRAIN_SECONDS, _DRAIN_BYTES = 5.0, 200_000_000  # of a body that was refused
_HERE = ("localhost", "127.0.0.1", "::1")
_SAFE = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """ASGI around the application. `known` names the paths that are counted one by one."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        metrics: Metrics | None = None,
        known: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self.app, self.access, self.limits, self.known = app, access, limits, known
        self.metrics = metrics or Metrics()
        self._requests = self._bytes = 0  # at the moment

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no web sockets here
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        started, status = time.perf_counter(), 0

        async def dressed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_dress(scope["path"])]
            await send(message)

        self._requests += 1
        self.metrics.in_flight.inc()
        try:
            refusal = self._refusal(scope, headers)
            if refusal is not None:
                await _refuse(dressed, *refusal)
                if refusal[0] == 413 and "expect" not in headers:
                    await _drain(receive)  # else the answer is lost: a reset overtakes it
                await dressed({"type": "http.response.body", "body": b""})
                return
            with contextlib.suppress(ClientDisconnect):  # whoever goes away in the middle of a request needs no answer
                await self._answer(scope, receive, dressed)
        finally:
            self._requests -= 1
            self.metrics.in_flight.dec()
            path = scope["path"] if self.known(scope["path"]) else "other"
            self.metrics.requests.labels(path, scope["method"] if status != 405 else "other", status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.access.is_open and _name(host) not in _HERE:
            return 421, "this server answers only to names of this machine, such as localhost"
        path: str = scope["path"]
        who = self.access.who(headers)
        if who is None and path != "/api/session" and (path.startswith("/api/") or path == "/metrics"):
            return 401, "a token is needed: Authorization: Bearer TOKEN, or the page's form"
        scope.setdefault("state", {})["who"] = who or ""
        if scope["method"] not in _SAFE and not _same_origin(headers, host):
            return 403, "this request comes from another page"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal():
            return 400, "Content-Length is not a number"
        if int(length[:20]) > self._most(path):
            return 413, f"a request may have at most {self._most(path):,} bytes here"
        if self._requests > self.limits.requests or self._bytes + int(length) > self.limits.upload_total:
            return 503, _BUSY
        return None

    def _most(self, path: str) -> int:
        """Only images are large; and nobody has shown who they are at /api/session."""
        own = {"/api/predict": self.limits.upload_bytes, "/api/session": self.limits.session_bytes}
        return own.get(path, self.limits.message_bytes)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        end = asyncio.get_running_loop().time() + self.limits.body_seconds
        most, count, complete = self._most(scope["path"]), 0, False

        async def counted() -> Message:
            nonlocal count, complete
            if complete:  # what comes now is only the end of the connection, which may be far away
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request took too long to arrive") from None
            if message["type"] == "http.request":
                size = len(message.get("body", b""))
                count, self._bytes = count + size, self._bytes + size
                complete = not message.get("more_body", False)
                if count > most:
                    raise HTTPException(413, f"a request may have at most {most:,} bytes here")
                if self._bytes > self.limits.upload_total:
                    raise HTTPException(503, _BUSY, {"Retry-After": "1"})
            return message

        try:
            await self.app(scope, counted, send)
        finally:
            self._bytes -= count


def _dress(path: str) -> list[tuple[bytes, bytes]]:
    headers = dict(_HEADERS)
    if not path.startswith("/api/images"):
        headers["Cache-Control"] = "no-store" if path.startswith("/api") else "no-cache"
    return [(key.encode(), value.encode()) for key, value in headers.items()]


async def _refuse(send: Send, status: int, reason: str) -> None:
    """All of the answer but its end: the connection stays until that is sent."""
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 503:
        headers.append((b"retry-after", b"1"))
    if status in (413, 421, 503):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _drain(receive: Receive) -> None:
    """Takes what a client still sends, and drops it."""
    count = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while count < _DRAIN_BYTES:
                message = await receive()
                count += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def _name(host: str) -> str:
    """The name in a Host header, without its port and the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _same_origin(headers: Mapping[str, str], host: str) -> bool:
    """Programs send neither header. TLS may end at a proxy before us, so only the name and port are compared."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    try:
        return origin is None or (origin != "null" and urlsplit(origin).netloc.lower() == host.lower())
    except ValueError:
        return False
