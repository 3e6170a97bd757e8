"""`semisight demo`: ends by saying what it learned, and can be run again."""

from pathlib import Path

import pytest

from semisight.app import demo
from semisight.app.runs import load_run
from tests.app.commands import ok, refused


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo, "_SOURCE", "builtin:scenes?n=80&size=24&seed=1")
    monkeypatch.chdir(tmp_path)


def test_the_demo_says_what_it_learned_and_runs_again(tmp_path: Path) -> None:
    for _ in range(2):
        out = ok("demo", "--minutes", "0.01")
        assert "What it learned:" in out
        assert "of what sets an image apart from the mean image" in out
        assert "Report: semisight-demo/report.html" in out
    assert "What semisight-demo learned" in (tmp_path / "semisight-demo" / "report.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["semisight-demo"]


def test_the_demo_spares_what_is_not_its_own(tmp_path: Path, shared_run: Path) -> None:
    (tmp_path / "semisight-demo").mkdir()
    (tmp_path / "semisight-demo" / "mine.txt").write_text("mine")
    assert demo.free_folder(Path("semisight-demo")) == Path("semisight-demo-2")
    before = (shared_run / "config.json").read_bytes()
    assert "already holds a run" in refused("demo", "--out", shared_run)
    assert (shared_run / "config.json").read_bytes() == before


def test_the_real_demo_stays_within_its_time() -> None:
    """Training is what takes the time, and it is bounded; the rest was measured at about ten seconds."""
    settings = demo.demo_settings()
    assert settings.train.max_minutes is not None
    assert settings.train.max_minutes <= 1.5
    assert settings.train.threads == 1


def test_the_demo_learns(tmp_path: Path) -> None:
    settings = demo.demo_settings()
    assert settings.data.valid_fraction > 0
    ok("demo", "--minutes", "0.01", "--out", tmp_path / "elsewhere", "--seed", "4")
    assert load_run(tmp_path / "elsewhere").config.seed == 4
