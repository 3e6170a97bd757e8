"""`suggest` on photographs at smoke size: curves begin alike, and each row chooses as its name says."""

from pathlib import Path

import torch

from semisight.experiments import suggest_photos as photos
from semisight.experiments.photos import photos_of, split_of
from semisight.experiments.table import Request
from semisight.inference.acquisition import Seen, choose_next
from semisight.training.soft_em import mean_decision


def curve(seed: int = 0) -> photos.Curve:
    read, _ = photos_of(Request(None, smoke=True))
    of = split_of(read(), 0, seed, 5)
    return photos.begin(of.views, read().images.labels, of.test, of.n_classes, seed, 20)


def test_every_row_is_measured_once_and_begins_alike(tmp_path: Path) -> None:
    request = Request(None, tmp_path / "suggest.csv", smoke=True, progress=False)
    added = photos.run(request)
    assert len(added) == 3 * 2 * 3 and photos.run(request) == []
    first = {row.value for row in added if row.N == "20" and row.metric == "error"}
    assert len(first) == 1
    errors = {(row.row.split("/")[1], row.N): row.value for row in added if row.metric == "error"}
    assert all(errors[(row, "40")] < errors[(row, "20")] for row in photos.ROWS)


def test_rows_choose_unknown_images_as_they_are_named() -> None:
    start = curve()
    asked = {row: start.next_labels(row, 20) for row in photos.ROWS}
    for new in asked.values():
        assert len(set(new)) == 20 and not set(new) & set(start.chosen.tolist())
    p = (mean_decision(start.learned(), start.codes) * photos.LEARN.first_sharpening).softmax(1)
    seen = Seen(torch.stack(start.codes).mean(0), p)
    open_ = torch.ones(len(p), dtype=torch.bool)
    open_[start.chosen] = False
    assert asked["suggest"] == choose_next(seen.codes, seen.doubt, open_, 20)
    assert float(seen.doubt[asked["doubt"]].min()) >= float(seen.doubt[asked["random"]].median())


def test_errors_count_classes_alike_or_by_their_share() -> None:
    found = curve()
    measured = found.measure()
    wrong = (mean_decision(found.learned(), found.test).argmax(1) != found.truth).double()
    assert measured["error"] == 100 * float(wrong.mean())
    weights = torch.bincount(found.labels).double()[found.truth]
    assert abs(measured["error_by_frequency"] - 100 * float((wrong * weights).sum() / weights.sum())) < 1e-6
    assert measured["classes"] == len(found.labels[found.chosen].unique())
