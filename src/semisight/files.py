"""The one place that writes: files and folders are the old ones or the new ones, never half of one, and say so.

    write_atomic, atomic_path   one file: written beside, flushed, renamed, the folder flushed
    remove                      one file: gone, the folder flushed
    bundle, finish_bundle       several files of a folder that belong together: all are replaced, or none
    seal, check_seal            a safetensors file with a checksum of all its bytes in its own header
    write_json, json_checksum   the same for a JSON file (untrusted.read_json compares)
    locked, acquire             one writer for a folder; the message names who holds it
    clean_leftovers             temporary files of processes that were killed

What is confirmed is on disk: a rename counts only once its folder is flushed too. Temporary names carry the machine,
the process and its start, so that leftovers are told from files that somebody is still writing.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from semisight.errors import UserError

LOCK = ".lock"  # in a folder that is being written
BUNDLE = ".bundle.json"  # in a folder whose files are being replaced together
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<place>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)\.[0-9a-f]{8}\.tmp")
_OLD = 86_400.0  # seconds after which a temporary file of another machine is a leftover
_NOT_SYNCED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)  # a file system that cannot flush folders
_BLOCK = 1 << 20
_MOST_PLAN = 10_000_000  # bytes of BUNDLE


# --- one file


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it takes the name `path` in one step, else nothing changes.

    The temporary file lies in the same folder because os.replace is atomic only within one file system. It gets the
    mode and, where that is allowed, the owner of the file that it replaces. After the `with` all is on disk.
    """
    path = Path(path)
    temporary, renamed = None, False
    try:
        make_folder(path.parent)
        temporary = path.parent / temporary_name(path.name)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # less what the umask takes away
        _like(temporary, path)
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        renamed = True
        sync_folder(path.parent)
    except OSError as error:
        what = "was written, but may be lost if the power fails" if renamed else "What was there before is unchanged"
        raise UserError(f"could not write {path}: {error.strerror or error}. {what}.") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_atomic(path: str | Path, content: bytes | str) -> None:
    """Writes a whole file in one step; it is on disk when this returns."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def remove(path: Path) -> None:
    """A file that is gone, also after a power cut, when this returns; one that is not there is gone already."""
    try:
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise UserError(f"could not remove {path}: {error.strerror or error}.") from error


def make_folder(folder: Path) -> None:
    """A folder with those above it, on disk when this returns."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_folder(each.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def sync(path: Path) -> None:
    """The content of a file, forced to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """The names in a folder, forced to disk, where its file system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno in _NOT_SYNCED:
            return
        raise
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(handle)


def _like(temporary: Path, path: Path) -> None:
    """A private file stays private, and one of somebody else's stays theirs."""
    with contextlib.suppress(FileNotFoundError):
        old = path.stat()
        if stat.S_ISREG(old.st_mode):
            with contextlib.suppress(PermissionError):
                os.chown(temporary, old.st_uid, old.st_gid)
            temporary.chmod(stat.S_IMODE(old.st_mode))


# --- several files that belong together


@contextlib.contextmanager
def bundle(folder: str | Path, remove: Iterable[str] = ()) -> Iterator[Path]:
    """Replaces several files of a folder together: yields an empty folder to write them to, by the same names.

    When the `with` ends well the files take their places and those of `remove` (names below `folder`, with * and ?)
    that were not written anew are gone; files not named stay. A kill at any moment leaves all the old files, or all
    the new ones as soon as `finish_bundle` has been called, which whoever opens the folder does first.

    Example:

        with bundle("runs/a", remove=["log.csv", "checkpoints/*.safetensors"]) as new:
            (new / "config.json").write_text(...)
            write_checkpoint(new / "checkpoints" / "newest.safetensors", ...)
    """
    folder = Path(folder)
    finish_bundle(folder)
    stage = folder / temporary_name("bundle")
    try:
        make_folder(folder)
        stage.mkdir()
        yield stage
        files = sorted(file.relative_to(stage).as_posix() for file in stage.rglob("*") if file.is_file())
        for file in files:
            sync(stage / file)
        for below in [stage, *(each for each in stage.rglob("*") if each.is_dir())]:
            sync_folder(below)
        found = [file for pattern in remove for file in folder.glob(_inside(pattern)) if not file.is_dir()]
        old = {file.relative_to(folder).as_posix() for file in found if file.name not in (LOCK, BUNDLE)}
        plan = {"stage": stage.name, "files": files, "remove": sorted(old - set(files))}
        write_atomic(folder / BUNDLE, json.dumps(plan))  # from here on the new files are the folder's
        finish_bundle(folder)
    except OSError as error:
        raise UserError(
            f"could not write to {folder}: {error.strerror or error}. What was there before is unchanged."
        ) from error
    finally:
        if not (folder / BUNDLE).exists():
            shutil.rmtree(stage, ignore_errors=True)


