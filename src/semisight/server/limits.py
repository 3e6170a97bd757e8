"""How much a server takes on: beyond these it refuses, politely, and goes on."""

from dataclasses import dataclass, replace

from semisight.errors import UserError

_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and what may wait at a time.

    upload_bytes         of a whole request
    upload_total         of all requests that are being read
    session_bytes        of a request by somebody who has not shown a token yet
    message_bytes        of a request without images
    pixels               of an image, before it is scaled; read from its header, so that a bomb is never unpacked
    slow_pixels          of an image in a format that takes ten times as long (JPEG 2000, AVIF)
    scans                of a JPEG: each costs a pass over the picture, and a small file can hold thousands
    images               in a request
    head_bytes           of a request's header
    head_seconds         for a header to arrive
    body_seconds         for a request to arrive
    seconds              for it to be answered after that
    waiting              images that wait for the model, and requests that are being read
    slow_waiting         large images that wait to be unpacked, behind each other
    batch                images that the model sees at a time
    requests             that are read or answered at a time
    connections          open at a time; the one that has waited longest makes room
    waiting_per_address  connections of one address that say nothing
    writes               changes of labels that wait for the disk
    """

    upload_bytes: int = 20 * _MEGABYTE
    upload_total: int = 400 * _MEGABYTE
    session_bytes: int = 2000
    message_bytes: int = 32_000
    pixels: int = 25_000_000
    slow_pixels: int = 10_000_000
    scans: int = 100
    images: int = 16
    head_bytes: int = 32_768
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    seconds: float = 30.0
    waiting: int = 256
    slow_waiting: int = 16
    batch: int = 32
    requests: int = 512
    connections: int = 4000
    waiting_per_address: int = 1000
    writes: int = 256

    def shared(self, workers: int) -> "Limits":
        """The share of one worker of several in what may go on at a time, so that all together keep to it."""
        counts = ("upload_total", "waiting", "slow_waiting", "requests", "connections", "waiting_per_address", "writes")
        return replace(self, **{name: -(-getattr(self, name) // workers) for name in counts})

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UserError(f"{name.replace('_', ' ')} must be above 0, not {value}.")
