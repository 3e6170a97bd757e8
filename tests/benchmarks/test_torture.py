"""`make torture` in short: every part but the server's and the trainings', which have tests of their own."""

import random
from pathlib import Path

import pytest

from benchmarks import torture
from benchmarks.torture.disks import read_only_after, renames_in
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


def test_a_disk_turns_read_only(tmp_path: Path) -> None:
    with read_only_after(1) as left:
        (tmp_path / "a").write_text("written")
        for write in (
            lambda: (tmp_path / "b").write_text("no"),
            lambda: (tmp_path / "a").rename(tmp_path / "c"),
            lambda: (tmp_path / "a").unlink(),
            lambda: (tmp_path / "d").mkdir(),
        ):
            with pytest.raises(OSError, match="Read-only"):
                write()
        assert (tmp_path / "a").read_text() == "written" and left[0] < 0
    (tmp_path / "b").write_text("again")
