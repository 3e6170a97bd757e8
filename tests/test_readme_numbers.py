"""The tables of docs/results.md and of the README say what results/ holds: each line below is a row of a page and the
rows it is made of."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from semisight.experiments import results
from semisight.experiments.paired import differences

HERE = Path(__file__).parents[1]
README = (HERE / "docs" / "results.md").read_text(encoding="utf-8")
FRONT = (HERE / "README.md").read_text(encoding="utf-8")


def value(table: str, row: str, n: str, metric: str, seed: int = 0) -> float:
    found = [r.value for r in results.read(HERE / "results" / f"{table}.csv") if r.key[1:] == (row, n, metric, seed)]
    assert len(found) == 1, f"{table}: {row}, {n}, {metric}, {seed} is there {len(found)} times"
    return found[0]


def cells(beginning: str) -> list[list[str]]:
    """The numbers of each cell of the one line of a table that begins so."""
    lines = [line for line in README.splitlines() if line.startswith(f"| {beginning}")]
    assert len(lines) == 1, f"{len(lines)} lines begin with {beginning!r}"
    return [re.findall(r"\d+(?:\.\d+)?", cell) for cell in lines[0].strip("|").split("|")[1:]]


def same(shown: str, measured: float) -> bool:
    digits = len(shown.partition(".")[2])
    return shown == f"{measured:.{digits}f}"


@pytest.mark.parametrize("pooling", ["sampled", "expected"])
def test_the_image_model(pooling: str) -> None:
    shown = cells(f"pooling {pooling}")
    for (number,), gradient in zip(shown, ("nvil", "straight-through", "local"), strict=True):
        assert same(number, value("image_model", f"{gradient}/{pooling}", "", "bound"))


@pytest.mark.parametrize(
    ("beginning", "row", "seeds"),
    [
        ("transductive SVM on pixels", "tsvm", 3),
        ("M1, its codes to the same SVM", "m1-tsvm", 1),
        ("M1+M2", "m1-m2", 1),
        ("image model without labels", "xi0-tsvm", 1),
        ("near what is printed", "printed", 1),
        ("the same with the local gradient", "local", 1),
        ("this with deterministic pooling", "local-d", 1),
        ("unlabelled images contribute", "consistency", 3),
    ],
)
def test_few_labels(beginning: str, row: str, seeds: int) -> None:
    shown = cells(beginning)[0]
    assert len(shown) == seeds
    assert all(same(number, value("table2", row, "10", "error", seed)) for seed, number in enumerate(shown))


def test_other_numbers_of_labels_and_photographs() -> None:
    text = " ".join(README.split())
    shown = re.search(r"With 60, 100 and 300 labels per class \([^)]*\): ([\d.]+), ([\d.]+) and ([\d.]+);", text)
    assert shown, "the README no longer says what comes of 60, 100 and 300 labels"
    for number, n in zip(shown.groups(), ("60", "100", "300"), strict=True):
        assert same(number, value("table2", "consistency", n, "error"))
    shown = re.search(
        r"with 60 labels per class, 3,000 steps, split 0: ([\d.]+), without the image model ([\d.]+), "
        r"on the 600 labels alone ([\d.]+)\.",
        text,
    )
    assert shown
    for number, row in zip(shown.groups(), ("deep", "deep-no-bound", "deep-labelled-alone"), strict=True):
        assert same(number, value("table2", row, "60", "error"))
    shown = re.search(r"`--encoder deep` with 4,000 labels \([^:]*\): ([\d.]+);", text)
    assert shown and same(shown.group(1), value("table2", "cifar-10/deep", "400", "error"))
    shown = re.search(r"On CIFAR-10 with 4,000 labels, [^:]*: \*\*([\d.]+)\*\*, .* labels alone ([\d.]+) \(", text)
    assert shown, "the README no longer says what unlabelled images are worth on CIFAR-10"
    for number, row in zip(shown.groups(), ("consistency", "labelled-alone"), strict=True):
        assert same(number, value("table2", f"cifar-10/{row}", "400", "error"))


@pytest.mark.parametrize(
    ("beginning", "row", "n", "seeds"),
    [
        ("Gibbs sampling", "mnist/gibbs", "20000", 1),
        ("Monte Carlo EM", "mnist/mcem", "50000", 1),
        ("VAE-d, labels weighed as in the model", "mnist/vae-d-bound", "50000", 3),
        ("VAE, labels weighed as in the model", "mnist/vae-bound", "50000", 3),
        ("VAE-d, its code learned without labels", "mnist/vae-d-two-step", "50000", 1),
        ("VAE, its code learned without labels", "mnist/vae-two-step", "50000", 1),
        ("VAE-d, a deeper network", "mnist/vae-d-ours", "50000", 3),
        ("VAE, a deeper network", "mnist/vae-ours", "50000", 3),
        ("deep encoder, 10 epochs", "mnist/deep", "50000", 1),
        ("deep encoder, without the image model", "mnist/deep-no-bound", "50000", 1),
    ],
)
def test_all_labels(beginning: str, row: str, n: str, seeds: int) -> None:
    errors, ms = cells(beginning)[:2]
    assert len(errors) == seeds and same(ms[0], value("table1", row, n, "ms"))
    assert all(same(error, value("table1", row, n, "error", seed)) for seed, error in enumerate(errors))


def test_vae_beside_vae_d() -> None:
    rows = results.read(HERE / "results" / "table1.csv")
    of = {found.metric: found for found in differences(rows, "mnist/vae", "mnist/vae-d")}
    for beginning, row, mean in zip(
        ("VAE, the same with places", "deterministic pooling and unpooling"),
        ("mnist/vae", "mnist/vae-d"),
        of["error"].means,
        strict=True,
    ):
        (error,), (ms,) = cells(beginning)[:2]
        assert same(error, mean) and same(ms, value("table1", row, "50000", "ms"))
    text = " ".join(README.split())
    number = r"([\d.e-]+)"
    shown = re.search(
        rf"the difference in test error over (\d+) seeds is {number} \+- {number} points \(p = {number}\), "
        rf"in validation error {number} \+- {number} \(p = {number}, (\d+) seeds\), "
        rf"in nats per test label {number} \+- {number} of {number} \(p = {number}\), in VAE's favour each time",
        text,
    )
    assert shown, "the README no longer says how VAE and VAE-d differ"
    error, valid, nats = of["error"], of["valid_error"], of["nats"]
    assert shown.group(1, 8) == (str(len(error.seeds)), str(len(valid.seeds)))
    for numbers, found in (
        (shown.group(2, 3, 4), error),
        (shown.group(5, 6, 7), valid),
        (shown.group(9, 10, 12), nats),
    ):
        assert same(numbers[0], -found.mean) and same(numbers[1], found.standard_error)
        assert float(numbers[2]) == pytest.approx(found.p, rel=0.1)
    assert same(shown.group(11), nats.means[1])
    shown = re.search(r"at the seed of the one run above VAE-d is ahead, ([\d.]+) to ([\d.]+);", text)
    assert shown and same(shown.group(1), value("table1", "mnist/vae-d", "50000", "error"))
    assert same(shown.group(2), value("table1", "mnist/vae", "50000", "error"))
    # every seed that was run is there
    assert error.seeds and sorted(error.seeds) == list(range(len(error.seeds)))


@pytest.mark.parametrize(("setting", "seeds"), [("bound", 3), ("two-step", 1)])
def test_where_the_image_model_shapes_the_code_places_are_worth_more(setting: str, seeds: int) -> None:
    with_places, without = (
        [value("table1", f"mnist/{row}-{setting}", "50000", "error", seed) for seed in range(seeds)]
        for row in ("vae", "vae-d")
    )
    assert 2 * max(with_places) < min(without)


def test_whether_samplers_had_come_to_rest() -> None:
    text = " ".join(README.split())
    shown = re.search(
        r"([\d.]+) and ([\d.]+) % of 1,000 validation images are wrong by Gibbs sampling, ([\d.]+) and ([\d.]+) % "
        r"by Monte Carlo EM \(standard errors of the differences ([\d.]+) and ([\d.]+)\), "
        r"and ([\d.]+) % with twice its passes",
        text,
    )
    assert shown, "the README no longer says whether the samplers had come to rest"
    for (half, end, spread), row, n in (
        (shown.group(1, 2, 5), "gibbs", "20000"),
        (shown.group(3, 4, 6), "mcem", "50000"),
    ):
        for number, metric in ((half, "valid_half"), (end, "valid_end"), (spread, "valid_spread")):
            assert same(number, value("table1", f"mnist/{row}", n, metric))
    assert same(shown.group(7), value("table1", "mnist/mcem-longer", "50000", "valid_end"))


def test_samplers_beside_the_encoder() -> None:
    text = " ".join(README.split())
    shown = re.search(r"([\d,]+) times faster than Gibbs sampling and ([\d,]+) times faster than Monte Carlo EM", text)
    assert shown, "the README no longer says how much faster the encoder is"
    for number, row, n, asked in zip(shown.groups(), ("gibbs", "mcem"), ("20000", "50000"), (400, 100), strict=True):
        measured = value("table1", f"mnist/{row}", n, "times_vae")
        assert float(number.replace(",", "")) == pytest.approx(measured, rel=0.01) and measured >= asked
    on_photographs = re.search(
        r"Gibbs ([\d.]+) \(([\d,]+) images\), Monte Carlo EM ([\d.]+) \(([\d,]+) images\), VAE-d ([\d.]+) and "
        r"VAE ([\d.]+) in the paper's network, ([\d.]+) and ([\d.]+) in ours \(([\d,]+) images",
        text,
    )
    assert on_photographs, "the README no longer says what comes of CIFAR-10"
    gibbs, few, mcem, more, *encoders, most = (number.replace(",", "") for number in on_photographs.groups())
    rows = ("vae-d", "vae", "vae-d-ours", "vae-ours")
    by = [(gibbs, "gibbs", few), (mcem, "mcem", more), *((e, row, most) for e, row in zip(encoders, rows, strict=True))]
    for number, row, n in by:
        assert same(number, value("table1", f"cifar-10/{row}", n, "error"))


@pytest.mark.parametrize(
    ("beginning", "row", "n"),
    [
        ("most frequent caption", "64/likeliest", "100"),
        ("caption of the nearest image", "64/nearest", "100"),
        ("two-step,", "64/two-step", "100"),
        ("joint,", "64/joint", "100"),
        ("joint at 128 pixels", "128/joint", "100"),
        ("from half of the captions", "64/joint-50", "50"),
        ("the same with the other images", "64/joint-50-images", "50"),
        ("from a tenth of the captions", "64/joint-10", "10"),
        ("a tenth with the other images", "64/joint-10-images", "10"),
    ],
)
def test_captions(beginning: str, row: str, n: str) -> None:
    shown = cells(beginning)[:4]
    for numbers, metric in zip(shown, ("BLEU-4", "METEOR", "CIDEr", "perplexity"), strict=True):
        assert not numbers or same(numbers[0], value("table3", f"flickr8k/{row}", n, metric))
    assert sum(map(len, shown)) >= 3


PAGES = pytest.mark.parametrize("page", [README, FRONT], ids=["results", "front"])


def shown_on(page: str, beginning: str) -> list[list[str]] | None:
    """The numbers of each cell of the line of a table that begins so, on a page that may leave it out."""
    lines = [line for line in page.splitlines() if line.startswith(f"| {beginning}")]
    assert len(lines) <= 1, f"{len(lines)} lines begin with {beginning!r}"
    return [re.findall(r"\d+(?:\.\d+)?", cell) for cell in lines[0].strip("|").split("|")[1:]] if lines else None


def lines_of(page: str, rows: Mapping[str, str], least: int) -> list[tuple[str, list[list[str]]]]:
    """By row of results/, the cells of those of its lines that a page shows: at least so many."""
    found = [(row, shown) for beginning, row in rows.items() if (shown := shown_on(page, beginning)) is not None]
    assert len(found) >= least
    return found


@PAGES
def test_few_labels_on_every_page(page: str) -> None:
    rows = {
        "transductive SVM": "tsvm",
        "near what is printed": "printed",
        "the same with the local": "local",
        "Ladder network, full": "ladder-full",
        "Ladder network, convolutional": "ladder-gamma-conv",
        "consistency:": "consistency",
        "its network on the 100": "labelled-alone",
    }
    for row, (numbers, *_) in lines_of(page, rows, least=4):
        assert numbers
        assert all(same(number, value("table2", row, "10", "error", seed)) for seed, number in enumerate(numbers))


@PAGES
def test_the_deep_encoder_with_few_labels_on_every_page(page: str) -> None:
    """The mean over splits; where the line does not say of how many, of the five that were fixed beforehand."""
    found = results.summaries(results.read(HERE / "results" / "table2.csv"))
    means = {cell.row: cell for cell in found if cell.N == "10" and cell.metric == "error"}
    for beginning, row, splits in (
        ("`--encoder deep`", "deep", 5),
        ("the same without the image model", "deep-no-bound", 5),
        ("the same on the 100 labels alone", "deep-labelled-alone", 5),
    ):
        shown = shown_on(page, beginning)
        assert shown is not None and len(shown[0]) == 1
        assert len(means[row].seeds) == splits and same(shown[0][0], means[row].mean)


@PAGES
def test_captions_on_features_on_every_page(page: str) -> None:
    captions = {
        "two-step on": "two-step",
        "joint on features (": "joint",
        "joint on features, without": "without-bound",
        "joint on features, soft attention": "joint-attention",
        "joint on features, a tenth of the captions and": "joint-10",
        "joint on features, a tenth of the captions,": "joint-10-images",
        "joint on features, half of the captions,": "joint-50-images",
        "show and tell on": "show-and-tell-lite2",
        "the same with EfficientNet-Lite0": "show-and-tell-lite0",
        "soft attention over": "soft-attention",
        "hard attention over": "hard-attention",
        "attributes:": "attributes",
        "DMSM:": "dmsm",
    }
    for row, (bleu, cider, perplexity, _) in lines_of(page, captions, least=3):
        n = "10" if row.startswith("joint-10") else "50" if row.startswith("joint-50") else "100"
        for (number,), metric in ((bleu, "BLEU-4"), (cider, "CIDEr"), (perplexity, "perplexity")):
            assert same(number, value("table3_photos", f"flickr8k/{row}", n, metric))
    for text, pair in (
        (r"finds it first among 1,000 in ([\d.]+) and ([\d.]+) % of cases", ("joint", "joint-attention")),
        (r"finds the right image first in ([\d.]+) instead of ([\d.]+) % of cases", ("joint", "without-bound")),
    ):
        said = re.search(text, " ".join(README.split()))
        assert said is not None
        for number, row in zip(said.groups(), pair, strict=True):
            assert same(number, value("table3_photos", f"flickr8k/{row}", "100", "R@1"))


def test_a_second_seed_of_captions() -> None:
    four = r"([\d.]+), ([\d.]+), ([\d.]+) and ([\d.]+) %"
    shown = re.search(
        rf"first places in searches of {four} with the image model, and {four} without", " ".join(README.split())
    )
    front = re.search(r"14.9 against 15.5, on a second seed ([\d.]+) against ([\d.]+), and", " ".join(FRONT.split()))
    assert shown is not None and front is not None
    metrics = ("BLEU-4", "CIDEr", "perplexity", "R@1")
    cells = [(row, metric) for row in ("joint", "without-bound") for metric in metrics]
    for number, (row, metric) in zip(shown.groups(), cells, strict=True):
        assert same(number, value("table3_photos", f"flickr8k/{row}", "100", metric, 1))
    assert front.groups() == (shown.group(3), shown.group(7))


@pytest.mark.parametrize(
    ("beginning", "row"),
    [
        ("AlexNet on the labelled images", "alexnet"),
        ("GoogLeNet on the labelled images", "googlenet"),
        ("ours, Bayesian SVM", "bsvm"),
        ("ours, softmax", "softmax"),
        ("ours, labels alone | 20", "labels-alone"),
        ("ours, without the image model |", "no-bound"),
    ],
)
def test_shares_of_labels(beginning: str, row: str) -> None:
    for (number,), n in zip(cells(beginning)[-3:], ("1", "10", "100"), strict=True):
        assert same(number, value("table4", f"tiny-imagenet-20/{row}", n, "top-1"))


def test_the_deep_encoder_on_cifar_10() -> None:
    shown = re.search(
        r"11 epochs, (\d+) and (\d+) minutes of a shared core, seed 0\): ([\d.]+), on validation images ([\d.]+); "
        r"without the image model ([\d.]+) and ([\d.]+)\.",
        " ".join(README.split()),
    )
    assert shown is not None
    minutes, numbers = shown.groups()[:2], shown.groups()[2:]
    rows = ("cifar-10/deep", "cifar-10/deep-no-bound")
    cells = [(row, metric) for row in rows for metric in ("error", "valid_error")]
    for number, (row, metric) in zip(numbers, cells, strict=True):
        assert same(number, value("table1", row, "45000", metric))
    found = results.read(HERE / "results" / "table1.csv")
    for said, name in zip(minutes, rows, strict=True):
        assert {round(row.minutes) for row in found if row.row == name} == {int(said)}


def test_the_deep_encoder_on_cifar_10_on_the_first_page() -> None:
    page = (HERE / "README.md").read_text(encoding="utf-8")
    shown = re.search(
        r"CIFAR-10 with all labels.*one seed: ([\d.]+), without the image model ([\d.]+); the paper 8.19", page
    )
    assert shown is not None
    for number, row in zip(shown.groups(), ("cifar-10/deep", "cifar-10/deep-no-bound"), strict=True):
        assert same(number, value("table1", row, "45000", "error"))


def test_the_deep_encoder_with_more_labels_on_the_first_page() -> None:
    shown = re.search(
        r"MNIST with 60 per class ([\d.]+), without the image model ([\d.]+) \(paper 0.77\), with all ([\d.]+) and "
        r"([\d.]+) \(0.38\); CIFAR-10 with 4,000 labels ([\d.]+)\.",
        " ".join(FRONT.split()),
    )
    assert shown is not None
    rows = [("table2", "deep", "60"), ("table2", "deep-no-bound", "60"), ("table1", "mnist/deep", "50000")]
    rows += [("table1", "mnist/deep-no-bound", "50000"), ("table2", "cifar-10/deep", "400")]
    for number, (table, row, n) in zip(shown.groups(), rows, strict=True):
        assert same(number, value(table, row, n, "error"))


def test_thirty_images_of_each_class() -> None:
    said = re.search(
        r"ours has ([\d.]+), labels alone ([\d.]+), without the image model ([\d.]+) and logistic regression ([\d.]+) "
        r"\(3 splits; the paper, pretrained on ImageNet, 6.91\)",
        " ".join(README.split()),
    )
    assert said is not None
    found = results.summaries(results.read(HERE / "results" / "table1.csv"))
    means = {cell.row: cell for cell in found if cell.metric == "error"}
    rows = ("vae-pretrained", "vae-pretrained-labels-alone", "vae-pretrained-no-bound", "logistic-pretrained")
    for row, number in zip(rows, said.groups(), strict=True):
        cell = means[f"caltech101/{row}"]
        assert len(cell.seeds) == 3 and same(number, cell.mean)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (
            README,
            r"with 400, labels alone ([\d.]+) and without the image model ([\d.]+), lower on each of the 3 splits",
        ),
        (FRONT, r"with 400 ours from the labels alone ([\d.]+), without the image model ([\d.]+)\."),
    ],
    ids=["results", "front"],
)
def test_what_the_image_model_costs_on_cifar_10(page: str, said: str) -> None:
    shown = re.search(said, " ".join(page.split()))
    assert shown is not None
    found = results.read(HERE / "results" / "photos.csv")
    means = {cell.row: cell for cell in results.summaries(found) if (cell.N, cell.metric) == ("400", "error")}
    for number, row in zip(shown.groups(), ("ours-labels-alone", "ours-without-bound"), strict=True):
        assert len(means[f"cifar10/{row}"].seeds) == 3 and same(number, means[f"cifar10/{row}"].mean)
    few = re.search(r"with 4, labels alone ([\d.]+) and without the image model ([\d.]+);", " ".join(README.split()))
    assert few is not None
    of_four = {cell.row: cell.mean for cell in results.summaries(found) if (cell.N, cell.metric) == ("4", "error")}
    for number, row in zip(few.groups(), ("ours-labels-alone", "ours-without-bound"), strict=True):
        assert same(number, of_four[f"cifar10/{row}"])
    ours, without = (
        {r.key[-1]: r.value for r in found if r.key[1:4] == (f"cifar10/{row}", "400", "error")}
        for row in ("ours", "ours-without-bound")
    )
    assert all(without[seed] < ours[seed] for seed in range(3))


@PAGES
def test_photographs_on_every_page(page: str) -> None:
    found = results.summaries(results.read(HERE / "results" / "photos.csv"))
    means = {(cell.row, cell.N, cell.metric): cell for cell in found}
    rows = {
        "logistic regression on": "logistic-regression",
        "the same on two views": "logistic-regression-two-views",
        "label spreading": "label-spreading",
        "ours, `train": "ours",
        "ours, labels": "ours-labels-alone",
        "ours, without the image model": "ours-without-bound",
        "ours, one view": "ours-one-view",
        "ours, without a prior": "ours-without-class-prior",
        "that prior alone": "class-prior",
        "the same from the labels": "class-prior-labels-alone",
    }
    ns = ("2", "5", "10", "30")
    for beginning, row in rows.items():
        numbers = shown_on(page.partition("## Shares")[0], beginning)
        if numbers is None:
            assert page is FRONT and row not in ("ours", "logistic-regression", "ours-without-bound")
            continue
        for n, shown in zip(ns, numbers, strict=True):
            cell = means.get((f"caltech101/{row}", n, "error"))
            if shown:
                assert cell is not None and len(cell.seeds) == 5 and same(shown[0], cell.mean)
            else:
                assert cell is None or len(cell.seeds) < 5, f"{row} has been measured with {n} labels: show it"
    if page is not FRONT:
        tiny = re.search(
            r"leaves it out: ours ([\d.]+), without the prior ([\d.]+), without the image model ([\d.]+), labels alone "
            r"([\d.]+), logistic regression ([\d.]+)\.",
            " ".join(page.split()),
        )
        assert tiny is not None
        of = ("ours", "ours-without-class-prior", "ours-without-bound", "ours-labels-alone", "logistic-regression")
        for row, number in zip(of, tiny.groups(), strict=True):
            assert same(number, means[f"tiny-imagenet-20/{row}", "2", "error"].mean)
    said = re.search(r"are off by ([\d.]+), ([\d.]+), ([\d.]+) and ([\d.]+) points", page)
    assert said is not None
    for n, number in zip(ns, said.groups(), strict=True):
        assert same(number, means["caltech101/ours", n, "calibration_error"].mean)
    said = re.search(
        r"4, 25 and 400 labels per class: ours ([\d.]+), ([\d.]+) and ([\d.]+), "
        r"logistic regression ([\d.]+), ([\d.]+) and ([\d.]+) \(3 splits\)",
        " ".join(page.split()),
    )
    assert said is not None
    asked = [(row, n) for row in ("ours", "logistic-regression") for n in ("4", "25", "400")]
    for (row, n), number in zip(asked, said.groups(), strict=True):
        cell = means[f"cifar10/{row}", n, "error"]
        assert len(cell.seeds) == 3 and same(number, cell.mean)
