"""Two writers of one folder, a disk that fills at every size, and a rename that is not on disk yet."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.full_disk import disk_with_room_for
from benchmarks.torture.rows import Row, Torture
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
