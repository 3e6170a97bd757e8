"""What of the paper is measured here: every figure that it prints, ours beside it, and what is missing.

    semisight reproduce status                   on the terminal, from results/
    python docs/status.py                        docs/status.md, the same as a page

A line is one method on one set of images, with its metrics separated by slashes. Where several rows of ours stand for
one method of the paper, each has a line. Ours is the mean and the standard deviation over splits (seeds).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from semisight.experiments import results, table1, table2, table4
from semisight.experiments.results import Row

HEAD = ("method", "on", "paper", "ours", "row of results/", "splits", "minutes")
NOT_MEASURED = "not measured"
ANY = "*"  # set of images, in the name of a row


@dataclass(frozen=True)
class Published:
    """A method on a set of images.

    figures  the paper's, one for each metric
    rows     those of ours that stand for it, as FILE:ROW; ROW may be */NAME, on any set
    metrics  their names in our results, in the order of `figures`
    N        the column N of ours; None takes any
    why      it is not measured
    """

    table: str
    method: str
    on: str
    figures: tuple[str, ...]
    rows: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    N: str | None = None
    why: str = ""


def published() -> Iterator[Published]:
    """Everything that the tables of the paper print, but for the tests' own time on ImageNet."""
    yield from _table1()
    for row, by_n in table2.PAPER.items():
        for n, figure in by_n.items():
            if row in TABLE2:
                method, rows = TABLE2[row]
                on = f"MNIST, N = {n}"
                yield Published(
                    "Table 2", method, on, (figure,), tuple(f"table2:{r}" for r in rows), ("error",), str(n)
                )
    for name, method in COMPANIONS2.items():
        yield Published("Table 2", method, "MNIST, N = 10", (), (f"table2:{name}",), ("error",), "10")
    yield from _table3()
    for row, method in TABLE4.items():
        for share in table4.SHARES:
            rows = (f"table4:{ANY}/{row}",)
            on = f"ImageNet, {share} % (ours: a part of Tiny-ImageNet)"
            figures, metrics = tuple(filter(None, table4.paper(row, share))), (table4.TOP1, table4.TOP5)
            yield Published("Table 4", method, on, figures, rows, metrics, str(share))


TABLE2 = {
    "tsvm": ("TSVM", ("tsvm",)),
    "m1-tsvm": ("M1+TSVM", ("m1-tsvm",)),
    "m1-m2": ("M1+M2", ("m1-m2",)),
    "ladder-full": ("Ladder, full", ("ladder-full",)),
    "ladder-gamma-conv": ("Ladder, Gamma-conv", ("ladder-gamma-conv",)),
    "xi0-tsvm": ("VAE, xi = 0, TSVM", ("xi0-tsvm",)),
    "consistency": ("VAE", ("printed", "local", "consistency", "deep")),
}
COMPANIONS1 = ("VAE, labels alone", "VAE without the bound", "logistic regression")  # on pretrained features
COMPANIONS2 = {
    "labelled-alone": "VAE's network, labels alone",
    "consistency-no-bound": "VAE without the bound",
    "deep-labelled-alone": "VAE, deep encoder, labels alone",
    "deep-no-bound": "VAE, deep encoder, without the bound",
}
TABLE4 = {
    "alexnet": "AlexNet",
    "googlenet": "GoogLeNet",
    "bsvm": "VAE, Bayesian SVM",
    "softmax": "VAE, softmax",
    "labels-alone": "VAE's network, labels alone",
    "no-bound": "VAE, softmax, without the bound",
}
_UNTRAINED = "not measured: MCEM has no pretrained features"
_UNSEEN = "not measured: the images were not at hand"
# error and ms by set; the rows that stand for it
_TABLE1_ROWS = {
    "Gibbs": ("gibbs",),
    "MCEM": ("mcem",),
    "VAE-d": ("vae-d", "vae-d-ours"),
    "VAE": ("vae", "vae-ours", "deep", "vae-printed"),
}
_TABLE1 = {
    "MNIST": ("mnist", "0.37 3.1", "0.45 0.8", "0.42 0.007", "0.38 0.007"),
    "CIFAR-10": ("cifar-10", "8.21 10.4", "9.04 1.1", "10.74 0.02", "8.19 0.02"),
    "CIFAR-100": ("", "34.33 10.4", "35.92 1.1", "37.96 0.02", "35.01 0.02"),
    "Caltech 101": ("caltech101", "12.87 50.4", "13.51 8.8", "14.79 0.3", "11.99 0.3"),
    "Caltech 256": ("", "29.50 52.3", "30.13 8.9", "32.18 0.3", "29.33 0.3"),
}


