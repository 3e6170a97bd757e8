"""Files that are either the old ones or the new ones, never half of one."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from semisight.errors import UserError


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it takes the name `path` in one step, else nothing changes.

    The temporary file lies in the same folder because os.replace is atomic only within one file system.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner can read
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"could not write {path}: {error.strerror or error}. What was there before is unchanged."
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Writes a whole file in one step."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
