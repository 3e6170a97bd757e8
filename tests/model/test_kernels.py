"""kernels.c against the same in torch and against the naive twin; and what happens where it cannot be had."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semisight.model.architecture import Layer
from semisight.model.ops import curvature, kernels, pooling
from semisight.model.ops.places import Chosen, PoolingWeights, choose_places, naive_choose_places, pool_expected

needs_compiler = pytest.mark.skipif(kernels.library() is None, reason="no C compiler here, or SEMISIGHT_KERNELS=off")


def weights(places: int, scale: float = 1.0) -> PoolingWeights:
    shapes = ((places, places), (places, 1), (places, places), (places, 1))
    return PoolingWeights(*(scale * torch.randn(shape) for shape in shapes))


def leaves(w: PoolingWeights) -> list[Tensor]:
    return [t.requires_grad_() for t in (w.inner, w.inner_bias, w.outer, w.outer_bias)]


def outputs(chosen: Chosen) -> list[Tensor]:
    return [chosen.z, chosen.pooled, chosen.negative_entropy, chosen.log_q_z]


@needs_compiler
@pytest.mark.parametrize("blocks_per_map", [1, 127, 128, 300])  # a tile has 128: whole ones and what is left
@pytest.mark.parametrize("places", [1, 4, 9, 16, 25])
@pytest.mark.parametrize(("expected", "through"), [(True, True), (False, True), (True, False), (False, False)])
def test_choosing_equals_the_naive_twin(blocks_per_map: int, places: int, expected: bool, through: bool) -> None:
    torch.manual_seed(places)
    blocks = torch.randn(places, 2, blocks_per_map, 1, 1).requires_grad_()
    uniform, w = torch.rand(2, blocks_per_map, 1, 1), weights(places)
    inputs = [blocks, *leaves(w)]
    assert kernels.usable(blocks)
    fast = outputs(choose_places(blocks, w, uniform, expected, through))
    naive = outputs(naive_choose_places(blocks, w, uniform, expected, through))
    if through:  # the fast path does not work out log q(z), which nobody then asks for
        fast, naive = fast[:3], naive[:3]
    given = [torch.randn_like(out) for out in fast]
    for a, b in zip(fast, naive, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    losses = [
        torch.stack([(g * o).sum() for g, o in zip(given, outs, strict=True) if o.requires_grad]).sum()
        for outs in (fast, naive)
    ]
    for a, b in zip(*(torch.autograd.grad(loss, inputs) for loss in losses), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5 * float(1 + b.abs().max()))
    torch.testing.assert_close(
        pool_expected(blocks.detach(), w), naive_choose_places(blocks, w, uniform, True, True).pooled
    )


@needs_compiler
def test_large_logits_neither_overflow_nor_lose_a_block() -> None:
    torch.manual_seed(0)
    blocks, uniform = 30 * torch.randn(9, 1, 500, 1, 1), torch.rand(1, 500, 1, 1)
    uniform[:, :2] = torch.tensor([0.0, 1 - 2**-24]).view(1, 2, 1, 1)
    w = weights(9, scale=200.0)
    fast, naive = (outputs(f(blocks, w, uniform, True, False)) for f in (choose_places, naive_choose_places))
    assert all(bool(torch.isfinite(out).all()) for out in fast)
    torch.testing.assert_close(fast[1], naive[1], rtol=1e-4, atol=1e-3)
    assert bool((fast[0].sum(0) == 1).all())


@needs_compiler
@pytest.mark.parametrize("where", ["blocks", "weights"])
def test_what_is_not_a_number_stays_visible(where: str) -> None:
    torch.manual_seed(4)
    blocks, uniform, w = torch.randn(4, 1, 200, 1, 1), torch.rand(1, 200, 1, 1), weights(4)
    if where == "blocks":
        blocks[2, 0, 150] = torch.nan
    else:
        w.outer[1, 2] = torch.nan
    seen = slice(150, 151) if where == "blocks" else slice(None)
    chosen = choose_places(blocks, w, uniform, True, True)
    for out in (pool_expected(blocks, w), chosen.pooled, chosen.negative_entropy):
        assert bool(out[0, seen].isnan().all())


@needs_compiler
def test_threads_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_SMALLEST_PART", 100)
    torch.manual_seed(1)
    blocks, uniform, w = torch.randn(4, 3, 50, 7, 1).requires_grad_(), torch.rand(3, 50, 7, 1), weights(4)
    inputs, before = [blocks, *leaves(w)], torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            out = outputs(choose_places(blocks, w, uniform, True, True))
            answers.append([*out, *torch.autograd.grad(out[1].sum() + out[2].sum(), inputs)])
    finally:
        torch.set_num_threads(before)
    for one, three in zip(*answers, strict=True):
        torch.testing.assert_close(one, three)


@needs_compiler
@pytest.mark.parametrize("layer", [Layer(3, 5, 2, "same"), Layer(3, 3, 3)])
@pytest.mark.parametrize("curved", [True, False])
def test_gradients_of_unpooling_equal_torchs(layer: Layer, curved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """'same' layers have several kinds of blocks: at the edge a part of the dictionary is cropped."""
    torch.manual_seed(2)
    below = (12, 8) if layer.padding == "same" else (14, 8)
    dictionary = torch.randn(layer.maps, 2, layer.kernel, layer.kernel)
    h, w = (layer.convolved(n) // layer.pool for n in below)
    values = torch.randn(layer.maps, h, w, 5)
    index = torch.randint(layer.pool**2, values.shape).float()
    z = torch.zeros(()).expand(layer.pool**2, *values.shape)
    energies = curvature.energies(dictionary, torch.rand(2), layer, below)
    given = torch.randn(z.shape)
    answers = []
    for off in (False, True):
        if off:
            monkeypatch.setattr(kernels, "library", lambda: None)
        of, weight = (lambda: energies, torch.linspace(0.5, 2, 5)) if curved else (None, None)
        grad_z = given.clone()
        with torch.no_grad():
            answers.append([curvature.finish_gradients(grad_z, z, index, values, of, weight), grad_z])
            unpooled = pooling._unpooled(values, z, index)(slice(1, layer.pool**2), slice(1, h))
            answers[-1].append(unpooled)
    for mine, torchs in zip(*answers, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-5, atol=1e-5)


def test_other_types_and_larger_pools_are_left_to_torch() -> None:
    assert not kernels.usable(torch.zeros(4, 1, dtype=torch.float64))
    assert not kernels.usable(torch.zeros(36, 1))


@pytest.mark.parametrize("why", ["switched off", "no compiler", "a compiler that fails"])
def test_without_kernels_torch_does_the_same(why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if why == "switched off":
        monkeypatch.setenv(kernels.SWITCH, "off")
    else:
        monkeypatch.setenv(kernels.SWITCH, "on")
        monkeypatch.setenv("PATH", str(tmp_path))
    if why == "a compiler that fails":
        (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "cc").chmod(0o755)
        monkeypatch.setenv("CC", "cc")
    kernels.library.cache_clear()
    try:
        assert kernels.library() is None
        torch.manual_seed(3)
        blocks, uniform, w = torch.randn(4, 2, 9, 1, 1), torch.rand(2, 9, 1, 1), weights(4)
        for a, b in zip(
            outputs(choose_places(blocks, w, uniform, True, False)),
            outputs(naive_choose_places(blocks, w, uniform, True, False)),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    finally:
        kernels.library.cache_clear()
    assert not list(tmp_path.rglob("*.so"))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache of our own, and a compiler that takes no time: it gives what the real one has made before."""
    made = kernels.library()
    assert made is not None
    (tmp_path / "cc").write_text(
        f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp "{made._name}" "$2"\n', encoding="utf-8"
    )
    (tmp_path / "cc").chmod(0o755)
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernels.library.cache_clear()
    yield tmp_path / "semisight"
    kernels.library.cache_clear()


