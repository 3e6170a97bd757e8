"""Table 2 at smoke size: every row runs, is written once, and keeps to the protocol."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semisight.errors import UserError
from semisight.experiments import label_rows, results, table2
from semisight.experiments.table import Request
from semisight.experiments.table2 import sets
from semisight.inference.validation import label_terms


@pytest.mark.timeout(600)
def test_every_row_at_smoke_size(smoke: Path) -> None:
    out = smoke / "table2.csv"
    added = results.read(out)
    alone = ("tsvm", "xi0-tsvm", "m1-tsvm")  # no weights to stop at
    learned = {(row, metric) for row in table2.ROWS if row not in alone for metric in ("error", "error_stopped")}
    assert {(row.row, row.metric) for row in added} == {*((row, "error") for row in alone), *learned}
    assert all(0 <= row.value <= 100 and row.N == "10" for row in added)
    assert not (smoke / "table2-unfinished").exists()
    request = Request("builtin:digits", out, table2.ROWS, smoke=True, progress=False)
    assert table2.run(request) == []
    assert table2.run(replace(request, rows=["pull"])) == []  # as it was called


def test_a_row_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends as if it had not been stopped, and its minutes count from the start."""
    whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
    monkeypatch.setitem(table2.SETTINGS, "local-d", replace(table2.SETTINGS["local-d"], epochs=3))

    def measured(out: Path) -> dict[str, float]:
        row = Request("builtin:digits", out, ["local-d"], n=(5,), progress=False)
        return {row.metric: row.value for row in table2.run(row)}

    monkeypatch.setattr(table2, "sets", lambda data, n, number, smoke: sets(data, n, number, smoke=True))
    expected = measured(whole)
    epochs = []

    def stopping(*arguments: Any) -> dict[str, float]:
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return label_terms(*arguments)

    with monkeypatch.context() as stopped:
        stopped.setattr(label_rows, "label_terms", stopping)
        with pytest.raises(KeyboardInterrupt):
            measured(parts)
    assert not parts.exists() and (tmp_path / "parts-unfinished").is_dir()
    assert measured(parts) == expected
    assert not (tmp_path / "parts-unfinished").exists()


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
        table2.run(Request("builtin:digits", tmp_path / "x.csv", ["pul"], smoke=True))