def _table1() -> Iterator[Published]:
    metrics = (table1.ERROR, table1.MS)
    for on, (name, *by_method) in _TABLE1.items():
        for (method, rows), figures in zip(_TABLE1_ROWS.items(), by_method, strict=True):
            ours = tuple(f"table1:{name}/{row}" for row in rows) if name else ()
            yield Published("Table 1", method, on, tuple(figures.split()), ours, metrics, None, "" if name else _UNSEEN)
    for method, figures in (("MCEM", "37.9 16.1"), ("VAE", "38.2 15.7")):
        yield Published("Table 1", method, "ImageNet 2012, top-1 and top-5", tuple(figures.split()), why=_UNSEEN)
    pretrained = "pretrained on ImageNet"
    yield Published(
        "Table 1",
        "MCEM",
        f"Caltech 101, {pretrained}",
        ("6.85", "14.1"),
        why="not measured: MCEM has no pretrained features",
    )
    ours = tuple(f"table1:caltech101/{row}" for row in table1.PRETRAINED)
    yield Published("Table 1", "VAE", f"Caltech 101, {pretrained}", ("6.91", "0.9"), ours[:1], metrics)
    for row, method in zip(ours[1:], COMPANIONS1, strict=True):
        yield Published("Table 1", method, f"Caltech 101, {pretrained}", (), (row,), metrics)
    for method, figures in (("MCEM", "22.10 14.2"), ("VAE", "22.53 0.9")):
        yield Published("Table 1", method, f"Caltech 256, {pretrained}", tuple(figures.split()), why=_UNSEEN)


_CAPTIONS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "perplexity")
_FLICKR = {  # Flickr8k; Flickr30k
    "VggNet+RNN": ("0.56 0.37 0.24 0.16 15.71", "0.57 0.38 0.25 0.17 18.83"),
    "GoogLeNet+RNN": ("0.56 0.38 0.24 0.16 15.71", "0.58 0.39 0.26 0.17 18.77"),
    "two-step": ("0.61 0.41 0.27 0.17 15.82", "0.61 0.41 0.27 0.17 18.73"),
    "Hard-Attention": ("0.67 0.46 0.31 0.21 -", "0.67 0.44 0.30 0.20 -"),
    "joint": ("0.70 0.49 0.33 0.22 15.24", "0.69 0.50 0.35 0.22 16.17"),
    "joint with ImageNet": ("0.72 0.52 0.36 0.25 13.24", "0.72 0.53 0.38 0.25 15.34"),
    "Attributes-CNN+RNN": ("0.74 0.54 0.38 0.27 12.60", "0.73 0.55 0.40 0.28 15.96"),
}
_COCO = {  # BLEU-1 to 4, METEOR, CIDEr, perplexity
    "VggNet+RNN": "0.61 0.42 0.28 0.19 0.19 0.56 13.16",
    "GoogLeNet+RNN": "0.60 0.40 0.26 0.17 0.19 0.55 14.01",
    "two-step": "0.61 0.42 0.27 0.18 0.20 0.58 13.46",
    "DMSM": "- - - 0.26 0.24 - 18.10",
    "Hard-Attention": "0.72 0.50 0.36 0.25 0.23 - -",
    "joint": "0.71 0.51 0.38 0.26 0.22 0.89 11.57",
    "joint with ImageNet": "0.72 0.52 0.37 0.28 0.24 0.90 11.14",
    "Attributes-CNN+LSTM": "0.74 0.56 0.42 0.31 0.26 0.94 10.49",
}
# Rows of Flickr8k that stand for a method of Table 3; others are added here with their file.
TABLE3 = {
    "two-step": ("table3:flickr8k/64/two-step", "table3_photos:flickr8k/two-step"),
    "joint": (
        "table3:flickr8k/64/joint",
        "table3:flickr8k/128/joint",
        "table3_photos:flickr8k/joint",
        "table3_photos:flickr8k/joint-attention",
    ),
    "VggNet+RNN": ("table3_photos:flickr8k/show-and-tell-lite2",),
    "GoogLeNet+RNN": ("table3_photos:flickr8k/show-and-tell-lite0",),
    "Hard-Attention": ("table3_photos:flickr8k/hard-attention",),
    "Attributes-CNN+RNN": ("table3_photos:flickr8k/attributes",),
}
COMPANIONS3 = {  # rows of table3_photos that the paper has no figure of on Flickr8k
    "dmsm": "DMSM",
    "soft-attention": "Soft-Attention",
    "joint-50-images": "joint, half of the captions, the other images uncaptioned",
    "joint-10-images": "joint, a tenth of the captions, the other images uncaptioned",
    "without-bound": "captions alone, without the bound",
    "without-bound-attention": "captions alone, a code with places",
    "nearest": "caption of the nearest training image",
}


