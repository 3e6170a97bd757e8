"""The caption metrics against the public ones, and by hand; METEOR where Java is."""

import json
import math
import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semisight.data.tokenizer import tokenize
from semisight.errors import UserError
from semisight.metrics import captions as metrics
from semisight.metrics.captions import bleu, cider, common_subsequence, rouge_l, score_captions

Words = tuple[str, ...]

SHIPPED = [  # an image's captions per line
    ["A man's dog isn't in the boat.", "The dog of a man is not on a boat .", "A brown dog swims beside the boat."],
    ["Two girls (one in red) play with a ball.", "Two girls play ball.", "The girls, in red and blue, throw a ball."],
    ['A sign says "no dogs".', "A sign that forbids dogs", "The sign with a dog crossed out"],
    ["Three people ride bicycles down a hill.", "Cyclists ride down a steep hill.", "people on bikes"],
    ["A man on a horse jumps over a fence.", "The horse and its rider jump a fence.", "A horse jumping a white fence"],
]


def shipped() -> tuple[list[Words], list[list[Words]]]:
    """The first caption of each image as candidate, one of another image, one empty; the others as references."""
    candidates = [tokenize(captions[0]) for captions in SHIPPED]
    candidates[3], candidates[4] = candidates[4], ()
    return candidates, [[tokenize(c) for c in captions[1:]] for captions in SHIPPED]


def flickr(root: Path, n_images: int = 150) -> tuple[list[Words], list[list[Words]]]:
    """Each image's first caption, with some words dropped or doubled, or a caption of another image."""
    path = root / "flickr8k" / "dataset_flickr8k.json"
    if not path.exists():
        pytest.skip(f"needs {path}")
    images = json.loads(path.read_text())["images"][:n_images]
    chosen = random.Random(0)
    candidates = []
    for image in images:
        source = image if chosen.random() < 0.7 else chosen.choice(images)
        words = tokenize(source["sentences"][0]["raw"])
        candidates.append(tuple(w for w in words for _ in range(chosen.choice([0, 1, 1, 1, 1, 2]))))
    # Unequal numbers of references too.
    references = [[tokenize(s["raw"]) for s in image["sentences"][1 : 2 + i % 4]] for i, image in enumerate(images)]
    return candidates, references


def as_public(
    candidates: list[Words], references: list[list[Words]]
) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    truth = {i: [" ".join(ref) for ref in refs] for i, refs in enumerate(references)}
    return truth, {i: [" ".join(candidate)] for i, candidate in enumerate(candidates)}


def assert_equal_to_public(candidates: list[Words], references: list[list[Words]]) -> None:
    public_bleu = pytest.importorskip("pycocoevalcap.bleu.bleu").Bleu(4)
    truth, guess = as_public(candidates, references)
    values, each = public_bleu.compute_score(truth, guess, verbose=0)
    for n, score in enumerate(bleu(candidates, references)):
        assert score.value == pytest.approx(values[n], abs=1e-9)
        assert score.each == pytest.approx(each[n], abs=1e-9)
    for ours, public in (
        (rouge_l(candidates, references), pytest.importorskip("pycocoevalcap.rouge.rouge").Rouge()),
        (cider(candidates, references), pytest.importorskip("pycocoevalcap.cider.cider").Cider()),
    ):
        value, each = public.compute_score(truth, guess)
        assert ours.value == pytest.approx(value, abs=1e-9)
        assert ours.each == pytest.approx(list(each), abs=1e-9)


def test_equal_to_the_public_metrics_on_shipped_captions() -> None:
    assert_equal_to_public(*shipped())


def test_equal_to_the_public_metrics_on_flickr8k(data_root: Path) -> None:
    candidates, references = flickr(data_root)
    assert_equal_to_public(candidates, references)
    assert 0.05 < bleu(candidates, references)[3].value < 0.9  # neither everything nor nothing is right


sentences = st.lists(st.sampled_from(["a", "dog", "cat", "runs", "on", "the", "grass"]), max_size=8).map(tuple)


@given(st.lists(st.tuples(sentences, st.lists(sentences.filter(bool), min_size=1, max_size=3)), min_size=1, max_size=4))
def test_equal_to_the_public_metrics_on_any_sentences(pairs: list[tuple[Words, list[Words]]]) -> None:
    assert_equal_to_public([candidate for candidate, _ in pairs], [refs for _, refs in pairs])


