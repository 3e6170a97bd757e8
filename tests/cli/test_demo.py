"""`semisight demo`: ends by saying what it learned and what unlabelled images were worth, and can be run again."""

from pathlib import Path

import pytest

from semisight.cli import demo
from semisight.data import feature_cache
from semisight.runs import encoder_choice
from semisight.runs.images import sets_of
from semisight.runs.run import Comparison, load_run
from semisight.training.folder import RunFolder
from tests.backbones.networks import write_network
from tests.cli.commands import ok, refused


@pytest.fixture(autouse=True)
def here(small_demo: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(encoder_choice, "networks", lambda: [])
    monkeypatch.chdir(tmp_path)


def test_the_demo_says_what_it_learned_and_runs_again(tmp_path: Path) -> None:
    for _ in range(2):
        out = ok("demo")
        assert "What it learned:" in out
        assert "From 20 labels of 10 classes and" in out
        assert "The same labels without the unlabelled images gave" in out
        assert "of what sets an image apart from the mean image" in out
        assert "Scenes: From 20 captions of 20 images and 36 images without one" in out
        assert "name every shape, colour and relation of the scene rightly" in out
        assert "Report: semisight-demo/report.html" in out
        assert "photographs of scikit-learn" not in out  # without a pretrained network
        assert out.splitlines()[-1].endswith("semisight train photos/ --labels labels.csv --out runs/photos")
    text = (tmp_path / "semisight-demo" / "report.html").read_text()
    assert "What semisight-demo learned" in text
    assert "error of the same labels without the unlabelled images" in text
    assert "Images with their captions, best and worst (of scenes, a second run)" in text
    assert load_run(tmp_path / "semisight-demo" / "scenes").captions.n_captions == 20
    assert [path.name for path in tmp_path.iterdir()] == ["semisight-demo"]
    assert Comparison.read(RunFolder(tmp_path / "semisight-demo")) is not None


def test_the_demo_spares_what_is_not_its_own(tmp_path: Path, shared_run: Path) -> None:
    (tmp_path / "semisight-demo").mkdir()
    (tmp_path / "semisight-demo" / "mine.txt").write_text("mine")
    assert demo.free_folder(Path("semisight-demo")) == Path("semisight-demo-2")
    (tmp_path / "other" / "scenes").mkdir(parents=True)
    (tmp_path / "other" / "scenes" / "mine.txt").write_text("mine")
    assert "not of a demo" in refused("demo", "--out", tmp_path / "other")
    before = (shared_run / "config.json").read_bytes()
    assert "already holds a run" in refused("demo", "--out", shared_run)
    assert (shared_run / "config.json").read_bytes() == before


def test_a_damaged_comparison_is_told(tmp_path: Path) -> None:
    ok("demo", "--out", tmp_path / "elsewhere", "--seed", "4")
    assert load_run(tmp_path / "elsewhere").config.seed == 4
    (tmp_path / "elsewhere" / "comparison.json").write_text("{}")
    assert "comparison.json is damaged" in refused("report", tmp_path / "elsewhere")


def test_all_trainings_stay_within_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than three minutes even on a busy machine; on an idle one the steps end them before."""
    monkeypatch.undo()
    settings = (demo.demo_settings(), demo.demo_settings(alone=True), demo.scene_settings())
    assert sum(one.train.max_minutes or 10.0 for one in settings) < 3
    assert all(one.train.threads == 1 for one in settings)


def test_most_scenes_have_no_caption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    sets = sets_of(demo.scene_settings().data, seed=0)
    assert sets.n_present("captions") < 0.5 * len(sets.train)
    measured = sets.measured("captions")
    assert measured is not None and len(measured) >= 300


def test_both_trainings_see_the_same_labels_and_the_same_images_to_measure_on() -> None:
    both, alone = (sets_of(demo.demo_settings(alone=alone).data, seed=0) for alone in (False, True))
    assert both.train.labels is not None
    assert alone.train.names == both.train.subset(both.train.labels >= 0).names
    measured = [sets.measured("labels") for sets in (both, alone)]
    assert measured[0] is not None and measured[1] is not None
    assert measured[0].names == measured[1].names
    assert len(both.train) > 4 * len(alone.train)


def test_a_pretrained_network_is_shown_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = str(write_network(tmp_path / "net" / "tiny.onnx"))
    monkeypatch.setattr(encoder_choice, "networks", lambda: [network])
    monkeypatch.setattr(feature_cache, "_HERE", 1000)
    monkeypatch.setattr(demo, "_PARTS", 12)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (line,) = demo.photographs(0)
    assert "tiny with 2 labels of each" in line and "china" in line and "flower" in line and "scikit-learn" in line
    assert int(line.split("%")[0].rsplit(" ", 1)[-1]) >= 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "net"]