def finish_bundle(folder: str | Path) -> bool:
    """Puts the files of an interrupted `bundle` in their places; whether there was one. To be called on opening.

    Every step may be repeated, so a kill in here is mended by the next call.
    """
    folder = Path(folder)
    record = folder / BUNDLE
    if not os.path.exists(record):
        return False
    with _brief(folder):  # two that open the folder at once
        try:
            plan = json.loads(_plan_in(record))
            stage, files, remove = folder / _inside(plan["stage"]), plan["files"], plan["remove"]
            moves = [(stage / _inside(file), folder / _inside(file)) for file in files]
            if not _TEMPORARY.fullmatch(stage.name) or stage.parent != folder or stage.is_symlink():
                raise ValueError(f"{stage.name} is no temporary folder")
            for target in [target for _, target in moves] + [folder / _inside(name) for name in remove]:
                if not target.parent.resolve().is_relative_to(folder.resolve()):
                    raise ValueError(f"{target} lies elsewhere")
        except FileNotFoundError:
            return False  # another process has just done it
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{record} is damaged ({error}). Delete it: the run is then what its other files say."
            ) from error
        try:
            for source, target in moves:
                if source.exists():
                    make_folder(target.parent)
                    os.replace(source, target)
            for name in remove:
                (folder / name).unlink(missing_ok=True)
            for changed in {target.parent for _, target in moves} | {(folder / name).parent for name in remove}:
                sync_folder(changed)
            record.unlink(missing_ok=True)
            sync_folder(folder)
            shutil.rmtree(stage, ignore_errors=True)
        except OSError as error:
            raise UserError(
                f"{folder} was being replaced when its writer was stopped, and cannot be brought to its end here "
                f"({error.strerror or error}). Open it once where it can be written."
            ) from error
    return True


def _plan_in(record: Path) -> bytes:
    """A regular file of bounded size, as a stranger's folder may hold a pipe that is never written to."""
    with open(os.open(record, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_PLAN:
            raise ValueError(f"it is no regular file of at most {_MOST_PLAN:,} bytes")
        return file.read(_MOST_PLAN)


def _inside(name: str) -> str:
    """A name below a folder, as it is written in a file that anybody may have made."""
    parts = PurePosixPath(name)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\\" in name or "\0" in name:
        raise ValueError(f"{name!r} is not a name below the folder")
    return name


# --- checksums


def seal(content: bytes) -> bytes:
    """A safetensors file (its bytes) with a checksum of all of them in its header, under "checksum".

    The format stays safetensors: any reader opens it. The sum is that of the file with zeros in the sum's own place.
    """
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    empty = "0" * 2 * _hash().digest_size
    header["__metadata__"] = {**header.get("__metadata__", {}), "checksum": empty}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of eight
    whole = len(text).to_bytes(8, "little") + text + content[8 + size :]
    digest = _hash(whole).hexdigest()
    at = whole.index(_entry(empty))
    return whole[:at] + _entry(digest) + whole[at + len(_entry(empty)) :]


def check_seal(path: str | Path, *, required: bool = True, most: int = 100 << 20) -> dict[str, str]:
    """The metadata of a safetensors file that `seal` made, once all its bytes have been compared with its checksum.

    Args:
        required: whether a file without a checksum is refused; files of older versions have none.
        most: bytes that its header may have; looked at before anything is read.
    """
    path = Path(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # reading a pipe would wait for ever
                raise ValueError("it is not a regular file")
            first = file.read(8)
            size, room = int.from_bytes(first, "little"), os.fstat(file.fileno()).st_size - 8
            if len(first) < 8 or size > min(room, most):
                raise ValueError(f"its header cannot have {size:,} bytes")
            text = file.read(size)
            header = json.loads(text)
            metadata = header.get("__metadata__", {}) if isinstance(header, dict) else None
            if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
                raise ValueError("its header is no table of tensors")
            found = metadata.get("checksum")
            if found is None:
                if required:
                    raise ValueError("it has no checksum")
                return metadata
            empty = _entry("0" * len(found))
            digest = _hash(first + text.replace(_entry(found), empty, 1))
            while block := file.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() != found:
            raise ValueError("its checksum is wrong")
    except FileNotFoundError:
        raise UserError(f"there is no file {path}.") from None
    except OSError as error:
        raise UserError(f"could not read {path}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is not as it was written: {str(error)[:200]}. Use another copy, or another checkpoint."
        ) from error
    return metadata


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file for people and programs, with a checksum of its values as its last one."""
    write_atomic(path, json_bytes(value))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """What `write_json` writes."""
    return (json.dumps({**value, "checksum": json_checksum(value)}, indent=2, allow_nan=False) + "\n").encode()


def json_checksum(value: Mapping[str, Any]) -> str:
    """Of what a JSON file says, however it is laid out."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return str(hashlib.blake2b(text.encode(), digest_size=16).hexdigest())


def _hash(content: bytes = b"") -> Any:
    return hashlib.blake2b(content, digest_size=32)


def _entry(digest: str) -> bytes:
    return f'"checksum":"{digest}"'.encode()


# --- one writer


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    what: str
    pid: int
    command: str
    host: str
    since: str

    def __str__(self) -> str:
        return f"{self.what}: process {self.pid} on {self.host}, since {self.since}, {self.command}"


_held: set[int] = set()


@contextlib.contextmanager
def locked(folder: str | Path, what: str, *, wait: float = 0.0, name: str = LOCK) -> Iterator[None]:
    """Makes this the only process that writes to a folder (its file `.lock`), and clears away leftovers of killed ones.

    A lock ends with its process, however that ends: nothing is ever to be deleted by hand. Readers need none.

    Args:
        what: what is being done, for the message of whoever comes second, such as "training".
        wait: seconds to wait for another process; then a UserError names it.
        name: of the lock's file, for a folder in which several things may be written at a time.
    """
    folder = Path(folder)
    try:
        make_folder(folder)
        handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}.") from error
    _held.add(handle)
    try:
        if not acquire(handle, wait):
            raise UserError(
                f"{folder} is in use by another process ({_holder(handle)}): wait until it has ended, stop it, or "
                "choose another folder."
            )
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])[:500]
        now = datetime.now().astimezone().isoformat(" ", "seconds")
        mine = Holder(what, os.getpid(), command, socket.gethostname(), now)
        with contextlib.suppress(OSError):  # on a full disk the lock holds all the same, only without a name
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(asdict(mine)).encode("utf-8", "replace"), 0)
        clean_leftovers(folder)
        yield
    finally:
        _held.discard(handle)
        os.close(handle)  # which also unlocks


