"""`reproduce status`: everything that the paper prints is there, ours beside it, and the page is that of results/."""

import runpy
from pathlib import Path

from semisight.experiments import caption_rows, results, status, table1, table2, table3_photos, table4
from semisight.experiments.status import HEAD, lines, published

ROOT = Path(__file__).parents[2]


def row(name: str, n: str, metric: str, seed: int, value: float, minutes: float, table: str = "table2") -> results.Row:
    return results.Row(table, name, n, metric, seed, value, "", minutes, "abc", "a machine")


def test_ours_stands_beside_the_papers_with_spread_splits_and_minutes(tmp_path: Path) -> None:
    measured = [row("ladder-full", "10", "error", seed, value, 10 + seed) for seed, value in enumerate((1.0, 2.0, 3.0))]
    results.add(tmp_path / "table2.csv", [*measured, row("ladder-full", "100", "error", 0, 0.9, 5)])
    cells = [
        row("mnist/vae", "50000", metric, 0, value, 7, "table1") for metric, value in (("error", 1.5), ("ms", 0.25))
    ]
    results.add(tmp_path / "table1.csv", cells)
    found = {(line.table, *line.cells[:2]): line for line in lines(tmp_path)}
    full = found["Table 2", "Ladder, full", "MNIST, N = 10"]
    assert full.measured and full.cells[2:] == ("1.06", "2 +- 1", "table2: ladder-full", "3", "11")
    assert found["Table 2", "Ladder, full", "MNIST, N = 100"].cells[2:4] == ("0.84", "0.9")
    assert found["Table 1", "VAE", "MNIST"].cells[2:4] == ("0.38 / 0.007", "1.5 / 0.25")
    missing = found["Table 2", "M1+M2", "MNIST, N = 10"]
    assert not missing.measured and missing.cells[2:] == ("3.33", "not measured", "", "", "")
    text = status.text(tmp_path)
    assert "Table 4" in text and "2 +- 1" in text
    n_printed = len({(one.table, one.method, one.on) for one in published() if one.figures})
    assert text.endswith(f"3 of {n_printed} places of the paper's tables are measured.")
    page = status.page(tmp_path)
    assert "| Ladder, full | MNIST, N = 10 | 1.06 | 2 +- 1 | table2: ladder-full | 3 | 11 |" in page
    assert all(len(line.cells) == len(HEAD) for line in found.values())


def test_everything_that_the_paper_prints_is_listed() -> None:
    every = list(published())
    keys = [(one.table, one.method, one.on) for one in every]
    assert len(keys) == len(set(keys))
    printed = [one for one in every if one.figures]
    by_table = {
        table: sum(one.table == table for one in printed) for table in dict.fromkeys(one.table for one in every)
    }
    assert by_table == {"Table 1": 5 * 4 + 6, "Table 2": 4 * 7 - 2, "Table 3": 7 + 7 + 8, "Table 4": 4 * 9}
    places = {one.on for one in printed if one.table == "Table 2" and one.method == "VAE"}
    assert places == {f"MNIST, N = {n}" for n in (10, 60, 100, 300)}


def test_rows_of_table_4_count_whatever_the_set_is_called(tmp_path: Path) -> None:
    names = ("tiny-imagenet-20/bsvm", "tiny-imagenet-200/bsvm")
    of = [
        row(name, "10", metric, seed, 10 * place + seed, 4, "table4")
        for place, name in enumerate(names, 1)
        for metric in ("top-1", "top-5")
        for seed in (0, 1)
    ]
    results.add(tmp_path / "table4.csv", of)
    found = [line for line in lines(tmp_path) if line.measured]
    assert [line.cells[4] for line in found] == [f"table4: {name}" for name in names]  # never a mean over both
    assert [line.cells[3].split()[0] for line in found] == ["10.5", "20.5"] and found[0].cells[5] == "2"
    assert status.count(lines(tmp_path)).startswith("1 of ")


def test_the_rows_that_stand_for_a_method_exist() -> None:
    known = {
        "table1": {f"{name}/{row}" for name in ("mnist", "cifar-10", "caltech101") for row in table1.ROWS},
        "table2": set(table2.ROWS),
        "table3_photos": {f"flickr8k/{row}" for row in table3_photos.ROWS},
        "table4": {f"*/{row}" for row in table4.ROWS},
    }
    for one in published():
        for name in one.rows:
            file, _, of_file = name.partition(":")
            assert of_file in known.get(file, {of_file}), name
            assert len(one.metrics) >= len(one.figures)


def test_every_system_of_table_3_has_a_row_on_photographs() -> None:
    named = {name.partition("/")[2] for one in published() for name in one.rows if name.startswith("table3_photos:")}
    assert named >= {"two-step", "joint", "without-bound", *caption_rows.BASELINES}
    printed = {one.method: one.figures for one in published() if one.on == "Flickr8k"}
    for row, method in (("show-and-tell-lite2", "VggNet+RNN"), ("attributes", "Attributes-CNN+RNN")):
        assert caption_rows.BASELINES[row].paper == printed[method]  # one figure, one place of the paper


def test_the_page_is_that_of_the_results() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "status.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["made"](), "python docs/status.py makes it anew"
