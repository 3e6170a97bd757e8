"""A disk that is full, or turns read-only, at the first write of a piece of work, at the second, ... at its last.

faults.c stands between the program and the C library and lets so many writes below a folder pass; so every write
counts, also those of SQLite and onnx. Each try is a process of its own, forked from one that has everything loaded.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.torture.rows import Row, Torture, learn, write_network, write_pictures
from semisight.errors import UserError

_FULL, _READ_ONLY = 1, 2
_SOURCE = Path(__file__).with_suffix(".c")
_MOST = 5000  # writes of one piece of work


@dataclass(frozen=True)
class Work:
    """What writes below `folder`; `before` puts the old state there, `right` looks at what is left, given what the
    work had said before it failed."""

    name: str
    folder: Path
    before: Callable[[], object]
    do: Callable[[Callable[[str], None]], object]
    right: Callable[[list[str]], object]


def full_disks_at_every_write(torture: Torture) -> list[Row]:
    return _in_another_process(torture, _FULL)


def read_only_disks_at_every_write(torture: Torture) -> list[Row]:
    return _in_another_process(torture, _READ_ONLY)


def compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")


def library(folder: Path) -> Path:
    """faults.c, compiled."""
    found, made = compiler(), folder / "faults.so"
    if found is None:
        raise UserError("failing writes needs a C compiler.")
    subprocess.run([found, "-shared", "-fPIC", "-O1", "-o", str(made), str(_SOURCE), "-ldl"], check=True)
    return made


def _in_another_process(torture: Torture, kind: int) -> list[Row]:
    """LD_PRELOAD counts from a program's start."""
    told = torture.folder / "rows.json"
    environment = {**os.environ, "LD_PRELOAD": str(library(torture.folder)), "OMP_NUM_THREADS": "1"}
    code = f"from {__name__} import main; main()"
    words = [sys.executable, "-c", code, str(torture.folder), str(torture.share), str(torture.seed), str(kind)]
    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
    return [Row(**row) for row in json.loads(told.read_text())]


def main() -> None:
    folder, share, seed, kind = sys.argv[1:]
    torture = Torture(float(share), int(seed), Path(folder))
    disk = "is full" if int(kind) == _FULL else "turns read-only"
    rows = []
    for work in works(torture):
        row = Row(f"{work.name}: a disk that {disk} at each write")
        step = max(1, round(0.2 / torture.share))
        for writes in range(0, _MOST, step):
            work.before()
            what, said, failed = _tried(work, writes, int(kind))
            if not failed:
                break  # it had as many writes as it wanted
            if what:
                row.count(False, f"write {writes}: {what}")
                continue
            try:
                row.count(work.right(said) is not False, f"write {writes}: wrong afterwards")
            except Exception as error:
                row.count(False, f"write {writes}: afterwards {type(error).__name__}: {error}")
        rows.append(vars(row))
    (torture.folder / "rows.json").write_text(json.dumps(rows))


