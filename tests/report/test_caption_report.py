"""The page of a run with captions: what it says about them is what was measured."""

import dataclasses
import re
from pathlib import Path

import pytest

from semisight.data.columns import CaptionColumn
from semisight.inference.captions import Caption
from semisight.report.build import look as look_at_all
from semisight.report.build import write_report
from semisight.report.captions import SEARCH, CaptionsSeen, _tile, best_and_worst, look, warnings, words
from semisight.runs.evaluate import evaluate_captions
from semisight.runs.images import Sets
from semisight.runs.run import Run
from tests.cli.commands import ok
from tests.report.test_report import Page


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of 60 of 120 scenes; the others' are hidden and measured on."""
    run = tmp_path_factory.mktemp("trial") / "run"
    ok("train", "builtin:scenes?n=120&size=12", "--captions", "builtin", "--captioned-images", "60", "--no-labels",
       "--valid-fraction", "0.3", "--epochs", "2", "--batch-size", "16", "--hidden-size", "16", "--learning-rate",
       "0.01", "--threads", "1", "--out", run)  # fmt: skip
    return run


@pytest.fixture(scope="module")
def seen(loaded: tuple[Run, Sets]) -> CaptionsSeen:
    return look(*loaded)


def test_the_page_shows_images_with_their_captions(trial: Path, seen: CaptionsSeen) -> None:
    text = (trial / "report.html").read_text()
    shown = Page(text)
    assert len(shown.identities) == len(set(shown.identities))
    assert {"captions", "caption-examples"} <= set(shown.identities)
    assert all(address.startswith(("data:", "#")) for address in shown.addresses)
    assert "with 60 captions" in text
    assert 'aria-label="Captions"' in text
    assert not re.search(r"\bnan\b|\binf\b", re.sub(r'src="[^"]*"', "", text))
    best, worst = best_and_worst(seen)
    examples = text[text.index('id="caption-examples"') :]
    for i in (*best, *worst):
        assert f"own: {seen.shown.captions[i][0] if seen.shown.captions else ''}" in examples


def test_what_it_says_was_measured(seen: CaptionsSeen, loaded: tuple[Run, Sets]) -> None:
    run, sets = loaded
    assert seen.evaluation is not None and seen.hidden and sets.measured("captions") is not None
    again = evaluate_captions(run, sets.measured("captions"), SEARCH, with_meteor=False)
    assert again.values() == seen.evaluation.values()
    said = " ".join(words(seen))
    assert "From 60 captions of 60 images and" in said
    assert f"BLEU-4 {again.values()['BLEU-4']:.2f}" in said
    assert f"{again.share_rightly or 0:.0%} of its captions name every shape" in said


def test_the_order_is_that_of_the_scores(seen: CaptionsSeen) -> None:
    assert seen.evaluation is not None
    scores = seen.evaluation.scores.cider.each
    best, worst = best_and_worst(seen)
    assert set(best).isdisjoint(worst)
    assert scores[best[0]] == max(scores) and scores[worst[0]] == min(scores)
    assert [scores[i] for i in best] == sorted((scores[i] for i in best), reverse=True)
    assert [scores[i] for i in worst] == sorted(scores[i] for i in worst)


def test_a_run_without_held_out_captions_says_so(loaded: tuple[Run, Sets], tmp_path: Path) -> None:
    run, sets = loaded
    assert sets.valid is not None
    nothing = sets.valid.with_column(CaptionColumn(((),) * len(sets.valid)))
    found = write_report(run, dataclasses.replace(sets, valid=nothing, truth={}), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert found.found["captions"].evaluation is None
    assert "none were held out" in text
    assert "Images with their captions" in text and "best and worst" not in text


def test_captions_are_escaped(seen: CaptionsSeen) -> None:
    tile = _tile(seen.shown, 0, Caption(("<b>",), "<script>", -1.0), ("<i>more",))
    Page(tile)
    assert "<script>" not in tile and "<i>more" not in tile
    assert "(no word)" in _tile(seen.shown, 0, Caption((), "", -1.0))


def test_a_captioner_that_has_collapsed_is_called_so(loaded: tuple[Run, Sets], seen: CaptionsSeen) -> None:
    material = look_at_all(*loaded)
    texts = [f"a {number}" for number in range(len(seen.captions))]
    various = dataclasses.replace(seen, captions=tuple(Caption(tuple(text.split()), text, -1.0) for text in texts))
    assert warnings(material, various) == []
    same = dataclasses.replace(seen, captions=tuple(Caption(("a", "dog"), "a dog", -1.0) for _ in texts))
    (line,) = warnings(material, same)
    assert "Collapsed" in line and "a dog" in line and f"100% of {len(texts)} images" in line
    half = [*texts[: len(texts) // 2 + 1], *["a dog"] * (len(texts) - len(texts) // 2 - 1)]
    assert (
        warnings(material, dataclasses.replace(seen, captions=tuple(Caption(tuple(t.split()), t, -1.0) for t in half)))
        == []
    )
