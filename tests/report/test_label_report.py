"""The page of a run with labels: what it says about them is what was measured."""

import base64
import dataclasses
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from semisight.inference.acquisition import see
from semisight.metrics.calibration import reliability_curve
from semisight.report import page
from semisight.report.build import look, write_report
from semisight.report.codes import CodesSeen, next_to_label, on_the_map, points_on_a_map, wrong
from semisight.report.codes import look as look_at_codes
from semisight.report.codes import sections as all_of_codes
from semisight.report.labels import LabelsSeen, _matrix_picture, error_by_labels, most_confused, warnings_of
from semisight.report.labels import look as look_at_labels
from semisight.report.labels import warnings as label_warnings
from semisight.report.labels import words as label_words
from semisight.report.reliability import reliability_chart
from semisight.runs.evaluate import compare_labels, evaluate_labels
from semisight.runs.images import Sets
from semisight.runs.run import Comparison, Run, load_run
from tests.cli.commands import ok
from tests.report.test_report import Page

SECTIONS = ("labels", "confusion", "reliability", "certainty", "few-labels")


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 labels of each digit, 320 images; the others' labels are hidden and measured on."""
    run = tmp_path_factory.mktemp("trial") / "run"
    ok("train", "builtin:digits", "--limit", "400", "--labels-per-class", "4", "--valid-fraction", "0.2",
       "--epochs", "8", "--batch-size", "80", "--learning-rate", "0.01", "--threads", "1", "--out", run)  # fmt: skip
    return run


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


# ---- codes: what is wrong beside its neighbours, what to label next, the map ----


@pytest.fixture(scope="module")
def codes(loaded: tuple[Run, Sets]) -> CodesSeen:
    return look_at_codes(*loaded)


def test_answers_errors_next_and_map_come_first(trial: Path) -> None:
    order = Page((trial / "report.html").read_text()).identities
    first = ["labels", "confusion", "reliability", "wrong", "next", "map", "certainty"]
    found = [identity for identity in order if identity in (*first, "learned", "dictionary")]
    assert found == [*first, "learned", "dictionary"]
    text = (trial / "report.html").read_text()
    for folded in ("dictionary", "places"):
        assert re.match(
            r"\s*<details>", text[text.index(f'<section id="{folded}">') + len(f'<section id="{folded}">') :]
        )


def test_codes_know_what_was_given_and_what_was_hidden(codes: CodesSeen, loaded: tuple[Run, Sets]) -> None:
    run, sets = loaded
    assert int((codes.given >= 0).sum()) == 40
    assert not bool(((codes.given >= 0) & (codes.truth >= 0)).any()) and not bool(
        (codes.free & (codes.given >= 0)).any()
    )
    labels = {name: int(label) for part, column in ((sets.train, 0), (sets.valid, 1)) if part is not None
              for name, label in zip(part.names, sets.truth["labels"][column].values, strict=True)}  # type: ignore[attr-defined]  # fmt: skip
    for i in range(0, len(codes.codes), 7):
        images, place = codes.at(i)
        assert labels[images.names[place]] == int(torch.maximum(codes.given[i], codes.truth[i]))
    again = see(run.model, run.labels.head, codes.images[0], run.labels.calibration.probabilities, 5)
    assert codes.probabilities is not None
    assert torch.equal(codes.codes[: len(again.codes)], again.codes)
    assert codes.points is not None and codes.points.min() == 0 and codes.points.max() == 1


def test_images_of_one_class_are_near_each_other_on_the_map(codes: CodesSeen) -> None:
    points, label = torch.from_numpy(codes.points), torch.maximum(codes.given, codes.truth)
    nearest = torch.cdist(points, points).fill_diagonal_(9).topk(5, largest=False).indices
    same = (label[nearest] == label[:, None]).double().mean()
    assert same > 0.4  # chance: 0.1


