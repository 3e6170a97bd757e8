"""Files are the old ones or the new ones, never half of one: also when the disk is full or the writer dies."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from benchmarks.full_disk import disk_with_room_for
from semisight import files
from semisight.data.label_table import Table
from semisight.errors import UserError
from semisight.files import (
    atomic_path,
    bundle,
    check_seal,
    clean_leftovers,
    finish_bundle,
    locked,
    seal,
    write_atomic,
    write_json,
)
from semisight.training.checkpoint import Checkpoint, write_checkpoint


def only_file(folder: Path) -> Path:
    (file,) = folder.iterdir()
    return file


@pytest.mark.parametrize("content", [b"\x00\xffbytes", "text with é", b"", ""])
def test_writes_bytes_and_text(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "file"
    write_atomic(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert only_file(tmp_path) == path


def test_makes_the_folder_and_takes_strings(tmp_path: Path) -> None:
    write_atomic(str(tmp_path / "a" / "b" / "file.txt"), "here")
    assert (tmp_path / "a" / "b" / "file.txt").read_text() == "here"


def test_replaces_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with atomic_path(path) as temporary:
        assert temporary.parent == path.parent, "os.replace is atomic only within one file system"
        temporary.write_text("half of the ne")
        assert path.read_text() == "old"
        temporary.write_text("new")
    assert path.read_text() == "new"
    assert only_file(tmp_path) == path


def test_a_reader_keeps_the_old_file_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "old"


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt(), SystemExit(1)])
def test_any_failure_leaves_the_old_file_and_no_litter(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with pytest.raises(type(error)), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert only_file(tmp_path) == path


def test_a_full_disk_leaves_the_old_file_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_atomic(path, b"old" * 100)
    with disk_with_room_for(10_000), pytest.raises(UserError, match=r"could not write .*checkpoint.*unchanged"):
        write_atomic(path, b"x" * 1_000_000)
    assert path.read_bytes() == b"old" * 100
    assert only_file(tmp_path) == path


def test_no_space_left_while_syncing_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems report a full disk only when the data is forced out."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "file"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert only_file(tmp_path) == path


def test_data_is_forced_to_disk_before_the_name_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b))[1])
    write_atomic(tmp_path / "file", "new")
    assert calls == ["fsync", "replace", "fsync"], "and the folder after it: a name that is confirmed is on disk"


def test_kill_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    code = (
        "import os, signal, sys; from semisight.files import atomic_path\n"
        "with atomic_path(sys.argv[1]) as t:\n"
        "    t.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert path.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_others_may_read_as_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        write_atomic(tmp_path / "file", "new")
        assert os.umask(0o022) == 0o022, "writing must not change the umask"
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


def test_a_target_that_is_a_folder_is_refused_clearly(tmp_path: Path) -> None:
    (tmp_path / "file" / "inside").mkdir(parents=True)
    with pytest.raises(UserError, match="could not write"):
        write_atomic(tmp_path / "file", "new")
    assert (tmp_path / "file" / "inside").is_dir()


def test_a_folder_that_cannot_be_made_is_refused_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="could not write"):
        write_atomic(tmp_path / "file" / "below", "new")


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_private_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o600)
    with atomic_path(path) as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600, "not even for a moment"
        temporary.write_text("new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_flushed_after_the_rename_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def broken(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(UserError, match="was written, but may be lost"):
        write_atomic(tmp_path / "file", "new")


# --- several files together

OLD = {"config.json": "old", "checkpoints/newest": "old", "log.csv": "old", "labels.csv": "mine"}
NEW = {"config.json": "new", "checkpoints/newest": "new", "data/data.json": "new", "labels.csv": "mine"}


def tree(folder: Path) -> dict[str, str]:
    return {f.relative_to(folder).as_posix(): f.read_text() for f in folder.rglob("*") if f.is_file()}


def fill(folder: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def overwrite(folder: Path) -> None:
    with bundle(folder, remove=["config.json", "checkpoints/*", "log.csv"]) as new:
        fill(new, {name: text for name, text in NEW.items() if text == "new"})


def test_a_bundle_replaces_adds_and_removes_and_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    with bundle(tmp_path, remove=["config.json", "checkpoints/*", "log.csv"]) as new:
        fill(new, {name: text for name, text in NEW.items() if text == "new"})
        assert {name: text for name, text in tree(tmp_path).items() if not name.startswith(".")} == OLD
    assert tree(tmp_path) == NEW


def test_a_bundle_begins_a_folder(tmp_path: Path) -> None:
    overwrite(tmp_path / "new" / "run")
    assert tree(tmp_path / "new" / "run") == {name: text for name, text in NEW.items() if text == "new"}


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyboardInterrupt()])
def test_a_bundle_that_fails_changes_nothing(tmp_path: Path, error: BaseException) -> None:
    fill(tmp_path, OLD)
    with pytest.raises(type(error)), bundle(tmp_path, remove=["*"]) as new:
        fill(new, {"config.json": "new"})
        raise error
    assert tree(tmp_path) == OLD


def test_a_bundle_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, OLD)
    with disk_with_room_for(1000), pytest.raises(UserError, match="unchanged"), bundle(tmp_path, remove=["*"]) as new:
        (new / "checkpoint").write_bytes(bytes(100_000))
    assert tree(tmp_path) == OLD


def dying_at(step: int, folder: Path) -> int:
    """Overwrites in a process that is killed before the given call to the system; how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = step

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def before(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return before

    for name in ("fsync", "replace", "unlink", "open", "close", "mkdir", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    overwrite(folder)
    os._exit(0)


def test_a_kill_at_any_step_leaves_the_old_files_or_the_new_ones(tmp_path: Path) -> None:
    """Every call to the system that changes something is the last one once."""
    seen = set()
    for step in range(1, 200):
        folder = tmp_path / str(step)
        fill(folder, OLD)
        code = dying_at(step, folder)
        finish_bundle(folder)
        with locked(folder, "cleaning"):
            pass
        (folder / files.LOCK).unlink()
        found = tree(folder)
        assert found in (OLD, NEW), (step, found)
        seen.add(found["config.json"])
        if code == 0:
            assert found == NEW
            break
        assert code == -signal.SIGKILL
    else:
        pytest.fail("it never came to its end")
    assert seen == {"old", "new"} and step > 20


@pytest.mark.parametrize(
    "plan",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"stage": "STAGE", "files": ["../outside"], "remove": []}',
        b'{"stage": "STAGE", "files": [], "remove": ["/etc/passwd"]}',
        b'{"stage": "STAGE", "files": [], "remove": ["link/file"]}',
        b'{"stage": "../elsewhere", "files": ["file"], "remove": []}',
        b'{"stage": "STAGE", "files": [5], "remove": []}',
    ],
)
def test_a_strangers_bundle_reaches_nothing_outside(tmp_path: Path, plan: bytes) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    fill(outside, {"file": "precious"})
    stage = folder / files.temporary_name("bundle")
    stage.mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / files.BUNDLE).write_bytes(plan.replace(b"STAGE", stage.name.encode()))
    with pytest.raises(UserError, match="damaged"):
        finish_bundle(folder)
    assert tree(outside) == {"file": "precious"}


