"""Rows keep to the protocol: which images and labels decide what, which weights are reported, and what a row is.

Weights are picked by validation images alone, temperatures are fitted on them, test images come after training, once
for each set of weights that is reported; and each row is made of the parts that its name promises.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisight.baselines.network import scores_of
from semisight.data.image_set import ImageSet
from semisight.data.vocabulary import Vocabulary
from semisight.experiments import label_rows, network_rows, table1, table2, table3
from semisight.experiments.label_rows import LabelRow, Parts, compose, labels_of
from semisight.experiments.table import Request
from semisight.inference.validation import decision_values, label_error, label_terms
from semisight.metrics.calibration import fit_temperature, negative_log_likelihood
from semisight.metrics.classification import error_rate
from semisight.model.heads.labels import BayesianSVM
from semisight.model.image_model import ImageModel
from semisight.objectives.gradients import NVIL, Local
from semisight.training.trainer import Fitted, Trainer

DIGITS = "builtin:digits"
ASKED = Request(DIGITS, progress=False)
ERRORS = [30.0, 10.0, 20.0, 25.0]  # as the validator is made to say: the second epoch is the best, and not the last


@dataclass
class Log:
    """What was looked at, in order: (during training or not, which part, positions)."""

    training: bool = False
    looks: list[tuple[bool, str, list[int]]] = field(default_factory=list)

    def parts(self, training: bool) -> set[str]:
        return {part for during, part, _ in self.looks if during == training}

    def times(self, part: str) -> Counter[int]:
        return Counter(place for _, name, places in self.looks if name == part for place in places)


LOG = Log()


class Watched(ImageSet):
    """Images that say when they are looked at; `source` is the name of their part."""

    def batch(self, index: Tensor) -> Tensor:
        LOG.looks.append((LOG.training, self.source, index.tolist()))
        return super().batch(index)


class Logged(Trainer):
    def fit(self, *, resume: bool = False, overwrite: bool = False) -> Fitted:
        LOG.training = True
        try:
            return super().fit(resume=resume, overwrite=overwrite)
        finally:
            LOG.training = False


def watched(images: ImageSet, name: str, n: int | None = None) -> ImageSet:
    some = images if n is None else images.subset(torch.arange(n))
    return Watched(some.images, some.names, some.columns, source=name)


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    LOG.looks.clear()
    monkeypatch.setattr(label_rows, "Trainer", Logged)
    monkeypatch.setattr(network_rows, "Trainer", Logged)
    monkeypatch.setattr(table2, "Trainer", Logged)
    monkeypatch.setattr(table3, "Trainer", Logged)
    return LOG


@pytest.fixture
def few() -> Parts:
    """Digits with five labels of each class, and parts of different sizes."""
    of = table2.sets(DIGITS, 5, 0, smoke=True)
    return Parts(watched(of.train, "train"), watched(of.valid, "valid", 90), watched(of.test, "test", 110))


@pytest.fixture
def all_labelled() -> Parts:
    _, of = table1.sets(DIGITS, 0, smoke=True)
    return Parts(watched(of.train, "train"), watched(of.valid, "valid", 90), watched(of.test, "test", 110))


def state(*modules: object) -> list[dict[str, Tensor]]:
    return [copy.deepcopy(module.state_dict()) for module in modules if isinstance(module, nn.Module)]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The validator of labels says ERRORS; the result is what it was given, and the weights that it saw."""
    calls: list[dict[str, Any]] = []

    def terms(model: ImageModel, head: BayesianSVM, images: ImageSet, labels: Tensor) -> dict[str, float]:
        calls.append({"images": images, "labels": labels, "weights": state(model, head)})
        return {"error": ERRORS[len(calls) - 1], "nll": 0.0}

    monkeypatch.setattr(label_rows, "label_terms", terms)
    return calls


def error_of(weights: Sequence[dict[str, Tensor]], row: LabelRow, of: Parts, images: ImageSet) -> float:
    learner = compose(row, of.train, 0)
    learner.model.load_state_dict(weights[0])
    learner.labels.head.load_state_dict(weights[1])
    return label_error(learner.model, learner.head, images, labels_of(images))


