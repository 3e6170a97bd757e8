"""`semisight demo`: ends by saying what it learned and what unlabelled images were worth, and can be run again."""

from pathlib import Path

import pytest

from semisight.app import demo
from semisight.app.runs import Comparison, load_run
from semisight.app.sets import load_sets
from semisight.learning.runs import RunFolder
from tests.app.commands import ok, refused


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "_LIMIT", 150)
    monkeypatch.setattr(demo, "_EPOCHS", 3)
    monkeypatch.setattr(demo, "_EPOCHS_ALONE", 3)
    monkeypatch.chdir(tmp_path)


def test_the_demo_says_what_it_learned_and_runs_again(tmp_path: Path) -> None:
    for _ in range(2):
        out = ok("demo")
        assert "What it learned:" in out
        assert "From 20 labels of 10 classes and" in out
        assert "The same labels without the unlabelled images gave" in out
        assert "of what sets an image apart from the mean image" in out
        assert "Report: semisight-demo/report.html" in out
    text = (tmp_path / "semisight-demo" / "report.html").read_text()
    assert "What semisight-demo learned" in text
    assert "error of the same labels without the unlabelled images" in text
    assert [path.name for path in tmp_path.iterdir()] == ["semisight-demo"]
    assert Comparison.read(RunFolder(tmp_path / "semisight-demo")) is not None


def test_the_demo_spares_what_is_not_its_own(tmp_path: Path, shared_run: Path) -> None:
    (tmp_path / "semisight-demo").mkdir()
    (tmp_path / "semisight-demo" / "mine.txt").write_text("mine")
    assert demo.free_folder(Path("semisight-demo")) == Path("semisight-demo-2")
    before = (shared_run / "config.json").read_bytes()
    assert "already holds a run" in refused("demo", "--out", shared_run)
    assert (shared_run / "config.json").read_bytes() == before


def test_a_damaged_comparison_is_told(tmp_path: Path) -> None:
    ok("demo", "--out", tmp_path / "elsewhere", "--seed", "4")
    assert load_run(tmp_path / "elsewhere").config.seed == 4
    (tmp_path / "elsewhere" / "comparison.json").write_text("{}")
    assert "comparison.json is damaged" in refused("report", tmp_path / "elsewhere")


def test_both_trainings_stay_within_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two minutes and a half even on a busy machine; on an idle one the epochs end them long before."""
    monkeypatch.undo()
    both, alone = demo.demo_settings(), demo.demo_settings(alone=True)
    assert both.train.max_minutes is not None and alone.train.max_minutes is not None
    assert both.train.max_minutes + alone.train.max_minutes <= 2.5
    assert both.train.threads == alone.train.threads == 1


def test_both_trainings_see_the_same_labels_and_the_same_images_to_measure_on() -> None:
    both, alone = (load_sets(demo.demo_settings(alone=alone).data, seed=0) for alone in (False, True))
    assert both.train.labels is not None
    assert alone.train.names == both.train.subset(both.train.labels >= 0).names
    assert both.measured is not None and alone.measured is not None
    assert alone.measured.names == both.measured.names
    assert len(both.train) > 4 * len(alone.train)
