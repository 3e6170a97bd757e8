"""Table 4 and its figures: every row runs, images come from folders or shards, parts keep to the protocol."""

import io
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.experiments import figures, label_rows, network_rows, results, table4
from semisight.experiments.label_rows import labels_of
from semisight.experiments.table import Request

SMOKE = Request("builtin:digits", n=(10,), smoke=True, progress=False)


@pytest.mark.timeout(600)
def test_every_row_at_smoke_size(smoke: Path) -> None:
    out = smoke / "table4.csv"
    rows = results.read(out)
    expected = {(f"smoke/{row}", "10", metric) for row in table4.ROWS for metric in ("top-1", "top-5")}
    assert {(row.row, row.N, row.metric) for row in rows} == expected
    by = {(row.row, row.metric): row.value for row in rows}
    assert all(0 <= by[row, "top-1"] <= by[row, "top-5"] <= 100 for row, _ in by)
    assert table4.run(replace(SMOKE, out=out)) == [] and not (smoke / "table4-unfinished").exists()


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Two shares with two splits each, and a row that no figure has."""
    rows = [
        results.Row("table4", f"tiny/{row}", n, metric, seed, place + int(n) / 10 + seed, "", 1.0, "abc", "a machine")
        for place, row in enumerate(table4.ROWS)
        for n in ("100", "10")
        for metric in ("top-1", "top-5")
        for seed in (0, 1)
    ]
    results.add(tmp_path / "table4.csv", rows)
    return tmp_path / "table4.csv"


def test_figures_are_drawn_from_the_rows(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Any, ...]] = []
    pyplot = figures.pyplot()
    original = pyplot.Axes.errorbar

    def errorbar(panel: Any, shares: Any, means: Any, **how: Any) -> Any:
        drawn.append((how["label"], tuple(shares), tuple(means), how.get("yerr")))
        return original(panel, shares, means, **how)

    monkeypatch.setattr(pyplot.Axes, "errorbar", errorbar)
    request = Request(None, measured)
    for name, lines, bars in (("figure1", 3, False), ("figure3", 4, True)):
        drawn.clear()
        picture = figures.draw(name, request)
        assert picture == measured.with_name(f"{name}.png") and Image.open(picture).size[0] > 500
        assert len(drawn) == 2 * lines
        label, shares, means, spreads = drawn[1]
        assert label == "GoogLeNet" and shares == (10, 100) and means == (2.5, 11.5)
        assert spreads == (pytest.approx((0.5**0.5, 0.5**0.5)) if bars else None)


def test_a_figure_without_rows_or_matplotlib_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="measure them first"):
        figures.draw("figure1", Request(None, tmp_path / "none.csv"))
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"semisight\[figures\]"):
        figures.draw("figure1", Request(None, tmp_path / "none.csv"))


def picture(shade: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.full((10, 10, 3), shade, np.uint8)).save(data, "PNG")
    return data.getvalue()


def folders(root: Path) -> None:
    for part, classes, n in (("train", "abc", 20), ("val", "ca", 4)):  # the test images lack a class
        for c in classes:
            folder = root / part / c
            folder.mkdir(parents=True)
            for i in range(n):
                (folder / f"{i}.png").write_bytes(picture(60 * "abc".index(c) + i))


def shards(root: Path) -> None:
    for part, classes, n in (("train", "abc", 20), ("val", "abc", 4)):
        (root / part).mkdir(parents=True)
        with tarfile.open(root / part / "00000.tar", "w") as tar:
            for i in range(n * len(classes)):
                c = i % len(classes)
                for ending, content in (("png", picture(60 * c + i // 3)), ("cls", str(c).encode())):
                    entry = tarfile.TarInfo(f"{i:05d}.{ending}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


@pytest.mark.parametrize("layout", [folders, shards])
def test_images_come_from_folders_of_classes_and_from_shards(layout: Callable[[Path], None], tmp_path: Path) -> None:
    layout(tmp_path / "set")
    request = Request(tmp_path / "set", size=16, cache=tmp_path / "cache")
    of = table4.sets(request, seed=0)
    assert of.train.shape == of.test.shape == (3, 16, 16) and len(of.train) == 54 and len(of.valid) == 6
    assert not set(of.train.names) & set(of.valid.names)
    for images in (of.train, of.valid, of.test):  # the shade tells the class
        shades = (images.batch(torch.arange(len(images))).mean((1, 2, 3)) * 255).round().long()
        assert labels_of(images).tolist() == (shades // 60).tolist()
    again = table4.sets(request, seed=1)
    assert again.test.names == of.test.names and again.valid.names != of.valid.names


def test_a_source_without_parts_or_with_other_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must have the folders train and val"):
        table4.sets(Request(tmp_path), 0)
    folders(tmp_path)
    (tmp_path / "val" / "a").rename(tmp_path / "val" / "z")
    with pytest.raises(UserError, match="the class z of the test images"):
        table4.sets(Request(tmp_path, size=16, cache=tmp_path / "cache"), 0)
    with pytest.raises(UserError, match="percent, from 1 to 100, not 200"):
        table4.run(replace(SMOKE, n=(200,)))


def test_a_share_of_every_class_keeps_its_label() -> None:
    of = table4.sets(SMOKE, 0)
    whole = labels_of(of.train)
    for share in (1, 10, 100):
        kept = labels_of(table4.with_share(of, share, 0).train)
        known = kept >= 0
        assert torch.equal(kept[known], whole[known])
        expected = [max(1, round(share / 100 * n)) for n in whole.bincount().tolist()]
        assert kept[known].bincount(minlength=10).tolist() == expected
    other = labels_of(table4.with_share(of, 10, 1).train)
    assert not torch.equal(other, labels_of(table4.with_share(of, 10, 0).train))


def test_accuracies_are_of_the_first_and_the_first_five() -> None:
    scores = torch.tensor([[9.0, 1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5], [9, 1, 2, 3, 4, 5]])
    assert table4.accuracies(scores, torch.tensor([0, 2, 1])) == pytest.approx({"top-1": 100 / 3, "top-5": 200 / 3})


@pytest.mark.parametrize("row", ["alexnet", "softmax"])
def test_rows_are_picked_by_validation_images_alone(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Swapped with the test images, the validator's would not be these."""
    of = table4.with_share(table4.sets(SMOKE, 0), 20, 0)
    saw: list[ImageSet] = []

    def of_network(network: nn.Module, images: ImageSet, labels: Tensor) -> dict[str, float]:
        saw.append(images)
        assert labels is images.labels
        return {"error": 50.0}

    def of_ours(model: nn.Module, head: nn.Module, images: ImageSet, labels: Tensor) -> dict[str, float]:
        return {**of_network(model, images, labels), "nll": 1.0}

    monkeypatch.setattr(network_rows, "network_terms", of_network)
    monkeypatch.setattr(label_rows, "label_terms", of_ours)
    table4.measure(row, of, 0, tmp_path / row, SMOKE)
    assert saw and all(images is of.valid for images in saw)


