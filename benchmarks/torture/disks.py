"""Two writers of one folder, a disk that is full or turns read-only, and a rename that is not on disk yet."""

import contextlib
import errno
import functools
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.full_disk import disk_with_room_for
from benchmarks.torture.rows import Row, Torture, learn
from semisight.errors import UserError


def pairs_of_writers(torture: Torture) -> Row:
    """Two processes that want one folder: one gets it, the other is told who has it."""
    row = Row("pairs of writers of one folder")
    code = (
        "import sys, time\nfrom semisight.files import locked\nfrom semisight.errors import UserError\n"
        "try:\n with locked(sys.argv[1], 'training'):\n  time.sleep(1.5); print('wrote')\n"
        "except UserError as error:\n print(error)\n"
    )
    for number in range(torture.times(20)):
        folder = torture.folder / f"pair{number}"
        children = [
            subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        said = sorted((child.communicate()[0].strip() for child in children), key=len)
        one = said[0] == "wrote" and f"process {_other(children, said)}" in said[1]
        # on a slow machine the first may have ended before the second began: then both wrote, one after the other
        row.count(one or said == ["wrote", "wrote"], repr(said))
    return row


def _other(children: list[Any], said: list[str]) -> str:
    return next((str(child.pid) for child in children if str(child.pid) in said[1]), "nobody")


def full_disks(torture: Torture) -> Row:
    """A disk that fills at every size of a write: the old files stay, and the message says why."""
    import numpy as np
    from safetensors.numpy import save

    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table
    from semisight.files import bundle, check_seal, seal, write_atomic

    row, chance = Row("writes to a disk that is full"), torture.chance("disk")
    folder = torture.folder / "disk"
    folder.mkdir()
    sealed = seal(save({"a": np.arange(5000)}))
    write_atomic(folder / "checkpoint", sealed)
    table = Table(folder / "labels.csv", {"a.png": Entry("cat")})
    for number in range(torture.times(300)):
        room = chance.randrange(60_000)
        table.put(f"{number}.png", label="x" * chance.randrange(1, 50))
        before = _seen(folder)
        kept, wrote = table.entries(), []
        with disk_with_room_for(room):
            for what, work in (
                ("file", lambda: write_atomic(folder / "checkpoint", sealed)),
                ("labels", lambda: table.put("new.png", label="y" * 20_000)),
                ("merge", lambda: table.merge(quiet=0.0)),
                ("bundle", lambda: _bundle(bundle, folder, bytes(50_000))),
            ):
                try:
                    work()
                    wrote.append(what)
                except UserError:
                    continue
                except OSError as error:
                    row.count(False, f"{what}: {error}")
        check_seal(folder / "checkpoint")
        same = wrote or _seen(folder) == before
        row.count(bool(same) and table.entries().items() >= {k: v for k, v in kept.items() if k != "new.png"}.items(),
                  f"room {room}: {wrote}")  # fmt: skip
        if "labels" in wrote:
            table.put("new.png", "", "")
    return row


def _seen(folder: Path) -> dict[str, bytes]:
    """But for the table, which may have its rows already while its journal could not say so."""
    files = [file for file in folder.iterdir() if file.is_file() and file.name[0] != "." and file.suffix != ".csv"]
    return {file.name: file.read_bytes() for file in files}


def _bundle(bundle: Any, folder: Path, content: bytes) -> None:
    with bundle(folder, remove=["part*"]) as new:
        (new / "part1").write_bytes(content)
        (new / "part2").write_bytes(content)


# --- a disk that turns read-only: Python tells an audit hook before it opens, renames, links or removes

_WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_left: list[int] | None = None  # writes that still succeed, while a disk is being turned read-only


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _left is None or not (event in _WRITES or (event == "open" and _writes(arguments))):
        return
    _left[0] -= 1
    if _left[0] < 0:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def _writes(arguments: tuple[Any, ...]) -> bool:
    path, _, flags = arguments
    written = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    return written and not str(path).startswith("/dev/")


_add_hook = functools.cache(lambda: sys.addaudithook(_hook))  # it cannot be taken away again


@contextlib.contextmanager
def read_only_after(writes: int) -> Iterator[list[int]]:
    """Every file system is read-only once so many writes were done; yields what is left of them, below 0: none was."""
    global _left
    _add_hook()
    _left = counter = [writes]
    try:
        yield counter
    finally:
        _left = None


def read_only_disks(torture: Torture) -> Row:
    """A disk that turns read-only before the first write, the second, ... of everything that writes: the old files or
    the new ones, and a message."""
    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table
    from semisight.files import bundle, check_seal, finish_bundle, locked, seal, write_atomic
    from semisight.runs.run import load_run
    from semisight.training.checkpoint import Checkpoint, write_checkpoint

    row = Row("writes to a disk that turns read-only, at each write")
    folder, run = torture.folder / "disk", torture.folder / "run"
    folder.mkdir()
    learn(run, limit=100)

    def file() -> None:
        write_atomic(folder / "a.bin", seal(_safetensors()))

    def several() -> None:
        with locked(folder / "bundle", "torture"), bundle(folder / "bundle", remove=["part*"]) as new:
            for name in ("part1", "part2"):
                (new / name).write_bytes(os.urandom(8) * 1000)

    def labels() -> None:
        with Table(folder / "labels.csv") as table:
            table.put(f"{os.urandom(4).hex()}.png", label="cat")
            table.merge(quiet=0.0)

    def right() -> bool:
        finish_bundle(folder / "bundle")
        check_seal(folder / "a.bin")
        parts = [part.read_bytes() for part in (folder / "bundle").glob("part*")]
        with Table(folder / "labels.csv") as table:
            kept = table.entries().get("old.png") == Entry("dog")
        loaded = load_run(run)
        return kept and len(parts) == 2 and loaded.meta["data"]["train"]["number"] == loaded.data().n_train

    Table(folder / "labels.csv", {"old.png": Entry("dog")}).close()
    file()
    several()
    works: dict[str, Callable[[], object]] = {
        "file": file,
        "checkpoint": lambda: write_checkpoint(folder / "c.safetensors", Checkpoint({"model": {}}, {"about": {}})),
        "bundle": several,
        "labels": labels,
        "training": lambda: learn(run, limit=150),
    }
    for name, work in works.items():
        step = max(1, round(0.1 / torture.share)) if name == "training" else 1  # a training writes a hundred times
        for writes in itertools.count(0, step):
            with read_only_after(writes) as left:
                message = ""
                try:
                    work()
                except UserError as error:
                    message = str(error)
                except BaseException as error:  # whatever it is, it is what we look for
                    row.count(False, f"{name}, write {writes}: {type(error).__name__}: {error}")
            if left[0] >= 0:  # it was enough
                break
            row.count(right(), f"{name}, write {writes}: {message}")
    return row


def _safetensors() -> bytes:
    import numpy as np
    from safetensors.numpy import save

    return save({"a": np.arange(500)})


# --- on disk before it is confirmed


_CONFIRMED = "confirmed"
_TRACED = """
import os, sys
from pathlib import Path
sys.argv = ["torture"]
from benchmarks.torture.rows import learn
from semisight.data.label_table import Table
from semisight.files import bundle, write_atomic, write_json
folder = Path(os.environ["FOLDER"])
def confirm(): os.write(2, b"confirmed")
write_atomic(folder / "file.txt", "text"); confirm()
write_json(folder / "new" / "deep" / "file.json", {"a": 1}); confirm()
for version in range(2):
    with bundle(folder / "bundle", remove=["a", "sub/*"]) as new:
        (new / "sub").mkdir()
        for name in ("a", "sub/b"):
            (new / name).write_text(str(version))
    confirm()
with Table(folder / "labels.csv") as table:
    confirm()
    for i in range(3):
        table.put(f"{i}.png", label="cat"); confirm()
        table.merge(quiet=0.0); confirm()
learn(folder / "run", limit=100, epochs=2); confirm()
learn(folder / "run", limit=150); confirm()
"""


def flushed_renames(torture: Torture) -> Row:
    """strace sees an fsync of the folder after every rename, before the program says that it is done."""
    row = Row("renames whose folder is flushed before they are confirmed (strace)")
    log = torture.folder / "strace.txt"
    home = torture.folder / "files"
    home.mkdir()
    calls = "trace=fsync,fdatasync,rename,renameat,renameat2,write"
    words = ["strace", "-f", "-y", "-qq", "-s", "20", "-e", calls, "-o", str(log), sys.executable, "-c", _TRACED]
    subprocess.run(words, env={**os.environ, "FOLDER": str(home)}, check=True, capture_output=True)
    for target, flushed in renames_in(log.read_text(errors="replace").splitlines(), str(home)):
        row.count(flushed, target)
    return row


_RENAME = re.compile(r'rename\w*\((?:AT_FDCWD\S*, )?"[^"]*", (?:AT_FDCWD\S*, )?"([^"]*)".*= 0')
_FSYNC = re.compile(r"f(?:data)?sync\(\d+<([^>]*)>.*= 0")


def renames_in(lines: Iterable[str], below: str) -> Iterator[tuple[str, bool]]:
    """(target, whether its folder was flushed before the next confirmation) of every rename in a trace."""
    waiting: list[str] = []
    flushed: set[str] = set()
    for line in lines:
        if (found := _RENAME.search(line)) and found[1].startswith(below):
            waiting.append(found[1])
            flushed.discard(os.path.dirname(found[1]))
        elif found := _FSYNC.search(line):
            flushed.add(found[1])
        elif "write(2" in line and _CONFIRMED in line:
            yield from ((target, os.path.dirname(target) in flushed) for target in waiting)
            waiting.clear()
    yield from ((target, False) for target in waiting)
