"""The table of photographs at smoke size: every row is measured, and no test image is ever learned from."""

from pathlib import Path

import pytest
import torch

from semisight.experiments import photos
from semisight.experiments.results import read
from semisight.experiments.table import Request


def test_every_row_at_smoke_size(smoke: Path) -> None:
    out = smoke / "photos.csv"
    added = read(out)
    assert {row.row for row in added} == {f"smoke/{row}" for row in photos.ROWS}
    assert {row.metric for row in added} == set(photos.METRICS)
    assert photos.run(Request(None, out, smoke=True, progress=False)) == []
    errors = {row.row: row.value for row in added if row.metric == "error"}
    assert all(0 <= error < 70 for error in errors.values())


def test_test_images_are_neither_labelled_nor_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    images, _ = photos.photos_of(Request(None, smoke=True))
    of = photos.split_of(images(), 3, 0, per_class=5)
    assert int((of.labels >= 0).sum()) == 30 and len(of.test) == 50
    assert bool((of.labels[of.test] == -1).all()) and set(of.train.tolist()).isdisjoint(of.test.tolist())
    assert torch.bincount(of.truth).tolist() == [5] * 10
    again, other = (photos.split_of(images(), 3, seed, per_class=5) for seed in (0, 1))
    assert torch.equal(of.test, again.test) and not torch.equal(of.test, other.test)
    # what a row says of one test image does not depend on the others
    few = photos.Split(of.views, of.labels, of.test, of.truth, of.n_classes)
    whole = photos.ours(few, 0)
    for view in of.views:
        view[of.test[1:]] = 0.5
    torch.testing.assert_close(photos.ours(few, 0)[0], whole[0], atol=1e-5, rtol=1e-4)


def test_a_set_with_test_images_of_its_own_is_tested_on_these() -> None:
    read, _ = photos.photos_of(Request(None, smoke=True))
    with_parts = photos.Photos(read().images, n_test=300)
    n = len(with_parts.images)
    for seed in (0, 1):
        of = photos.split_of(with_parts, 4, seed)
        assert of.test.tolist() == list(range(n - 300, n)) and of.train.tolist() == list(range(n - 300))
        assert torch.bincount(of.labels[of.labels >= 0]).tolist() == [4] * 10
        assert with_parts.images.labels is not None and torch.equal(of.truth, with_parts.images.labels[-300:])
