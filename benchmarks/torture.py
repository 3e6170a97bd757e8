"""`make torture`: what is promised in SECURITY.md, tried until it breaks. Minutes; a row per promise in a CSV file.

    python -m benchmarks.torture --out results/torture.csv       all of it
    python -m benchmarks.torture --only labels,readers --share 0.05

tried and survived are counts; `worst` is in the unit that the row names. Whatever does not survive is written to
--keep FOLDER with its seed, so that it can be tried again (`--seed`). The tests run a short form.
"""

import argparse
import contextlib
import csv
import json
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from semisight.errors import UserError

COLUMNS = ("promise", "tried", "survived", "worst", "unit", "seed", "commit", "hardware")


@dataclass
class Row:
    """What was tried of a promise, and how often it held."""

    promise: str
    tried: int = 0
    survived: int = 0
    worst: float = 0.0
    unit: str = ""
    broken: list[str] = field(default_factory=list)

    def count(self, held: bool, what: str = "") -> None:
        self.tried += 1
        self.survived += held
        if not held:
            self.broken.append(what)


@dataclass(frozen=True)
class Torture:
    """How much of it, from which seed, and where runs may be written."""

    share: float
    seed: int
    folder: Path

    def times(self, full: int) -> int:
        return max(3, round(full * self.share))

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")


# --- kills


