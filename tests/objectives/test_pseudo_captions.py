"""Beyond the paper: captions on moved images, and what the model is sure of learned where there is no caption."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semisight.data.augment import CAPTION_MOVES, Moves
from semisight.data.image_set import ImageSet
from semisight.data.vocabulary import PADDING, Vocabulary
from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.captions import CaptionHead, Start, words_per_caption
from semisight.model.image_model import ImageModel
from semisight.objectives.caption_objective import CaptionObjective
from semisight.objectives.caption_pull import CaptionPull, sure_words
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.step import Batch, Rows, Step
from semisight.runs.caption_training import CaptionSettings, build_caption_objective, caption_plan
from semisight.training.config import TrainConfig
from semisight.training.ema import AveragedWeights
from semisight.training.trainer import Trainer

TINY = Architecture((1, 8, 8), (Layer(4, 3, 2), Layer(5, 2)), nonlinearity="relu")
N = 12  # of which the first half has captions
ALL = Rows(0, N, N)
TEXTS = tuple(("a dog runs",) if i < N // 2 else () for i in range(N))
VOCABULARY = Vocabulary.from_captions(["a dog runs over two birds"], min_count=1)
SETTINGS = CaptionSettings(
    min_count=1, hidden_size=6, embedding_size=5, captioned_per_batch=6, pull=True, threshold=0.0
)
STILL = Moves(0, 0, 0, 0, 0, 0, 0)


def images_of(seed: int = 0) -> Tensor:
    return torch.rand(N, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def objective(settings: CaptionSettings = SETTINGS, moves: Moves = STILL, certain: bool = True) -> CaptionObjective:
    """`certain` codes have next to no spread, so that what is drawn is their mean."""
    images = ImageObjective(ImageModel.of(TINY, seed=1))
    if certain:
        with torch.no_grad():
            images.model.encoder.code_mlp.log_sigma.zero_()
            images.model.encoder.code_mlp.log_sigma_bias.fill_(-20.0)
    captions = EncodedCaptions.encode(TEXTS, VOCABULARY)
    of = build_caption_objective(images, captions, settings, caption_plan(captions.present, settings, N), seed=2)
    assert of.pull is not None
    of.pull = replace(of.pull, moves=moves)
    return of


def step(of: nn.Module, images: Tensor | None = None, rows: Rows = ALL) -> Step:
    here = slice(rows.start, rows.stop)
    images = images_of() if images is None else images
    result: Step = of(Batch(images[here], torch.arange(N)[here]), torch.Generator().manual_seed(3), rows)
    return result


def gradients(of: nn.Module, result: Step) -> dict[str, Tensor]:
    of.zero_grad()
    result.loss.backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in of.named_parameters()}


def test_sure_words_are_those_of_the_likeliest_caption_above_the_threshold() -> None:
    head = objective(replace(SETTINGS, start="wide")).head
    codes = torch.randn(7, TINY.code_size, generator=torch.Generator().manual_seed(0))
    captions, every = sure_words(head, codes, threshold=0.0)
    torch.testing.assert_close(captions, head.predict(codes[None]))
    assert torch.equal(every, (captions != PADDING).float())
    p = torch.stack([head.log_prob(captions[:, : t + 1], codes) for t in range(captions.shape[1])], 1).detach()
    p = p.diff(dim=1, prepend=torch.zeros(7, 1)).exp()  # of each symbol given those before
    there = captions != PADDING
    sorted_p = p[there].sort().values
    middle = float(sorted_p[len(sorted_p) // 2 - 1 : len(sorted_p) // 2 + 1].mean())  # between two of them
    _, some = sure_words(head, codes, threshold=middle)
    assert torch.equal(some, ((p > middle) & there).float())
    assert 0 < float(some.sum()) < float(every.sum())
    assert float(sure_words(head, codes, threshold=1.0)[1].sum()) == 0


def test_the_loss_is_what_the_module_says() -> None:
    """N_X [ mean over captioned of 1/T log p(Y | s) + mean over the others of 1/T log p(sure | s) ], and no bound."""
    of = objective(replace(SETTINGS, bound_images=0))
    code = of.images.model.mean_code(images_of(), torch.Generator())
    caption = VOCABULARY.encode(["a dog runs"] * (N // 2))
    known = of.head.log_prob(caption, code[: N // 2]) / caption.shape[1]
    sure = of.head.predict(code[None, N // 2 :])
    others = of.head.log_prob(sure, code[N // 2 :]) / words_per_caption(sure)
    expected = -TINY.n_pixels * (known.mean() + others.mean())
    result = step(of)
    torch.testing.assert_close(result.loss, expected, rtol=1e-4, atol=1e-3)
    assert float(result.terms["sure"]) == 1.0
    half = objective(replace(SETTINGS, bound_images=0, confident=0.5))
    torch.testing.assert_close(
        step(half).loss, -TINY.n_pixels * (known.mean() + 0.5 * others.mean()), rtol=1e-4, atol=1e-3
    )


def test_what_is_sure_is_said_by_the_averaged_weights() -> None:
    """The gradient is that of the weights themselves, on the words of the averages; they are back in place after it."""
    settings = replace(SETTINGS, bound_images=0, start="wide")
    of, teacher = objective(settings), objective(settings)
    alike = gradients(of, step(of))
    of.averages = AveragedWeights(dict(of.named_parameters()), 0.9)
    for name, gradient in gradients(of, step(of)).items():
        assert torch.equal(gradient, alike[name]), name
    with torch.no_grad():
        teacher.head.words.bias.copy_(torch.randn(len(VOCABULARY), generator=torch.Generator().manual_seed(0)) * 9)
    of.averages.load(dict(teacher.named_parameters()), updates=1)
    before = {name: weight.clone() for name, weight in of.named_parameters()}
    result = step(of)
    code = of.images.model.mean_code(images_of(), torch.Generator())
    sure = teacher.head.predict(code[None, N // 2 :])
    assert not torch.equal(sure, of.head.predict(code[None, N // 2 :]))
    expected = of.head.log_prob(sure, code[N // 2 :]) / words_per_caption(sure)
    caption = VOCABULARY.encode(["a dog runs"] * (N // 2))
    known = of.head.log_prob(caption, code[: N // 2]) / caption.shape[1]
    loss = -TINY.n_pixels * (known.mean() + expected.mean())
    torch.testing.assert_close(result.loss, loss, rtol=1e-4, atol=1e-3)
    theirs = torch.autograd.grad(loss, of.head.words.weight)[0]
    torch.testing.assert_close(gradients(of, result)["head.words.weight"], theirs, rtol=1e-3, atol=1e-3)
    assert all(torch.equal(weight, before[name]) for name, weight in of.named_parameters())


def test_the_trainer_hands_its_averages_to_the_objective(tmp_path: Path) -> None:
    images = ImageSet.of((images_of() * 255).to(torch.uint8), tuple(map(str, range(N))))
    for decay in (0.9, None):
        of = objective()
        plan = caption_plan(of.train_captions.present, SETTINGS, N)
        config = TrainConfig(max_steps=2, batch_size=N, average_decay=decay, progress=False, tensorboard=False)
        Trainer(of, images, tmp_path / str(decay), config=config, plan=plan, validate=lambda _: {"bound": 0.0}).fit()
        assert (of.averages is None) == (decay is None)


def test_unequal_numbers_weigh_the_same() -> None:
    settings = replace(SETTINGS, captioned_per_batch=3)
    of = objective(settings)
    assert of.pull is not None and of.pull.per_other == pytest.approx(3 / 6)  # 3 captioned beside all 6 others


def test_what_is_not_sure_contributes_nothing() -> None:
    of = objective(replace(SETTINGS, bound_images=0, threshold=1.0))
    images, others = images_of(), images_of(9)
    changed = torch.cat([images[: N // 2], others[N // 2 :]])
    a, b = step(of, images), step(of, changed)
    torch.testing.assert_close(a.loss, b.loss)
    for name, gradient in gradients(of, a).items():
        torch.testing.assert_close(gradient, gradients(of, step(of, changed))[name], msg=name)
    assert float(a.terms["sure"]) == 0.0


def test_the_bound_is_added_for_the_last_images() -> None:
    without, with_bound = objective(replace(SETTINGS, bound_images=0)), objective(replace(SETTINGS, bound_images=4))
    loss, terms = with_bound.images.bound_of_last(4, images_of(), torch.Generator().manual_seed(5), ALL)
    alone = ImageObjective(with_bound.images.model)
    last: Step = alone(Batch(images_of()[8:], torch.arange(8, N)), torch.Generator().manual_seed(5), Rows(8, N, N))
    torch.testing.assert_close(loss, last.loss)
    torch.testing.assert_close(terms["bound"], last.terms["bound"])
    assert {"bound", "kl_s", "kl_z", "reconstruction", "alpha0", "caption", "sure", "confident"} <= step(
        with_bound
    ).terms.keys()
    assert not torch.equal(step(with_bound).loss, step(without).loss)


@pytest.mark.parametrize("count", [0, 4, 8, None])
def test_two_processes_learn_what_one_learns(count: int | None) -> None:
    """Also where the first has all the captioned images and the second all those that enter the bound."""
    of = objective(replace(SETTINGS, bound_images=count), CAPTION_MOVES, certain=False)
    whole = step(of)
    parts = [step(of, rows=Rows(0, 6, N)), step(of, rows=Rows(6, N, N))]
    torch.testing.assert_close((parts[0].loss + parts[1].loss) / 2, whole.loss, rtol=1e-4, atol=1e-3)
    mine = gradients(of, whole)
    halves = [gradients(of, step(of, rows=rows)) for rows in (Rows(0, 6, N), Rows(6, N, N))]
    for name, gradient in mine.items():
        torch.testing.assert_close((halves[0][name] + halves[1][name]) / 2, gradient, rtol=1e-3, atol=1e-3, msg=name)


def test_moved_images_are_what_captions_are_learned_on() -> None:
    still, moved = objective(), objective(moves=CAPTION_MOVES)
    assert float(step(still).terms["caption"]) != float(step(moved).terms["caption"])


def test_validation_and_two_steps_know_no_pull() -> None:
    of = objective().eval()
    alone = ImageObjective(of.images.model).eval()
    assert torch.equal(step(of).loss, step(alone).loss)
    captions = EncodedCaptions.encode(TEXTS, VOCABULARY)
    settings = replace(SETTINGS, two_step=True)
    frozen = build_caption_objective(
        ImageObjective(ImageModel.of(TINY)), captions, settings, caption_plan(captions.present, settings, N), seed=2
    )
    assert frozen.pull is None and step(frozen).terms.keys() == {"side", "caption"}


def test_a_wide_start_lets_words_and_images_be_heard() -> None:
    """From the paper's start a word moves the next state by less than a thousandth, from a wide one it is heard."""
    codes = torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
    moved = {}
    starts: tuple[Start, ...] = ("paper", "wide")
    for start in starts:
        generator = torch.Generator().manual_seed(1)
        head = CaptionHead(400, 30, hidden_size=64, embedding_size=64, start=start, generator=generator)
        state = head.start(codes)
        a, b = (head.step(torch.full((50,), word), state).h for word in (3, 4))
        moved[start] = float((a - b).detach().std())
        assert float(state.h.detach().abs().max()) < 0.95  # tanh keeps its gradient
    assert moved["paper"] < 1e-3 < 0.03 < moved["wide"]


