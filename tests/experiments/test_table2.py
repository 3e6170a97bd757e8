"""Table 2 at smoke size: every row runs, is written once, and keeps to the protocol."""

from pathlib import Path

import pytest

from semisight.errors import UserError
from semisight.experiments import results, table2


def test_every_row_at_smoke_size(tmp_path: Path) -> None:
    out = tmp_path / "table2.csv"
    rows = ["tsvm", "xi0-tsvm", "printed", "local-d", "pull", "labelled-alone"]
    added = table2.run("builtin:digits", out, rows, n=(5,), smoke=True, threads=1, progress=False)
    assert [row.key for row in results.read(out)] == [row.key for row in added]
    assert {(row.row, row.metric) for row in added} == {
        ("tsvm", "error"),
        ("xi0-tsvm", "error"),
        ("printed", "error"),
        ("printed", "error_stopped"),
        ("local-d", "error"),
        ("local-d", "error_stopped"),
        ("pull", "error"),
        ("pull", "error_stopped"),
        ("labelled-alone", "error"),
        ("labelled-alone", "error_stopped"),
    }
    assert all(0 <= row.value <= 100 and row.N == "5" for row in added)
    assert table2.run("builtin:digits", out, rows, n=(5,), smoke=True, threads=1, progress=False) == []


def test_the_protocol_keeps_n_labels_per_class_and_no_image_twice() -> None:
    of = table2.sets("builtin:digits", 3, split_number=1, smoke=True)
    assert of.train.labels is not None
    known = of.train.labels[of.train.labels >= 0]
    assert known.bincount().tolist() == [3] * 10
    names = [*of.train.names, *of.valid.names, *of.test.names]
    assert len(names) == len(set(names))
    again = table2.sets("builtin:digits", 3, split_number=2, smoke=True)
    assert again.test.names == of.test.names
    assert again.valid.names != of.valid.names


def test_an_unknown_row(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row 'pul' in Table 2"):
        table2.run("builtin:digits", tmp_path / "x.csv", ["pul"], smoke=True)