def _tried(work: Work, writes: int, kind: int) -> tuple[str, list[str], int]:
    """What was wrong with how it ended, what it had said, and how many writes failed."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        _child(work, writes, kind, theirs)
    os.close(theirs)
    with open(ours, encoding="utf-8") as stream:
        lines = stream.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0 or not lines:
        return f"it ended with {code}", lines, 1
    about = json.loads(lines[-1])
    return about["wrong"], lines[:-1], about["failed"]


def _child(work: Work, writes: int, kind: int, pipe: int) -> None:
    def say(line: str) -> None:
        os.write(pipe, f"{line}\n".encode())

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    faults, wrong = ctypes.CDLL(None), ""
    faults.faults_failed.restype = ctypes.c_long
    faults.faults_begin(str(work.folder).encode(), ctypes.c_long(writes), kind)
    try:
        work.do(say)
    except UserError:  # a message
        pass
    except BaseException:
        wrong = traceback.format_exc()[-1500:]
    failed = faults.faults_failed()
    faults.faults_begin(b"", ctypes.c_long(0), 0)
    os.write(pipe, (json.dumps({"wrong": wrong, "failed": failed}) + "\n").encode())
    os._exit(0)


# --- what is tried


def works(torture: Torture) -> list[Work]:
    import semisight.runs.train  # loaded once, before any process is forked

    assert semisight.runs.train
    home = torture.folder
    return [
        _train(home),
        _overwrite(home),
        _labels(home),
        _cache(home),
        _features(home),
        *_exports(home),
        _report(home),
    ]


def _train(home: Path) -> Work:
    from semisight.runs.run import load_run

    run = home / "train" / "run"
    learn(home / "warm", limit=100)

    def right(_: list[str]) -> bool:
        try:
            loaded = load_run(run)
        except UserError:  # there is none
            return True
        return loaded.meta["data"]["train"]["number"] == loaded.data().n_train

    def before() -> None:
        shutil.rmtree(run.parent, ignore_errors=True)

    return Work("training", run.parent, before, lambda say: learn(run, limit=100), right)


def _overwrite(home: Path) -> Work:
    from semisight.runs.run import load_run

    run = home / "overwrite" / "run"
    kept = home / "warm"

    def before() -> None:
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(kept, run)

    def right(_: list[str]) -> bool:
        loaded = load_run(run)
        return loaded.meta["data"]["train"]["number"] == loaded.data().n_train

    return Work("training over another run", run.parent, before, lambda say: learn(run, limit=150), right)


def _labels(home: Path) -> Work:
    from semisight.data.label_csv import Entry
    from semisight.data.label_table import Table

    path = home / "labels" / "labels.csv"

    def before() -> None:
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        Table(path, {"old.png": Entry("dog")}).close()

    def do(say: Callable[[str], None]) -> None:
        with Table(path) as table:
            for i in range(3):
                table.put(f"{i}.png", label="cat")
                say(f"{i}.png")
                table.merge(quiet=0.0)

    def right(said: list[str]) -> bool:
        with Table(path) as table:
            found = table.entries()
        return found["old.png"] == Entry("dog") and all(found.get(name) == Entry("cat") for name in said)

    return Work("labels", path.parent, before, do, right)


def _cache(home: Path) -> Work:
    from semisight.data import load
    from semisight.data.image_cache import cached_folder

    pictures, cache = home / "pictures", home / "cache"
    pictures.mkdir()
    write_pictures(pictures, 20)
    wanted = load(str(pictures), size=16, channels=1).images

    def read(*_: Any) -> bool:
        found = cached_folder(pictures, size=16, channels=1, cache=cache, workers=0)
        assert bool((found.images == wanted).all()), "other images"
        return True

    return Work("a cache of images", cache, lambda: shutil.rmtree(cache, ignore_errors=True), read, read)


def _features(home: Path) -> Work:
    from semisight.backbones import resolve
    from semisight.data.feature_cache import cached_features

    cache = home / "features"
    backbone = resolve(write_network(home / "network.onnx"))
    wanted = cached_features(home / "pictures", backbone, views=2, cache=home / "whole", workers=0).values(None, 1)

    def read(*_: Any) -> bool:
        found = cached_features(home / "pictures", backbone, views=2, cache=cache, workers=0).values(None, 1)
        assert (found == wanted).all(), "other features"
        return True

    return Work("a cache of features", cache, lambda: shutil.rmtree(cache, ignore_errors=True), read, read)


def _exports(home: Path) -> list[Work]:
    import onnx

    from semisight.files import finish_bundle
    from semisight.inference.export import Exported, export_onnx
    from semisight.inference.triton import FILES, write_repository
    from semisight.runs.run import load_run

    loaded = load_run(home / "warm")
    file, repository = home / "export" / "model.onnx", home / "triton" / "model"

    def export(to: Path) -> Exported:
        return export_onnx(loaded.model, list(loaded.readers.values()), to)

    write_repository(home / "made", 1, export)

    def before() -> None:
        file.parent.mkdir(exist_ok=True)
        shutil.copy(home / "made" / "1" / "model.onnx", file)

    def right(_: list[str]) -> bool:
        onnx.checker.check_model(onnx.load(str(file)))
        return True

    def before_repository() -> None:
        shutil.rmtree(repository.parent, ignore_errors=True)
        shutil.copytree(home / "made", repository)

    def right_repository(_: list[str]) -> bool:
        finish_bundle(repository)
        onnx.checker.check_model(onnx.load(str(repository / "1" / "model.onnx")))
        config = (repository / "config.pbtxt").read_text()
        return all((repository / name).exists() for name in FILES) and config.rstrip().endswith(("}", "]"))

    return [
        Work("export", file.parent, before, lambda say: export(file), right),
        Work(
            "export for Triton",
            repository.parent,
            before_repository,
            lambda say: write_repository(repository, 7, export),
            right_repository,
        ),
    ]


def _report(home: Path) -> Work:
    from semisight.report.build import write_report
    from semisight.runs.run import load_run
    from semisight.runs.run_images import reload_sets

    run, old = home / "report" / "run", "<html>the old one</html>"
    shutil.copytree(home / "warm", run)
    loaded, page = load_run(run), run / "report.html"
    sets = reload_sets(loaded)
    write_report(loaded, sets, page)

    def before() -> None:
        page.write_text(old)

    def right(_: list[str]) -> bool:
        text = page.read_text()
        return text == old or (len(text) > 1000 and text.rstrip().endswith("</html>"))

    return Work("report", run.parent, before, lambda say: write_report(loaded, sets, page), right)
