"""Checkpoints: what goes in comes out; what is broken, foreign or too big for the disk is said clearly."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from safetensors.torch import save_file
from torch import nn

from benchmarks.full_disk import disk_with_room_for
from semisight.errors import UserError
from semisight.training import checkpoint
from semisight.training.checkpoint import Checkpoint, load_parts, read_checkpoint, read_meta, write_checkpoint
from semisight.training.folder import RunFolder, differences, fingerprint
from tests.training.toy import ToyImages, toy_images


@settings(max_examples=30)
@given(st_numpy.arrays("float32", st_numpy.array_shapes(min_dims=0, max_dims=3, max_side=4)), st.text(), st.integers())
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, array: object, text: str, number: int
) -> None:
    path = tmp_path_factory.mktemp("c") / "a.safetensors"
    tensor = torch.as_tensor(array)
    tensors = {"model": {"a.b": tensor}, "x": {"y:z": torch.tensor(True)}}
    write_checkpoint(path, Checkpoint(tensors, {"t": text, "n": number}))
    back = read_checkpoint(path)
    assert torch.equal(back.part("model")["a.b"].view(torch.int32), tensor.view(torch.int32))  # NaNs too
    assert bool(back.part("x")["y:z"]) and back.part("nothing") == {}
    assert (back.meta["t"], back.meta["n"]) == (text, number) and read_meta(path) == back.meta


def test_shared_and_strided_tensors_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    write_checkpoint(tmp_path / "a", Checkpoint({"model": {"t": base.t(), "row": base[1], "same": base}}))
    assert torch.equal(read_checkpoint(tmp_path / "a").part("model")["t"], base.t())


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "newest.safetensors"
    write_checkpoint(path, Checkpoint({"model": {"w": torch.zeros(10)}}, {"step": 1}))
    with disk_with_room_for(4096), pytest.raises(UserError, match=r"could not write .*newest\.safetensors"):
        write_checkpoint(path, Checkpoint({"model": {"w": torch.zeros(10**5)}}, {"step": 2}))
    assert read_meta(path)["step"] == 1 and len(read_checkpoint(path).part("model")["w"]) == 10
    assert [file.name for file in tmp_path.iterdir()] == ["newest.safetensors"]  # no half file is left


@pytest.mark.parametrize("cut", [0, 5, 100, 1000])
def test_a_truncated_file_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "half.safetensors"
    write_checkpoint(path, Checkpoint({"model": {"w": torch.zeros(1000)}}))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"half\.safetensors is not a whole"):
        read_checkpoint(path)


def test_a_file_that_is_replaced_meanwhile_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors opens a file twice: a training may put another in its place in between."""
    path, sizes = tmp_path / "newest.safetensors", iter([2000, 10, 3000, 20])

    def write(n: int) -> None:
        write_checkpoint(path, Checkpoint({"model": {"w": torch.full((n,), float(n))}}, {"n": n}))

    real = checkpoint.safe_open

    def replaced_after_opening(file: Path, framework: str) -> object:
        if (n := next(sizes, None)) is not None:
            write(n)
            if n < 100:
                raise RuntimeError("size is smaller than the required mapping size")  # what safetensors says then
        return real(file, framework=framework)

    write(1000)
    monkeypatch.setattr(checkpoint, "safe_open", replaced_after_opening)
    found = read_checkpoint(path)
    assert found.meta["n"] == len(found.part("model")["w"]) == 20


def test_foreign_and_missing_files_are_named(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(2)}, tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="not one that semisight wrote"):
        read_meta(tmp_path / "foreign.safetensors")
    with pytest.raises(UserError, match="no checkpoint"):
        read_meta(tmp_path / "missing.safetensors")
    write_checkpoint(tmp_path / "later.safetensors", Checkpoint({}, {"format": 99}))
    with pytest.raises(UserError, match="format 99"):
        read_meta(tmp_path / "later.safetensors")


def test_parts_load_into_the_right_modules_and_only_they_are_read(tmp_path: Path) -> None:
    model, head = nn.Linear(3, 2), nn.Linear(2, 5, bias=False)
    parts = {"model": model.state_dict(), "head.labels": head.state_dict(), "training": {"weights/w": torch.ones(2)}}
    write_checkpoint(tmp_path / "a", Checkpoint(parts, {"step": 3}))
    other = {"model": nn.Linear(3, 2), "head.labels": nn.Linear(2, 5, bias=False)}
    assert load_parts(other, tmp_path / "a")["step"] == 3
    assert torch.equal(other["model"].weight, model.weight) and torch.equal(other["model"].bias, model.bias)
    assert torch.equal(other["head.labels"].weight, head.weight)
    assert read_checkpoint(tmp_path / "a", ["model"]).tensors.keys() == {"model"}
    whole = read_checkpoint(tmp_path / "a")
    assert whole.tensors.keys() == parts.keys() and whole.training("weights").keys() == {"w"}
    assert whole.training("meter") == {}
    with pytest.raises(UserError, match="another model: weight"):
        load_parts({"model": nn.Linear(4, 2)}, tmp_path / "a")
    with pytest.raises(UserError, match="another model: bias"):
        load_parts({"model": nn.Linear(3, 2, bias=False)}, tmp_path / "a")
    with pytest.raises(UserError, match="another model: weight, bias"):
        load_parts({"head.tags": nn.Linear(3, 2)}, tmp_path / "a")


def test_a_shared_parameter_is_saved_and_loaded_under_every_name(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    write_checkpoint(tmp_path / "a", Checkpoint({"model": tied.state_dict()}))
    with torch.no_grad():
        saved = tied[0].weight.clone()
        tied[0].weight.zero_()
    load_parts({"model": tied}, tmp_path / "a")
    assert torch.equal(tied[0].weight, saved) and tied[1].weight is tied[0].weight


def test_fingerprints_notice_other_data() -> None:
    images = toy_images()
    same = fingerprint(toy_images())
    assert fingerprint(images) == same and fingerprint(None) is None
    assert fingerprint(toy_images(seed=3)) != same and fingerprint(toy_images(73)) != same
    assert fingerprint(ToyImages(images.images.flip(0))) != same


def test_differences_name_the_keys() -> None:
    assert differences({"a": {"b": 1, "c": [2]}}, {"a": {"b": 3, "c": [2]}, "d": 4}) == ["a.b: 1 -> 3", "d: None -> 4"]


def test_the_checkpoint_to_use_is_the_best_or_else_the_newest(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert not run.holds_a_run
    with pytest.raises(UserError, match="no checkpoint"):
        run.best_or_newest()
    write_checkpoint(run.newest, Checkpoint({}))
    assert run.holds_a_run and run.best_or_newest() == run.newest
    write_checkpoint(run.best, Checkpoint({}))
    assert run.best_or_newest() == run.best
