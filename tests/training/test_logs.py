"""Logs: means are means, no row stands twice, a full disk loses none."""

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.full_disk import disk_with_room_for
from semisight.errors import UserError
from semisight.training.logs import Meter, RunLog, read_log
from semisight.training.progress import ProgressBar


def row(step: int, split: str = "train", **terms: float) -> dict[str, Any]:
    return {"step": step, "epoch": 0.5, "split": split, "seconds": 1.0, **terms}


def open_log(file: Path, keep_up_to: int = -1, told: list[str] | None = None) -> RunLog:
    return RunLog(file, None, keep_up_to=keep_up_to, tell=(told if told is not None else []).append)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 64)), min_size=2, max_size=20), st.data())
def test_the_meter_gives_the_mean_over_rows_and_resumes(entries: list[tuple[float, int]], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(entries) - 1))
    whole, stopped, resumed = Meter(), Meter(), Meter()
    for i, (value, rows) in enumerate(entries):
        whole.add({"bound": torch.tensor(value)}, rows)
        if i == cut:
            resumed.load(stopped.tensors(), torch.device("cpu"))
        (stopped if i < cut else resumed).add({"bound": torch.tensor(value)}, rows)
    means = whole.means()
    expected = sum(value * rows for value, rows in entries) / sum(rows for _, rows in entries)
    assert means["bound"] == pytest.approx(expected, rel=1e-4, abs=1e-2)
    assert resumed.means() == means  # to the bit
    assert whole.means() == {}


def test_rows_come_back_as_numbers_and_a_new_term_is_a_new_column(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log.csv")
    rows = [row(2, bound=-1.5), row(4, bound=0.1), row(4, "valid", bound=-2.0, error=0.25), row(6, bound=1e-12)]
    for each in rows:
        log.write(each)
    assert read_log(tmp_path / "log.csv") == rows


def test_resuming_cuts_the_log_back(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    log = open_log(file)
    for step in (2, 4, 6, 8):
        log.write(row(step, bound=float(step)))
    with file.open("a") as stream:
        stream.write("9,0.5,tra")  # killed in the middle of a row
    log = open_log(file, keep_up_to=5)
    log.write(row(6, bound=60.0))
    assert [(each["step"], each["bound"]) for each in read_log(file)] == [(2, 2.0), (4, 4.0), (6, 60.0)]
    open_log(file)  # a new run
    assert read_log(file) == []


def test_a_full_disk_loses_no_row_and_is_told_once(tmp_path: Path) -> None:
    file, told = tmp_path / "log.csv", list[str]()
    log = open_log(file, told=told)
    log.write(row(1, bound=1.0))
    with disk_with_room_for(file.stat().st_size + 3):
        for step in (2, 3, 4):
            log.write(row(step, bound=1.0))
        log.write(row(5, "valid", other=2.0))  # needs a rewrite, which fails as well
    assert len(told) == 1 and "log.csv" in told[0]
    log.write(row(6, bound=1.0))
    assert [each["step"] for each in read_log(file)] == [1, 2, 3, 4, 5, 6]


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match=r"x\.csv is not a log"):
        read_log(tmp_path / "x.csv")
    with pytest.raises(UserError, match="there is no file"):
        read_log(tmp_path / "missing.csv")


def test_tensorboard_gets_every_term(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for keep_up_to in (-1, 2):  # the second log is a run resumed at step 2
        log = RunLog(tmp_path / "log.csv", tmp_path / "tb", keep_up_to=keep_up_to, tell=pytest.fail)
        for step in range(max(1, keep_up_to + 1), 5):
            log.write(row(step, bound=float(step)))
        log.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [event.step for event in events.Scalars("bound/train")] == [1, 2, 3, 4]


def test_without_tensorboard_there_is_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    told: list[str] = []
    log = RunLog(tmp_path / "log.csv", tmp_path / "tb", keep_up_to=-1, tell=told.append)
    log.write(row(1, bound=1.0))
    log.close()
    assert "semisight[track]" in told[0] and len(read_log(tmp_path / "log.csv")) == 1


def test_the_bar_shows_time_left_and_every_term(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the stream for a terminal
    monkeypatch.setenv("COLUMNS", "200")
    bar = ProgressBar(True, 100, 3600.0, start_step=0)
    bar.step(50, 0.5, 1800.0, terms={"bound": -1.25, "kl_s": 3.5})
    bar.validated(50, 1.0, {"bound": -2.0}, " (best)")
    bar.close()
    shown = capsys.readouterr().err
    assert "left" in shown and "bound -1.25" in shown and "kl_s 3.5" in shown and "(best)" in shown
