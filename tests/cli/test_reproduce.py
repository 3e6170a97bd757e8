"""`semisight reproduce` at smoke size: rows are added once, mistakes are told."""

from pathlib import Path

import pytest

from semisight.errors import UserError
from semisight.experiments import reproduce as command
from semisight.experiments import results
from semisight.experiments.reproduce import ALL, EXPERIMENTS, FIGURES, STATUS, numbers, summary_text
from semisight.experiments.table import Request
from tests.cli.commands import ok, refused


def test_a_row_is_measured_once(tmp_path: Path) -> None:
    command = ["reproduce", "table2", "--smoke", "--rows", "tsvm", "--n", "5,8", "--out", tmp_path / "table2.csv"]
    out = ok(*command)
    assert "table2 tsvm N=5 error seed 0" in out
    assert f"2 rows added to {tmp_path / 'table2.csv'}" in out
    assert [(row.row, row.N, row.seed) for row in results.read(tmp_path / "table2.csv")] == [
        ("tsvm", "5", 0),
        ("tsvm", "8", 0),
    ]
    assert "Nothing to do" in ok(*command)
    again = ok(*command[:5], "--n", "5", "--splits", "0,1", "--out", tmp_path / "table2.csv")
    assert "1 row added" in again and "+-" in again  # two splits have a spread


def test_means_and_spreads_over_splits() -> None:
    def row(seed: int, value: float, n: str = "10") -> results.Row:
        return results.Row("table2", "consistency", n, "error", seed, value, "1.49", 1.0, "abc", "a machine")

    ten, sixty = results.summaries([row(0, 1.0), row(0, 5.0, "60"), row(2, 3.0)])
    assert (ten.seeds, ten.mean, sixty.mean, sixty.spread) == ((0, 2), 2.0, 5.0, None)
    assert ten.spread == pytest.approx(2**0.5)
    lines = summary_text([ten, sixty]).splitlines()
    assert "2 +- 1.4" in lines[1] and "0,2" in lines[1] and "1.49" in lines[1]
    assert "+-" not in lines[2]


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (["tabel2", "--smoke"], "did you mean 'table2'"),
        (["figure9"], "did you mean 'figure"),
        (["stats"], "did you mean 'status'"),
        (["table4", "--n", "0"], "from 1 to 100, not 0"),
        (["table2", "--smoke", "--rows", "svm"], "no row 'svm' in Table 2"),
        (["table2", "--smoke", "--n", "ten"], "--n takes whole numbers"),
        (["table2", "--smoke", "--splits", "0;1"], "--splits takes whole numbers"),
        (["table2"], "--data FOLDER"),
        (["table2", "--compare", "consistency,local"], "no results to compare at results/table2.csv"),
        (["table2", "--data", "nowhere"], "nowhere is missing"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], fragment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fragment in refused("reproduce", *arguments)
    assert not list(tmp_path.iterdir())


def test_two_rows_are_compared_seed_by_seed(tmp_path: Path) -> None:
    out = tmp_path / "table1.csv"
    values = {"vae": (1.0, 1.2, 1.1, 9.0), "vae-d": (1.2, 1.3, 1.4)}  # seed 3 has no counterpart
    results.add(
        out,
        [
            results.Row("table1", row, "50000", metric, seed, value, "", 1.0, "abc", "a machine")
            for row, of in values.items()
            for seed, value in enumerate(of)
            for metric in ("error", "nats")
        ],
    )
    before = out.read_bytes()
    said = ok("reproduce", "table1", "--compare", "vae,vae-d", "--out", out)
    assert "1.1 and 1.3: -0.2 +- 0.058, lower at 3 of 3 seeds, p = 0.074" in said and said.count("p = ") == 2
    assert out.read_bytes() == before
    assert "+0.2 +- 0.058, lower at 0 of 3 seeds" in ok("reproduce", "table1", "--compare", "vae-d, vae", "--out", out)
    assert "did you mean 'vae-d'" in refused("reproduce", "table1", "--compare", "vae,vae_d", "--out", out)
    assert "takes two rows" in refused("reproduce", "table1", "--compare", "vae", "--out", out)
    assert "did you mean 'table1'" in refused("reproduce", "tabel1", "--compare", "vae,vae-d", "--out", out)


def test_the_help_names_every_experiment() -> None:
    text = " ".join(ok("reproduce", "--help").split())
    for name in (*EXPERIMENTS, *FIGURES, ALL, STATUS):
        assert name in text


@pytest.mark.timeout(600)
def test_all_runs_every_row_of_every_table_and_figure(smoke: Path) -> None:
    files = {path.stem: path for path in smoke.glob("*.csv")}
    assert set(files) == {name.replace("-", "_") for name in EXPERIMENTS}
    for module in (
        command.table1,
        command.table2,
        command.table3_photos,
        command.table4,
        command.image_model,
        command.suggest,
        command.photos,
    ):
        rows = {row.row.removeprefix("smoke/") for row in results.read(files[module.TABLE])}
        assert rows == set(module.ROWS)
    captions = {row.row for row in results.read(files["table3"])}
    assert captions == {f"scenes/64/{kind}" for kind in command.table3.KINDS if kind not in command.table3.HALVED}
    assert sorted(path.stem for path in smoke.glob("*.png")) == sorted(FIGURES)
    assert "all runs at smoke size only" in refused("reproduce", "all")
    said = ok("reproduce", "all", "--smoke", "--out", smoke)  # all of it is there
    assert f"0 rows and {len(FIGURES)} figures" in said


def test_status_and_figures(tmp_path: Path) -> None:
    said = ok("reproduce", "status", "--out", tmp_path)
    assert "Table 4" in said and "0 of " in said and "not measured" in said
    assert "measure them first" in refused("reproduce", "figure1", "--out", tmp_path / "table4.csv")


def test_numbers_and_places() -> None:
    assert numbers("0, 1,2", "--n") == (0, 1, 2)
    with pytest.raises(UserError, match="--n takes"):
        numbers("-1", "--n")
    assert Request(None).file("table2") == Path("results/table2.csv")
    assert Request(None, smoke=True).source() == "builtin:digits"