@contextlib.contextmanager
def _brief(folder: Path, wait: float = 10.0) -> Iterator[None]:
    """A lock on the folder itself, for moments; it needs no file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        if not acquire(handle, wait):
            raise UserError(f"{folder} is locked by another program for more than {wait:.0f} seconds; try again.")
        yield
    finally:
        os.close(handle)


def acquire(handle: int, wait: float) -> bool:
    """Locks an open file for this process; whether it could within `wait` seconds, the most that this ever takes.

    A file system without locks counts as one whose lock is free.
    """
    end = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(min(0.02, max(0.0, end - time.monotonic())))
        except OSError as error:
            return error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def _holder(handle: int, wait: float = 0.5) -> str:
    """Who holds the lock. It is taken a moment before the name is written: an empty file is read again."""
    end = time.monotonic() + wait
    while True:
        try:
            found = Holder(**json.loads(os.pread(handle, 4096, 0)))
            return "".join(letter if letter.isprintable() else "?" for letter in str(found))
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            if time.monotonic() >= end:
                return "it does not say which"
            time.sleep(0.02)


def _close_in_child() -> None:
    """A forked worker must not keep the lock of a parent that is gone."""
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


# --- leftovers


def temporary_name(name: str) -> str:
    """A name for what is being written, which says by which process."""
    return f".{name[:100]}.{_place()}-{os.getpid()}-{_start_of(os.getpid())}.{secrets.token_hex(4)}.tmp"


def clean_leftovers(folder: str | Path, depth: int = 2) -> list[Path]:
    """Removes the temporary files and folders of processes that have ended, below `folder`; gives what is gone.

    Those of another machine (or container) are left for a day, for nobody here knows whether their process lives. The
    files of an interrupted `bundle` are no leftovers.
    """
    folder, gone = Path(folder), []
    try:
        if (folder / BUNDLE).exists():
            return []
        entries = list(os.scandir(folder))
    except OSError:
        return []
    for entry in entries:
        with contextlib.suppress(OSError):
            found = _TEMPORARY.fullmatch(entry.name)
            if found is not None and _is_left(found, entry.stat(follow_symlinks=False).st_mtime):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()
                gone.append(path)
            elif depth > 1 and found is None and entry.is_dir(follow_symlinks=False):
                gone += clean_leftovers(entry.path, depth - 1)
    return gone


def _is_left(found: re.Match[str], changed: float) -> bool:
    if found["place"] != _place():
        return time.time() - changed > _OLD
    return str(_start_of(int(found["pid"]))) != found["start"]


@functools.cache
def _place() -> str:
    """Where process numbers mean the same: this machine, since it was started, in this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _start_of(pid: int) -> int:
    """When a process was started, in the kernel's ticks: tells it from a later one with the same number. -1: gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return -1
    except OSError:
        pass
    return 0  # alive, on a system that does not say since when