def _dies(work: Callable[[], object], after: float) -> int:
    """Runs `work` in a process that is killed after so many seconds; how it ended."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(after)
    if child.is_alive():
        os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    return child.exitcode or 0


def kills_of_overwriting(torture: Torture) -> Row:
    """A bundle of files that is replaced over and over: all of one version, always."""
    from semisight.files import bundle, finish_bundle, locked

    row, chance = Row("kills while a folder of files is overwritten"), torture.chance("overwrite")
    folder = torture.folder / "bundle"

    def write(version: int) -> None:
        with bundle(folder, remove=["*.bin", "sub/*"]) as new:
            (new / "sub").mkdir()
            for name in ("a.bin", "b.bin", f"sub/{version}"):
                (new / name).write_bytes(f"{version}".encode() * 50_000)

    def overwrite() -> None:
        with locked(folder, "torture", wait=5):
            for version in range(1000):
                write(version)

    write(0)
    for _ in range(torture.times(200)):
        _dies(overwrite, chance.uniform(0.0, 0.08))
        finish_bundle(folder)
        with locked(folder, "torture"):
            pass
        files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
        contents = {file.read_bytes() for file in files}
        row.count(len(files) == 3 and len(contents) == 1, f"{[file.name for file in files]}")
    return row


def kills_of_training(torture: Torture) -> Row:
    """Trainings over each other, of two sets in turn: after a kill there is one whole run, with its own data record."""
    from semisight.runs.run import load_run

    row, chance = Row("kills while a run is trained over another"), torture.chance("train")
    run = torture.folder / "trained"
    _learn(run, limit=100)
    for number in range(torture.times(60)):
        _dies(lambda limit=100 + 50 * (number % 2): _learn(run, limit=limit), chance.uniform(0.1, 1.5))  # type: ignore[misc]
        try:
            loaded = load_run(run)
            fits = loaded.meta["data"]["train"]["number"] == loaded.data().n_train
            row.count(fits, f"{loaded.meta['data']} with {loaded.data().n_train}")
        except UserError as error:
            row.count(False, str(error))
    left = [file.name for file in run.rglob("*.tmp")]
    _learn(run, limit=100)
    cleaned = not list(run.rglob("*.tmp"))
    row.count(cleaned, f"left: {left}")
    return row


def kills_of_labels(torture: Torture) -> Row:
    """Labels that were confirmed before a kill are there after it; and another program saves the table meanwhile."""
    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table

    row, chance = Row("labels confirmed before a kill"), torture.chance("labels")
    path, told = torture.folder / "labels.csv", torture.folder / "confirmed.txt"

    def label(turn: int) -> None:
        table = Table(path)
        with told.open("a") as confirmed:
            for i in range(100_000):
                table.put(f"{turn}/{i}.png", label=f"{i % 7}")
                confirmed.write(f"{turn}/{i}.png,{i % 7}\n")
                confirmed.flush()
                if i % 20 == 19:
                    table.merge(quiet=0.0)

    for turn in range(torture.times(200)):
        told.write_text("")
        _dies(lambda turn=turn: label(turn), chance.uniform(0.0, 0.15))  # type: ignore[misc]
        with Table(path) as table:
            found = table.entries()
            for line in told.read_text().splitlines():
                name, _, value = line.partition(",")
                row.count(found.get(name) == Entry(value), f"{name} in turn {turn}")
            if turn % 10 == 9:
                table.merge(quiet=0.0)
    return row


def kills_of_caches(torture: Torture) -> Row:
    """Images read into a cache by a process that is killed: the next one reads the same."""
    from semisight.data import load

    row, chance = Row("kills while images are read into a cache"), torture.chance("cache")
    pictures = torture.folder / "pictures"
    pictures.mkdir()
    _write_pictures(pictures, 40)
    os.environ["XDG_CACHE_HOME"] = str(torture.folder / "cache")
    wanted = load(str(pictures), size=16).images.sum()
    for _ in range(torture.times(40)):
        _dies(lambda: load(str(pictures), size=16), chance.uniform(0.0, 0.2))
        row.count(bool(load(str(pictures), size=16).images.sum() == wanted))
    return row


def _write_pictures(folder: Path, count: int) -> None:
    import numpy as np
    from PIL import Image

    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 255, (16, 16), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")


# --- two writers, a full disk


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
        with _disk_with_room_for(room):
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


@contextlib.contextmanager
def _disk_with_room_for(n_bytes: int) -> Iterator[None]:
    """The kernel lets no file of this process grow beyond `n_bytes`."""
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


# --- mutated inputs


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Cut off, bytes changed, pieces doubled, left out or swapped, numbers made huge or negative, brackets piled up."""
    found = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 5, 20))):
        if not found:
            break
        at, kind = chance.randrange(len(found)), chance.randrange(8)
        piece = found[at : at + chance.randrange(1, 60)]
        if kind == 0:
            del found[at:]
        elif kind == 1:
            found[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del found[at : at + len(piece)]
        elif kind == 3:
            found[at:at] = piece * chance.randrange(1, 30)
        elif kind == 4:
            found[at : at + 1] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 5:
            digits = [i for i, byte in enumerate(found) if 48 <= byte <= 57]
            if digits:
                i = chance.choice(digits)
                found[i : i + 1] = chance.choice((b"999999999999", b"-1", b"1e308", b"NaN", b"[]", b"null"))
        elif kind == 6:
            found[at:at] = chance.choice((b"[", b"{", b'{"a":', b"- ")) * chance.choice((3, 2000))
        else:
            found[at:at] = chance.choice((b"\x00", b"\xff\xfe", b"\x1b[2J", b"../", b"~/", b"=cmd()", b"\r\n", b'"'))
    return bytes(found)


def readers(torture: Torture) -> Iterator[tuple[str, bytes, Callable[[Path], object]]]:
    """Every reader of a file that a stranger may have written: a name, a good file, and the reader."""
    import numpy as np
    from PIL import Image
    from safetensors.numpy import save

    from semisight.data import load
    from semisight.data.caption_files import read_captions
    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table
    from semisight.data.tables import read_labels
    from semisight.files import check_seal, seal
    from semisight.runs.settings import read_file
    from semisight.untrusted import read_json

    names = [f"{i}.png" for i in range(20)]
    table = "file,label,caption\n" + "".join(f"{name},{i % 3},a picture of {i}\n" for i, name in enumerate(names))
    sealed = seal(save({"model:a": np.ones(30)}, metadata={"semisight": json.dumps({"format": 1, "about": {}})}))
    run = torture.folder / "learned"
    _learn(run)
    made = torture.folder / "made.csv"
    with Table(made) as journal:
        for i, name in enumerate(names):
            journal.put(name, label=f"{i % 3}", caption="a thing")
    lines = journal.journal.read_bytes()
    pictures = {kind: BytesIO() for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000")}
    for kind, stream in pictures.items():
        Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(stream, kind)
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for i in range(4):
            member = tarfile.TarInfo(f"{i}.png")
            member.size = len(pictures["PNG"].getvalue())
            tar.addfile(member, BytesIO(pictures["PNG"].getvalue()))
    arrays = BytesIO()
    np.savez(arrays, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5))
    settings = {"epochs": 3, "batch_size": 16, "layers": [{"maps": 8, "kernel": 3, "pool": 2}]}

    def with_journal(path: Path) -> object:
        table = path.with_name("journalled.csv")
        table.write_text("file,label\na.png,cat\n")
        path.rename(table.with_name("journalled.csv.journal"))
        with Table(table) as found:
            return found.put("b.png", label="dog") == Entry()

    yield "labels.csv", table.encode(), lambda path: read_labels(path, names)
    yield "captions.csv", table.encode(), read_captions
    yield "table.csv", table.encode(), lambda path: Table(path).close()
    yield "journal", lines, with_journal
    yield "data.json", json.dumps({"settings": settings, "n": 5}).encode(), read_json
    yield "settings.json", json.dumps(settings).encode(), read_file
    yield "settings.yaml", b"epochs: 3\nbatch_size: 16\nlayers:\n- {maps: 8, kernel: 3, pool: 2}\n", read_file
    yield "sealed.safetensors", sealed, check_seal
    for file in sorted(file.relative_to(run).as_posix() for file in run.rglob("*.json")):
        yield f"run {Path(file).name}", (run / file).read_bytes(), _in_run(run, file, lambda content: content)
    newest = "checkpoints/newest.safetensors"
    yield "run newest.safetensors", (run / newest).read_bytes(), _in_run(run, newest, lambda content: content)
    header, with_header = _header_of((run / newest).read_bytes())
    yield "run a stranger's header", header, _in_run(run, newest, with_header)
    yield "images.tar", packed.getvalue(), lambda path: load(str(path), size=8)
    yield "images.npz", arrays.getvalue(), lambda path: load(str(path))
    for kind, stream in pictures.items():
        yield f"picture.{kind.lower()}", stream.getvalue(), lambda path: load(str(path), size=8)


def _in_run(run: Path, file: str, made: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Opens a run of which one file is another's."""
    from semisight.runs.run import load_run

    good = (run / file).read_bytes()

    def read(path: Path) -> object:
        try:
            (run / file).write_bytes(made(path.read_bytes()))
            loaded = load_run(run, "newest")
            return loaded.data(), loaded.unfinished, loaded.config, loaded.step
        finally:
            (run / file).write_bytes(good)

    return read


def _header_of(checkpoint: bytes) -> tuple[bytes, Callable[[bytes], bytes]]:
    """The JSON in a checkpoint's header, and what puts another one there with a checksum that is right."""
    from semisight.files import seal

    size = int.from_bytes(checkpoint[:8], "little")
    header = json.loads(checkpoint[8 : 8 + size])

    def with_header(text: bytes) -> bytes:
        about = {"semisight": text.decode("utf-8", "replace")}
        whole = json.dumps({**header, "__metadata__": about}).encode()
        return seal(len(whole).to_bytes(8, "little") + whole + checkpoint[8 + size :])

    return header["__metadata__"]["semisight"].encode(), with_header


def mutated_inputs(torture: Torture) -> list[Row]:
    """Read, or refused with a message: no traceback, no gigabytes, no minutes."""
    rows = []
    for name, good, read in readers(torture):
        row, chance = Row(f"mutated inputs: {name}", unit="s"), torture.chance(name)
        folder = torture.folder / f"of {name}"
        folder.mkdir()
        path = folder / name
        path.write_bytes(good)
        read(path)  # the good one is read
        for number in range(torture.times(500)):
            path.write_bytes(mutated(good, chance))
            started = time.perf_counter()
            try:
                read(path)
                row.count(True)
            except UserError as error:
                row.count(all(letter.isprintable() or letter in "\n\t" for letter in _shown(error)), "escape")
            except BaseException as error:  # whatever it is, it is what we look for
                row.count(False, f"{number}: {type(error).__name__}: {error}")
            row.worst = max(row.worst, round(time.perf_counter() - started, 3))
        rows.append(row)
    return rows


def _shown(error: UserError) -> str:
    from semisight.cli.console import _shown

    return _shown(str(error))


# --- the server


def _learn(folder: Path, limit: int = 250) -> None:
    from semisight.runs.settings import resolve
    from semisight.runs.train import train_run

    asked = {"source": "builtin:digits", "limit": limit, "labels_per_class": 3, "epochs": 1, "batch_size": 64}
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        train_run(resolve(asked), folder, resume=False, overwrite=folder.exists(), say=lambda line: None)


def clients(torture: Torture) -> list[Row]:
    """Slow connections, and many requests, at a real server; its memory before and after."""
    run = torture.folder / "run"
    _learn(run)
    words = ["serve", str(run), "--labels", str(torture.folder / "served.csv"), "--port", "0"]
    child = subprocess.Popen([sys.executable, "-m", "semisight", *words], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        line = next(line for line in child.stdout if line.startswith("Serving at "))
        port = int(line.split()[2].rstrip("/").rsplit(":", 1)[1])
        while _ask(port, b"GET /api/status HTTP/1.1\r\n")[1].find(b'"state":"ready"') < 0:
            time.sleep(0.2)
        rows = [_slow(torture, port), _many(torture, port, child.pid)]
    finally:
        child.send_signal(signal.SIGTERM)
        code = child.wait(60)
    ended = Row("ends of a server after all this")
    ended.count(code in (0, -signal.SIGTERM), str(code))
    return [*rows, ended]


def _ask(port: int, head: bytes, body: bytes = b"") -> tuple[float, bytes]:
    """Seconds, and the whole answer."""
    started = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), 60) as asking:
        asking.sendall(head + b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n" + body)
        answer = b"".join(iter(lambda: asking.recv(65536), b""))
    return time.perf_counter() - started, answer


def _slow(torture: Torture, port: int) -> Row:
    """Half a header each, held open: meanwhile everybody else is answered."""
    row = Row("requests beside slow connections", unit="s")
    with contextlib.ExitStack() as stack:
        for number in range(torture.times(1000)):
            held = stack.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            held.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"[: number % 30])
            if number % 10 == 0:
                seconds, answer = _ask(port, b"GET /label HTTP/1.1\r\n")
                row.count(answer.startswith(b"HTTP/1.1 200"), repr(answer[:100]))
                row.worst = max(row.worst, round(seconds, 3))
    return row


def _many(torture: Torture, port: int, process: int) -> Row:
    """Predictions, pages and labels by turns: memory stays what it was after the first tenth of them."""
    from PIL import Image

    stream = BytesIO()
    Image.new("L", (8, 8), 90).save(stream, "PNG")
    image = stream.getvalue()
    predict = b"POST /api/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: image/png\r\nContent-Length: %d\r\n\r\n"
    kinds = [predict % len(image) + image] * 6 + [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /api/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        _label_request(port),
    ]
    row, lock = Row("requests, memory flat", unit="MB grown"), threading.Lock()
    total, before = torture.times(100_000), 0.0

    def send(count: int, chance: random.Random) -> None:
        with socket.create_connection(("127.0.0.1", port), 60) as asking:
            stream = asking.makefile("rb")
            for _ in range(count):
                asking.sendall(chance.choice(kinds))
                status, length = stream.readline(), 0
                while head := stream.readline().strip().lower():
                    length = int(head.split(b":")[1]) if head.startswith(b"content-length") else length
                stream.read(length)
                with lock:
                    row.count(status.startswith(b"HTTP/1.1 200"), repr(status))

    for part, share in enumerate((0.1, 0.9)):
        threads = [
            threading.Thread(target=send, args=(max(1, round(total * share / 8)), torture.chance(f"{part} {n}")))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if part == 0:
            before = _megabytes(process)
    row.worst = round(_megabytes(process) - before, 1)
    if row.worst > 50:
        row.count(False, f"it grew by {row.worst} MB")
    return row


def _label_request(port: int) -> bytes:
    answer = _ask(port, b"GET /api/suggestions?n=1 HTTP/1.1\r\n")[1]
    name = json.loads(answer.split(b"\r\n\r\n", 1)[1])["images"][0]["file"]
    body = json.dumps({"file": name, "label": "x"}).encode()
    head = (
        b"POST /api/labels HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    )
    return head % len(body) + body


def _megabytes(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


PARTS: dict[str, Callable[[Torture], Row | list[Row]]] = {
    "overwrite": kills_of_overwriting,
    "train": kills_of_training,
    "labels": kills_of_labels,
    "cache": kills_of_caches,
    "pairs": pairs_of_writers,
    "disk": full_disks,
    "readers": mutated_inputs,
    "server": clients,
}


def run(names: list[str], share: float, seed: int, keep: Path | None = None) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as folder:
            found = PARTS[name](Torture(share, seed, Path(folder)))
        rows += found if isinstance(found, list) else [found]
    if keep is not None and any(row.broken for row in rows):
        keep.mkdir(parents=True, exist_ok=True)
        text = "".join(f"seed {seed}, {row.promise}: {what}\n" for row in rows for what in row.broken)
        (keep / "broken.txt").write_text(text)
    return rows


def _hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name}; {os.cpu_count()} cores"


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=__doc__)
    options.add_argument("--only", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    options.add_argument("--share", type=float, default=1.0, help="of the full count")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, help="rows are added to this CSV file")
    options.add_argument("--keep", type=Path, default=Path("torture"), help="where what broke is written")
    given = options.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    broken = 0
    for name in given.only.split(","):
        for row in run([name], given.share, given.seed, given.keep):
            broken += len(row.broken)
            print(f"{row.promise:45} {row.survived:>7} of {row.tried:>7}  {row.worst:g} {row.unit}", flush=True)
            for what in row.broken[:3]:
                print(f"    {what[:300]}", flush=True)
            if given.out is not None:
                _add(given.out, row, given.seed)
    sys.exit(1 if broken else 0)


def _add(path: Path, row: Row, seed: int) -> None:
    from semisight.files import write_atomic

    text = StringIO(path.read_text() if path.exists() else "", newline="")
    text.seek(0, os.SEEK_END)
    writer = csv.writer(text, lineterminator="\n")
    if not text.getvalue():
        writer.writerow(COLUMNS)
    writer.writerow([row.promise, row.tried, row.survived, row.worst, row.unit, seed, _commit(), _hardware()])
    write_atomic(path, text.getvalue())


if __name__ == "__main__":
    main()
