"""`semisight report RUN --truth`: the page says and draws what sampling found."""

import re
from pathlib import Path

import pytest

from semisight.report import truth
from semisight.runs.run import load_run
from semisight.runs.run_images import reload_sets
from semisight.sampling.encoder_truth import TruthConfig
from semisight.sampling.evidence import AnnealingConfig
from semisight.sampling.inference import InferenceConfig
from semisight.training.validation import validate
from tests.cli.commands import TINY, ok
from tests.report.test_report import Page

SMALL = truth.TruthSize(
    n_images=6,
    config=TruthConfig(
        n_draws=50, annealing=AnnealingConfig(n_temperatures=4, n_chains=2), gibbs=InferenceConfig(3, 4)
    ),
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "TruthSize", lambda: SMALL)


def test_the_page_gains_a_section(shared_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "with-truth.html"
    said = ok("report", shared_run, "--out", out, "--truth")
    assert "the encoder gives away at least" in said
    assert "agrees on the likeliest place in" in said
    text = out.read_text()
    identities = Page(text).identities
    assert identities.count("truth") == 1
    assert identities.index("truth") < identities.index("curves")
    section = re.search(r'<section id="truth">.*?</section>', text, re.DOTALL)
    assert section is not None
    assert section[0].count("<img") == 3 * 6
    assert "annealed" in section[0] and "total variation" in section[0]
    assert "truth" not in Page((shared_run / "report.html").read_text()).identities


def test_the_bound_of_the_section_is_that_of_the_trainer(shared_run: Path) -> None:
    run = load_run(shared_run)
    sets = reload_sets(run)
    told: list[tuple[int, int]] = []
    seen = truth.see_truth(run, sets, progress=lambda done, total: told.append((done, total)))
    assert sets.valid is not None
    images = truth.some(sets.valid, 6, run.config.seed)
    assert seen.names == images.names
    # the mean over 50 draws of one against the mean over 6 images of another
    expected = validate(run.objective, images, batch_size=6, seed=1)["bound"]
    spread = 4 * float(seen.truth.bound.std()) / 6**0.5
    assert float(seen.truth.bound.mean()) == pytest.approx(expected, abs=max(spread, 3.0))
    assert told[-1][0] == told[-1][1]


def test_a_model_without_places_says_so(tmp_path: Path) -> None:
    ok("train", *TINY, "--out", tmp_path / "run", "--epochs", "1", "--pooling", "max")
    said = ok("report", tmp_path / "run", "--truth", "--out", tmp_path / "page.html")
    assert "by importance weights" in said and "no places z to sample" in said
    section = re.search(r'<section id="truth">.*?</section>', (tmp_path / "page.html").read_text(), re.DOTALL)
    assert section is not None and section[0].count("<img") == 2 * 6 and "annealed" not in section[0]
