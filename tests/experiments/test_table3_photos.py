"""Table 3 on features at smoke size; and that nothing but the images to pick by chooses weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semisight.data.image_set import ImageSet
from semisight.experiments import caption_rows, table3_photos
from semisight.experiments.caption_rows import BASELINES
from semisight.experiments.results import read
from semisight.experiments.table import Request
from semisight.objectives.step import Batch, Rows

ROWS = (
    "nearest",
    "two-step",
    "joint-grid",
    "joint-attention",
    "joint-attention-50-images",
    "joint-50-images",
    "without-bound",
    "hard-attention",
)


def test_rows_at_smoke_size_are_added_once(tmp_path: Path) -> None:
    request = Request(None, tmp_path / "t.csv", rows=ROWS, smoke=True, progress=False)
    added = table3_photos.run(request)
    assert {row.row for row in added} == {f"smoke/{row}" for row in ROWS}
    assert {row.metric for row in added if row.row == "smoke/two-step"} >= {"BLEU-4", "CIDEr", "perplexity", "R@10"}
    assert {row.N for row in added if "50" in row.row} == {"50"}
    assert len(read(tmp_path / "t.csv")) == len(added) and table3_photos.run(request) == []
    assert not (tmp_path / "t-unfinished").exists()
    assert {row.paper for row in added if row.row == "smoke/hard-attention" and row.metric == "BLEU-4"} == {"0.21"}


def test_weights_are_picked_by_the_images_to_pick_by_and_by_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []
    terms = table3_photos.caption_terms

    def watched(model, head, vocabulary, images, captions, **how):  # type: ignore[no-untyped-def]
        looked.append((images, captions))
        return terms(model, head, vocabulary, images, captions, **how)

    monkeypatch.setattr(table3_photos, "caption_terms", watched)
    request = Request(None, tmp_path / "t.csv", smoke=True, progress=False)
    of = table3_photos.sets(request, 0, grid=False)
    table3_photos.learn("joint", of, of.vocabulary, 0, tmp_path / "run", request)
    assert looked and all(images is of.pick and captions is of.pick.captions for images, captions in looked)  # type: ignore[misc]
    assert not set(of.pick.names) & (set(of.train.names) | set(of.report.names))


LOOKED: set[str] = set()


class Watched(ImageSet):
    """Images with captions that say when either is looked at; `source` is the name of their part."""

    def batch(self, index: Tensor) -> Tensor:
        LOOKED.add(self.source)
        return super().batch(index)

    @property
    def captions(self) -> tuple[tuple[str, ...], ...] | None:
        LOOKED.add(self.source)
        return super().captions


def watched(images: ImageSet, name: str) -> ImageSet:
    return Watched(images.images, images.names, images.columns, source=name)


@pytest.mark.parametrize("kind", BASELINES)
def test_no_baseline_looks_at_what_is_reported_before_it_is_learned(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(None, tmp_path / "t.csv", smoke=True, progress=False)
    of = table3_photos.sets(request, 0, grid=BASELINES[kind].grid)
    of = replace(of, **{name: watched(getattr(of, name), name) for name in ("train", "pick", "report")})
    learn, during = caption_rows.learn, []

    def watching(*given, **how):  # type: ignore[no-untyped-def]
        LOOKED.clear()
        try:
            return learn(*given, **how)
        finally:
            during.append(set(LOOKED))
            LOOKED.clear()

    monkeypatch.setattr(caption_rows, "learn", watching)
    values = table3_photos.measure(kind, of, 0, tmp_path / "a", request).values
    assert during == [{"train", "pick"}]  # whatever chooses anything
    assert {"train", "report"} == LOOKED  # the training captions say what was seen before
    assert {"BLEU-4", "CIDEr", "perplexity"} <= set(values)
    swapped = replace(of, pick=of.report, report=of.pick)
    table3_photos.measure(kind, swapped, 0, tmp_path / "b", request)
    assert during[1] == {"train", "report"}


def test_two_step_leaves_the_image_model_as_it_is_and_without_bound_learns_it(tmp_path: Path) -> None:
    request = Request(None, tmp_path / "t.csv", smoke=True, progress=False)
    of = table3_photos.sets(request, 0, grid=False)
    encoded = table3_photos.EncodedCaptions.encode(of.train.captions or (), of.vocabulary)
    plan = table3_photos.LabelledAndUnlabelled(torch.arange(len(of.train)), torch.zeros(0, dtype=torch.int64), 8, 8)
    generator = torch.Generator().manual_seed(1)
    batch, rows = Batch(torch.rand(8, 6, 1, 1, generator=generator), torch.arange(8)), Rows(0, 8, 8)
    learned = {}
    for kind in ("two-step", "joint", "without-bound"):
        model = table3_photos.features.build(table3_photos.grid_architecture(of.train.shape, 8))
        joint = table3_photos.compose(kind, model, encoded, plan, 0, smoke=True)
        joint.train()(batch, generator, rows).loss.backward()
        encoder = dict(model.encoder.named_parameters())["first.weight"]  # type: ignore[attr-defined]
        learned[kind] = (encoder.grad is not None, model.decoder.dictionaries[0].grad is not None)
    assert learned == {"two-step": (False, False), "joint": (True, True), "without-bound": (True, False)}