def test_networks_learn_from_the_labelled_images_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = table4.with_share(table4.sets(SMOKE, 0), 10, 0)
    learned: list[ImageSet] = []

    class Watching(network_rows.Trainer):
        def __init__(self, objective: Any, train: ImageSet, *further: Any, **settings: Any) -> None:
            learned.append(train)
            super().__init__(objective, train, *further, **settings)

    monkeypatch.setattr(network_rows, "Trainer", Watching)
    table4.measure("googlenet", of, 0, tmp_path / "row", SMOKE)
    assert len(learned[0]) == int((labels_of(of.train) >= 0).sum()) and bool((labels_of(learned[0]) >= 0).all())


def test_the_papers_figures_are_those_of_its_table() -> None:
    assert table4.paper("bsvm", 1) == ("43.98", "60.57") and table4.paper("googlenet", 100) == ("68.7", "88.9")
    assert table4.paper("alexnet", 60) == ("50.34", "72.18") and table4.paper("softmax", 40) == ("56.83", "80.46")
    assert table4.paper("no-bound", 1) == ("", "") and table4.paper("bsvm", 50) == ("", "")


def test_rows_end_after_as_many_steps_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after as many minutes: a machine that was paused, or shared, would have made them unequal."""
    of = table4.with_share(table4.sets(SMOKE, 0), 20, 0)
    monkeypatch.setattr(table4, "STEPS", 3)
    monkeypatch.setattr(table4, "NETWORKS", {name: replace(how, steps=3) for name, how in table4.NETWORKS.items()})
    began: list[Any] = []

    class Stop(Exception):
        pass

    def watched(objective: Any, train: ImageSet, place: Path, *, config: Any, **settings: Any) -> None:
        began.append(config)
        raise Stop

    monkeypatch.setattr(network_rows, "Trainer", watched)
    monkeypatch.setattr(label_rows, "Trainer", watched)
    for row in table4.ROWS:
        with pytest.raises(Stop):
            table4.measure(row, of, 0, tmp_path / row, replace(SMOKE, smoke=False))
    assert [(config.max_steps, config.max_epochs) for config in began] == [(3, None)] * len(table4.ROWS)


def test_the_two_heads_differ_in_nothing_else() -> None:
    assert replace(table4.SETTINGS["bsvm"], softmax=True, balanced=False) == table4.SETTINGS["softmax"]
