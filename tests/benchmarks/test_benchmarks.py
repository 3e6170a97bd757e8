"""The benchmarks run, their arithmetic is right, and what they count on paper is what the model does."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from benchmarks.figures import Figure, Goal
from benchmarks.memory import measure_in_new_process, measure_memory
from benchmarks.on_paper import n_parameters, step_bytes, step_flops
from benchmarks.speed import PlainCNN, TrainingStep
from benchmarks.timing import Rounds, interleave
from semisight.model.architecture import PRESETS, Architecture, Layer, preset
from semisight.model.image_model import ImageModel
from semisight.model.ops.pooling import NAIVE

TINY = Architecture((1, 12, 12), (Layer(4, 5, 2), Layer(6, 3)))


def test_smoke_prints_and_writes_one_json_line_per_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.__main__.keep_memory", lambda: True)  # it would hold for all tests of this process
    out = tmp_path / "new folder" / "bench.jsonl"
    main(["--smoke", "--only", "step,encode", "--out", str(out)])
    printed = capsys.readouterr().out
    assert out.read_text() == printed
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["goal"] for row in rows] == [">= 3 (at least 2)", "<= 1.5", None, "<= 1.5", "<= 2"]
    for row in rows:
        assert row["value"] > 0 and row["unit"] and row["threads"] == 1 and row["rounds"] == 3
        assert all(seconds > 0 for seconds in row["seconds"].values())
    assert 0 < rows[2]["share_without_zeros"] <= rows[2]["value"] < 1


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "step,encoding"])
    assert (
        "there is no part 'encoding'; there are step, deep, encode, memory, decode, captions, serving"
        in capsys.readouterr().err
    )


def test_ways_take_turns_and_ratios_are_taken_round_by_round() -> None:
    calls: list[str] = []
    measured = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=3, turn=0.0)
    assert calls == ["a", "a", "b", "b", *("a", "b") * 3]
    assert measured.count == 3
    # a slow round hits both, a single slow turn only its own round
    rounds = Rounds({"a": (2.0, 20.0, 2.0, 9.0, 2.0), "b": (1.0, 10.0, 1.0, 1.0, 1.0)}, "processor time")
    assert rounds.ratio("a", "b") == 2.0
    assert rounds.median("b") == 1.0
    low, high = rounds.range_of_ratio("a", "b")
    assert low == 2.0 and high > 2.0


def test_a_goal_has_a_direction() -> None:
    assert Goal(">=", 3).met_by(3.1) and not Goal(">=", 3).met_by(2.9)
    assert Goal("<=", 1.5).met_by(1.4) and not Goal("<=", 1.5).met_by(1.6)
    row = json.loads(Figure("f", 1 / 3, "s", Goal("<=", 1.5), {"more": [1 / 7]}).line())
    assert (row["value"], row["met"], row["more"]) == (0.3333, True, [0.1429])


@pytest.mark.parametrize("architecture", [TINY, preset("mnist")])
def test_flops_on_paper_are_those_of_the_naive_twin(architecture: Architecture) -> None:
    """Torch counts what the naive twin's operations multiply; the fast path recomputes and draws a little more."""
    step = TrainingStep(architecture, batch=2, operators=NAIVE)
    with FlopCounterMode(display=False) as counter:
        step()
    paper = step_flops(architecture, batch=2)
    assert paper.needed == pytest.approx(counter.get_total_flops(), rel=0.1)
    assert paper.needed < paper.done


def test_parameters_on_paper() -> None:
    for name in PRESETS:
        if name not in ("imagenet", "coco"):
            model = ImageModel.of(preset(name))
            assert n_parameters(preset(name)) == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.02)


def test_both_sides_of_a_comparison_do_the_same_work() -> None:
    fast, naive = TrainingStep(TINY, batch=3), TrainingStep(TINY, batch=3, operators=NAIVE)
    for _ in range(2):
        fast()
        naive()
    for name, parameter in fast.parameters.items():
        torch.testing.assert_close(parameter, naive.parameters[name], rtol=1e-4, atol=1e-5)
    images = torch.rand(5, 1, 12, 12)
    assert PlainCNN(TINY)(images).shape == ImageModel.of(TINY).mean_code(images, torch.Generator()).shape


def test_memory_on_paper_is_near_the_measured() -> None:
    architecture = Architecture((3, 32, 32), (Layer(32, 5, 2, "same"), Layer(16, 5)))
    near = 0
    for _ in range(3):  # two of three: one measurement varies by a tenth, and now and then by half
        near += 0.7 < step_bytes(architecture, 64) / measure_in_new_process(architecture, batch=64) < 1.2
        if near == 2:
            break
    assert near == 2


def test_what_does_not_fit_is_worked_out_on_paper() -> None:
    figures = list(measure_memory(("imagenet", "cifar-10", "cifar-100"), (32, 64), batch=64, limit=0.0))
    assert [figure.details.get("how") for figure in figures] == ["on paper"] * 5 + [None]
    assert figures[0].value > 5000 > figures[1].value == figures[2].value
    assert 0.5 < figures[-1].value < 1.5
