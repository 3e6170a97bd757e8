"""`suggest` at smoke size: curves begin with the same labels and model, and every row chooses as its name says."""

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from semisight.experiments import results, suggest
from semisight.experiments.table import Request
from semisight.inference.acquisition import see


def test_curves_begin_alike_and_are_measured_once(smoke: Path, tmp_path: Path) -> None:
    out = Path(shutil.copy(smoke / "suggest.csv", tmp_path))
    request = Request(None, out, smoke=True, progress=False)
    added = results.read(out)
    assert [(row.row, row.N) for row in added] == [(row, n) for row in suggest.ROWS for n in ("10", "20")]
    assert len({row.value for row in added if row.N == "10"}) == 1
    # points that are missing are measured again, and are the same
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(line for line in lines if not line.startswith("suggest,random,")))
    first, then = again = suggest.run(request)
    assert [row.key for row in again] == [("suggest", "random", n, "error", 0) for n in ("10", "20")]
    assert [row.value for row in again] == [row.value for row in added if row.row == "random"]
    assert 0 < first.minutes < then.minutes  # counted from the start of the curve


def test_what_is_asked_for_is_unknown_and_chosen_as_the_row_says() -> None:
    curve = suggest.first(Request(None, smoke=True, progress=False), seed=1)
    asked = {row: curve.next_labels(row) for row in suggest.ROWS}
    for new in asked.values():
        assert len(set(new)) == suggest.MORE and not set(new) & set(curve.chosen.tolist())
    seen = see(curve.learner.model, curve.learner.head, curve.train, lambda f: f.softmax(1))
    doubt = seen.doubt.clone()
    doubt[curve.chosen] = -1
    assert doubt[asked["doubt"]].min() >= doubt.sort(descending=True).values[suggest.MORE - 1]
    assert asked["random"] != asked["suggest"] != asked["doubt"]


def test_a_round_adds_labels_and_leaves_the_start_as_it_was() -> None:
    request = Request(None, smoke=True, progress=False)
    start = suggest.first(request, seed=0)
    before = copy.deepcopy(start.learner.model.state_dict())
    curve = replace(start, learner=copy.deepcopy(start.learner))
    curve.ask("random", request)
    assert curve.learner.labels.n_labelled == len(curve.chosen) == suggest.FIRST + suggest.MORE
    assert all(torch.equal(value, before[name]) for name, value in start.learner.model.state_dict().items())
    assert not all(torch.equal(value, before[name]) for name, value in curve.learner.model.state_dict().items())
