"""The experiment at smoke size, and the file that its results go to."""

import math
from pathlib import Path

import pytest

from semisight.errors import UserError
from semisight.experiments import image_model, results
from semisight.experiments.table import Request


def test_rows_are_trained_once_and_written_with_their_origin(smoke: Path) -> None:
    out = smoke / "image_model.csv"
    read = results.read(out)
    assert {row.row for row in read} == set(image_model.ROWS)
    for row in read:
        assert math.isfinite(row.value)
        assert row.commit
        assert "1 thread" in row.hardware
    values = {row.metric: row.value for row in read if row.row == "local/expected"}
    bound = values["reconstruction"] - values["kl_s"] - values["kl_z"]
    assert values["bound"] == pytest.approx(bound, rel=1e-3)
    assert image_model.run(Request("builtin:digits", out, smoke=True, progress=False)) == []
    assert not (smoke / "image_model-unfinished").exists()


def test_an_unknown_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row 'lokal/expected'"):
        image_model.run(Request("builtin:digits", tmp_path / "x.csv", ["lokal/expected"], smoke=True))


def test_a_row_measured_again_takes_the_place_of_the_old(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    row = results.Row("t", "a", "10", "error", 0, 1.5, "1.49", 2.0, "abc", "cpu")
    other = results.Row("t", "b", "10", "error", 0, 2.5, "", 2.0, "abc", "cpu")
    results.add(path, [row, other])
    results.add(path, [results.Row("t", "a", "10", "error", 0, 1.25, "1.49", 2.0, "abd", "cpu")])
    assert [(r.row, r.value) for r in results.read(path)] == [("a", 1.25), ("b", 2.5)]
    assert results.has(path, "t", "a", "10", ["error"], 0)
    assert not results.has(path, "t", "a", "10", ["error"], 1)


def test_another_file_is_not_taken_for_results(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text("file,label\na.png,cat\n")
    with pytest.raises(UserError, match="not a results file"):
        results.add(path, [])
    assert path.read_text() == "file,label\na.png,cat\n"


def test_rows_of_former_names_count_as_those_of_today(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    line = ",{},10,error,0,1.5,,2.0,abc,cpu"
    rows = ("pull", "cifar-10/pull", "pull-no-bound", "pulled")
    path.write_text("\n".join([",".join(results.COLUMNS), *("table2" + line.format(row) for row in rows), ""]))
    found = [row.row for row in results.read(path)]
    assert found == ["consistency", "cifar-10/consistency", "consistency-no-bound", "pulled"]
    assert results.has(path, "table2", "consistency", "10", ["error"], 0)
