"""`suggest` at smoke size: curves begin with the same labels and model, and every row chooses as its name says."""

import copy
from dataclasses import replace
from pathlib import Path

import torch

from semisight.experiments import results, suggest
from semisight.experiments.table import Request
from semisight.inference.acquisition import see


def test_curves_begin_alike_and_are_measured_once(tmp_path: Path) -> None:
    out = tmp_path / "suggest.csv"
    request = Request(None, out, smoke=True, progress=False)
    added = suggest.run(request)
    assert [(row.row, row.N) for row in added] == [(row, n) for row in suggest.ROWS for n in ("10", "20")]
    assert len({row.value for row in added if row.N == "10"}) == 1
    for row in suggest.ROWS:
        first, then = (cell.minutes for cell in added if cell.row == row)
        assert 0 < first < then  # counted from the start of the curve
    # a point that is missing is measured again, and is the same
    results_before = results.read(out)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(line for line in lines if not line.startswith("suggest,random,20")))
    (again,) = suggest.run(request)
    assert again.key == ("suggest", "random", "20", "error", 0)
    assert again.value == next(row.value for row in results_before if row.key == again.key)


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
