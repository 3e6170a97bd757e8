"""Where a row that takes long keeps what it has so far: in the folder TABLE-unfinished beside the results file."""

import shutil
from collections.abc import Iterable
from pathlib import Path


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.stem}-unfinished")


def forget(places: Iterable[Path]) -> None:
    """Removes files or folders that are no longer needed, and the folder around them with the last."""
    for place in places:
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
        if place.parent.exists() and not any(place.parent.iterdir()):
            place.parent.rmdir()
