"""(12): captions beside the bound, several per image; pseudo-captions; two-step learning; and that it learns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from semisight.data.image_set import ImageSet
from semisight.data.vocabulary import END, PADDING, Vocabulary
from semisight.errors import UserError
from semisight.inference.captions import CaptionReader, Search, caption_perplexity, write_captions
from semisight.model.heads.captions import CaptionHead, words_per_caption
from semisight.model.heads.labels import BayesianSVM
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import Captions, EncodedCaptions
from semisight.objectives.gradients import NVIL
from semisight.objectives.joint import Joint, Posteriors
from semisight.objectives.labels import Labels
from semisight.objectives.step import Batch, Rows
from semisight.objectives.targets import Xi, per_other
from semisight.training.checkpoint import load_parts, read_checkpoint
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer
from tests.objectives.cases import ALL, IMAGES, PIXELS, TINY, J, N, gradients, model_with, only, step

TEXTS: tuple[tuple[str, ...], ...] = tuple(
    (("a dog runs", "a brown dog"), ("two birds over the sea",), ())[i % 3] for i in range(N)
)
VOCABULARY = Vocabulary.from_captions([caption for captions in TEXTS for caption in captions], min_count=1)
LABELS = torch.tensor([i % 3 if i < 6 else -1 for i in range(N)])
PICTURES = ImageSet.of(IMAGES, tuple(map(str, range(N))))


def encoded(texts: tuple[tuple[str, ...], ...] = TEXTS) -> EncodedCaptions:
    return EncodedCaptions.encode(texts, VOCABULARY)


def captions_of(texts: tuple[tuple[str, ...], ...] = TEXTS, cell: Any = "gru", **options: Any) -> Captions:
    generator = torch.Generator().manual_seed(2)
    head = CaptionHead(J, len(VOCABULARY), hidden_size=6, embedding_size=5, cell=cell, generator=generator)
    return Captions(head, texts, VOCABULARY, **options)


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


# ---- the target ----


def test_xi_weighs_every_caption_like_the_pixels_of_an_image() -> None:
    """1/T for each caption, and an image with two counts as one with one."""
    joint = Joint(model_with("expected"), [captions := captions_of(per_image=None)], rho={"captions": 0.5})
    result = step(joint)
    code = joint.infer(IMAGES, torch.Generator().manual_seed(3), ALL)[1].code.detach()
    per_word = []
    for i, texts in enumerate(TEXTS):
        logs = [
            float(captions.head.log_prob(one, code[i : i + 1]).detach()) / one.shape[1]
            for one in (VOCABULARY.encode([text]) for text in texts)
        ]
        per_word += [sum(logs) / len(logs)] if logs else []
    assert len(per_word) == 8
    assert float(result.terms["side"]) == pytest.approx(PIXELS / 0.5 * sum(per_word) / N, rel=1e-5)
    alone = step(Joint(model_with("expected")))
    torch.testing.assert_close(result.loss, alone.loss - result.terms["side"], rtol=1e-5, atol=1e-3)


def test_one_drawn_caption_is_the_mean_of_all_on_average() -> None:
    one, every = captions_of(), captions_of(per_image=None)
    index, code = torch.arange(N), torch.randn(N, J, generator=torch.Generator().manual_seed(0))
    exact = every.side(every.rows(index, torch.Generator(), ALL), code, 0).value.detach()
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([one.side(one.rows(index, generator, ALL), code, 0).value.detach() for _ in range(200)])
    spread = draws.std(0) / 200**0.5
    assert ((draws.mean(0) - exact).abs() <= 4 * spread + 1e-3 * exact.abs()).all()


def test_a_given_xi_is_the_weight_of_a_whole_caption_and_warms_up() -> None:
    T = torch.tensor([2, 8])
    of = captions_of()
    of.balance(16, 0.5)
    assert of.weight(T, 0).tolist() == [16.0, 4.0]
    of.xi = Xi(8.0)
    assert of.weight(T, 0).tolist() == [8.0, 8.0]
    of.xi = Xi(times=2.0, warmup=4)
    assert of.weight(T, 0).tolist() == [8.0, 2.0]


def test_the_log_shows_the_mean_log_p_per_symbol() -> None:
    of, code = captions_of(per_image=None), torch.randn(N, J, generator=torch.Generator().manual_seed(0))
    rows = of.rows(torch.arange(N), torch.Generator(), ALL)
    log_p = of.head.log_prob(rows.captions, code[rows.owners]).sum() / words_per_caption(rows.captions).sum()
    torch.testing.assert_close(of.side(rows, code, 0).log_prob, log_p.detach())


def test_an_lstm_gets_its_gradients_too() -> None:
    joint = Joint(model_with("expected"), [captions_of(cell="lstm")])
    assert all(float(g.abs().sum()) > 0 for g in gradients(joint, step(joint).loss).values())


def test_a_vocabulary_of_another_size_is_refused() -> None:
    other = EncodedCaptions.encode(TEXTS, Vocabulary.from_captions(["a dog"], 1))
    with pytest.raises(UserError, match="vocabulary of 4 symbols"):
        Captions(captions_of().head, other)
    with pytest.raises(ValueError, match="need the vocabulary"):
        Captions(captions_of().head, TEXTS)


def test_the_map_from_the_code_may_learn_slower() -> None:
    names = ("targets.0.head.code.weight", "targets.0.head.code.bias")
    plain, slow = (Joint(model_with("expected"), [captions_of(code_rate=rate)]) for rate in (1.0, 0.3))
    assert not set(names) & plain.rate_multipliers().keys()
    assert all(slow.rate_multipliers()[name] == 0.3 for name in names)
    assert set(slow.rate_multipliers()) <= {name for name, _ in slow.named_parameters()}


# ---- pseudo-captions ----

HALF = tuple(("a dog runs",) if i < N // 2 else () for i in range(N))


def certain_model() -> ImageModel:
    """Codes have next to no spread, so that what is drawn is their mean."""
    model = model_with("expected")
    with torch.no_grad():
        model.encoder.code_mlp.log_sigma.zero_()  # type: ignore[attr-defined]
        model.encoder.code_mlp.log_sigma_bias.fill_(-20.0)  # type: ignore[attr-defined]
    return model


def test_sure_words_are_those_of_the_likeliest_caption_above_the_threshold() -> None:
    codes = torch.randn(7, J, generator=torch.Generator().manual_seed(0))
    wide = CaptionHead(
        J, len(VOCABULARY), hidden_size=6, embedding_size=5, start="wide", generator=torch.Generator().manual_seed(2)
    )

    def believed(threshold: float) -> tuple[Tensor, Tensor]:
        pseudo = Captions(wide, TEXTS, VOCABULARY, threshold=threshold).believe(codes)
        return pseudo.captions, pseudo.sure

    captions, every = believed(0.0)
    torch.testing.assert_close(captions, wide.predict(codes[None]))
    assert torch.equal(every, (captions != PADDING).float())
    p = torch.stack([wide.log_prob(captions[:, : t + 1], codes) for t in range(captions.shape[1])], 1).detach()
    p = p.diff(dim=1, prepend=torch.zeros(7, 1)).exp()  # of each symbol given those before
    there = captions != PADDING
    sorted_p = p[there].sort().values
    middle = float(sorted_p[len(sorted_p) // 2 - 1 : len(sorted_p) // 2 + 1].mean())  # between two of them
    _, some = believed(middle)
    assert torch.equal(some, ((p > middle) & there).float())
    assert 0 < float(some.sum()) < float(every.sum())
    assert float(believed(1.0)[1].sum()) == 0


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_the_loss_is_what_the_module_says(weight: float) -> None:
    """N_X [ mean over captioned of 1/T log p(Y | s) + weight x mean over the others of 1/T log p(sure | s) ]."""
    captions = captions_of(HALF, threshold=0.0)
    joint = Joint(certain_model(), [captions], consistency=only(pseudo_labels=weight))
    code = joint.model.mean_code(IMAGES, torch.Generator())
    caption = VOCABULARY.encode(["a dog runs"] * (N // 2))
    known = captions.head.log_prob(caption, code[: N // 2]) / caption.shape[1]
    sure = captions.head.predict(code[None, N // 2 :])
    others = captions.head.log_prob(sure, code[N // 2 :]) / words_per_caption(sure)
    result = step(joint)
    torch.testing.assert_close(result.loss, -PIXELS * (known.mean() + weight * others.mean()), rtol=1e-4, atol=1e-3)
    assert float(result.terms["captions_sure"]) == 1.0


def test_what_is_not_sure_contributes_nothing() -> None:
    joint = Joint(certain_model(), [captions_of(HALF, threshold=1.0)], consistency=only(pseudo_labels=1.0))
    changed = torch.cat([IMAGES[: N // 2], IMAGES[N // 2 :].flip(0)])
    a, b = step(joint), step(joint, images=changed)
    torch.testing.assert_close(a.loss, b.loss)
    of_a, of_b = gradients(joint, a.loss), gradients(joint, b.loss)
    for name, gradient in of_a.items():
        torch.testing.assert_close(gradient, of_b[name], msg=name)
    assert float(a.terms["captions_sure"]) == 0.0


def test_images_with_pseudo_targets_weigh_as_much_together_and_never_more_each() -> None:
    assert [per_other(rho) for rho in (0.25, 0.5, 0.75)] == [pytest.approx(1 / 3), 1.0, 1.0]


# ---- training ----


def config(steps: int = 4, **changes: Any) -> TrainConfig:
    quiet = {"threads": 1, "progress": False, "tensorboard": False}
    by = {"metric": "perplexity", "metric_rises": False}
    return TrainConfig(batch_size=8, max_steps=steps, **{**quiet, **by, **changes})  # type: ignore[arg-type]


def perplexity_of(joint: Any) -> dict[str, float]:
    head = joint.targets[0].head
    return {"perplexity": caption_perplexity(joint.model, head, PICTURES, encoded(), n_codes=2)}


@pytest.mark.parametrize("encoder", ["expected", "sampled"])
def test_two_step_leaves_the_image_model_as_it_is(tmp_path: Path, encoder: str) -> None:
    joint = Joint(model_with(encoder), [captions_of()], gradient=NVIL(), alpha0="exact", frozen=True)
    image_side = nn.ModuleDict({"model": joint.model, "gradient": joint.gradient})  # type: ignore[dict-item]
    before = {name: value.clone() for name, value in image_side.state_dict().items()}
    head = {name: value.clone() for name, value in joint.targets[0].head.state_dict().items()}  # type: ignore
    fitted = Trainer(joint, PICTURES, tmp_path, config=config(), validate=perplexity_of).fit()
    assert all(torch.equal(value, before[name]) for name, value in image_side.state_dict().items())
    assert not any(torch.equal(v, head[name]) for name, v in joint.targets[0].head.state_dict().items())  # type: ignore
    assert fitted.validation["perplexity"] > 1


def test_kept_posteriors_give_the_codes_that_encoding_gives() -> None:
    model = model_with("expected")
    kept = Posteriors(*model.code_moments(IMAGES))
    posterior = model.encode(IMAGES, torch.Generator())
    torch.testing.assert_close(kept.mean, posterior.mean)
    torch.testing.assert_close(kept.log_spread, posterior.log_spread)
    index = torch.tensor([3, 5])
    drawn = torch.stack(
        [kept.draw(index, torch.Generator().manual_seed(i), Rows(0, 2, 2), kept.mean) for i in range(2000)]
    )
    torch.testing.assert_close(drawn.mean(0), kept.mean[index], atol=0.05, rtol=0)
    torch.testing.assert_close(drawn.std(0), kept.log_spread[index].exp(), atol=0.03, rtol=0)
    halves = [
        kept.draw(index[i : i + 1], torch.Generator().manual_seed(0), Rows(i, i + 1, 2), kept.mean) for i in (0, 1)
    ]
    assert torch.equal(torch.cat(halves), drawn[0])
    joint = Joint(model, [captions_of()], frozen=True)
    joint.posteriors = kept
    assert torch.isfinite(step(joint).loss)


def test_a_resumed_run_equals_an_uninterrupted_one_and_checkpoints_hold_no_captions(tmp_path: Path) -> None:
    def trainer(folder: str, steps: int) -> Trainer:
        captions, labels = captions_of(), Labels(BayesianSVM(J, 3, generator=torch.Generator().manual_seed(0)), LABELS)
        joint = Joint(model_with("sampled"), [captions, labels], gradient=NVIL(), consistency=only(bound_images=4))
        about = {"captions": captions.encoded.about()}
        return Trainer(
            joint,
            PICTURES,
            tmp_path / folder,
            config=config(steps, average_decay=0.9),
            validate=perplexity_of,
            about=about,
        )

    whole = trainer("whole", 6)
    fitted = whole.fit()
    trainer("parts", 3).fit()
    resumed = trainer("parts", 6)
    resumed.fit(resume=True)
    for name, value in whole.objective.state_dict().items():
        assert torch.equal(value, resumed.objective.state_dict()[name]), name
    kept = read_checkpoint(fitted.checkpoint)
    assert kept.tensors.keys() == {"model", "head.captions", "head.labels", "training"}
    assert kept.part("head.captions").keys() == captions_of().head.state_dict().keys()
    assert {name for name in kept.training("state") if "gradient" not in name} == {
        "step", "targets.1.seen", "targets.1.confidence", "targets.1.responsibilities"
    }  # fmt: skip
    load_parts({"model": model_with("sampled"), "head.captions": captions_of().head}, fitted.checkpoint)


def test_captions_of_pictures_are_learned() -> None:
    """Two kinds of pictures, each with a caption of its own: soon every picture gets the right one."""
    images = torch.zeros(N, 1, 8, 8)
    images[::2, :, :, :4] = 1.0
    images[1::2, :, 4:] = 1.0
    images = (images + 0.05 * torch.rand(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    texts = tuple(("left side",) if i % 2 == 0 else ("low half of it",) for i in range(N))
    train = ImageSet.of(images, tuple(map(str, range(N))))
    vocabulary = Vocabulary.from_captions([t for captions in texts for t in captions], 1)
    model = ImageModel.of(TINY, seed=1)
    model.start_from(images)
    head = CaptionHead(J, len(vocabulary), hidden_size=16, embedding_size=8, generator=torch.Generator().manual_seed(0))
    captions = Captions(head, texts, vocabulary)
    joint = Joint(model, [captions])
    before = caption_perplexity(model, head, train, captions.encoded, n_codes=4)
    optimiser = torch.optim.Adam(joint.parameters(), 0.02)
    for number in range(100):
        optimiser.zero_grad()
        joint(Batch(images, torch.arange(N)), torch.Generator().manual_seed(number), ALL).loss.backward()
        nn.utils.clip_grad_norm_(joint.parameters(), 5.0)
        optimiser.step()
        joint.after_step(number)
    joint.eval()
    assert caption_perplexity(model, head, train, captions.encoded, n_codes=4) < 1.2 < before
    found = write_captions(model, CaptionReader(head, vocabulary), train, Search(n_codes=4, beam=2))
    assert [best.words for (best,) in found] == [tuple(texts[i][0].split()) for i in range(N)]
