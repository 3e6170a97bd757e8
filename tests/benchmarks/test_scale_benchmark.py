"""The benchmarks of piles of images run, and say what they were made from."""

from pathlib import Path

import pytest

from benchmarks.cost import SMALL_COST, measure_cost
from benchmarks.scale import SMALL_SCALE, measure_scale

pytest.importorskip("pyarrow", reason="answers in Parquet need pyarrow")


@pytest.mark.slow
def test_smoke_of_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    workers, reading, memory, step = measure_scale(SMALL_SCALE)
    assert (
        workers.value > 0 and str(workers.goal) == ">= 1.8" and set(workers.details["images_per_second"]) == {"1", "2"}
    )
    assert reading.value > 0 and memory.details["peak_mb"]["few"] > 50
    assert step.value > 0 and set(step.details["ms_per_step"]) == {"1", "2"}


def test_smoke_of_the_cost_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    figures = list(measure_cost(SMALL_COST))
    assert figures[0].details["measured_s"] > 0 and set(figures[0].details["ms_per_image"]) == {
        "read",
        "decode",
        "answer",
    }
    assert 0.1 < figures[0].value < 10 and 0.1 < figures[-1].value < 10
