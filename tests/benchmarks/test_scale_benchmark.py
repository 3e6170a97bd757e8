"""The benchmarks of piles of images run, and say what they were made from."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.cost import SMALL_COST, measure_cost
from benchmarks.folder import make_folder
from benchmarks.scale import SMALL_SCALE, _peak, measure_rows, measure_scale, train_few

pytest.importorskip("pyarrow", reason="answers in Parquet need pyarrow")
pytestmark = pytest.mark.timeout(300)  # seconds where nothing else runs


@pytest.mark.slow
def test_smoke_of_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workers, reading, step = measure_scale(SMALL_SCALE)
    (memory,) = measure_rows(SMALL_SCALE)
    assert (
        workers.value > 0 and str(workers.goal) == ">= 1.8" and set(workers.details["images_per_second"]) == {"1", "2"}
    )
    assert reading.value > 0 and memory.details["peak_mb"]["20"] > 50 and memory.details["rows"] == {"40": 40, "20": 20}
    assert step.value > 0 and set(step.details["ms_per_step"]) == {"1", "2"}


def test_peak_memory_is_not_that_of_the_process_that_started_it(tmp_path: Path) -> None:
    """The kernel passes getrusage's peak on to a new program."""
    make_folder(tmp_path / "images", 4)
    train_few(tmp_path / "run", 1, 1)
    held = np.ones(1_500_000_000, np.uint8)
    found = _peak(str(tmp_path / "run"), tmp_path / "images", tmp_path / "out")
    assert 50e6 < found < held.nbytes


def test_smoke_of_the_cost_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    figures = list(measure_cost(SMALL_COST))
    assert figures[0].details["measured_s"] > 0 and set(figures[0].details["ms_per_image"]) == {
        "read",
        "decode",
        "answer",
    }
    assert 0.1 < figures[0].value < 10 and 0.1 < figures[-1].value < 10
