"""Paths of commands that lie elsewhere (s3://, gs://, hf://, file://): copied here before, or written there afterwards.

What is read is copied once into the user's cache. What is written (`--out`, `--triton`) is written to a place in the
cache first and sent when the command ends; a training's folder is sent every minute as well, file by file, each whole,
so that another machine goes on with `--resume` where this one was lost. `predict`, `embed` and `caption` write to URLs
by themselves, part by part (runs/bulk.py), and a run is fetched by who loads it, on whichever machine that is.
"""

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from semisight.errors import UserError

OUTPUTS = ("out", "triton")
PILES = ("predict", "embed", "caption")  # their --out is a data set that workers write to
TABLES = ("evaluate",)  # train and report, which may name them again later, fetch theirs by themselves
SECONDS = 60.0  # between two looks at what a training has written


@contextlib.contextmanager
def at_hand(command: str, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The values of parameters with paths of this machine; what was to be written elsewhere is sent at the end."""
    from semisight.data.remote import as_written, is_url, local_copy

    found, sent = dict(values), contextlib.ExitStack()
    with sent:
        for name, value in values.items():
            if command in TABLES and name in ("labels", "tags", "captions") and value and is_url(value):
                found[name] = str(local_copy(value))
            if not isinstance(value, Path) or not is_url(url := as_written(value)):
                continue
            if url.startswith("file://"):
                found[name] = local_copy(url)
            elif name in OUTPUTS:
                if command not in PILES:
                    found[name] = sent.enter_context(_written(command, url, values))
            elif name != "run":
                found[name] = local_copy(url)
            elif command == "serve":
                if values.get("labels") is None:
                    raise UserError(f"{url} is not on this machine: say where labels are kept, --labels labels.csv.")
                found[name] = local_copy(url)
        yield found


@contextlib.contextmanager
def _written(command: str, url: str, values: dict[str, Any]) -> Iterator[Path]:
    from semisight.cli.console import note
    from semisight.data import remote
    from semisight.data.image_cache import default_cache
    from semisight.training.devices import is_first_process

    key = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    place = default_cache() / "outgoing" / key / PurePosixPath(url).name
    place.parent.mkdir(parents=True, exist_ok=True)
    system, inside = remote.filesystem(url)
    with remote.told(url):
        system.invalidate_cache()
        there = system.exists(inside)
    if there and not values.get("overwrite"):
        if command != "train":
            raise UserError(f"{url} already exists: give --overwrite to replace it, or another --out.")
        if is_first_process() and not place.exists():  # begun on another machine
            with remote.told(url):
                system.get(inside.rstrip("/") + "/", f"{place}/", recursive=True)
    elif command != "train" or not there:
        _clear(place)
    if not is_first_process():
        yield place
        return
    mirror = _Mirror(place, url)
    if there and command == "train" and not values.get("overwrite"):
        mirror.known = mirror.now()  # as it is there
    try:
        with mirror.now_and_then() if command == "train" else contextlib.nullcontext():
            yield place
    finally:
        if place.exists() and mirror.send():
            note(f"Sent to {url}.")


def _clear(place: Path) -> None:
    import shutil

    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)


class _Mirror:
    """Sends files that have changed, and takes away those that are gone."""

    def __init__(self, place: Path, url: str) -> None:
        self.place, self.url, self.known = place, url, dict[str, tuple[int, int]]()

    def now(self) -> dict[str, tuple[int, int]]:
        """Size and time of every file that is to be there."""
        files = [self.place] if self.place.is_file() else sorted(f for f in self.place.rglob("*") if f.is_file())
        found: dict[str, tuple[int, int]] = {}
        for file in files:
            if file.name != ".lock" and not file.name.endswith(".tmp"):
                with contextlib.suppress(FileNotFoundError):  # replaced by a newer one at this moment
                    status = file.stat()
                    name = "" if file == self.place else file.relative_to(self.place).as_posix()
                    found[name] = (status.st_size, status.st_mtime_ns)
        return found

    def send(self) -> bool:
        """Whether there was anything to send."""
        from semisight.data import remote

        system, inside = remote.filesystem(self.url)
        now = self.now()
        changed = [name for name, state in now.items() if self.known.get(name) != state]
        gone = self.known.keys() - now.keys()
        with remote.told(self.url):
            for name in changed:
                try:
                    system.put_file(str(self.place / name), f"{inside.rstrip('/')}/{name}".rstrip("/"))
                except FileNotFoundError:  # gone meanwhile: the next look sees what has become of it
                    now.pop(name)
            for name in gone:
                system.rm_file(f"{inside.rstrip('/')}/{name}")
        self.known = now
        return bool(changed or gone)

    @contextlib.contextmanager
    def now_and_then(self) -> Iterator[None]:
        from semisight.cli.console import note

        end = threading.Event()

        def look() -> None:
            while not end.wait(SECONDS):
                try:
                    if self.place.exists():
                        self.send()
                except UserError as error:  # the training goes on, and the next look tries again
                    note(f"note: {error}")

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join()


def with_places(function: Callable[..., None]) -> Callable[..., None]:
    """The function of a command, called with paths of this machine."""

    def called(**values: Any) -> None:
        with at_hand(function.__name__, values) as found:
            function(**found)

    return called
