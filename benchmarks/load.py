"""A client that keeps a server busy: `python -m benchmarks.load PORT SECONDS CONNECTIONS IMAGE`; JSON at the end.

Plain sockets and a request made once: what is measured should be the server. Each connection asks again as soon as it
is answered.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

PATH = "/api/predict?captions=0"


async def one_connection(port: int, request: bytes, end: float, seconds: list[float], failed: list[str]) -> None:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < end:
            started = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))
            seconds.append(time.perf_counter() - started)
            if not head.startswith(b"HTTP/1.1 200"):
                failed.append(head.split(b"\r\n")[0].decode())
        writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        failed.append(repr(error))


async def keep_busy(port: int, how_long: float, connections: int, image: bytes) -> dict[str, object]:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: image/png\r\nContent-Length: {len(image)}"
    request = head.encode() + b"\r\n\r\n" + image
    seconds: list[float] = []
    failed: list[str] = []
    started = time.perf_counter()
    end = started + how_long
    await asyncio.gather(*(one_connection(port, request, end, seconds, failed) for _ in range(connections)))
    return {"seconds": seconds, "failed": failed, "took": time.perf_counter() - started}


if __name__ == "__main__":
    number, duration, parallel, file = sys.argv[1:]
    found = asyncio.run(keep_busy(int(number), float(duration), int(parallel), Path(file).read_bytes()))
    print(json.dumps(found))
