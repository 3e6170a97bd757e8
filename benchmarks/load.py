"""A client that keeps a server busy: `python -m benchmarks.load PORT SECONDS CONNECTIONS IMAGE`; JSON at the end.

Plain sockets, one thread and a request made once: what is measured should be the server. Each connection asks again as
soon as it is answered.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PATH = "/api/predict?captions=0"
_PATIENCE = 60.0  # seconds without any answer


@dataclass
class Connection:
    """One that waits for the answer to what it asked at `started`."""

    socket: socket.socket
    started: float = 0.0
    length: int = -1  # of the whole answer, once its head is there
    content: bytearray = field(default_factory=bytearray)

    def ask(self, request: bytes) -> None:
        self.content, self.length, self.started = bytearray(), -1, time.perf_counter()
        self.socket.sendall(request)

    def has_answer(self) -> bool:
        """Takes what has come."""
        part = self.socket.recv(65536)
        if not part:
            raise OSError("closed by the server")
        self.content += part
        if self.length < 0:
            end = self.content.find(b"\r\n\r\n")
            if end < 0:
                return False
            lines = bytes(self.content[:end]).lower().split(b"\r\n")
            length = next(line for line in lines if line.startswith(b"content-length:"))
            self.length = end + 4 + int(length.split(b":")[1])
        return len(self.content) >= self.length


def keep_busy(port: int, how_long: float, connections: int, image: bytes) -> dict[str, object]:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: image/png\r\nContent-Length: {len(image)}"
    request = head.encode() + b"\r\n\r\n" + image
    seconds: list[float] = []
    failed: list[str] = []
    started = time.perf_counter()
    end = started + how_long
    with selectors.DefaultSelector() as waiting:
        for _ in range(connections):
            one = Connection(socket.create_connection(("127.0.0.1", port)))
            waiting.register(one.socket, selectors.EVENT_READ, one)
            one.ask(request)
        while waiting.get_map():
            ready = waiting.select(_PATIENCE)
            if not ready:
                failed += ["no answer"] * len(waiting.get_map())
                break
            for key, _ in ready:
                one = key.data
                try:
                    if not one.has_answer():
                        continue
                    now = time.perf_counter()
                    seconds.append(now - one.started)
                    if not one.content.startswith(b"HTTP/1.1 200"):
                        failed.append(one.content.split(b"\r\n")[0].decode())
                    if now < end:
                        one.ask(request)
                        continue
                except OSError as error:
                    failed.append(repr(error))
                waiting.unregister(one.socket)
                one.socket.close()
    return {"seconds": seconds, "failed": failed, "took": time.perf_counter() - started}


if __name__ == "__main__":
    number, duration, parallel, file = sys.argv[1:]
    print(json.dumps(keep_busy(int(number), float(duration), int(parallel), Path(file).read_bytes())))