def test_table_2_reports_the_last_weights_and_those_that_validation_labels_pick(
    few: Parts, scripted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log
) -> None:
    row = replace(table2.CONSISTENCY, epochs=len(ERRORS), learning_rate=0.02, average=0.5)
    monkeypatch.setitem(table2.SETTINGS, "consistency", row)
    found = table2.measure("consistency", few, 0, tmp_path, ASKED).values
    looked = log.times("test")
    assert all(call["images"] is few.valid and call["labels"] is few.valid.labels for call in scripted)
    by_epoch = [error_of(call["weights"], row, few, few.test) for call in scripted]
    assert len(by_epoch) == len(ERRORS) and by_epoch[1] != by_epoch[-1]
    assert found == {"error": by_epoch[-1], "error_stopped": by_epoch[1]}
    assert looked == Counter(dict.fromkeys(range(110), 2))  # once by either weights


def test_table_1_picks_by_validation_labels_and_tests_once(
    all_labelled: Parts, scripted: list[dict[str, Any]], tmp_path: Path, log: Log
) -> None:
    of = all_labelled
    row = replace(table1.LEARNED["vae-d"], epochs=len(ERRORS), learning_rate=0.02, average=0.5)
    found = table1.measure_encoder(row, of, 0, tmp_path, ASKED).values
    looked = log.times("test")
    assert all(call["images"] is of.valid and call["labels"] is of.valid.labels for call in scripted)
    by_epoch = [error_of(call["weights"], row, of, of.test) for call in scripted]
    assert len(by_epoch) == len(ERRORS) and by_epoch[1] != by_epoch[-1]
    assert found["error"] == by_epoch[1]
    assert found["valid_error"] == error_of(scripted[1]["weights"], row, of, of.valid)
    assert looked == Counter(range(110))


@pytest.mark.parametrize(
    "row", ["printed", "local-d", "consistency", "labelled-alone", "xi0-tsvm", "m1-tsvm", "m1-m2", *table2.NETWORKS]
)
def test_while_a_row_of_table_2_is_trained_no_test_image_is_looked_at(
    row: str, few: Parts, tmp_path: Path, log: Log
) -> None:
    table2.measure(row, few, 0, tmp_path / row, replace(ASKED, smoke=True))
    assert log.parts(training=True) == {"train", "valid"}
    seen = [part for _, part, _ in log.looks]
    assert "test" in seen and set(seen[seen.index("test") :]) <= {"test"}  # the last that is looked at


