"""`reconstruct`, `generate`, `report` and `load_run`: pictures out of a run, and what happens when it is no run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semisight.errors import UserError
from semisight.runs.outputs import png_names
from semisight.runs.pictures import grid, to_pixels
from semisight.runs.run import load_run
from semisight.training.checkpoint import read_checkpoint
from tests.cli.commands import ok, refused, semisight


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "inner").mkdir(parents=True)
    random = np.random.default_rng(1)
    for name in ("a.png", "b.png", "inner/a.jpg"):
        Image.fromarray(random.integers(0, 256, (20, 14, 3), np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    return folder


def test_load_run_gives_the_averaged_weights_of_the_best_checkpoint(shared_run: Path) -> None:
    run = load_run(shared_run)
    assert run.checkpoint.name == "best.safetensors"
    assert not run.model.training
    checkpoint = read_checkpoint(run.checkpoint)
    name, loaded = "decoder.dictionaries.0", run.model.state_dict()
    assert torch.equal(loaded[name], checkpoint.part("model")[name])
    assert not torch.equal(loaded[name], checkpoint.part("training")[f"weights/model.{name}"])


def test_load_run_takes_the_newest_where_there_is_no_best(own_run: Path) -> None:
    (own_run / "checkpoints" / "best.safetensors").unlink()
    assert load_run(own_run).checkpoint.name == "newest.safetensors"


def test_generate_writes_a_grid_or_a_folder(shared_run: Path, tmp_path: Path) -> None:
    ok("generate", shared_run, "-n", "9", "--out", tmp_path / "samples.png")
    with Image.open(tmp_path / "samples.png") as picture:
        assert picture.size == (3 * 66 + 2, 3 * 66 + 2)  # 8 x 8 pixels, eightfold, with gaps of 2
        assert len(picture.getcolors(100_000) or []) > 2
    ok("generate", shared_run, "-n", "3", "--out", tmp_path / "samples")
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == ["0000.png", "0001.png", "0002.png"]


def test_generate_is_decided_by_the_seed(shared_run: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        ok("generate", shared_run, "-n", "4", "--out", tmp_path / f"{name}.png", "--seed", seed)
    a, b, c = ((tmp_path / f"{name}.png").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_reconstruct_a_folder_keeps_the_names(shared_run: Path, photos: Path, tmp_path: Path) -> None:
    result = semisight("reconstruct", shared_run, photos, "--out", tmp_path / "out")
    assert result.code == 0 and "3 reconstructions" in result.out and "1 file skipped" in result.err
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.png"))
    assert found == ["a.png", "b.png", "inner/a.png"]
    with Image.open(tmp_path / "out" / "a.png") as picture:
        assert (picture.size, picture.mode) == ((8, 8), "L")  # as the model sees: grey, 8 x 8


def test_reconstruct_a_grid_has_pairs(shared_run: Path, tmp_path: Path) -> None:
    ok("reconstruct", shared_run, "builtin:digits", "--limit", "5", "--out", tmp_path / "grid.webp")
    with Image.open(tmp_path / "grid.webp") as picture:
        assert picture.size == (5 * 66 + 2, 2 * 66 + 2)


def test_reconstruct_one_picture(shared_run: Path, photos: Path, tmp_path: Path) -> None:
    assert "1 reconstruction " in ok("reconstruct", shared_run, photos / "a.png", "--out", tmp_path / "one.png")


def test_nothing_is_replaced_unasked(shared_run: Path, photos: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.png"
    mine.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "b.png").write_text("mine")
    assert "--overwrite" in refused("generate", shared_run, "--out", mine)
    assert "--overwrite" in refused("reconstruct", shared_run, photos, "--out", mine)
    assert "--overwrite" in refused("reconstruct", shared_run, photos, "--out", tmp_path / "out")
    assert "--overwrite" in refused("report", shared_run, "--out", mine)
    assert mine.read_text() == "mine"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.png"]
    ok("generate", shared_run, "-n", "1", "--out", mine, "--overwrite")
    assert mine.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["generate", "reconstruct", "report"])
def test_what_is_no_run_is_refused(command: str, tmp_path: Path) -> None:
    images = ["builtin:digits"] if command == "reconstruct" else []
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("text")
    out = ["--out", str(tmp_path / "out.png")]
    assert "does not exist" in refused(command, tmp_path / "nowhere", *images, *out)
    assert "not one of a run" in refused(command, tmp_path / "folder", *images, *out)
    assert "is a file" in refused(command, tmp_path / "file", *images, *out)
    assert not (tmp_path / "out.png").exists()


def test_a_damaged_checkpoint_is_told_and_the_other_one_offered(own_run: Path, tmp_path: Path) -> None:
    best = own_run / "checkpoints" / "best.safetensors"
    best.write_bytes(best.read_bytes()[:-100])
    message = refused("generate", own_run, "--out", tmp_path / "a.png")
    assert "best.safetensors" in message
    assert "--checkpoint newest" in message
    ok("generate", own_run, "-n", "1", "--out", tmp_path / "a.png", "--checkpoint", "newest")
    best.write_bytes(b"")
    assert "best.safetensors" in refused("report", own_run)


def test_a_checkpoint_that_does_not_say_what_it_is(own_run: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    best = own_run / "checkpoints" / "best.safetensors"
    save_file({"x": torch.zeros(1)}, best)
    assert "not one that semisight wrote" in refused("generate", own_run, "--out", tmp_path / "a.png")


def test_an_ending_that_is_no_picture_is_refused(shared_run: Path, tmp_path: Path) -> None:
    assert ".png" in refused("generate", shared_run, "--out", tmp_path / "samples.pgn")


def test_a_report_of_images_that_moved(tmp_path: Path, photos: Path) -> None:
    (photos / "notes.txt").unlink()
    run = tmp_path / "run"
    ok("train", photos, "--size", "8", "--out", run, "--epochs", "1", "--batch-size", "2", "--no-report")
    moved = tmp_path / "moved"
    shutil.move(photos, moved)
    assert "--data" in refused("report", run)
    ok("report", run, "--data", moved)
    assert "not those of the training" not in (run / "report.html").read_text()
    Image.new("RGB", (9, 9), "red").save(moved / "new.png")
    ok("report", run, "--data", moved, "--out", tmp_path / "again.html")
    assert "not those of the training" in (tmp_path / "again.html").read_text()


def test_a_damaged_record_of_the_data_is_told(own_run: Path) -> None:
    (own_run / "data.json").write_text('{"settings": {}}')
    assert "damaged" in refused("report", own_run)
    (own_run / "data.json").unlink()
    assert "does not say which images" in refused("report", own_run)


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", images=np.random.default_rng(0).integers(0, 256, (8, 8, 12), np.uint8))
    ok("train", tmp_path / "wide.npz", "--out", tmp_path / "run", "--epochs", "1", "--batch-size", "4")
    with pytest.raises(UserError, match="12 x 8"):
        from semisight.runs.run_images import load_for

        load_for(load_run(tmp_path / "run"), "builtin:digits")


@given(
    st.lists(
        st.from_regex(r"(\.\./|/)?([ab]{1,2}/){0,2}[abc]{1,2}(\.png|\.jpg|\.jpg\.png|)", fullmatch=True), unique=True
    )
)
def test_names_of_pictures_are_distinct_and_stay_below_the_folder(names: list[str]) -> None:
    result = png_names(names)
    assert len(result) == len(names) == len(set(result))
    for name in result:
        assert name.endswith(".png")
        assert not name.startswith("/")
        assert ".." not in Path(name).parts


def test_pixels_outside_the_range_are_clipped() -> None:
    images = torch.tensor([-0.5, 0.0, 0.5, 2.0]).view(1, 1, 2, 2)
    assert to_pixels(images).flatten().tolist() == [0, 0, 128, 255]


def test_a_grid_puts_images_row_by_row() -> None:
    images = torch.stack([torch.full((1, 1, 1), value) for value in (0.2, 0.4, 0.6)])
    sheet = np.asarray(grid(images, columns=2, side=1))[..., 0]
    assert sheet[2::3, 2::3].tolist() == [[51, 102], [153, 255]]