def _table3() -> Iterator[Published]:
    for method, (flickr8k, _) in _FLICKR.items():
        rows = TABLE3.get(method, ())
        yield Published("Table 3", method, "Flickr8k", tuple(flickr8k.split()), rows, _CAPTIONS, "100")
    for row, method in COMPANIONS3.items():
        yield Published("Table 3", method, "Flickr8k", (), (f"table3_photos:flickr8k/{row}",), _CAPTIONS)
    for on, by_method in (("Flickr30k", {name: both[1] for name, both in _FLICKR.items()}), ("MS COCO", _COCO)):
        for method, figures in by_method.items():
            yield Published("Table 3", method, on, tuple(figures.split()), why=_UNSEEN)


@dataclass(frozen=True)
class Line:
    """What is printed of a method, and whether it was measured."""

    table: str
    cells: tuple[str, ...]  # as HEAD
    measured: bool


def lines(folder: Path) -> list[Line]:
    """Of everything published, by table."""
    kept: dict[str, list[Row]] = {}
    found = []
    for one in published():
        begin = (one.method, one.on, " / ".join(one.figures))
        ours = []
        for name in one.rows:
            file, _, row = name.partition(":")
            rows = kept.setdefault(file, results.read(folder / f"{file}.csv"))
            ours += _ours([r for r in rows if _stands(r.row, row) and one.N in (None, r.N)], one.metrics, file)
        if not ours:
            ours = [(one.why or NOT_MEASURED, "", "", "")]
        found += [Line(one.table, (*begin, *cells), cells[1] != "") for cells in ours]
    return found


def _stands(measured: str, row: str) -> bool:
    return measured == row or (row.startswith(f"{ANY}/") and measured.partition("/")[2] == row.partition("/")[2])


def _ours(rows: Sequence[Row], metrics: Sequence[str], file: str) -> list[tuple[str, str, str, str]]:
    """Values, row, splits and mean minutes, for each row and N."""
    found = []
    for name in dict.fromkeys((row.row, row.N) for row in rows):
        of = {metric: [row for row in rows if name == (row.row, row.N) and row.metric == metric] for metric in metrics}
        if not any(of.values()):
            continue
        values = " / ".join(results.summaries(cells)[0].words() if cells else "-" for cells in of.values())
        most = max(of.values(), key=len)
        minutes = sum(row.minutes for row in most) / len(most)
        found.append((values, f"{file}: {most[0].row}", str(len(most)), f"{minutes:.0f}"))
    return found


def text(folder: Path) -> str:
    """For a terminal."""
    found = lines(folder)
    rows = [HEAD, *(line.cells for line in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    said = []
    for table in dict.fromkeys(line.table for line in found):
        said += [
            "",
            table,
            *(_aligned(cells, widths) for cells in (HEAD, *(x.cells for x in found if x.table == table))),
        ]
    return "\n".join([*said[1:], "", count(found)])


def _aligned(cells: Iterable[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(map(str.ljust, cells, widths)).rstrip()


def count(found: Sequence[Line]) -> str:
    """How much of what the paper prints is measured."""
    printed = [line for line in found if line.cells[2]]
    places = {(line.table, *line.cells[:2]): False for line in printed}
    for line in printed:
        places[(line.table, *line.cells[:2])] |= line.measured
    return f"{sum(places.values())} of {len(places)} places of the paper's tables are measured."


def page(folder: Path) -> str:
    """For the documentation, in Markdown."""
    found = lines(folder)
    said = [
        "# What of the paper is measured",
        "",
        "Every figure that the tables of the paper print, with ours beside it: the mean and the standard deviation",
        "over splits, minutes of one core for each. Metrics are separated by slashes. Table 1: error in percent and",
        "milliseconds per image. Table 2: error in percent. Table 3: BLEU-1 to 4 and perplexity, on COCO METEOR and",
        "CIDEr before it. Table 4: top-1 and top-5 accuracy. Lines without a figure of the paper say what the others",
        "are due to. `semisight reproduce status` prints the same; [results](results.md) tells more about each.",
        "This page is made from `results/` by `python docs/status.py`.",
        "",
        count(found),
    ]
    for table in dict.fromkeys(line.table for line in found):
        said += ["", f"## {table}", "", _row(HEAD), _row(["---"] * len(HEAD))]
        said += [_row(line.cells) for line in found if line.table == table]
    return "\n".join(said) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
