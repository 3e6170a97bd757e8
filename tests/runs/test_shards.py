"""Training on shards and Parquet that are mapped, not held: as on the folder, and resumed in the middle of an epoch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semisight.data.formats import webdataset
from semisight.data.shards import write_shards
from semisight.objectives.joint import Joint
from semisight.runs.run import load_run
from semisight.runs.settings import resolve
from semisight.runs.train import train_run
from tests.data.writers import random_image, write_image

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
N, STEPS, KILLED = 22, 7, 6  # in the middle of the second epoch


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    for i in range(N):
        write_image(tmp_path / "folder" / "ab"[i % 2] / f"{i:02d}.png", random_image(i, 16, 16))
    for form in ("webdataset", "parquet"):
        out = tmp_path / form
        write_shards(str(tmp_path / "folder"), out, format=form, per_shard=5, class_per_folder=True)  # type: ignore[arg-type]
    return {name: tmp_path / name for name in ("folder", "webdataset", "parquet")}


def weights(source: Path, out: Path, resume: bool = False) -> dict[str, Any]:
    """After seven steps; an epoch has four, or five."""
    settings = {
        **{
            "source": str(source),
            "max_steps": STEPS,
            "checkpoint_steps": 1,
            "max_epochs": None,
            "batch_size": 5,
            "valid_fraction": 0.0,
        },
        **{"layers": [{"maps": 6, "kernel": 5, "pool": 4}, {"maps": 8, "kernel": 3}], "encoder": "scratch"},
        **{"progress": False, "tensorboard": False, "class_per_folder": source.name == "folder"},
    }
    train_run(resolve(settings), out, resume=resume, overwrite=False, say=lambda line: None)
    return load_run(str(out), "newest").model.state_dict()


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_mapped_shards_train_as_the_folder_does_and_resume_in_an_epoch(
    form: str, sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(webdataset, "IN_MEMORY", 100)
    assert isinstance(webdataset.room_for((1, 1, 10, 20), "images"), np.memmap)
    whole = weights(sources[form], tmp_path / "whole")
    plain = weights(sources["folder"], tmp_path / "plain")
    steps, forward = 0, Joint.forward

    def dies(self: Joint, *arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > KILLED:
            raise MemoryError("killed")
        return forward(self, *arguments)

    monkeypatch.setattr(Joint, "forward", dies)
    with pytest.raises(MemoryError):
        weights(sources[form], tmp_path / "parted")
    monkeypatch.setattr(Joint, "forward", forward)
    assert load_run(str(tmp_path / "parted"), "newest").step == KILLED
    resumed = weights(sources[form], tmp_path / "parted", resume=True)
    assert load_run(str(tmp_path / "parted"), "newest").step == STEPS
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
        assert torch.equal(value, plain[name]), name
