"""Figure 2: pictures of a folder, each with the caption that the run writes for it."""

from pathlib import Path

import pytest
from PIL import Image

import semisight as ss
from semisight.errors import UserError
from semisight.experiments import figure2
from semisight.experiments.table import Request
from semisight.inference.captions import Search
from semisight.runs.run import Run, load_run
from semisight.runs.run_images import load_for


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a few steps on scenes, kept on the disk."""
    scenes = ss.load("builtin:scenes?n=20&size=16")
    words = ss.Vocabulary.from_captions((text for texts in scenes.captions or () for text in texts), 1)
    model = ss.ImageModel.suited_to(scenes)
    captions = ss.Captions(
        ss.CaptionHead(model.code_size, len(words), hidden_size=8, embedding_size=8), scenes.captions or (), words
    )
    out = tmp_path_factory.mktemp("figure2") / "run"
    ss.train(ss.Joint(model, [captions]), scenes, out=out, steps=2, batch_size=10, threads=1)
    return out


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(14):
        Image.new("RGB", (40, 30), (15 * number, 100, 200 - 10 * number)).save(folder / f"{number:02d}.png")
    return folder


def test_every_picture_has_the_caption_of_its_own_image(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    titles: list[str] = []
    shown: list[tuple[int, ...]] = []
    from matplotlib.axes import Axes

    def texted(self: Axes, text: str, **how: object) -> None:
        titles.append(" ".join(text.split()))

    def pictured(self: Axes, picture, **how):  # type: ignore[no-untyped-def]
        shown.append(tuple(picture[0, 0].tolist()))

    monkeypatch.setattr(Axes, "set_title", texted)
    monkeypatch.setattr(Axes, "imshow", pictured)
    out = figure2.draw(Request(photos, tmp_path / "a.csv", run=run))
    assert out == tmp_path / "figure2.png" and Image.open(out).width > 500
    loaded = load_run(run)
    images = load_for(loaded, str(photos), figure2.N_SHOWN)
    expected = [best.text if best.words else "(no words)" for best, *_ in loaded.caption(images, Search())]
    assert titles == [" ".join(text.split()) for text in expected] and len(titles) == figure2.N_SHOWN
    numbers = [int(Path(name).stem) for name in images.names]
    assert shown == [(15 * n, 100, 200 - 10 * n) for n in numbers]


def test_what_is_missing_is_said(run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UserError, match="which run writes the captions: --run RUN"):
        figure2.draw(Request(photos, tmp_path / "a.csv"))
    with pytest.raises(UserError, match="pictures of a folder"):
        figure2.draw(Request("builtin:digits", tmp_path / "a.csv", run=run))
    monkeypatch.setattr(figure2, "load_run", lambda path: Run(load_run(path).model))
    with pytest.raises(UserError, match="learned no captions"):
        figure2.draw(Request(photos, tmp_path / "a.csv", run=run))
