"""Table 3 at smoke size: every row runs, is written once, and keeps to the protocol."""

import json
import math
from pathlib import Path

import pytest
import torch
from PIL import Image

from semisight.data.builtin.scenes import read_scenes
from semisight.errors import UserError
from semisight.experiments import results, table3
from semisight.experiments.reproduce import reproduce
from semisight.experiments.table import Request
from semisight.training.trainer import Fitted


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    """A folder laid out like Flickr8k, with scenes for photographs."""
    folder = tmp_path / "flickr8k"
    (folder / "Images").mkdir(parents=True)
    scenes = read_scenes(40, 24, seed=5, n_captions=2)
    assert scenes.captions is not None
    images = []
    for i, captions in enumerate(scenes.captions):
        Image.fromarray(scenes.images[i].permute(1, 2, 0).numpy()).save(folder / "Images" / f"{i}.jpg")
        sentences = [{"raw": caption, "tokens": caption.split()} for caption in captions]
        images.append({"filename": f"{i}.jpg", "split": "train" if i < 30 else "val", "sentences": sentences})
    (folder / "dataset_flickr8k.json").write_text(json.dumps({"images": images}))
    return folder


def test_every_row_of_scenes_at_smoke_size(smoke: Path) -> None:
    added = results.read(smoke / "table3.csv")
    kinds = [kind for kind in table3.KINDS if kind not in table3.HALVED]
    assert {row.row for row in added} == {f"scenes/64/{kind}" for kind in kinds}
    metrics = {row: {cell.metric for cell in added if cell.row == row} for row in {cell.row for cell in added}}
    assert all({*table3.METRICS, "named rightly"} <= names for names in metrics.values())
    assert {row for row, names in metrics.items() if "perplexity" in names} == {
        f"scenes/64/{kind}" for kind in table3.LEARNED if kind in kinds
    }
    assert {row.row: row.N for row in added}["scenes/64/joint-10-images"] == "10"
    assert all(math.isfinite(row.value) and row.commit for row in added)
    assert reproduce("table3", Request(None, smoke / "table3.csv", smoke=True, progress=False)) == []


def test_flickr8k_s_layout_its_splits_and_its_cache(flickr: Path, tmp_path: Path) -> None:
    out, cache = tmp_path / "table3.csv", tmp_path / "cache"
    of = table3.sets(flickr, 64, 0, smoke=True, cache=cache)
    assert (len(of.train), len(of.pick), len(of.report)) == (23, 7, 10)
    assert set(of.report.names) == {f"{i}.jpg" for i in range(30, 40)}
    assert len({*of.train.names, *of.pick.names}) == 30
    assert all(captions is not None and len(captions) == 2 for captions in table3.captions_of(of.train))
    other = table3.sets(flickr, 64, 1, smoke=True, cache=cache)
    assert other.report.names == of.report.names and other.pick.names != of.pick.names

    rows = ["64/nearest", "128/joint"]
    request = Request(flickr, out, rows, smoke=True, progress=False, cache=cache)
    added = table3.run(request)
    assert {row.row for row in added} == {"flickr8k/64/nearest", "flickr8k/128/joint"}
    assert {row.metric: row.paper for row in added if row.row.endswith("joint")}["perplexity"] == "15.24"
    assert table3.run(request) == []


def test_rows_with_the_same_images_share_their_image_model(
    flickr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is trained once, and a row is what it would be alone."""
    cache, began = tmp_path / "cache", []

    class Counted(table3.Trainer):
        def fit(self, *, resume: bool = False, overwrite: bool = False) -> Fitted:
            began.append(resume)
            return super().fit(resume=resume, overwrite=overwrite)

    monkeypatch.setattr(table3, "Trainer", Counted)

    def values(out: str, *rows: str) -> dict[tuple[str, str], float]:
        added = table3.run(Request(flickr, tmp_path / out, rows, smoke=True, progress=False, cache=cache))
        return {(row.row, row.metric): row.value for row in added}

    together = values("a.csv", "64/two-step", "64/joint")
    assert began == [False, False, True, False]  # images, captions; the same images again, captions
    assert together == values("b.csv", "64/two-step") | values("c.csv", "64/joint")
    assert not list(tmp_path.glob("*-unfinished"))


def test_rows_that_say_what_the_distance_is_due_to(flickr: Path, tmp_path: Path) -> None:
    of = table3.sets(flickr, 64, 0, smoke=True, cache=tmp_path / "cache")
    blind = table3.varied("blind", of)
    everywhere = torch.cat([images.batch(torch.arange(len(images))) for images in (blind.train, blind.report)])
    assert torch.equal(everywhere, of.train.mean_image().expand_as(everywhere))
    assert blind.train.captions == of.train.captions and blind.report.captions == of.report.captions
    assert table3.varied("joint-half-steps", of).row.steps == of.row.steps // 2
    smaller = table3.varied("joint-half-model", of)
    assert [layer.maps for layer in smaller.layers] == [3, 4] and smaller.row.hidden == 4
    assert table3.varied("joint", of) == of

    rows = ["64/joint", *(f"64/{kind}" for kind in ("blind", *table3.HALVED))]
    added = table3.run(Request(flickr, tmp_path / "a.csv", rows, smoke=True, progress=False, cache=tmp_path / "cache"))
    perplexities = [row.value for row in added if row.metric == "perplexity"]
    assert len(set(perplexities)) == 4 and all(math.isfinite(value) for value in perplexities)
    assert not list(tmp_path.glob("*-unfinished"))


def test_the_image_model_of_a_row_that_was_stopped_is_kept(flickr: Path, tmp_path: Path) -> None:
    kept = tmp_path / "a-unfinished" / "flickr8k-64-550-0-2000-96"
    kept.mkdir(parents=True)
    rows = ["64/two-step"]
    table3.run(Request(flickr, tmp_path / "a.csv", rows, smoke=True, progress=False, cache=tmp_path / "c"))
    assert list((tmp_path / "a-unfinished").iterdir()) == [kept]


def test_the_baselines_that_do_not_learn() -> None:
    scenes = read_scenes(50, 16, seed=3)
    assert scenes.captions is not None
    words = table3.nearest(scenes, scenes.subset([4, 20]))  # each picture is nearest to itself
    assert words == [tuple(scenes.captions[i][0].split()) for i in (4, 20)]
    often = [*range(50), *[7] * 20]
    assert table3.likeliest(scenes.subset(torch.tensor(often))) == tuple(scenes.captions[7][0].split())


def test_full_size_fits_its_architectures() -> None:
    for size, layers in table3.LAYERS.items():
        assert table3.Architecture((3, size, size), layers).code_shape == (96, 4, 4)
    for size, layers in table3.SCENE_LAYERS.items():
        assert table3.Architecture((3, size, size), layers).code_shape == (192, 1, 1)


def test_unknown_rows_and_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row 'joint' in Table 3"):
        table3.run(Request("builtin:scenes", tmp_path / "x.csv", ["joint"], smoke=True))
    with pytest.raises(UserError, match="not on builtin:digits"):
        table3.run(Request("builtin:digits", tmp_path / "x.csv", ["64/joint"], smoke=True))
