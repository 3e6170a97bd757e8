"""The benchmark of features runs, and compares two ways that give the same."""

from pathlib import Path

import pytest

from benchmarks.features import SMALL_PHOTOS, measure_features


def test_smoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime: pip install 'semisight[photos]'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    speed, room, again = measure_features(SMALL_PHOTOS)
    assert 0 < speed.value < 3 and str(speed.goal) == ">= 0.9"
    assert len(speed.details["seconds"]["bare loop"]) == SMALL_PHOTOS.rounds
    assert room.value - room.details["of_index"] == 1280 * 2  # half precision
    assert 0 < again.value < 20
