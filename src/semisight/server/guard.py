"""Who may ask, and how much: the outermost layer, which looks at headers and counts bytes before anything is done.

host     without a token only names of this machine are answered: a page elsewhere that makes its own name point to
         127.0.0.1 (DNS rebinding) still sends its own name
token    `Authorization: Bearer TOKEN`, or the cookie that /api/session gives for it; pages themselves are open
origin   a browser says where a request that changes something comes from: other pages are refused (CSRF)
size     refused by Content-Length where it is given, else as soon as too much has come
time     a request that trickles in is given up
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semisight.server.limits import Limits

COOKIE = "semisight"
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


@dataclass(frozen=True)
class Access:
    """token is None for a server that only this machine can reach and that needs none."""

    token: str | None = None

    @property
    def cookie(self) -> str:
        """Made from the token, so that it survives a restart, but does not give the token away."""
        assert self.token is not None
        return hmac.new(self.token.encode(), b"semisight session", hashlib.sha256).hexdigest()

    def right_token(self, given: str) -> bool:
        return self.token is None or hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def allows(self, headers: Mapping[str, str]) -> bool:
        if self.token is None:
            return True
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self.right_token(given.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(cookie.value.encode("utf-8", "replace"), self.cookie.encode())


class Guard:
    """ASGI around the application."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits) -> None:
        self.app, self.access, self.limits = app, access, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return  # no web sockets here
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_dress(scope["path"])]
            await send(message)

        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _refuse(dressed, *refusal)
            return
        with contextlib.suppress(ClientDisconnect):  # whoever goes away in the middle of a request needs no answer
            await self.app(scope, self._counted(receive), dressed)

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if self.access.token is None and _name(host) not in _HERE:
            return 421, "this server answers only to names of this machine, such as localhost"
        path: str = scope["path"]
        if path.startswith("/api/") and path != "/api/session" and not self.access.allows(headers):
            return 401, "a token is needed: Authorization: Bearer TOKEN, or the page's form"
        if scope["method"] not in _SAFE and not _same_origin(headers, host):
            return 403, "this request comes from another page"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdecimal():
            return 400, "Content-Length is not a number"
        if int(length[:20]) > self.limits.upload_bytes:
            return 413, f"a request may have at most {self.limits.upload_bytes:,} bytes"
        return None

    def _counted(self, receive: Receive) -> Receive:
        end = asyncio.get_running_loop().time() + self.limits.body_seconds
        count, complete = 0, False

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
                count += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if count > self.limits.upload_bytes:
                    raise HTTPException(413, f"a request may have at most {self.limits.upload_bytes:,} bytes")
            return message

        return counted


def _dress(path: str) -> list[tuple[bytes, bytes]]:
    headers = dict(_HEADERS)
    if not path.startswith("/api/images"):
        headers["Cache-Control"] = "no-store" if path.startswith("/api") else "no-cache"
    return [(key.encode(), value.encode()) for key, value in headers.items()]


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status in (413, 421):
        headers.append((b"connection", b"close"))  # the rest of the body is not read
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


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
    return origin is None or (origin != "null" and urlsplit(origin).netloc.lower() == host.lower())
