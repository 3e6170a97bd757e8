"""Networks that the runs of strangers may not name by themselves: those that come from a file, a folder or the hub.

A run records the network whose features it takes. One that comes with a package is used as it is named. Any other is
loaded only if somebody has named it on this machine before, by `train --backbone` or `semisight backbones --trust`: a
run from a stranger decides neither which file is opened nor which network runs nor what is downloaded.

    CACHE/networks.txt     a line for each: its absolute path, or hf:OWNER/NAME
"""

import os
from pathlib import Path

from semisight.backbones.efficientnet import PACKAGED
from semisight.data.image_cache import default_cache
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.untrusted import MOST_SETTINGS, printable, read_text

_HUB = "hf:"


def trust(spec: str) -> None:
    """Notes a network that somebody has named here."""
    known = _known()
    if not _is_packaged(spec) and (place := _place(os.path.expanduser(spec))) not in known:
        write_atomic(_file(), "".join(f"{one}\n" for one in [*known, place]))


def recorded_backbone(spec: str) -> str:
    """A network that stands in a run, as it may be used: `~` means nothing in it."""
    if _is_packaged(spec) or (place := _place(spec)) in _known():
        return spec if _is_packaged(spec) else place
    raise UserError(
        f"this run takes the features of {printable(spec)[:300]!r}, a network that nobody has named on this machine. "
        f"If it is yours, or you trust who made it: semisight backbones --trust {printable(spec)[:300]}"
    )


def _is_packaged(spec: str) -> bool:
    return spec in PACKAGED or f"efficientnet-{spec}" in PACKAGED


def _place(spec: str) -> str:
    return spec if spec.startswith(_HUB) else os.path.abspath(spec)


def _known() -> list[str]:
    return read_text(_file(), MOST_SETTINGS).splitlines() if _file().exists() else []


def _file() -> Path:
    return default_cache() / "networks.txt"
