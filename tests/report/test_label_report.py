"""The page of a run with labels: what it says about them is what was measured."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from semisight.metrics.calibration import reliability_curve
from semisight.report import page
from semisight.report.build import look, write_report
from semisight.report.labels import LabelsSeen, _matrix_picture, error_by_labels, most_confused
from semisight.report.labels import look as look_at_labels
from semisight.report.labels import words as label_words
from semisight.report.reliability import reliability_chart
from semisight.runs.evaluate import compare_labels, evaluate_labels
from semisight.runs.images import Sets
from semisight.runs.run import Comparison, Run, load_run
from semisight.runs.run_images import reload_sets
from tests.cli.commands import ok
from tests.report.test_report import Page

SECTIONS = ("labels", "confusion", "reliability", "certainty", "few-labels")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 labels of each digit, 320 images; the others' labels are hidden and measured on."""
    run = tmp_path_factory.mktemp("trial") / "run"
    ok("train", "builtin:digits", "--limit", "400", "--labels-per-class", "4", "--valid-fraction", "0.2",
       "--epochs", "20", "--batch-size", "80", "--learning-rate", "0.005", "--threads", "1", "--out", run)  # fmt: skip
    return run


@pytest.fixture(scope="module")
def loaded(trial: Path) -> tuple[Run, Sets]:
    run = load_run(trial)
    return run, reload_sets(run)


@pytest.fixture(scope="module")
def seen(loaded: tuple[Run, Sets]) -> LabelsSeen:
    return look_at_labels(*loaded)


def test_the_page_has_the_sections_of_labels(trial: Path) -> None:
    text = (trial / "report.html").read_text()
    shown = Page(text)
    assert len(shown.identities) == len(set(shown.identities))
    for section in SECTIONS:
        assert section in shown.identities
        assert f"#{section}" in shown.addresses
    assert all(address.startswith(("data:", "#")) for address in shown.addresses)
    assert "with 40 labels of 10 classes" in text
    assert 'aria-label="Contrastive term"' in text
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r'src="[^"]*"', "", text))


def test_what_it_says_was_measured(seen: LabelsSeen, loaded: tuple[Run, Sets]) -> None:
    run, sets = loaded
    measured = sets.measured("labels")
    assert measured is not None and seen.evaluation is not None
    assert seen.labelled.tolist() == [4] * 10
    assert seen.evaluation.error == evaluate_labels(run, measured).error
    assert int(seen.evaluation.confusion.sum()) == len(measured)
    words = " ".join(label_words(seen))
    assert "From 40 labels of 10 classes and 2" in words
    assert f"{1 - seen.evaluation.error:.1%} of {len(sets.measured('labels'))} images whose labels were hidden" in words
    assert "not calibrated" in words


def test_the_order_of_certainty_is_that_of_the_probabilities(trial: Path, seen: LabelsSeen) -> None:
    text = (trial / "report.html").read_text()
    found = [float(p) for p in re.findall(r"probability ([\d.]+), spread", text[text.index('id="certainty"') :])][::2]
    most, least = found[:12], found[12:24]
    assert most == sorted(most, reverse=True)
    assert least == sorted(least)
    assert max(most) == pytest.approx(float(seen.classified.probability.max()), abs=1e-3)
    assert min(least) == pytest.approx(float(seen.classified.probability.min()), abs=1e-3)


def test_what_the_unlabelled_images_were_worth(trial: Path, seen: LabelsSeen) -> None:
    assert seen.evaluation is not None
    error = seen.evaluation.error
    assert Comparison.read(load_run(trial).folder) is None
    worse, better = (dataclasses.replace(seen, comparison=Comparison(e)) for e in (error + 0.2, error / 2))
    words = " ".join(label_words(worse))
    assert "20.0 points better" in words
    assert f"took away {0.2 / (error + 0.2):.0%} of its mistakes" in words
    assert "did not help" in " ".join(label_words(better))


def test_more_labels_on_the_same_codes_are_worth_something(loaded: tuple[Run, Sets], seen: LabelsSeen) -> None:
    assert [few.per_class for few in seen.few] == [1, 2, 5, 10, 20]
    assert seen.few[-1].error < seen.few[0].error
    assert all(0 <= few.error <= 1 for few in seen.few)
    run, sets = loaded
    measured = sets.measured("labels")
    assert measured is not None
    # without the hidden labels there are 4 of each class to choose from
    known = dataclasses.replace(sets, truth={})
    assert [few.per_class for few in error_by_labels(run, known, measured)] == [1, 2]


def test_a_run_without_held_out_labels_says_so(loaded: tuple[Run, Sets], tmp_path: Path) -> None:
    run, sets = loaded
    unknown = dataclasses.replace(sets, truth={})
    assert unknown.measured("labels") is None
    found = write_report(run, unknown, tmp_path / "page.html")
    assert found.found["labels"].evaluation is None
    text = (tmp_path / "page.html").read_text()
    shown = Page(text)
    assert {"labels", "certainty"} <= set(shown.identities)
    assert {"confusion", "reliability", "few-labels"}.isdisjoint(shown.identities)
    assert "no label was held out" in text
    assert "How often it is right cannot be said" in " ".join(found.words())


def test_the_image_part_is_the_image_models(loaded: tuple[Run, Sets]) -> None:
    material = look(*loaded)
    assert material.same_images
    assert "alpha0" in material.pixels.numbers.after
    assert material.pixels.numbers.after["side"] == 0


def test_a_matrix_of_many_classes_is_a_picture(seen: LabelsSeen) -> None:
    assert seen.evaluation is not None
    picture = _matrix_picture(torch.eye(100, dtype=torch.int64))
    assert picture.size == (600, 600)
    assert picture.getpixel((3, 3)) != picture.getpixel((597, 3))
    confusion = torch.tensor([[5, 3, 0], [0, 9, 0], [1, 4, 2]])
    of = dataclasses.replace(seen.evaluation, confusion=confusion, class_names=("a", "b", "c"))
    assert list(most_confused(of)) == [("c", "b", 4), ("a", "b", 3), ("c", "a", 1)]


def test_names_are_escaped() -> None:
    table = page.confusion_table(["<b>", "x&y"], [[1, 2], [0, 3]])
    Page(table)
    assert "<b>" not in table
    Page(page.grid_table(["a<"], [("<i>",)]))


def test_a_curve_with_empty_bins_is_drawn(seen: LabelsSeen) -> None:
    curve = reliability_curve(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    drawing = reliability_chart(curve)
    Page(drawing)
    assert drawing.count("<rect") == 2
    assert "nan" not in drawing
    everything = compare_labels(seen.classifier, seen.classified, seen.truth)
    assert reliability_chart(everything.reliability).count("<rect") == int((everything.reliability.count > 0).sum())
