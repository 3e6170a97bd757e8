"""`make torture` in short: every part but the server's and the trainings', which have tests of their own."""

import contextlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import torture
from benchmarks.torture import clients, faults
from benchmarks.torture.disks import renames_in
from benchmarks.torture.inputs import mutated


@pytest.mark.parametrize("part", ["overwrite", "labels", "features", "pairs", "disk"])
def test_kills_pairs_and_full_disks(part: str) -> None:
    for row in torture.run([part], share=0.02, seed=1):
        assert row.tried and row.survived == row.tried, row.broken


def test_mutated_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = torture.run(["readers"], share=0.02, seed=1)
    assert len(rows) > 20
    assert not [(row.promise, row.broken) for row in rows if row.broken]


def test_what_breaks_is_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_(_: torture.Torture) -> torture.Row:
        row = torture.Row("a promise")
        row.count(True)
        row.count(False, "what happened")
        return row

    monkeypatch.setitem(torture.PARTS, "broken", break_)
    (row,) = torture.run(["broken"], 1.0, 7, tmp_path)
    assert (row.tried, row.survived) == (2, 1)
    assert "seed 7, a promise: what happened" in (tmp_path / "broken.txt").read_text()


def test_mutations_are_the_same_for_the_same_seed() -> None:
    content = b'{"a": [1, 2, 3]}' * 5
    first, again = ([mutated(content, random.Random(seed)) for seed in range(50)] for _ in range(2))
    assert first == again and len(set(first)) > 40


def test_a_rename_counts_once_its_folder_is_flushed() -> None:
    """What is looked for in a trace: an fsync of the folder between a rename and the word that it is done."""
    rename, flush = 'rename("/a/.x.tmp", "/a/x") = 0', "fsync(3</a>) = 0"
    done = 'write(2</dev/null>, "confirmed", 9) = 9'
    assert list(renames_in([rename, flush, done], "/a")) == [("/a/x", True)]
    for wrong in ([flush, rename, done], [rename, done, flush], [rename, "fsync(3</a/x>) = 0", done], [rename, flush]):
        assert list(renames_in(wrong, "/a")) == [("/a/x", False)], wrong
    assert not list(renames_in([rename, done], "/elsewhere"))


needs_compiler = pytest.mark.skipif(faults.compiler() is None, reason="no C compiler here")


@needs_compiler
@pytest.mark.parametrize("part", ["full", "read-only"])
def test_disks_that_fail_at_a_write(part: str) -> None:
    """Of all works the first writes and every so many after them; `make torture` takes every one."""
    rows = torture.run([part], share=0.01, seed=1)
    assert not [(row.promise, row.broken) for row in rows if row.broken]
    names = {row.promise.split(":")[0] for row in rows if row.tried}
    assert names == {"training", "training over another run", "labels", "a cache of images", "a cache of features",
                     "export", "export for Triton", "report"}  # fmt: skip


TRIED = """
import ctypes, os, sqlite3, sys
from pathlib import Path
folder, faults = Path(sys.argv[1]), ctypes.CDLL(None)
def begin(writes, kind):
    faults.faults_begin(str(folder).encode(), ctypes.c_long(writes), kind)
def fails(work, reason):
    try:
        work()
    except (OSError, sqlite3.OperationalError) as error:
        assert reason in str(error), error
    else:
        raise SystemExit(f"it did not fail: {reason}")
begin(2, 1)  # the file, and its first write, which is cut
fails(lambda: (folder / "a").write_bytes(bytes(100)), "No space left")
assert (folder / "a").stat().st_size == 50
(folder / "a").rename(folder / "b")  # takes no room
(folder.parent / "elsewhere").write_text("another disk")
begin(0, 2)
for work in ((folder / "b").unlink, (folder / "c").mkdir, lambda: (folder / "b").rename(folder / "c"),
             lambda: (folder / "b").open("a"), lambda: os.truncate(folder / "b", 0)):
    fails(work, "Read-only")
begin(0, 0)
base = sqlite3.connect(folder / "base")
base.execute("CREATE TABLE a (b)")
begin(2, 1)
fails(lambda: (base.execute("INSERT INTO a VALUES (1)"), base.commit()), "full")
"""


@needs_compiler
def test_what_makes_writes_fail(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    environment = {**os.environ, "LD_PRELOAD": str(faults.library(tmp_path))}
    subprocess.run([sys.executable, "-c", TRIED, tmp_path / "disk"], env=environment, check=True)


@needs_compiler
def test_a_work_that_breaks_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a process that dies, and an answer that is wrong although nothing was said."""

    def tried(do: object, right: object) -> tuple[str, list[str], int]:
        return faults._tried(faults.Work("x", tmp_path, lambda: None, do, right), 0, 1)  # type: ignore[arg-type]

    class Counting:
        """In the place of faults.c, which this process was not started with."""

        def __getattr__(self, name: str) -> Callable[..., int]:
            def call(*_: object) -> int:
                return 1

            return call

    monkeypatch.setattr(faults.ctypes, "CDLL", lambda _: Counting())
    assert "ZeroDivisionError" in tried(lambda say: 1 // 0, None)[0]
    assert "ended with -9" in tried(lambda say: os.kill(os.getpid(), 9), None)[0]
    assert tried(lambda say: say("a"), None) == ("", ["a"], 1)


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace here")
def test_strace_sees_every_folder_flushed_after_a_rename() -> None:
    (row,) = torture.run(["flush"], share=1.0, seed=1)
    assert row.tried > 20 and not row.broken, row.broken


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("running", 3), ("running", 3)),  # stopped by the load
        (("running", 3), ("done", 9)),  # over before the load was
        (("done", 3), ("running", 9)),
        (("failed", 0), ("failed", 0)),
    ],
)
def test_a_load_beside_a_training_that_stands_still_says_nothing(
    before: tuple[str, int], after: tuple[str, int]
) -> None:
    looks = [{"state": state, "step": step} for state, step in (before, after)]
    assert "did not go on" in clients.stood_still(*looks)[0]
    assert not clients.stood_still({"state": "running", "step": 3}, {"state": "running", "step": 4})


def test_the_load_is_not_counted_as_held_if_its_training_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is asked: a training that has ended when the load does makes the row one that broke."""
    looks = iter([{"state": "running", "step": 1}, {"state": "done", "step": 5}])

    async def steady(port: int, seconds: float) -> tuple[list[float], list[str]]:
        return [0.01] * 10, []

    @contextlib.contextmanager
    def serving(*_: object) -> Iterator[tuple[int, None]]:
        yield 0, None

    monkeypatch.setattr(clients, "learn", lambda *_, **__: None)
    monkeypatch.setattr(clients, "serving", serving)
    monkeypatch.setattr(clients, "_steady", steady)
    monkeypatch.setattr(clients, "_ask", lambda *_: (0.0, b"HTTP/1.1 202 Accepted"))
    monkeypatch.setattr(clients, "_training", lambda _: next(looks))
    alone, beside = clients.steady_load(torture.Torture(1.0, 0, tmp_path))
    assert not alone.broken and alone.tried == alone.survived
    assert beside.tried == beside.survived + 1 and "did not go on" in beside.broken[0]
