"""`make torture` in short: every part but the server's and the trainings', which have tests of their own."""

import random
from pathlib import Path

import pytest

from benchmarks import torture


@pytest.mark.parametrize("part", ["overwrite", "labels", "pairs", "disk"])
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
    first, again = ([torture.mutated(content, random.Random(seed)) for seed in range(50)] for _ in range(2))
    assert first == again and len(set(first)) > 40
