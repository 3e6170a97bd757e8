"""Labels on features: the closed form is the maximum it claims to be; the choice is made by given labels."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from semisight.data.columns import LabelColumn
from semisight.data.image_set import ImageSet
from semisight.metrics.calibration import fit_temperature
from semisight.model.encoders.features import FeatureEncoder, fit_decoder
from semisight.objectives.bound import image_bound
from semisight.runs import on_features
from semisight.runs.images import parted
from semisight.runs.on_features import choose, codes_of, feature_model, judge
from semisight.runs.references import BASELINE, Way, table
from semisight.runs.run import DataRecord, load_run
from semisight.runs.settings import resolve
from semisight.runs.train import save_run
from semisight.training.class_prior import WithClassPrior
from semisight.training.soft_em import CrossValidated, LearnsHead, SoftEM, cross_validate, mean_decision

N, SIZE, CLASSES = 300, 24, 4


def features(n: int = N, seed: int = 0, spread: float = 0.6) -> tuple[Tensor, Tensor]:
    """Classes around centres that are the same for every seed; [n, SIZE, 1, 1], nothing below 0, as after a ReLU."""
    centres = torch.rand(CLASSES, SIZE, generator=torch.Generator().manual_seed(9)) * 2
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    rows = (centres[labels] + spread * torch.randn(n, SIZE, generator=generator)).clamp_min(0)
    return rows[..., None, None], labels


def few(labels: Tensor, per_class: int = 4) -> Tensor:
    kept = torch.full_like(labels, -1)
    for c in range(CLASSES):
        members = (labels == c).nonzero().squeeze(1)[:per_class]
        kept[members] = c
    return kept


def image_set(rows: Tensor, labels: Tensor) -> ImageSet:
    names = tuple(f"{i:04d}" for i in range(len(rows)))
    column = LabelColumn(labels, tuple("abcd"))
    generator = torch.Generator().manual_seed(1)
    view = (rows + 0.1 * torch.randn(rows.shape, generator=generator)).clamp_min(0)
    return ImageSet(rows, names, {"labels": column}, source="features", views=(view,))


def test_the_decoder_is_the_best_for_its_codes() -> None:
    rows, _ = features()
    model = feature_model(rows)
    (codes,) = codes_of(model, [rows])

    def log_likelihood() -> float:
        x = rows.permute(1, 2, 3, 0)
        mean = model.decoder(codes.T.reshape(-1, 1, 1, N), ()).mean
        return float(model.decoder.log_prob(x, mean).mean().detach())

    best = log_likelihood()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in (model.decoder.dictionaries[0], model.decoder.image_bias, model.decoder.log_alpha0):
            before = parameter.clone()
            for _ in range(5):
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
                assert log_likelihood() < best
                parameter.copy_(before)


def test_the_axes_are_those_of_all_images_and_unlabelled_ones_count() -> None:
    rows, _ = features()
    whole, half = (FeatureEncoder.fit(part.flatten(1)) for part in (rows, rows[: N // 2]))
    assert not torch.allclose(whole.centre, half.centre)
    assert whole.code_shape[0] == SIZE  # fewer axes than asked for: as many as there are
    small = FeatureEncoder.fit(rows.flatten(1), 3)
    scaled = torch.nn.functional.normalize(rows.flatten(1).sqrt(), dim=1)
    scaled = torch.nn.functional.normalize(scaled - scaled.mean(0), dim=1)
    wanted = torch.linalg.eigh((scaled.T @ scaled).double())[1].flip(1)[:, :3]
    found = torch.nn.functional.normalize(small.axes.double(), dim=0)
    torch.testing.assert_close((wanted * found).sum(0).abs(), torch.ones(3).double(), atol=1e-4, rtol=0)
    decoder = fit_decoder(torch.randn(N, 3), rows.flatten(1))
    assert decoder.architecture.image_shape == (SIZE, 1, 1)


def test_a_bound_of_features_is_finite_and_every_code_has_unit_length() -> None:
    rows, _ = features()
    model = feature_model(rows)
    posterior = model.encode(rows, torch.Generator().manual_seed(0))
    decoded = model.decoder(posterior.s, posterior.drawn)
    bound = image_bound(rows.permute(1, 2, 3, 0), posterior, decoded, model.decoder)
    assert torch.isfinite(bound.value).all() and float(bound.kl_z.abs().max()) == 0
    torch.testing.assert_close(posterior.mean.norm(dim=1), torch.ones(N))


def test_unlabelled_images_help_and_labels_alone_do_not_see_them() -> None:
    rows, labels = features(spread=1.1)
    test, truth = features(600, seed=5, spread=1.1)
    known = few(labels, 2)
    model = feature_model(rows)
    codes, others = codes_of(model, [rows]), codes_of(model, [test])

    def error(how: SoftEM, of: Tensor) -> float:
        return float((mean_decision(how(codes, of, CLASSES), others).argmax(1) != truth).float().mean())

    assert error(SoftEM(), known) < error(SoftEM(weight=0.0), known)
    scrambled = [codes[0].clone()]
    scrambled[0][known < 0] = 0.0
    alone = SoftEM(weight=0.0)
    torch.testing.assert_close(
        alone(codes, known, CLASSES).scores.beta, alone(scrambled, known, CLASSES).scores.beta, atol=1e-6, rtol=0
    )


def test_cross_validation_leaves_the_image_out_altogether() -> None:
    """A label that is wrong for one image changes what is said of the others, never what is said of itself."""
    rows, labels = features()
    known = few(labels, 3)
    codes = codes_of(feature_model(rows), [rows])
    place = int((known == 0).nonzero()[0])
    first = cross_validate(SoftEM(), codes, known, CLASSES)
    row = int((known[:place] >= 0).sum())
    moved = [codes[0].clone()]
    moved[0][place] = -moved[0][place]
    again = cross_validate(SoftEM(), moved, known, CLASSES)
    fold_of_it = [i for i in range(len(first.labels)) if torch.allclose(first.decisions[i], again.decisions[i])]
    assert row not in fold_of_it and len(fold_of_it) >= 3  # those held out together with it do not notice


def test_a_head_of_all_labels_is_a_little_surer_than_those_of_cross_validation() -> None:
    """With one label of a class in each fold it has twice as many; one temperature would leave it too unsure, a third
    more at two labels per class too sure."""
    rows, labels = features(spread=1.1)
    codes, known = codes_of(feature_model(rows), [rows]), few(labels, 2)
    chosen = choose(codes, known, CLASSES, seed=0)
    assert chosen.how.weight > 0 and chosen.calibration is not None and chosen.said is not None
    alone = fit_temperature(chosen.said.decisions, chosen.said.labels).scale
    torch.testing.assert_close(chosen.calibration.scale / alone, torch.full((CLASSES,), 7 / 6, dtype=torch.float64))


def test_a_prior_for_each_class_is_tried_where_labels_are_few_and_chosen_by_cross_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, labels = features(spread=1.1)
    codes = codes_of(feature_model(rows), [rows])
    names = {n: [way.name for way in choose(codes, few(labels, n), CLASSES, seed=0).ways] for n in (3, 4)}
    assert len(names[3]) == 3 and len(names[4]) == 2 and names[3][:2] == names[4]
    for with_prior, best in ((3, 2), (4, 1), (6, 1)):  # a tie is for the simpler way; alone only if clearly better
        answers = iter([5, 4, with_prior])  # labels alone, the unlabelled images, and the prior

        def said(
            how: LearnsHead, codes: object, known: Tensor, n_classes: int, seed: int, answers: Iterator[int] = answers
        ) -> CrossValidated:
            n, wrong = 30, next(answers)
            decisions = torch.nn.functional.one_hot(torch.arange(n) % n_classes, n_classes).float()
            decisions[:wrong] = decisions[:wrong].roll(1, 1)
            return CrossValidated(torch.arange(n), decisions, torch.arange(n) % n_classes)

        monkeypatch.setattr(on_features, "cross_validate", said)
        chosen = choose(codes, few(labels, 3), CLASSES, seed=0)
        assert [way.chosen for way in chosen.ways].index(True) == best
        assert isinstance(chosen.how, WithClassPrior) == (best == 2)


def test_a_run_on_features_is_saved_loaded_and_says_the_same(tmp_path: Path) -> None:
    rows, labels = features()
    images = image_set(rows, few(labels, 5))
    settings = resolve({"source": "features", "backbone": "own", "valid_fraction": 0.0, "threads": 1})
    sets = parted(images, dataclasses.replace(settings.data, backbone=None), 0)
    judged = judge(settings, sets)
    run, ways = judged.learn(), judged.ways
    assert [way.name for way in ways][-1] == BASELINE and len(ways) == 3
    assert run.labels.fitted is not None and run.labels.fitted.by == "cross-validation"
    save_run(run, tmp_path / "run", DataRecord.of(settings.data, sets.train, None))
    loaded = load_run(tmp_path / "run")
    assert loaded.backbone == "own"
    torch.testing.assert_close(loaded.predict(images).probabilities, run.predict(images).probabilities)
    one = dataclasses.replace(images, views=())
    assert not torch.allclose(run.predict(one).probabilities, run.predict(images).probabilities)  # views are averaged
    right = run.predict(images).label == labels
    assert float(right.float().mean()) > 0.9


def test_where_ours_is_not_better_it_is_said() -> None:
    ours, theirs = Way("our model, labels alone", 0.2, 1.0, 100), Way(BASELINE, 0.1, 0.5, 100, ours=False)
    assert "not better" in " ".join(table([ours, theirs]))
    assert "not better" not in " ".join(table([dataclasses.replace(ours, error=0.05), theirs]))
    low, high = theirs.interval
    assert low == pytest.approx(0.0552, abs=1e-3) and high == pytest.approx(0.1744, abs=1e-3)
    assert "cannot be said" in " ".join(table([]))
