"""The caption systems that Table 3 compares with: each learns a toy, and its mathematics is held to something else."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from semisight.baselines import dmsm
from semisight.baselines.attention import DECAY, Attention, Draws, Unrolled
from semisight.baselines.attributes import Detector, detected, frequent_words, surprise_of, words_present
from semisight.baselines.captioner import (
    Captioner,
    CaptionLearning,
    Standardised,
    Written,
    first_words,
    perplexity_of,
    write,
)
from semisight.baselines.show_and_tell import ShowAndTell
from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.model.heads.captions import END
from semisight.objectives.captions import EncodedCaptions
from semisight.objectives.step import Batch, Rows

COLOURS, SHAPES = ("red", "green", "blue"), ("ball", "cube", "cone")


@pytest.fixture(scope="module")
def toy() -> ImageSet:
    """Feature maps of 3 x 3 places, one of which shows a shape in a colour; all nine, at four places each."""
    images, captions = [], []
    for n, (colour, shape) in enumerate(itertools.product(range(3), range(3))):
        for place in range(4):
            image = torch.zeros(6, 9)
            image[[colour, 3 + shape], (2 * n + 2 * place) % 9] = 1.0
            images.append(image.view(6, 3, 3))
            captions.append((f"a {COLOURS[colour]} {SHAPES[shape]}", f"there is a {COLOURS[colour]} {SHAPES[shape]}"))
    return ImageSet.of(torch.stack(images), [f"{i}" for i in range(len(images))], captions=captions)


@pytest.fixture(scope="module")
def words(toy: ImageSet) -> Vocabulary:
    return Vocabulary.from_captions((text for texts in toy.captions or () for text in texts), 1)


@pytest.fixture(scope="module")
def encoded(toy: ImageSet, words: Vocabulary) -> EncodedCaptions:
    return EncodedCaptions.encode(toy.captions or (), words)


@pytest.fixture(scope="module")
def found_words(toy: ImageSet, encoded: EncodedCaptions, words: Vocabulary) -> tuple[Detector, Tensor]:
    """A detector of all words, taught."""
    symbols = frequent_words(encoded, words, 20, content=False)
    present = words_present(encoded, symbols)
    torch.manual_seed(0)
    detector = Detector(6, present.mean(0), 9, "noisy-or", dropout=0.0)
    descend(detector, lambda g: detector.loss(toy.images, present, g)[0], 150, 0.1)
    return detector, symbols


def descend(network: nn.Module, loss: Callable[[torch.Generator], Tensor], steps: int, rate: float = 0.02) -> None:
    optimiser, generator = torch.optim.Adam(network.parameters(), rate), torch.Generator().manual_seed(0)
    network.train()
    for _ in range(steps):
        optimiser.zero_grad()
        loss(generator).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if not isinstance(network, Detector | dmsm.Similarity):
            network.after_step()  # type: ignore[operator]
    network.eval()


def teach(captioner: Any, images: ImageSet, captions: EncodedCaptions, steps: int, rate: float = 0.02) -> None:
    """With all captions of all images in every step."""
    for part in captioner.modules():
        if isinstance(part, Standardised):
            part.fit(images.images)
    learning, every = CaptionLearning(captioner, captions, per_image=None), torch.arange(len(images))
    batch, rows = Batch(images.images, every), Rows(0, len(images), len(images))
    descend(captioner, lambda generator: learning(batch, generator, rows).loss, steps, rate)


def rightly(captioner: Captioner, words: Vocabulary, images: ImageSet) -> float:
    """The share of images whose caption is one of theirs."""
    found = first_words(write(captioner, words, images, beam=3))
    own = [[tuple(tokenize(text)) for text in texts] for texts in images.captions or ()]
    return sum(one in of for one, of in zip(found, own, strict=True)) / len(own)


def pooled(images: ImageSet) -> ImageSet:
    return ImageSet.of(images.images.amax((2, 3), keepdim=True), images.names, captions=images.captions)


# ---- every one learns a toy ----


def test_show_and_tell_learns(toy: ImageSet, words: Vocabulary, encoded: EncodedCaptions) -> None:
    torch.manual_seed(0)
    captioner, images = ShowAndTell(6, len(words), 24, dropout=0.0), pooled(toy)
    before = perplexity_of(captioner, images, encoded)
    teach(captioner, images, encoded, 60)
    assert rightly(captioner, words, images) == 1.0
    assert perplexity_of(captioner, images, encoded) < 1.3 < before  # two captions: sqrt of 2 over 4 or 6 symbols


@pytest.mark.parametrize("hard", [False, True])
def test_attention_learns_and_looks_at_what_it_names(
    hard: bool, toy: ImageSet, words: Vocabulary, encoded: EncodedCaptions
) -> None:
    torch.manual_seed(0)
    captioner = Attention(6, len(words), hard=hard, size=24, place_size=16, keys=8, dropout=0.0)
    teach(captioner, toy, encoded, 120)
    assert rightly(captioner, words, toy) == 1.0
    if hard:  # what is seen elsewhere says nothing: a draw must fall where the shape is
        state = captioner.advance(captioner.embedding.weight[5], captioner.start(captioner.see(toy.images)))
        shown = toy.images.sum(1).flatten(1).argmax(1)
        assert float((state.log_alpha.argmax(1) == shown).float().mean()) > 0.9
        assert float(captioner.baseline) > -1.0  # it has followed log p of a symbol


def test_attributes_are_found_and_told(
    toy: ImageSet, words: Vocabulary, encoded: EncodedCaptions, found_words: tuple[Detector, Tensor]
) -> None:
    symbols = frequent_words(encoded, words, 6, content=True)
    assert {words.words[i] for i in symbols} == {*COLOURS, *SHAPES}  # not "a", "there" and "is", which are as frequent
    present = words_present(encoded, symbols)
    torch.manual_seed(0)
    detector = Detector(6, present.mean(0), 9, "max", dropout=0.0)
    detector.scale.fit(toy.images)
    before = surprise_of(detector, toy, present)
    descend(detector, lambda g: detector.loss(toy.images, present, g)[0], 150, 0.1)
    assert surprise_of(detector, toy, present) < 0.05 < before
    seen = ImageSet.of(detected(detector, toy), toy.names, captions=toy.captions)
    assert torch.equal((seen.images.flatten(1) > 0.5).float(), present)
    captioner = ShowAndTell(6, len(words), 24, dropout=0.0)
    teach(captioner, seen, encoded, 60)
    assert rightly(captioner, words, seen) == 1.0


def test_detected_words_are_used_and_sentences_reranked(
    toy: ImageSet, words: Vocabulary, encoded: EncodedCaptions, found_words: tuple[Detector, Tensor]
) -> None:
    detector, symbols = found_words
    seen = ImageSet.of(detected(detector, toy), toy.names, captions=toy.captions)
    torch.manual_seed(0)
    model = dmsm.LanguageModel(len(words), symbols, 16, dropout=0.0)
    teach(model, seen, encoded, 120, 0.05)
    assert rightly(model, words, seen) == 1.0
    texts = [[" ".join(tokenize(text)) for text in own] for own in toy.captions or ()]
    network = dmsm.Similarity(6, dmsm.Trigrams(texts), texts, 24, dropout=0.0)
    descend(network, lambda g: network.loss(toy.images, torch.arange(len(toy)), g)[0], 60)
    wrong = [["a red ball", "a blue cone", own[0]] for own in texts]
    best = [int(close.argmax()) for close in dmsm.similarity_of(network, toy, wrong)]
    assert [of[i] for of, i in zip(wrong, best, strict=True)] == [own[0] for own in texts]


# ---- the mathematics ----


def tiny_attention() -> tuple[Attention, Tensor, Tensor]:
    """In float64, with two captions of 2 and 3 symbols, and 3 places."""
    torch.manual_seed(1)
    captioner = Attention(4, 5, hard=True, size=3, place_size=3, keys=3, dropout=0.0).double()
    for parameter in captioner.parameters():
        nn.init.normal_(parameter, 0, 0.7)
    captions = torch.tensor([[2, 3, END], [4, END, -1]])
    return captioner, captions, torch.randn(2, 3, 3, dtype=torch.float64)


def looking_at(places: Tensor) -> Callable[[int, Tensor], Tensor]:
    return lambda t, log_alpha: nn.functional.one_hot(places[: len(log_alpha), t], log_alpha.shape[1]).to(log_alpha)


def test_the_mean_of_reinforce_is_the_gradient_of_the_bound() -> None:
    """Every way to look, 3 places for each of 3 words, is tried: sum_s p(s) log p(Y | s) and its gradient, exactly."""
    captioner, captions, a = tiny_attention()
    captioner.baseline.fill_(-1.3)  # no number here changes the mean
    parameters = list(captioner.parameters())

    def log_p_of(seen: Unrolled, places: Tensor) -> Tensor:
        return (seen.log_alpha.gather(2, places[..., None]).squeeze(2) * seen.there).sum(1)

    bound = a.new_zeros(2)
    estimate = a.new_zeros(2)
    for path in itertools.product(range(3), repeat=3):
        places = torch.tensor(path).expand(2, 3)
        seen = captioner.unroll(captions, a, looking_at(places))
        log_path = log_p_of(seen, places)
        # the second caption has two words: a path counts once for each place of the third, hence a third of it
        share = torch.tensor([1.0, 1 / 3], dtype=torch.float64)
        bound = bound + share * log_path.exp() * seen.log_p.sum(1)
        surrogate = (seen.log_p + captioner.reinforced(seen, places)).sum(1)
        estimate = estimate + share * log_path.exp().detach() * surrogate
    exact = torch.autograd.grad(bound.sum(), parameters, retain_graph=True, allow_unused=True)
    found = torch.autograd.grad(estimate.sum(), parameters, retain_graph=True, allow_unused=True)
    for one, other in zip(exact, found, strict=True):
        if one is not None and other is not None:
            torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-11)
    query = [name for name, _ in captioner.named_parameters()].index("query.weight")
    assert float(exact[query].abs().max()) > 1e-3  # places are learned by it


def test_places_are_drawn_as_alpha_says_and_half_the_captions_draw_none() -> None:
    draws = Draws(torch.Size((40_000, 2)), torch.Generator().manual_seed(0))
    alpha = torch.tensor([0.5, 0.2, 0.3]).expand(40_000, 3)
    weights = draws(1, alpha.log())
    drawn = draws.drawn.squeeze(1) > 0
    assert abs(float(drawn.float().mean()) - 0.5) < 0.02
    torch.testing.assert_close(weights[drawn].mean(0), alpha[0], atol=0.015, rtol=0)
    assert bool((weights[drawn].amax(1) == 1).all()) and torch.allclose(weights[~drawn], alpha[~drawn])
    assert torch.equal(weights[drawn].argmax(1), draws.places[drawn, 1])


def test_the_baseline_moves_after_a_step_alone() -> None:
    captioner, captions, _ = tiny_attention()
    images = torch.rand(2, 4, 1, 3, dtype=torch.float64)
    before = float(captioner.baseline)
    captioner.loss(images, captions, torch.arange(2), torch.Generator().manual_seed(0))
    assert float(captioner.baseline) == before
    seen = float(captioner._seen or 0)
    captioner.after_step()
    assert float(captioner.baseline) == pytest.approx(DECAY * before + (1 - DECAY) * seen)


@pytest.mark.parametrize("name", ["show and tell", "attention", "language model"])
def test_sentences_have_the_probability_that_the_search_says(name: str, toy: ImageSet, words: Vocabulary) -> None:
    torch.manual_seed(3)
    symbols = torch.tensor([2, 4, 5, 7, 8, 9])
    captioner: Any = {
        "show and tell": lambda: ShowAndTell(6, len(words), 8),
        "attention": lambda: Attention(6, len(words), hard=False, size=8, place_size=8, keys=4),
        "language model": lambda: dmsm.LanguageModel(len(words), symbols, 8),
    }[name]()
    with torch.no_grad():
        for parameter in captioner.parameters():
            parameter.normal_(0, 0.5)
    captioner.eval()
    images = toy if name == "attention" else pooled(toy)
    found = write(captioner, words, images, beam=4, n_best=4)
    for number in (0, 17):
        captions = words.encode([" ".join(one.words) for one in found[number]])
        seen = captioner.see(images.batch(torch.tensor([number])))[torch.zeros(4, dtype=torch.int64)]
        own = torch.tensor([one.log_prob for one in found[number] if one.words])
        torch.testing.assert_close(captioner.log_prob(captions, seen)[captions[:, 0] >= 0], own, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["show and tell", "soft", "hard", "language model", "detector", "similarity"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_learn_in_bfloat16(
    name: str, dtype: torch.dtype, toy: ImageSet, words: Vocabulary, encoded: EncodedCaptions
) -> None:
    """As on processors that gain from it (experiments/caption_rows.py): nearly the same loss, and gradients."""
    torch.manual_seed(3)
    symbols, texts = torch.tensor([2, 4, 5, 7, 8, 9]), toy.captions or ()
    network: Any = {
        "show and tell": lambda: ShowAndTell(6, len(words), 8),
        "soft": lambda: Attention(6, len(words), hard=False, size=8, place_size=8, keys=4),
        "hard": lambda: Attention(6, len(words), hard=True, size=8, place_size=8, keys=4),
        "language model": lambda: dmsm.LanguageModel(len(words), symbols, 8),
        "detector": lambda: Detector(6, torch.full((4,), 0.3), 9, "noisy-or"),
        "similarity": lambda: dmsm.Similarity(6, dmsm.Trigrams(texts), texts, 24),
    }[name]()
    network.eval()
    every = torch.arange(len(toy))
    images = (toy if name in ("soft", "hard", "detector", "similarity") else pooled(toy)).images.float()
    losses = []
    for bf16 in (False, True):
        generator = torch.Generator().manual_seed(0)
        seen = images.to(dtype) if bf16 else images
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            if name in ("detector", "similarity"):
                labels = (torch.arange(4 * len(toy)).view(-1, 4) % 3 == 0).float() if name == "detector" else every
                loss = network.loss(seen, labels, generator)[0]
            else:
                learning = CaptionLearning(network, encoded, per_image=1)
                loss = learning(Batch(seen, every), generator, Rows(0, len(toy), len(toy))).loss
        losses.append(float(loss.detach()))
    loss.backward()
    assert losses[1] == pytest.approx(losses[0], rel=0.05)
    assert all(bool(torch.isfinite(p.grad).all()) for p in network.parameters() if p.grad is not None)


def test_a_word_is_there_unless_no_place_shows_it() -> None:
    torch.manual_seed(0)
    detector = Detector(4, torch.full((3,), 0.3), 4, "noisy-or").eval()
    images = torch.rand(5, 4, 2, 2)
    at_places = detector.places(images.flatten(2).transpose(1, 2)).sigmoid()
    right = 1 - (1 - at_places).prod(1)
    torch.testing.assert_close(detector.probabilities(images), right)
    present = (torch.rand(5, 3) < 0.5).float()
    log_p = torch.where(present > 0, right.log(), (1 - right).log())
    torch.testing.assert_close(detector.surprise(images, present), -log_p, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(detector.probabilities(torch.zeros(1, 4, 2, 2)).detach(), torch.full((1, 3), 0.3))


def test_a_detected_word_helps_until_it_is_said(words: Vocabulary) -> None:
    symbol = words.symbols("ball")[0]
    model = dmsm.LanguageModel(len(words), torch.tensor([symbol]), 4).eval()
    with torch.no_grad():
        model.detected.fill_(3.0)
    seen = model.see(torch.tensor([0.9, 0.05]).view(2, 1, 1, 1))  # the second is too unsure to be used
    assert seen[:, symbol].tolist() == pytest.approx([0.9, 0.0]) and int((seen > 0).sum()) == 1
    start = model.start(seen)
    helped = model.log_words(start)[:, symbol]
    said = model.log_words(model.advance(model.inputs()[symbol], start))[:, symbol]
    assert float(helped[0] - helped[1]) > 1.5 and float(said[0] - said[1]) == pytest.approx(0, abs=1e-6)


def test_weights_of_the_choice_only_move_where_the_score_rises() -> None:
    found = [[Written(("a", "dog"), -1.0), Written(("a", "brown", "dog"), -1.5)]] * 3
    numbers = dmsm.numbers_of(found, [frozenset({"dog", "brown"})] * 3, [torch.tensor([0.1, 0.2])] * 3)
    assert numbers[0].tolist() == [pytest.approx([-1.0, 2, 1, 0.1]), pytest.approx([-1.5, 3, 2, 0.2])]
    assert dmsm.choose(numbers, torch.zeros(3)) == [0, 0, 0]
    longer = dmsm.tuned(numbers, lambda chosen: float(sum(chosen)))
    assert dmsm.choose(numbers, longer) == [1, 1, 1]
    assert dmsm.tuned(numbers, lambda chosen: -float(sum(chosen))).tolist() == [0, 0, 0]