def test_wrong_answers_stand_beside_their_nearest_labelled_images(codes: CodesSeen) -> None:
    section = wrong(codes)
    assert section is not None and codes.probabilities is not None
    rows = section.body.split('<div class="row">')[1:]
    assert len(rows) == 8 and all(row.count("<img") == 5 for row in rows)
    sure = codes.probabilities.amax(1)
    mistakes = (codes.truth >= 0) & (codes.truth != codes.answer)
    surest = int(sure.where(mistakes, torch.tensor(-1.0)).argmax())
    assert codes.at(surest)[0].names[codes.at(surest)[1]] in rows[0]
    known = (codes.given >= 0).nonzero().squeeze(1)
    centred = torch.nn.functional.normalize(codes.codes - codes.codes.mean(0), dim=1)
    order = (centred[known] @ centred[surest]).argsort(descending=True)[:4]
    shown = re.findall(r'alt="(digits/\d+)', rows[0])[1:]
    assert shown == [codes.at(int(known[i]))[0].names[codes.at(int(known[i]))[1]] for i in order]
    none_known = dataclasses.replace(codes, truth=torch.full_like(codes.truth, -1))
    unsure = wrong(none_known)
    assert unsure is not None and "unsure" in unsure.title
    assert wrong(dataclasses.replace(codes, given=torch.full_like(codes.given, -1))) is None


def test_what_to_label_next_has_no_label_yet(codes: CodesSeen) -> None:
    section = next_to_label(codes)
    assert section is not None
    names = re.findall(r'alt="(digits/\d+)', section.body)
    assert len(names) == len(set(names)) == 12
    labelled = {codes.at(i)[0].names[codes.at(i)[1]] for i in range(40)}
    assert labelled.isdisjoint(names)
    assert next_to_label(dataclasses.replace(codes, free=torch.zeros_like(codes.free))) is None


def test_every_point_of_the_map_shows_its_own_picture(codes: CodesSeen) -> None:
    section = on_the_map(codes)
    assert section is not None
    Page(section.body)
    points = re.findall(
        r'<i class="([^"]*)" style="left:([\d.]+)%;top:([\d.]+)%;[^"]*--x:(-?\d+)px;--y:(-?\d+)px', section.body
    )
    assert len(points) == len(codes.codes) and len({point[3:] for point in points}) == len(points)
    assert sum("given" in point[0].split() for point in points) == 40
    mistakes = int(((codes.truth >= 0) & (codes.truth != codes.answer)).sum())
    assert sum("wrong" in point[0].split() for point in points) == mistakes
    sheet = Image.open(io.BytesIO(base64.b64decode(re.search(r"base64,([^)]*)\)", section.body)[1])))  # type: ignore[index]
    number = 17
    x, y = (-int(v) for v in points[number][3:])
    images, place = codes.at(number)
    drawn = torch.from_numpy(np.asarray(sheet.crop((x, y, x + 44, y + 44)).convert("L").resize((8, 8))).copy()) / 255
    assert float((drawn - images.batch(torch.tensor([place]))[0, 0]).abs().mean()) < 0.1


def test_names_on_the_map_are_escaped(codes: CodesSeen) -> None:
    bad = '"><script>alert(1)</script>'
    images = tuple(dataclasses.replace(part, names=tuple(bad for _ in part.names)) for part in codes.images)
    hostile = dataclasses.replace(codes, images=images, class_names=tuple(bad for _ in codes.class_names))
    for section in all_of_codes(hostile):
        Page(section.body)
        assert "<script" not in section.body and 'title="">' not in section.body


def test_codes_that_are_all_alike_or_few_have_no_map() -> None:
    assert points_on_a_map(torch.ones(50, 4), 0) is None
    assert points_on_a_map(torch.randn(5, 4), 0) is None


def test_a_weak_classifier_is_called_so_at_the_top(loaded: tuple[Run, Sets], seen: LabelsSeen, tmp_path: Path) -> None:
    assert warnings_of(0.3, 100, 0.9, "images") == []
    assert "is weak: 60%" in warnings_of(0.6, 100, 0.9, "images")[0]
    assert "useless" in warnings_of(0.6, 100, 0.55, "images")[0]
    assert seen.evaluation is not None
    text = page.page("title", "subtitle", [], ["<b>weak"])
    assert text.index("&lt;b&gt;weak") < text.index("<nav>")
    material = look(*loaded)
    swapped = seen.evaluation.confusion.roll(1, 1)  # every class is called the next one
    bad = dataclasses.replace(seen, evaluation=dataclasses.replace(seen.evaluation, confusion=swapped, error=0.97))
    assert "useless" in " ".join(label_warnings(material, bad))
    ways = [{"name": "our model", "error": 0.7, "n": 40}, {"name": "logistic regression", "error": 0.2, "n": 40}]
    about = {**material.run.about, "ways": ways}
    told = dataclasses.replace(
        material, run=dataclasses.replace(material.run, meta={**material.run.meta, "about": about})
    )
    assert (
        "70% of its answers were wrong on 40 given labels"
        in label_warnings(told, dataclasses.replace(seen, evaluation=None))[0]
    )
