"""Connections before there is a request: how long a header may take, how large it may be, how many there may be.

uvicorn's HTTP protocol with deadlines. A connection that waits (for its first byte, the rest of its header, or another
request) costs little and is given up first: when there are too many, of one address or of all, the one that has waited
longest makes room, so that half-open ones never keep out whoever has something to say.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from semisight.server.limits import Limits

_GRACE = 10.0  # seconds beyond the body's time, in which an answer that says so can be sent
_LAST_WORDS = 5.0  # seconds for a client to take an answer before its connection is cut


class Crowd:
    """All connections of a server; those that wait, by address, the one that has waited longest first."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open: set[Any] = set()
        self.evicted = self.timed_out = 0
        self._waiting: dict[str, dict[Any, None]] = {}

    def arrive(self, connection: "Watched") -> None:
        self.open.add(connection)
        self.waits(connection)
        mine = self._waiting[connection.address]
        if len(mine) > self.limits.waiting_per_address:
            self._give_up(next(iter(mine)))
        elif len(self.open) > self.limits.connections:
            most = max(self._waiting.values(), key=len)  # there is one: who has just come
            self._give_up(next(iter(most)))

    def leave(self, connection: "Watched") -> None:
        self.open.discard(connection)
        self.works(connection)

    def waits(self, connection: "Watched") -> None:
        mine = self._waiting.setdefault(connection.address, {})
        mine.pop(connection, None)
        mine[connection] = None

    def works(self, connection: "Watched") -> None:
        mine = self._waiting.get(connection.address, {})
        mine.pop(connection, None)
        if not mine:
            self._waiting.pop(connection.address, None)

    def _give_up(self, connection: "Watched") -> None:
        self.evicted += 1
        self.leave(connection)
        connection.transport.abort()


class Watched(HttpToolsProtocol):
    """One connection; `crowd` is set by `protocol_for`."""

    crowd: Crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._in_head, self._head, self._ended = True, 0, False
        self._until(self.crowd.limits.head_seconds)
        self.crowd.arrive(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._until(None)
        self.resume_writing()
        self.crowd.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._timer is None:  # the first bytes after a pause between requests
            self._until(self.crowd.limits.head_seconds)
        self._ended = False
        super().data_received(data)
        if self._in_head and not self._ended and not self.transport.is_closing():
            self._head += len(data)
            if self._head > self.crowd.limits.head_bytes:
                self._refuse(b"431 Request Header Fields Too Large", b"the header is too large")

    def on_headers_complete(self) -> None:
        self._in_head, self._head = False, 0
        self.crowd.works(self)
        self._until(self.crowd.limits.body_seconds + _GRACE)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = self._ended = True
        self._until(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and not self.pipeline:
            self.crowd.waits(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stuck is None:  # an answer that nobody takes
            self._stuck = self.loop.call_later(self.crowd.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        super().resume_writing()

    def _until(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        self.crowd.timed_out += 1
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(b"408 Request Timeout", b"the request took too long to arrive")
        else:
            self.transport.abort()

    def _refuse(self, status: bytes, reason: bytes) -> None:
        if self.transport.is_closing():
            return
        head = b"HTTP/1.1 %s\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(head % (status, len(reason)) + reason)
        self.transport.close()
        self.loop.call_later(_LAST_WORDS, self.transport.abort)


def protocol_for(crowd: Crowd) -> type[Watched]:
    """The class that uvicorn makes connections from."""
    return type("Watched", (Watched,), {"crowd": crowd})
