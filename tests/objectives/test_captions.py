"""(11), (12): captions beside the bound, missing captions, two-step learning, and labels on the same code."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from semisight.data.image_set import ImageSet
from semisight.data.vocabulary import END, PADDING, Vocabulary
from semisight.errors import UserError
from semisight.inference.beam_search import mixture_log_prob
from semisight.inference.captions import best_captions, caption_perplexity, codes_in_batches, draw_codes
from semisight.model.architecture import Architecture, Layer
from semisight.model.encoders.paper import Pooling
from semisight.model.heads.captions import words_per_caption
from semisight.model.image_model import ImageModel
from semisight.objectives.caption_objective import CaptionObjective, CaptionXi, posteriors_of
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.step import Batch, Rows, Step
from semisight.runs.caption_training import (
    CaptionSettings,
    build_caption_objective,
    build_label_term,
    caption_plan,
    caption_validator,
    share_of_batch,
)
from semisight.runs.label_training import LabelSettings
from semisight.training.checkpoint import load_weights, read_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
N = 12
ALL = Rows(0, N, N)
TEXTS: tuple[tuple[str, ...], ...] = tuple(
    (("a dog runs", "a brown dog"), ("two birds over the sea",), ())[i % 3] for i in range(N)
)
VOCABULARY = Vocabulary.from_captions([caption for captions in TEXTS for caption in captions], min_count=1)
SETTINGS = CaptionSettings(min_count=1, hidden_size=6, embedding_size=5, captioned_per_batch=4)
LABELS = torch.tensor([i % 3 if i < 6 else -1 for i in range(N)])


def pictures(labels: Tensor | None = None) -> ImageSet:
    images = torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    names = ("a", "b", "c") if labels is not None else ()
    return ImageSet.of(images, tuple(map(str, range(N))), labels, names, captions=TEXTS)


def encoded(texts: tuple[tuple[str, ...], ...] = TEXTS) -> EncodedCaptions:
    return EncodedCaptions.encode(texts, VOCABULARY)


def objective(
    settings: CaptionSettings = SETTINGS,
    texts: tuple[tuple[str, ...], ...] = TEXTS,
    labels: Tensor | None = None,
    pooling: Pooling = "expected",
) -> CaptionObjective:
    images = ImageObjective(ImageModel.of(TINY, pooling, seed=1))
    captions = encoded(texts)
    plan = caption_plan(captions.present, settings, 8, labels)
    term = None if labels is None else build_label_term(images, labels, 3, LabelSettings(), plan, seed=2)
    return build_caption_objective(images, captions, settings, plan, seed=2, labels=term)


def step(of: nn.Module, labels: Tensor | None = None, rows: Rows = ALL) -> Step:
    here = slice(rows.start, rows.stop)
    batch = Batch(pictures().images[here], torch.arange(N)[here], None if labels is None else labels[here])
    result: Step = of(batch, torch.Generator().manual_seed(3), rows)
    return result


def gradients(of: nn.Module, result: Step) -> dict[str, Tensor]:
    of.zero_grad()
    result.loss.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in of.named_parameters()}


# ---- captions of a set ----

WORDS = st.lists(st.sampled_from(VOCABULARY.words[2:]), max_size=5).map(" ".join)


@given(st.lists(st.lists(WORDS, max_size=3), min_size=1, max_size=6), st.integers(1, 4), st.integers(0, 99))
def test_draws_are_captions_of_their_images_and_none_twice(texts: list[list[str]], k: int, seed: int) -> None:
    captions = EncodedCaptions.encode(texts, VOCABULARY)
    index = torch.randperm(len(texts), generator=torch.Generator().manual_seed(seed))
    rows = Rows(0, len(texts), len(texts))
    real = [[VOCABULARY.symbols(text) for text in of_image if text] for of_image in texts]
    assert captions.counts.tolist() == [len(of_image) for of_image in real]
    for drawn, owners in (captions.of(index), captions.draw(index, k, torch.Generator().manual_seed(seed), rows)):
        assert len(drawn) == len(owners)
        for place, image in enumerate(index.tolist()):
            mine = [[s for s in row.tolist() if s != PADDING] for row in drawn[owners == place]]
            left = [list(caption) for caption in real[image]]
            for caption in mine:
                left.remove(caption)  # raises if it is not one of them, or comes too often
    assert torch.bincount(owners, minlength=len(texts)).tolist() == [min(k, len(real[i])) for i in index.tolist()]


def test_every_caption_is_drawn_equally_often() -> None:
    captions = EncodedCaptions.encode([("a", "dog", "runs")], VOCABULARY)
    generator, index = torch.Generator().manual_seed(0), torch.zeros(3000, dtype=torch.int64)
    drawn, _ = captions.draw(index, 1, generator, Rows(0, 3000, 3000))
    assert drawn[:, 1].eq(END).all()
    assert all(900 < n < 1100 for n in drawn[:, 0].unique(return_counts=True)[1].tolist())


def test_other_captions_are_noticed_on_resuming() -> None:
    assert encoded().about() == encoded().about()
    assert encoded().about() != encoded((*TEXTS[:-1], ("a dog",))).about()


# ---- the objective ----


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
def test_xi_zero_is_the_bound_on_images_alone(pooling: Pooling) -> None:
    joint, alone = objective(replace(SETTINGS, xi=0.0), pooling=pooling), ImageObjective(ImageModel.of(TINY, pooling, 1))
    a, b = step(joint), step(alone)
    assert torch.equal(a.loss, b.loss)
    ga, gb = gradients(joint, a), gradients(alone, b)
    for name, gradient in gb.items():
        torch.testing.assert_close(ga[f"images.{name}"], gradient)
    assert all(float(g.abs().sum()) == 0 for n, g in ga.items() if n.startswith("head"))


def test_a_missing_caption_contributes_nothing() -> None:
    """Captions of one image alone: the value is the bound and that caption; the gradient of the other images' codes
    is that of the bound."""
    only_first = (TEXTS[0][:1], *[()] * (N - 1))
    one, none = objective(texts=only_first), ImageObjective(ImageModel.of(TINY, seed=1))
    one.xi = CaptionXi(7.0)
    with_it, without = step(one), step(none)
    _, posterior, _ = none.infer(pictures().images, torch.Generator().manual_seed(3), ALL)
    caption = VOCABULARY.encode([TEXTS[0][0]])
    log_p = one.head.log_prob(caption, posterior.code[:1]).detach()
    side = 7.0 / int(words_per_caption(caption)) * log_p
    torch.testing.assert_close(with_it.loss, without.loss - side.sum() / N)
    assert with_it.terms["side"] == pytest.approx(float(side) / N, rel=1e-5)

    images = pictures().images.clone().requires_grad_()
    batch = Batch(images, torch.arange(N))
    (pulled,) = torch.autograd.grad(one(batch, torch.Generator().manual_seed(3), ALL).loss, images)
    (alone,) = torch.autograd.grad(none(batch, torch.Generator().manual_seed(3), ALL).loss, images)
    torch.testing.assert_close(pulled[1:], alone[1:])
    assert not torch.allclose(pulled[0], alone[0])


def test_a_batch_without_captions_gives_the_head_no_gradient() -> None:
    of = objective()
    batch = Batch(pictures().images[2::3], torch.arange(N)[2::3])
    result: Step = of(batch, torch.Generator().manual_seed(3), Rows(0, 4, 4))
    assert float(result.terms["side"]) == 0
    assert all(float(g.abs().sum()) == 0 for n, g in gradients(of, result).items() if n.startswith("head"))


def test_xi_weighs_every_caption_like_the_pixels_of_an_image() -> None:
    of = objective(replace(SETTINGS, captions_per_step=None))
    n_images, rho = N - N // 3, 0.5  # batches of 8 hold 4 captioned images
    result = step(of)
    code = of.images.infer(pictures().images, torch.Generator().manual_seed(3), ALL)[1].code.detach()
    per_word = []
    for i, captions in enumerate(TEXTS):
        logs = [
            float(of.head.log_prob(encoded, code[i : i + 1]).detach()) / encoded.shape[1]
            for encoded in (VOCABULARY.encode([caption]) for caption in captions)
        ]
        per_word += [sum(logs) / len(logs)] if logs else []
    assert len(per_word) == n_images
    assert float(result.terms["side"]) == pytest.approx(TINY.n_pixels / rho * sum(per_word) / N, rel=1e-5)


def test_one_drawn_caption_is_the_mean_of_all_on_average() -> None:
    one, every = objective(), objective(replace(SETTINGS, captions_per_step=None))
    index, code = torch.arange(N), torch.randn(N, TINY.code_size, generator=torch.Generator().manual_seed(0))
    exact, _ = every._caption_side(index, code, torch.Generator(), ALL)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([one._caption_side(index, code, generator, ALL)[0].detach() for _ in range(200)])
    spread = draws.std(0) / 200**0.5
    assert ((draws.mean(0) - exact).abs() <= 4 * spread + 1e-3 * exact.abs()).all()


def test_a_given_xi_is_the_weight_itself_and_warms_up() -> None:
    T = torch.tensor([2, 8])
    assert CaptionXi(8.0).at(0, T).tolist() == [4.0, 1.0]
    assert CaptionXi(8.0, per_word=False).at(0, T).tolist() == [8.0, 8.0]
    assert CaptionXi(8.0, warmup=4).at(0, T).tolist() == [1.0, 0.25]
    assert objective(replace(SETTINGS, xi=1.0)).xi == CaptionXi(1.0, per_word=False)
    assert objective(replace(SETTINGS, xi_scale=3.0)).xi == CaptionXi(3 * 64 / 0.5)


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_every_parameter_gets_a_gradient(cell: str) -> None:
    of = objective(replace(SETTINGS, cell=cell), labels=LABELS)  # type: ignore[arg-type]
    result = step(of, LABELS)
    assert {"bound", "reconstruction", "kl_s", "kl_z", "side", "alpha0", "caption", "label"} == result.terms.keys()
    for name, gradient in gradients(of, result).items():
        assert float(gradient.abs().sum()) > 0, name


def test_labels_and_captions_pull_on_one_code() -> None:
    """Side terms add: both together are the sum of each alone, and labels -1 leave the captions."""
    both, captions = objective(labels=LABELS), objective()
    captions.xi = both.xi
    nothing = torch.full((N,), -1)
    with_labels, without = step(both, LABELS), step(both, nothing)
    torch.testing.assert_close(without.loss, step(captions).loss)
    assert float(without.terms["label"]) == 0
    assert both.labels is not None
    code = both.images.infer(pictures().images, torch.Generator().manual_seed(3), ALL)[1].code
    label_side, prior, _ = both.labels(LABELS, code, 0)
    torch.testing.assert_close(with_labels.loss, without.loss - label_side.mean() - prior)


def test_two_processes_see_the_captions_of_one() -> None:
    of = objective()
    halves = [step(of, rows=Rows(0, 6, N)), step(of, rows=Rows(6, N, N))]
    torch.testing.assert_close((halves[0].loss + halves[1].loss) / 2, step(of).loss, rtol=1e-4, atol=1e-3)


def test_validation_does_not_take_training_captions_for_its_own() -> None:
    joint, alone = objective().eval(), ImageObjective(ImageModel.of(TINY, seed=1)).eval()
    assert torch.equal(step(joint).loss, step(alone).loss)
    assert "caption" not in step(joint).terms


def test_a_vocabulary_of_another_size_is_refused() -> None:
    other = EncodedCaptions.encode(TEXTS, Vocabulary.from_captions(["a dog"], 1))
    with pytest.raises(UserError, match="vocabulary of 4 symbols"):
        CaptionObjective(ImageObjective(ImageModel.of(TINY)), objective().head, other, CaptionXi(1.0))


# ---- batches ----


def test_plans_and_the_share_of_captions_in_a_batch() -> None:
    present = encoded().present
    joint = caption_plan(present, SETTINGS, 8)
    assert share_of_batch(present, joint) == 0.5
    assert int(present[joint.indices(0, 0)].sum()) == 4 and len(joint.indices(0, 0)) == 8
    alone = caption_plan(present, SETTINGS, 8, uncaptioned=False)
    assert share_of_batch(present, alone) == 1.0 and bool(present[alone.indices(3, 0)].all())
    assert len(caption_plan(present, replace(SETTINGS, two_step=True), 8).unlabelled_index) == 0
    labelled = caption_plan(present, SETTINGS, 8, LABELS)  # image 2 and 5 are labelled, not captioned
    assert {2, 5} <= set(labelled.labelled_index.tolist())
    # 4 of 10 known ones, 8 of which have a caption, beside the only two that have nothing
    assert share_of_batch(present, labelled) == pytest.approx(4 * 0.8 / 6)
    with pytest.raises(UserError, match="no training image has a caption"):
        caption_plan(torch.zeros(N, dtype=torch.bool), SETTINGS, 8)


@pytest.mark.parametrize("wrong", [{"cell": "rnn"}, {"min_count": 0}, {"xi": -1.0}, {"two_step": True, "xi": 2.0}])
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        CaptionSettings(**wrong)  # type: ignore[arg-type]


# ---- training ----


def config(steps: int = 4) -> TrainConfig:
    return TrainConfig(
        batch_size=8,
        max_steps=steps,
        metric="perplexity",
        metric_rises=False,
        threads=1,
        progress=False,
        tensorboard=False,
    )


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
def test_two_step_leaves_the_image_model_as_it_is(tmp_path: Path, pooling: Pooling) -> None:
    images = ImageObjective(ImageModel.of(TINY, pooling, seed=1), gradient="nvil", alpha0="exact")
    before = {name: value.clone() for name, value in images.state_dict().items()}
    settings = replace(SETTINGS, two_step=True)
    plan = caption_plan(encoded().present, settings, 8)
    posteriors = posteriors_of(images.model, pictures())
    assert (posteriors is None) == (pooling == "sampled")
    of = build_caption_objective(images, encoded(), settings, plan, 0, posteriors=posteriors)
    head = {name: value.clone() for name, value in of.head.state_dict().items()}
    validate = caption_validator(pictures(), TEXTS, VOCABULARY, n_codes=2, cider_images=4)
    fitted = Trainer(of, pictures(), tmp_path, config=config(), plan=plan, validate=validate).fit()
    assert all(torch.equal(value, before[name]) for name, value in images.state_dict().items())
    assert not any(torch.equal(value, head[name]) for name, value in of.head.state_dict().items())
    assert fitted.validation["perplexity"] > 1 and fitted.validation["CIDEr"] >= 0


def test_kept_posteriors_give_the_codes_that_encoding_gives() -> None:
    model = ImageModel.of(TINY, seed=1)
    kept = posteriors_of(model, pictures())
    assert kept is not None
    posterior = model.encode(pictures().images, torch.Generator())
    torch.testing.assert_close(kept.mean, posterior.mean)
    torch.testing.assert_close(kept.log_spread, posterior.log_spread)
    index = torch.tensor([3, 5])
    drawn = torch.stack(
        [kept.draw(index, torch.Generator().manual_seed(i), Rows(0, 2, 2), kept.mean) for i in range(2000)]
    )
    torch.testing.assert_close(drawn.mean(0), kept.mean[index], atol=0.05, rtol=0)
    torch.testing.assert_close(drawn.std(0), kept.log_spread[index].exp(), atol=0.03, rtol=0)


def test_a_resumed_run_equals_an_uninterrupted_one_and_checkpoints_hold_no_captions(tmp_path: Path) -> None:
    def trainer(folder: str, steps: int) -> Trainer:
        of = objective(labels=LABELS)
        plan = caption_plan(encoded().present, SETTINGS, 8, LABELS)
        validate = caption_validator(pictures(LABELS), TEXTS, VOCABULARY, n_codes=2)
        about = {"captions": of.train_captions.about()}
        train = pictures(LABELS)
        return Trainer(of, train, tmp_path / folder, config=config(steps), plan=plan, validate=validate, about=about)

    whole = trainer("whole", 6)
    fitted = whole.fit()
    assert {"perplexity", "error"} == fitted.validation.keys()
    trainer("parts", 3).fit()
    resumed = trainer("parts", 6)
    resumed.fit(resume=True)
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(value, resumed.objective.state_dict()[name]), name
    names = read_checkpoint(fitted.checkpoint).part("model").keys()
    assert names == whole.objective.state_dict().keys()
    assert {name.split(".")[0] for name in names} == {"images", "head", "labels", "step"}
    load_weights(objective(labels=LABELS), fitted.checkpoint)


def test_captions_of_pictures_are_learned() -> None:
    """Two kinds of pictures, each with a caption of its own: soon every picture gets the right one."""
    images = torch.zeros(N, 1, 8, 8)
    images[::2, :, :, :4] = 1.0
    images[1::2, :, 4:] = 1.0
    images = (images + 0.05 * torch.rand(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    texts = tuple(("left side",) if i % 2 == 0 else ("low half of it",) for i in range(N))
    train = ImageSet.of(images, tuple(map(str, range(N))), captions=texts)
    vocabulary = Vocabulary.from_captions([t for captions in texts for t in captions], 1)
    captions = EncodedCaptions.encode(texts, vocabulary)
    settings = CaptionSettings(min_count=1, hidden_size=16, embedding_size=8)
    plan = caption_plan(captions.present, settings, N)
    model = ImageModel.of(TINY, seed=1)
    model.start_from(images)
    of = build_caption_objective(ImageObjective(model), captions, settings, plan, 0)
    before = caption_perplexity(model, of.head, train, captions, n_codes=4)
    optimiser = torch.optim.Adam(of.parameters(), 0.02)
    for number in range(100):
        batch = Batch(images, torch.arange(N))
        optimiser.zero_grad()
        of(batch, torch.Generator().manual_seed(number), ALL).loss.backward()
        nn.utils.clip_grad_norm_(of.parameters(), 5.0)
        optimiser.step()
        of.after_step(number)
    of.eval()
    after = caption_perplexity(model, of.head, train, captions, n_codes=4)
    assert after < 1.2 < before
    words = best_captions(model, of.head, train, vocabulary, n_codes=4, beam=2)
    assert words == [tuple(captions[0].split()) for captions in texts]


# ---- scoring sets ----


@pytest.mark.parametrize("pooling", ["expected", "sampled"])
def test_codes_for_captions_come_from_q(pooling: Pooling) -> None:
    model = ImageModel.of(TINY, pooling, seed=1)
    codes = draw_codes(model, pictures().images[:2], 400, torch.Generator().manual_seed(0))
    assert codes.shape == (400, 2, TINY.code_size)
    if pooling == "expected":
        posterior = model.encode(pictures().images[:2], torch.Generator())
        torch.testing.assert_close(codes.mean(0), posterior.mean, atol=0.1, rtol=0)


def test_perplexity_is_that_of_the_mixture_and_skips_what_is_missing() -> None:
    of = objective().eval()
    model, head = of.images.model, of.head
    captioned = encoded().present.nonzero().squeeze(1)
    value = caption_perplexity(model, head, pictures(), encoded(), n_codes=3, batch_size=N)
    assert value == pytest.approx(
        caption_perplexity(model, head, pictures(), encoded(), index=captioned, n_codes=3), rel=0.2
    )
    ((index, codes),) = codes_in_batches(model, pictures(), torch.arange(N), 3, N, 0)
    symbols, owners = encoded().of(index)
    total = mixture_log_prob(head, symbols, codes, owners).sum() / words_per_caption(symbols).sum()
    assert value == pytest.approx(float((-total).exp().detach()), rel=1e-5)


def test_a_validation_set_without_captions_is_refused() -> None:
    with pytest.raises(UserError, match="no validation image has a caption"):
        caption_validator(pictures(), [()] * N, VOCABULARY)
