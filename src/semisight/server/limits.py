"""How much a server takes on: beyond these it refuses, politely, and goes on."""

from dataclasses import dataclass

from semisight.errors import UserError

_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Limits:
    """What one request may ask for, and what may wait at a time.

    upload_bytes   of a whole request
    pixels         of an image, before it is scaled; read from its header, so that a bomb is never unpacked
    scans          of a JPEG: each costs a pass over the picture, and a small file can hold thousands
    images         in a request
    body_seconds   for a request to arrive
    seconds        for it to be answered after that
    waiting        images that wait for the model, and requests that are being read
    batch          images that the model sees at a time
    """

    upload_bytes: int = 20 * _MEGABYTE
    pixels: int = 25_000_000
    scans: int = 100
    images: int = 16
    body_seconds: float = 20.0
    seconds: float = 30.0
    waiting: int = 256
    batch: int = 32

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UserError(f"{name.replace('_', ' ')} must be above 0, not {value}.")