def load_again() -> bool:
    kernels.library.cache_clear()
    return kernels.library() is not None


@needs_compiler
def test_it_is_compiled_once_and_says_so(cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert load_again()
    assert capfd.readouterr().err.count("compiling its kernels with") == 1
    (made,) = cache.iterdir()
    written = made.stat().st_mtime_ns
    assert load_again()
    assert [file.stat().st_mtime_ns for file in cache.iterdir()] == [written]
    assert capfd.readouterr().err == ""


@needs_compiler
@pytest.mark.parametrize("damage", ["truncated", "empty", "a flipped bit", "another library"])
def test_a_damaged_file_is_compiled_again(damage: str, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert load_again()
    (made,) = cache.iterdir()
    content = made.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    made.unlink()  # what is loaded stays whole
    other = {"truncated": content[: len(content) // 2], "empty": b"", "a flipped bit": bytes(flipped)}.get(damage, b"x")
    made.write_bytes(other)
    capfd.readouterr()
    assert load_again()
    assert "compiling" in capfd.readouterr().err and made.read_bytes() == content


@needs_compiler
@pytest.mark.parametrize("how", ["the folder", "one above it", "the file", "a link", "someone else's"])
def test_what_others_could_have_put_there_is_not_run(
    how: str, cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert load_again()
    (made,) = cache.iterdir()
    if how == "the folder":
        cache.chmod(0o777)
    elif how == "one above it":
        tmp_path.chmod(0o777)
    elif how == "the file":
        made.chmod(0o777)
    elif how == "someone else's":
        if os.getuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(made, 12345, 12345)
    else:
        made.rename(tmp_path / "elsewhere.so")
        made.symlink_to(tmp_path / "elsewhere.so")
    capfd.readouterr()
    if how in ("the file", "a link", "someone else's"):
        assert load_again()
        (again,) = cache.iterdir()
        assert not again.is_symlink() and again.stat().st_mode & 0o022 == 0 and again.stat().st_uid == os.getuid()
        assert "compiling" in capfd.readouterr().err
    else:
        assert not load_again()
        assert "others can write to" in capfd.readouterr().err


@needs_compiler
def test_it_is_on_disk_before_it_has_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b))[1])
    assert load_again()
    assert calls[0] == "fsync" and calls[-1] == "replace"


@needs_compiler
def test_code_in_a_folder_of_someone_else_is_not_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert not load_again()
    assert not list(cache.iterdir())
