"""What a served run says: the same as `semisight predict`, alone or in company; captions with their range."""

import json
from pathlib import Path

import numpy as np
import pytest

from semisight.data import load
from semisight.inference.neighbours import Neighbours
from semisight.runs.run import load_run
from semisight.server.answering import Answer, Answerer, Question
from semisight.server.image_index import encode_index, read_index
from tests.cli.commands import ok


def nothing(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def answerer(digits_run: Path) -> Answerer:
    return Answerer(load_run(digits_run))


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    return [Question(pixels, nearest=3) for pixels in load("builtin:digits", limit=12).images.numpy()]


def test_the_same_labels_as_predict(digits_run: Path, answerer: Answerer) -> None:
    images = load("builtin:digits", limit=12)
    answers = answerer([Question(pixels) for pixels in images.images.numpy()])
    told = json.loads(ok("predict", digits_run, "builtin:digits", "--limit", "12", "--format", "json", "--top", "10"))
    for answer, wanted in zip(answers, told["images"], strict=True):
        assert [guess.label for guess in answer.labels] == [one["label"] for one in wanted["top"]]
        for guess, one in zip(answer.labels, wanted["top"], strict=True):
            assert guess.probability == pytest.approx(one["probability"], abs=1e-5)
        assert answer.labels[0].spread == pytest.approx(wanted["spread"], abs=1e-5)


def close(one: Answer, other: Answer) -> None:
    assert [guess.label for guess in one.labels] == [guess.label for guess in other.labels]
    for mine, yours in zip(one.labels, other.labels, strict=True):
        for name in ("probability", "spread", "low", "high"):
            assert getattr(mine, name) == pytest.approx(getattr(yours, name), abs=2e-5)
    assert one.drawing is not None and other.drawing is not None
    assert np.abs(one.drawing.astype(int) - other.drawing.astype(int)).max() <= 1


def test_an_answer_does_not_depend_on_who_else_asks(answerer: Answerer, questions: list[Question]) -> None:
    together = answerer(questions)
    for question, answer in zip(questions, together, strict=True):
        close(answerer([question])[0], answer)


def test_the_range_is_that_of_the_probability_over_codes(answerer: Answerer, questions: list[Question]) -> None:
    for answer in answerer(questions):
        assert sum(guess.probability for guess in answer.labels) == pytest.approx(1, abs=1e-4)
        for guess in answer.labels:
            assert 0 <= guess.low <= guess.probability <= guess.high <= 1
        assert any(guess.high - guess.low > 1e-3 for guess in answer.labels)


def test_only_what_is_asked_for(answerer: Answerer, questions: list[Question]) -> None:
    first, second = answerer([Question(questions[0].pixels, draw=False), questions[1]])
    assert first.drawing is None and second.drawing is not None
    assert first.captions == () and first.nearest == ()


def test_an_image_is_nearest_to_itself(digits_run: Path) -> None:
    run = load_run(digits_run)
    index = read_index(run, None, nothing)
    encoded = encode_index(run, index, nothing)
    assert len(encoded.names) == len(index) == 250
    assert int(encoded.learned.sum()) == index.n_train < 250
    answerer = Answerer(run)
    answerer.neighbours = Neighbours(encoded.seen.codes, encoded.names)
    names = [encoded.names[i] for i in (0, 77, 249)]
    parts = {name: part.images[i] for part in index.parts for i, name in enumerate(part.names)}
    for name, answer in zip(names, answerer([Question(parts[n].numpy(), nearest=4) for n in names]), strict=True):
        assert answer.nearest[0].file == name
        assert answer.nearest[0].similarity == pytest.approx(1, abs=1e-3)
        values = [near.similarity for near in answer.nearest]
        assert values == sorted(values, reverse=True) and len(values) == 4


def test_captions_come_with_their_range(scenes_run: Path) -> None:
    answerer = Answerer(load_run(scenes_run))
    pixels = load("builtin:scenes?n=3&size=16").images.numpy()
    together = answerer([Question(one, captions=n) for one, n in zip(pixels, (3, 0, 1), strict=True)])
    assert [len(answer.captions) for answer in together] == [3, 0, 1]
    assert all(answer.labels == () for answer in together)
    assert len({sentence.text for sentence in together[0].captions}) == 3
    for answer in together:
        for sentence in answer.captions:
            assert 0 < sentence.low <= sentence.probability <= sentence.high <= 1
    (alone,) = answerer([Question(pixels[2], captions=1)])
    assert alone.captions[0].text == together[2].captions[0].text