def test_the_map_from_the_code_learns_slower_only_from_a_wide_start() -> None:
    names = ("head.code.weight", "head.code.bias")
    paper, wide = objective(), objective(replace(SETTINGS, start="wide"))
    assert not set(names) & paper.rate_multipliers().keys()
    rate = min(1.0, SETTINGS.hidden_size / TINY.code_size)
    assert rate < 1 and all(wide.rate_multipliers()[name] == rate for name in names)
    assert set(wide.rate_multipliers()) <= {name for name, _ in wide.named_parameters()}


@pytest.mark.parametrize(
    "wrong", [{"start": "far"}, {"pull": 1}, {"threshold": -1.0}, {"bound_images": -1}, {"bound_images": 1.5}]
)
def test_wrong_settings(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError):
        CaptionSettings(**wrong)  # type: ignore[arg-type]


def test_the_pull_is_off_in_the_paper_setting() -> None:
    captions = EncodedCaptions.encode(TEXTS, VOCABULARY)
    plain = build_caption_objective(
        ImageObjective(ImageModel.of(TINY)),
        captions,
        CaptionSettings(hidden_size=6, embedding_size=5),
        caption_plan(captions.present, SETTINGS, N),
        seed=2,
    )
    assert plain.pull is None and plain.code_rate == 1.0
    assert CaptionPull().moves == CAPTION_MOVES