# --- checksums


def sealed(path: Path) -> bytes:
    content = seal(save({"a": np.arange(300, dtype=np.float32), "b": np.ones(3)}, metadata={"semisight": '{"x": 1}'}))
    path.write_bytes(content)
    return content


def test_a_sealed_file_is_safetensors_with_the_same_tensors(tmp_path: Path) -> None:
    content = sealed(tmp_path / "file")
    metadata = check_seal(tmp_path / "file")
    assert metadata.keys() == {"semisight", "checksum"} and metadata["semisight"] == '{"x": 1}'
    assert load(content)["a"].tolist() == list(range(300))
    with safe_open(tmp_path / "file", framework="np") as file:
        assert file.metadata() == metadata
    assert seal(content) == content, "sealing again changes nothing"


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    content = sealed(path)
    for place in [*range(300), *range(300, len(content), 5)]:
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(UserError, match="not as it was written"):
            check_seal(path)
    for cut in (0, 5, 8, 100, len(content) - 1):
        path.write_bytes(content[:cut])
        with pytest.raises(UserError, match="not as it was written"):
            check_seal(path)


@pytest.mark.parametrize(
    "content",
    [
        (1 << 62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        (20).to_bytes(8, "little") + b'{"__metadata__": []}',
        (26).to_bytes(8, "little") + b'{"__metadata__": {"a": 5}}',
    ],
)
def test_a_strangers_header_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(UserError, match="not as it was written"):
        check_seal(tmp_path / "file", required=False)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    with pytest.raises(UserError, match="not a regular file"):
        check_seal(tmp_path / "file")


def test_files_of_older_versions_have_no_checksum(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(save({"a": np.ones(3)}, metadata={"x": "y"}))
    assert check_seal(tmp_path / "file", required=False) == {"x": "y"}
    with pytest.raises(UserError, match="no checksum"):
        check_seal(tmp_path / "file")
    with pytest.raises(UserError, match="there is no file"):
        check_seal(tmp_path / "none")


# --- one writer

HOLD = """
import sys, time
from semisight.files import locked
with locked(sys.argv[1], "training"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holding(folder: Path, code: str = HOLD) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path) -> None:
    with (
        holding(tmp_path / "run") as child,
        pytest.raises(UserError, match=rf"in use.*training: process {child.pid} on .* since 2.*choose another folder"),
        locked(tmp_path / "run", "training"),
    ):
        pytest.fail("both write")


def test_a_dead_process_is_no_obstacle_and_its_litter_goes(tmp_path: Path) -> None:
    with holding(tmp_path) as child:
        start = files._start_of(child.pid)
    left = [
        tmp_path / f".newest.{files._place()}-{child.pid}-{start}.00000000.tmp",
        tmp_path
        / "checkpoints"
        / f".newest.{files._place()}-{os.getpid()}-1.00000000.tmp",  # of our number's former owner
        tmp_path / f".old.00000000-{child.pid}-{start}.00000000.tmp",  # of another machine, long ago
    ]
    kept = [
        tmp_path / files.temporary_name("newest"),  # ours: being written
        tmp_path / f".recent.00000000-{child.pid}-{start}.00000000.tmp",
        tmp_path / ".notes.tmp",
        tmp_path / "labels.csv",
    ]
    fill(tmp_path, {file.relative_to(tmp_path).as_posix(): "x" for file in left + kept})
    os.utime(left[2], (time.time() - 90_000,) * 2)
    staged = tmp_path / f".bundle.{files._place()}-{child.pid}-{start}.00000000.tmp"
    fill(staged, {"checkpoints/newest": "half"})
    with locked(tmp_path, "training"):
        assert not any(file.exists() for file in [*left, staged])
        assert all(file.exists() for file in kept)


def test_waiting_for_the_lock(tmp_path: Path) -> None:
    with holding(tmp_path, HOLD.replace("60", "0.5")), locked(tmp_path, "labels", wait=20):
        pass


def test_a_forked_worker_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = HOLD.replace("    print", "    if os.fork() == 0: time.sleep(3); os._exit(0)\n    print").replace(
        "import sys", "import os, sys"
    )
    with holding(tmp_path, code) as child:
        child.kill()
        child.wait()
        with locked(tmp_path, "training", wait=1.5):  # the worker lives for three seconds
            pass


def test_a_lock_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / files.LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match="cannot write"), locked(tmp_path / "run", "training"):
        pass
    assert (tmp_path / "precious").read_text() == "content"


def test_a_strangers_lock_file_says_nothing_to_the_terminal(tmp_path: Path) -> None:
    with holding(tmp_path), pytest.raises(UserError) as caught:
        values = json.loads((tmp_path / files.LOCK).read_text())
        (tmp_path / files.LOCK).write_text(json.dumps({**values, "command": "\x1b[2J"}))
        with locked(tmp_path, "training"):
            pass
    assert "\x1b" not in str(caught.value)


def test_nothing_to_clean_where_there_is_nothing(tmp_path: Path) -> None:
    assert clean_leftovers(tmp_path / "none") == []


# --- in which order


def test_a_folder_is_flushed_after_every_rename_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything that writes returns: the content of the file, the rename, then the names of its folder."""
    calls: list[tuple[str, tuple[int, int]]] = []
    replace, fsync = os.replace, os.fsync

    def identity(found: os.stat_result) -> tuple[int, int]:
        return found.st_dev, found.st_ino

    def noted_replace(source: Path, target: Path) -> None:
        calls.append(("file", identity(os.stat(source))))
        replace(source, target)
        calls.append(("rename", identity(os.stat(Path(target).parent))))

    def noted_fsync(handle: int) -> None:
        fsync(handle)
        calls.append(("fsync", identity(os.fstat(handle))))

    monkeypatch.setattr(os, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_fsync)

    def several() -> None:
        with bundle(tmp_path / "bundle", remove=["*"]) as new:
            (new / "below").mkdir()
            for name in ("a", "below/b"):
                (new / name).write_text("text")

    def label() -> None:
        table.put("a.png", "cat")
        table.merge(quiet=0.0)

    with Table(tmp_path / "labels.csv") as table:
        works: dict[str, Callable[[], object]] = {
            "file": lambda: write_atomic(tmp_path / "file", "text"),
            "json": lambda: write_json(tmp_path / "new" / "file.json", {"a": 1}),
            "bundle": several,
            "checkpoint": lambda: write_checkpoint(tmp_path / "run" / "c.safetensors", Checkpoint({"model": {}})),
            "labels": label,
        }
        for name, work in works.items():
            calls.clear()
            work()
            renames = [i for i, (what, _) in enumerate(calls) if what == "rename"]
            assert renames, name
            for i in renames:
                assert ("fsync", calls[i - 1][1]) in calls[: i - 1], f"{name}: the content was not flushed before"
                assert ("fsync", calls[i][1]) in calls[i:], f"{name}: the folder was not flushed after"


@pytest.mark.parametrize("kind", ["a pipe", "huge", "a folder"])
def test_a_strangers_plan_is_neither_waited_for_nor_read_whole(kind: str, tmp_path: Path) -> None:
    record = tmp_path / files.BUNDLE
    if kind == "a pipe":
        os.mkfifo(record)
    elif kind == "a folder":
        record.mkdir()
    else:
        with record.open("wb") as file:
            file.truncate(3 << 30)
    with pytest.raises(UserError, match="damaged"):
        finish_bundle(tmp_path)