@pytest.mark.parametrize("row", ["ladder-full", "m1-m2"])
def test_baselines_report_the_last_weights_and_those_that_validation_labels_pick(
    row: str, few: Parts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where the validator were given test images or labels, or the test error the wrong weights, this would fail."""
    calls: list[tuple[nn.Module, list[dict[str, Tensor]]]] = []

    def terms(network: nn.Module, images: ImageSet, labels: Tensor) -> dict[str, float]:
        assert images.names == few.valid.names and labels is images.labels and torch.equal(labels, labels_of(few.valid))
        calls.append((network, state(network)))
        return {"error": ERRORS[len(calls) - 1]}

    kind = "M2_ROW" if row == "m1-m2" else "NETWORKS"
    slow = table2.M2_ROW if row == "m1-m2" else table2.NETWORKS[row]
    rate = 0.01 if row == "m1-m2" else 0.02  # at which the epochs differ
    quick = replace(slow, epochs=len(ERRORS), learning_rate=rate, build=lambda of, _: slow.build(of, True))
    monkeypatch.setattr(table2, kind, quick if row == "m1-m2" else {row: quick})
    monkeypatch.setattr(table2, "M1_EPOCHS", 1)
    monkeypatch.setattr(network_rows, "network_terms", terms)
    tests: list[ImageSet] = []
    monkeypatch.setattr(table2, "errors", lambda trained, test: tests.append(test) or original(trained, test))
    found = table2.measure(row, few, 0, tmp_path / row, ASKED).values
    assert len(calls) == len(ERRORS) and tests[0].names == few.test.names
    by_epoch = []
    for network, weights in calls:
        network.load_state_dict(weights[0])
        by_epoch.append(network_rows_error(network, tests[0]))
    assert by_epoch[1] != by_epoch[-1]
    assert found == {"error": by_epoch[-1], "error_stopped": by_epoch[1]}


original = table2.errors


def network_rows_error(network: Any, images: ImageSet) -> float:
    return 100 * error_rate(scores_of(network, images).argmax(1), labels_of(images))


def test_the_validator_of_labels_is_the_error_of_validation_images(
    few: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def terms(*arguments: Any) -> dict[str, float]:
        said.append((arguments, label_terms(*arguments)))
        return said[-1][1]

    monkeypatch.setattr(label_rows, "label_terms", terms)
    row = replace(table2.LOCAL, epochs=2)
    label_rows.train(row, compose(row, few.train, 0), few, 0, tmp_path, ASKED)
    assert len(said) == 2
    (model, head, images, _), last = said[-1]
    assert images is few.valid and last["error"] == label_error(model, head, few.valid, labels_of(few.valid))


def test_the_temperature_is_that_of_validation_labels(all_labelled: Parts) -> None:
    of = all_labelled
    learner = compose(table1.LEARNED["vae"], of.train, 0)
    model, head = learner.model, learner.head
    valid, test = (decision_values(model, head, images) for images in (of.valid, of.test))
    # an untrained model that is always right on the one part, and right by chance on the other
    of = replace(of, valid=of.valid.with_labels(valid.argmax(1), of.valid.class_names))

    def nats(values: Tensor, labels: Tensor | None) -> float:
        assert labels is not None and of.test.labels is not None
        return negative_log_likelihood(fit_temperature(values, labels).probabilities(test), of.test.labels)

    found = table1.tested(model, head, of, 0)
    assert found["nats"] == nats(valid, of.valid.labels)
    assert found["nats"] > nats(test, of.test.labels) + 0.5


def test_table_3_picks_by_its_images_to_pick_by_and_reports_on_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log
) -> None:
    of = table3.varied("joint", table3.sets(table3.SCENES, 64, 0, smoke=True))
    parts = {name: watched(getattr(of, name), name) for name in ("train", "pick", "report")}
    row = replace(of.row, steps=20, learning_rate=0.02, average=None, captioned=8, batch_size=8)
    of = replace(of, **parts, row=row)
    assert not {*of.train.names, *of.pick.names} & {f"report/{name}" for name in of.report.names}
    vocabulary = Vocabulary.from_captions(text for texts in table3.captions_of(of.train) for text in texts)
    monkeypatch.setattr(table3, "STEPS_TO_VALIDATION", 5)
    saw: list[list[dict[str, Tensor]]] = []

    def terms(model: ImageModel, head: nn.Module, words: Vocabulary, images: ImageSet, captions: object) -> Any:
        assert images is of.pick and captions == of.pick.captions
        saw.append(state(model, head))
        return {"perplexity": ERRORS[len(saw) - 1]}

    monkeypatch.setattr(table3, "caption_terms", terms)
    shared = table3.Shared(tmp_path / "shared")
    request = Request(table3.SCENES, smoke=True, progress=False)
    model, head, _ = table3.train_captions("joint", of, vocabulary, 0, tmp_path / "row", request, shared)
    assert len(saw) == len(ERRORS) and log.parts(training=True) == {"train", "pick"}
    assert "report" not in log.parts(training=False)
    for kept, expected, last in zip(state(model, head), saw[1], saw[-1], strict=True):
        assert all(torch.equal(kept[name], expected[name]) for name in expected)
        assert not all(torch.equal(kept[name], last[name]) for name in last)


def test_table_3_reports_on_the_report_images_alone(tmp_path: Path, log: Log) -> None:
    of = table3.varied("two-step", table3.sets(table3.SCENES, 64, 0, smoke=True))
    of = replace(of, **{name: watched(getattr(of, name), name) for name in ("train", "pick", "report")})
    request = Request(table3.SCENES, smoke=True, progress=False)
    table3.measure("two-step", of, 0, tmp_path / "row", request, table3.Shared(tmp_path / "shared"))
    assert log.parts(training=True) == {"train", "pick"}
    # once to write captions, once for the perplexity of those that people wrote
    assert log.times("report") == Counter(dict.fromkeys(range(len(of.report)), 2))


# ---- what a row is ----


def test_as_printed_is_as_printed(few: Parts, all_labelled: Parts) -> None:
    for row, of in ((table2.SETTINGS["printed"], few), (table1.LEARNED["vae-printed"], all_labelled)):
        learner = compose(row, of.train, 0)
        joint, encoder = learner.joint, learner.model.encoder
        assert isinstance(joint.gradient, NVIL) and joint.consistency is None and not joint.frozen
        assert encoder.has_places and not encoder.mean_is_exact  # the code depends on the places that were drawn
        assert isinstance(learner.head, BayesianSVM)
        assert learner.model.architecture.nonlinearity == "none"
        rho = 0.5 if of is few else 1.0
        assert learner.labels.weight(step=0) == pytest.approx(64 / (10 * rho))  # N_X / (C rho)
        config = row.training(ASKED, 0)
        assert (config.learning_rate, config.schedule, config.average_decay) == (2e-4, "constant", None)


def test_a_batch_has_32_labelled_images_of_64(few: Parts, all_labelled: Parts) -> None:
    labels = labels_of(few.train)
    for name in ("printed", "local", "local-d", "softmax"):
        plan = compose(table2.SETTINGS[name], few.train, 0).plan
        for step in range(3):
            batch = plan.indices(step, seed=0)
            assert len(batch) == 64 and int((labels[batch] >= 0).sum()) == 32
    assert len(compose(table1.LEARNED["vae-printed"], all_labelled.train, 0).plan.indices(0, seed=0)) == 64
    for n, n_labelled, expected in ((50_000, 100, (160, 32)), (40_000, 4000, (256, 128))):  # MNIST, CIFAR-10
        labels = torch.where(torch.arange(n) < n_labelled, torch.arange(n) % 10, -1)
        batch = table2.SETTINGS["consistency"].plan(labels).indices(0, seed=0)
        assert (len(batch), int((labels[batch] >= 0).sum())) == expected


def test_labels_alone_have_no_other_images_and_as_many_steps(few: Parts) -> None:
    row, of, settings = table2.without_the_others(table2.SETTINGS["labelled-alone"], few, smoke=False)
    assert len(of.train) == 50 and bool((labels_of(of.train) >= 0).all()) and of.valid is few.valid
    with_others = table2.SETTINGS["consistency"].plan(labels_of(few.train))
    assert settings["max_steps"] == table2.CONSISTENCY.epochs * with_others.steps_per_epoch
    learner = compose(row, of.train, 0)
    known = labels_of(few.train)[with_others.indices(0, seed=0)] >= 0
    assert len(learner.plan.indices(0, seed=0)) == int(known.sum())
    how = learner.joint.consistency
    assert how is not None and (how.pseudo_labels, how.bound_images) == (0, 0)


def test_the_deep_encoder_on_labels_alone_is_augmented_as_beside_the_others_and_takes_every_step(few: Parts) -> None:
    row, of, settings = table2.without_the_others(table2.SETTINGS["deep-labelled-alone"], few, smoke=False)
    beside = compose(table2.SETTINGS["deep"], few.train, 0).joint.consistency
    alone = compose(row, of.train, 0).joint.consistency
    assert beside is not None and alone is not None
    assert (alone.augment, alone.weak_augment) == (beside.augment, beside.weak_augment)
    config = row.training(Request(None, steps=3000), 0, **settings)
    assert (config.max_epochs, config.max_steps) == (None, 3000)


@pytest.mark.parametrize("name", [name for name in table1.LEARNED if name != "vae-printed"])
def test_rows_of_table_1_have_places_unless_they_are_named_d(name: str, all_labelled: Parts) -> None:
    learner = compose(table1.LEARNED[name].on("mnist"), all_labelled.train, 0)
    assert learner.model.encoder.has_places == (not name.startswith("vae-d"))
    assert learner.model.encoder.mean_is_exact and isinstance(learner.joint.gradient, Local)
    xi = {"vae": 10, "vae-d": 100, "vae-near": 10, "vae-d-same-xi": 10, "vae-ours": 1000, "vae-d-ours": 1000}
    alone = name.endswith("-bound") and not name.startswith("deep")  # without the bound, deep keeps its labels' weight
    assert learner.labels.weight(step=0) == pytest.approx(1 if alone else xi.get(name, 1) * 64 / 10)


def test_rows_of_table_2_differ_in_what_their_names_say(few: Parts) -> None:
    of = {name: compose(row, few.train, 0) for name, row in table2.SETTINGS.items()}
    assert [name for name, learner in of.items() if not learner.model.encoder.has_places] == ["local-d"]
    assert [name for name, learner in of.items() if isinstance(learner.joint.gradient, NVIL)] == ["printed"]
    svm = [name for name, learner in of.items() if isinstance(learner.head, BayesianSVM)]
    assert svm == ["printed", "local", "local-d"]
    bounds = {name: of[name].joint.consistency for name in ("consistency", "consistency-no-bound")}
    assert bounds["consistency"] is not None and bounds["consistency"].bound_images == 32
    assert bounds["consistency-no-bound"] == replace(bounds["consistency"], bound_images=0)


def test_labels_are_averaged_over_50_draws_of_the_places(few: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = compose(table2.PRINTED, few.train, 0)
    drawn, original = [], ImageModel.encode

    def encode(self: ImageModel, images: Tensor, generator: torch.Generator) -> object:
        drawn.append(len(images))
        return original(self, images, generator)

    monkeypatch.setattr(ImageModel, "encode", encode)
    label_error(learner.model, learner.head, few.test, labels_of(few.test))
    assert drawn == [110] * 50
    drawn.clear()
    label_terms(learner.model, learner.head, few.valid, labels_of(few.valid))
    assert drawn == [90] * 50


def test_two_step_captions_leave_the_image_model_as_it_is_and_joint_ones_do_not(tmp_path: Path) -> None:
    sets = table3.sets(table3.SCENES, 64, 0, smoke=True)
    for kind, frozen in (("two-step", True), ("blind", True), ("joint", False)):
        of = table3.varied(kind, sets)
        vocabulary = Vocabulary.from_captions(text for texts in table3.captions_of(of.train) for text in texts)
        learned = table3.given(kind, of, vocabulary, 0)
        joint = table3.compose(of, table3.image_model(of, learned.used, 0), learned, 0)
        assert joint.frozen == frozen and (joint.consistency is None) == frozen
        assert any(parameter.requires_grad for parameter in joint.model.parameters()) != frozen


def test_rows_with_fewer_captions_see_no_other(tmp_path: Path) -> None:
    of = table3.sets(table3.SCENES, 64, 0, smoke=True)
    vocabulary = Vocabulary.from_captions(text for texts in table3.captions_of(of.train) for text in texts)
    kinds = ("joint-10", "joint-10-images", "joint-50", "joint-50-images", "joint")
    rows = {kind: table3.given(kind, of, vocabulary, 3) for kind in kinds}
    assert [int(row.captions.present.sum()) for row in rows.values()] == [4, 4, 20, 20, 40]
    assert [len(row.used) for row in rows.values()] == [4, 40, 20, 40, 40]
    assert torch.equal(rows["joint-10"].captions.present, rows["joint-10-images"].captions.present)
    batch = rows["joint-50-images"].plan.indices(0, seed=0)
    assert (len(batch), int(rows["joint-50-images"].captions.present[batch].sum())) == (16, of.row.captioned)
    assert {table3.SCENE.captioned, table3.FLICKR.captioned} == {32}
