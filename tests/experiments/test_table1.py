"""Table 1 at smoke size: every kind of row runs, is written once, and a chain out of time goes on where it was."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.experiments import label_rows, results, table1, table1_caltech, table1_chains, table1_samplers
from semisight.experiments.label_rows import Parts
from semisight.experiments.table import Request
from semisight.random import Stream

DIGITS = "builtin:digits"


def measured(out: Path, rows: list[str], minutes: float = 25.0) -> list[results.Row]:
    return table1.run(Request(DIGITS, out, rows, minutes=minutes, smoke=True, progress=False))


@pytest.fixture(scope="module")
def whole(smoke: Path) -> tuple[Path, list[results.Row]]:
    """All rows, measured without interruption, and the file that they are in."""
    return smoke / "table1.csv", results.read(smoke / "table1.csv")


@pytest.mark.timeout(600)
def test_every_row_at_smoke_size(whole: tuple[Path, list[results.Row]]) -> None:
    (out, added), rows = whole, table1.ROWS
    samplers, chains = ("gibbs", "mcem", "mcem-longer"), "gibbs-chains"
    assert {row.row for row in added} == {f"smoke/{row}" for row in rows}
    by = {(row.row.removeprefix("smoke/"), row.metric): row for row in added}
    assert len(by) == len(added)
    for row in rows:
        assert 0 <= by[row, "error"].value <= 100
        assert row in table1.PRETRAINED or by[row, "ms"].value > 0
        assert ("60" if row in (*samplers, chains) else "300") == by[row, "error"].N
    for row in samplers:
        assert by[row, "test_images"].value == 20
        assert by[row, "times_vae"].value > 0
        assert 0 <= by[row, "valid_half"].value <= 100 and 0 <= by[row, "valid_end"].value <= 100
    assert by[chains, "draws"].value == 8 and by[chains, "test_images"].value == 20
    assert by[chains, "r_hat"].value >= by[chains, "r_hat_alpha0"].value > 0 < by[chains, "effective_draws"].value
    assert 0 <= by[chains, "error_mean_s"].value <= 100
    assert by["vae-pretrained", "error"].value < 40  # five labels of each digit
    for row in (row for row in rows if row not in (*samplers, chains, *table1.PRETRAINED)):
        assert 0 <= by[row, "valid_error"].value <= 100 and by[row, "nats"].value > 0
    assert by["vae-d-two-step", "nats"].value < 0.9 * math.log(10)  # 300 labels tell more than chance does
    # sampled pooling averages over 50 passes (test_protocol.py counts them; times are a busy machine's)
    assert by["vae-printed", "ms"].value > by["vae", "ms"].value
    assert not (out.parent / "table1-unfinished").exists()
    assert measured(out, list(rows)) == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("row", ["gibbs", "mcem"])
def test_a_chain_out_of_time_goes_on_where_it_was(
    row: str, whole: tuple[Path, list[results.Row]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, expected = tmp_path / "parts.csv", [found for found in whole[1] if found.row == f"smoke/{row}"]
    assert measured(parts, [row], minutes=1e-9) == []
    assert "of" in capsys.readouterr().err
    saved = tmp_path / "parts-unfinished" / f"smoke-{row}-60-0.safetensors"
    assert saved.exists() and not parts.exists()
    got = measured(parts, [row])
    assert [(r.metric, r.value) for r in got if r.metric == "error"] == [
        (r.metric, r.value) for r in expected if r.metric == "error"
    ]
    assert not saved.parent.exists()


@pytest.mark.timeout(600)
def test_chains_out_of_time_go_on_where_they_were(whole: tuple[Path, list[results.Row]], tmp_path: Path) -> None:
    def values(rows: list[results.Row]) -> dict[str, float]:
        return {r.metric: r.value for r in rows if r.row == "smoke/gibbs-chains" and r.metric != "ms"}

    parts, place = tmp_path / "parts.csv", tmp_path / "parts-unfinished" / "smoke-gibbs-chains-60-0"
    assert measured(parts, ["gibbs-chains"], minutes=1e-9) == []
    assert (place / "chain-0.safetensors").exists() and not (place / "chain-1.safetensors").exists()
    assert measured(parts, ["gibbs-chains"])
    assert values(results.read(parts)) == values(whole[1])
    assert not place.parent.exists()


def test_what_is_said_of_several_chains() -> None:
    """All chains and samples are averaged; the quantity that mixes worst is told."""
    generator, labels = torch.Generator().manual_seed(0), torch.tensor([0, 1])
    right, wrong = 3.0 * torch.eye(2), 1.0 - torch.eye(2)

    def told(decisions: torch.Tensor, apart: float) -> table1_chains.Told:
        noise = torch.randn(40, 2, 2, generator=generator)
        valid = noise + apart * torch.tensor([[1.0, 0.0], [0.0, 0.0]])
        drawn = decisions + 0.01 * noise
        return table1_chains.Told(torch.randn(40, generator=generator), valid, drawn, wrong.expand(40, 2, 2), 1.0)

    agree = table1_chains.summary([told(right, 0.0), told(wrong, 0.0)], labels)
    assert agree["error"] == 0.0 and agree["error_mean_s"] == 100.0  # 3 - 1 in favour of what is right
    assert agree["draws"] == 80 and agree["ms"] == 2.0 and agree["r_hat"] < 1.2
    apart = table1_chains.summary([told(right, 0.0), told(right, 5.0)], labels)
    assert apart["r_hat"] > 2 > 1.2 > apart["r_hat_alpha0"] and apart["effective_draws"] < agree["effective_draws"] / 4


def test_rest_is_told_from_the_same_images() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    right, off = torch.eye(3)[labels], torch.eye(3)[(labels + 1) % 3]
    half = torch.cat([off[:3], right[3:]])  # three of four wrong
    end = torch.cat([right[:1], off[1:3], right[3:]])  # one of them mended
    told = table1_samplers.at_rest(half, end, labels)
    # the differences are -100, 0, 0, 0: their standard deviation is 50
    assert told == pytest.approx({"valid_half": 75.0, "valid_end": 50.0, "valid_spread": 25.0})
    assert table1_samplers.at_rest(half, half, labels)["valid_spread"] == 0


def test_a_saved_chain_of_other_images_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "table1.csv"
    assert measured(out, ["gibbs"], minutes=1e-9) == []
    original = table1.sets

    def changed(data: str | Path, seed: int, smoke: bool = False, cache: Path | None = None) -> tuple[str, Parts]:
        name, of = original(data, seed, smoke)
        return name, replace(of, train=replace(of.train, images=255 - of.train.images))

    monkeypatch.setattr(table1, "sets", changed)
    with pytest.raises(UserError, match="other images or labels"):
        measured(out, ["gibbs"])


def test_the_group_names_three_rows_and_mistakes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(row in table1.ROWS for rows in table1.GROUPS.values() for row in rows)
    out = tmp_path / "table1.csv"
    with pytest.raises(UserError, match="no row 'gibs' in Table 1"):
        measured(out, ["gibs"])
    with pytest.raises(UserError, match="measured on MNIST, CIFAR-10 and Caltech-101"):
        table1.run(Request(DIGITS, out, ["vae"]))
    images = ImageSet.of(
        torch.zeros(30, 3, 32, 32), tuple(map(str, range(30))), torch.arange(30) % 10, tuple("abcdefghij")
    )
    for module in (table1_samplers, label_rows):
        monkeypatch.setattr(module, "load", lambda data, part=None: images)
    monkeypatch.setitem(table1_samplers.N_VALID, "cifar-10", 5)
    with pytest.raises(UserError, match="supervised-mnist is measured on MNIST"):
        table1.run(Request("cifar", out, ["supervised-mnist"]))
    assert not out.exists()


def test_no_image_is_in_two_parts() -> None:
    _, of = table1.sets(DIGITS, seed=1, smoke=True)
    names = [*of.train.names, *of.valid.names, *of.test.names]
    assert len(names) == len(set(names))
    images, labels = table1.some(of.test, 20, 3, Stream.TABLE1_TESTS)
    again, _ = table1.some(of.test, 20, 3, Stream.TABLE1_TESTS)
    assert torch.equal(images, again) and len(labels) == 20


def test_caltech_has_thirty_images_of_every_class_and_tests_on_others(tmp_path: Path) -> None:
    labels = torch.tensor([0] * 31 + [1] * 100)
    train, test = table1_caltech.drawn(labels, seed=0)
    assert labels[train].bincount().tolist() == [30, 30] and labels[test].bincount().tolist() == [1, 50]
    assert not set(train.tolist()) & set(test.tolist())
    assert not torch.equal(train, table1_caltech.drawn(labels, seed=1)[0])
    with pytest.raises(UserError, match="class 0 has 31 images"):
        table1_caltech.drawn(labels, 0, trained=31)
    for c in ("accordion", "yin_yang"):
        (tmp_path / c).mkdir()
        for i in range(33):
            Image.new("RGB", (8, 8), (i, 200 * (c == "yin_yang"), 0)).save(tmp_path / c / f"{i}.png")
    name, of = table1.sets(tmp_path, 0, cache=tmp_path / "cache")
    assert name == "caltech101" and of.train.shape == (3, 128, 128)
    assert [len(images) for images in (of.train, of.valid, of.test)] == [54, 6, 6]
    assert not {*of.train.names, *of.valid.names} & set(of.test.names)
    assert label_rows.labels_of(of.valid).bincount().tolist() == [3, 3]
    row = table1.LEARNED["vae"].on(name)
    assert label_rows.image_model(row, of.train, 0).architecture.layers == table1_caltech.LAYERS
    with pytest.raises(UserError, match="gibbs is not measured on caltech101"):
        table1.run(Request(tmp_path, tmp_path / "table1.csv", ["gibbs"], cache=tmp_path / "cache"))
    assert table1.images_of("vae-pretrained", name, of) == 60 and table1.images_of("vae", name, of) == 54