def test_values_by_hand() -> None:
    candidate, reference = tokenize("the cat sat"), tokenize("the cat sat on the mat")
    b1, _, b3, b4 = bleu([candidate], [[reference]])
    assert b1.value == pytest.approx(math.exp(1 - 6 / 3), abs=1e-6)  # all words right, half the length
    assert b3.value == pytest.approx(b1.value, abs=1e-6)
    assert 0 < b4.value < 0.02  # no run of four words at all; the public guards keep it from being 0
    assert rouge_l([candidate], [[reference]]).value == pytest.approx(2.44 * 0.5 / (0.5 + 1.44))
    assert cider([candidate], [[reference]]).value == 0.0  # with one image every word occurs in every image


def test_a_perfect_caption_has_the_best_scores() -> None:
    references = [[tokenize(captions[0])] for captions in SHIPPED]
    candidates = [refs[0] for refs in references]
    assert [score.value for score in bleu(candidates, references)] == pytest.approx([1.0] * 4)
    assert rouge_l(candidates, references).value == pytest.approx(1.0)
    assert cider(candidates, references).value == pytest.approx(10.0)


@given(st.lists(st.sampled_from("abc"), max_size=7), st.lists(st.sampled_from("abc"), max_size=7))
def test_common_subsequence_against_enumeration(a: list[str], b: list[str]) -> None:
    def subsequences(words: list[str]) -> set[tuple[str, ...]]:
        found: set[tuple[str, ...]] = {()}
        for word in words:
            found |= {(*start, word) for start in found}
        return found

    assert common_subsequence(a, b) == max(map(len, subsequences(a) & subsequences(b)))


def test_shares_and_perplexity() -> None:
    candidates = [("a", "dog"), ("a", "dog"), ("a", "cat"), ("a", "bird")]
    assert metrics.share_distinct(candidates) == 0.75
    assert metrics.share_seen(candidates, [("a", "dog"), ("a", "cat", "runs")]) == 0.5
    # Four symbols of probability 1/8 each, and a missing caption.
    assert metrics.perplexity([3 * math.log(1 / 8), math.log(1 / 8), 0.0], [3, 1, 0]) == pytest.approx(8.0)
    assert metrics.perplexity([-math.inf], [1]) == math.inf
    with pytest.raises(UserError, match="no caption"):
        metrics.perplexity([0.0], [0])


def test_scores_together_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    candidates, references = shipped()
    scores = score_captions(candidates, references, training=[candidates[0]], perplexity=12.0)
    assert scores.meteor is None
    assert scores.seen_in_training == pytest.approx(1 / 5)
    assert len(scores.notes) == 1 and "Java" in scores.notes[0]
    assert set(scores.as_dict()) == {
        *("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "perplexity", "distinct", "seen in training")
    }
    with pytest.raises(UserError, match=r"METEOR .* needs .*Java"):
        metrics.meteor(candidates, references)


def test_meteor_says_that_it_needs_pycocoevalcap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
    assert "semisight[metrics]" in str(metrics.meteor_needs())


def test_asked_not_to_there_is_no_meteor_and_no_note() -> None:
    scores = score_captions(*shipped(), with_meteor=False)
    assert scores.meteor is None and scores.notes == () and scores.seen_in_training is None


def test_what_cannot_be_scored() -> None:
    with pytest.raises(UserError, match="no captions"):
        bleu([], [])
    with pytest.raises(UserError, match="1 images have no reference"):
        cider([("a",), ("b",)], [[("a",)], []])
    with pytest.raises(ValueError, match="1 candidates for 2"):
        rouge_l([("a",)], [[("a",)], [("b",)]])
    with pytest.raises(TypeError, match="tokenize"):
        bleu(["a dog"], [[("a", "dog")]])


@pytest.mark.slow
@pytest.mark.timeout(400)  # a busy machine takes minutes to start and warm up Java
def test_meteor_equals_the_public_one_and_survives_a_dead_program() -> None:
    """One Java program for all of it: started once, compared, killed, and then an error in place of a deadlock."""
    missing = metrics.meteor_needs()
    if missing is not None:
        pytest.skip(missing)
    candidates, references = shipped()
    ours = metrics.meteor(candidates, references)
    program = metrics._meteor_program()
    value, each = program.compute_score(*as_public(candidates, references))
    assert ours.value == pytest.approx(value, abs=1e-9)
    assert ours.each == pytest.approx(each, abs=1e-9)
    assert ours.each[4] == 0.0 and 0.1 < ours.each[0] < 1.0
    assert metrics.meteor([references[0][0]], [references[0]]).value > 0.9
    assert metrics._meteor_program() is program
    program.meteor_p.kill()
    program.meteor_p.wait()
    with pytest.raises(UserError, match="Java program stopped"):
        metrics.meteor(candidates, references)
    assert metrics._meteor_program.cache_info().currsize == 0
