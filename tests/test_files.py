"""Files are the old ones or the new ones, never half of one: also when the disk is full or the writer dies."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semisight.errors import UserError
from semisight.files import atomic_path, write_atomic


@contextmanager
def disk_with_room_for(n_bytes: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond `n_bytes`, as a full disk would."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # else the signal would end the tests
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


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
    assert calls[:2] == ["fsync", "replace"]


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
