"""All that commands write: tables for people, CSV and JSON for programs. Each gives text that ends in a line break.

Text in a CSV that a spreadsheet would take for a formula is marked (csv_cell); on a terminal, names of files cannot
give orders (printable). JSON has everything as it is.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.inference.captions import Caption, CaptionReader, Search
from semisight.inference.encode import Codes
from semisight.inference.labels import LabelAnswer
from semisight.inference.search import Match
from semisight.inference.tags import TagAnswer
from semisight.metrics.classification import error_per_class
from semisight.runs.encoder_choice import Planned
from semisight.runs.evaluate import CaptionEvaluation, Evaluation, LabelEvaluation, TagEvaluation
from semisight.runs.expected_time import Expected
from semisight.runs.inspecting import Inspection
from semisight.runs.run import Run
from semisight.runs.suggesting import Suggestion
from semisight.runs.train import describe_architecture
from semisight.untrusted import csv_cell, printable

Format = Literal["table", "csv", "json"]
_ROWS_SHOWN = 50  # more than this nobody reads on a terminal
_MATRIX_SHOWN = 20  # classes of a confusion matrix
_LISTED, _CLASSES, _FILES = 6, 20, 100  # of an inspection: entries of a list, classes, files named in JSON
_DIGITS = 6
LOCAL_FILES = "/data/local-files/?d="  # how Label Studio names files that lie on its own disk


# ---- parts ----


def columns(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows of words as lines with aligned columns; those in `right` end at one place instead of starting at one."""
    rows, ends = [[printable(word) for word in row] for row in rows], set(right)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            word.rjust(width) if number in ends else word.ljust(width)
            for number, (word, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _table(rows: Sequence[Sequence[str]], right: Iterable[int], n: int, shown: int) -> str:
    """`rows` of the first `shown` of n images."""
    more = [f"... and {n - shown:,} more: --format csv or json gives all of them"] if n > shown else []
    return _lines([*columns(rows, right), *more])


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in header])
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _json(content: Any) -> str:
    return json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """JSON has no NaN: what could not be worked out is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(of) for name, of in value.items()}
    return [_finite(of) for of in value] if isinstance(value, list | tuple) else value


def _skipped(skipped: Sequence[Skipped]) -> list[dict[str, str]]:
    return [{"file": entry.name, "reason": entry.reason} for entry in skipped]


def _short(value: float, digits: int = _DIGITS) -> float:
    return round(value, digits)


def _percent(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.1%}"


# ---- predict ----


def predictions(images: ImageSet, answers: Mapping[str, Any], run: Run, kind: Format, top: int) -> str:
    """What the readers of a run say of images: columns or fields of each, side by side."""
    parts = [_SAID[name](answer, top) for name, answer in answers.items() if name in _SAID]
    if kind == "csv":
        header = ["file", *(word for part in parts for word in part.header)]
        return _csv(
            header, ([name, *(v for part in parts for v in part.cells[i])] for i, name in enumerate(images.names))
        )
    if kind == "json":
        about: dict[str, Any] = {}
        if run.has("labels"):
            about = {"classes": list(run.labels.class_names), "calibrated": run.labels.calibrated}
        if run.has("tags"):
            about |= {"tag_names": list(run.tags.names), "tags_calibrated": run.tags.calibrated}
        entries = [
            {"file": name, **{key: value for part in parts for key, value in part.fields[i].items()}}
            for i, name in enumerate(images.names)
        ]
        return _json({**about, "images": entries, "skipped": _skipped(images.skipped)})
    shown = images.names[:_ROWS_SHOWN]
    rows = [["file", *(word for part in parts for word in part.titles)]]
    rows += [[name, *(word for part in parts for word in part.words[i])] for i, name in enumerate(shown)]
    right = [n for n, title in enumerate(rows[0]) if title in ("probability", "spread")]
    return _table(rows, right, len(images), _ROWS_SHOWN)


@dataclasses.dataclass(frozen=True)
class _Said:
    """What one reader says of every image: for a table, a CSV file and JSON."""

    titles: Sequence[str]
    words: Sequence[Sequence[str]]
    header: Sequence[str]
    cells: Sequence[Sequence[Any]]
    fields: Sequence[Mapping[str, Any]]


def _labels_said(answer: LabelAnswer, top: int) -> _Said:
    """The label, its probability and spread, and the next likely ones: label_2, probability_2, ..."""
    best = answer.probabilities.topk(min(top, len(answer.class_names)), dim=1)
    each = [
        [(answer.class_names[c], _short(p)) for c, p in zip(labels, values, strict=True)]
        for labels, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    spreads = [_short(spread) for spread in answer.spread.tolist()]
    pairs = list(zip(each, spreads, strict=True))
    more = [f"{word}_{k}" for k in range(2, best.values.shape[1] + 1) for word in ("label", "probability")]
    return _Said(
        titles=("label", "probability", "spread", "or"),
        words=[
            (of[0][0], f"{of[0][1]:.1%}", f"{spread:.2f}", ", ".join(f"{name} {p:.1%}" for name, p in of[1:]))
            for of, spread in pairs[:_ROWS_SHOWN]
        ],
        header=("label", "probability", "spread", *more),
        cells=[(*of[0], spread, *(value for pair in of[1:] for value in pair)) for of, spread in pairs],
        fields=[
            {
                "label": of[0][0],
                "probability": of[0][1],
                "spread": spread,
                "top": [{"label": name, "probability": p} for name, p in of],
            }
            for of, spread in pairs
        ],
    )


def _tags_said(answer: TagAnswer, top: int) -> _Said:
    """The tags that an image has, and the probability of each tag that there is."""
    values = [[_short(p) for p in row] for row in answer.probabilities.tolist()]
    has = [answer.tags(i) for i in range(len(answer))]
    return _Said(
        titles=("tags",),
        words=[(", ".join(f"{name} {p:.1%}" for name, p in of) or "(none)",) for of in has[:_ROWS_SHOWN]],
        header=("tags", *answer.names),
        cells=[(";".join(name for name, _ in of), *row) for of, row in zip(has, values, strict=True)],
        fields=[
            {"tags": [name for name, _ in of], "tag_probabilities": dict(zip(answer.names, row, strict=True))}
            for of, row in zip(has, values, strict=True)
        ],
    )


_SAID: Mapping[str, Any] = {"labels": _labels_said, "tags": _tags_said}


# ---- caption ----


def captions(
    images: ImageSet, found: Sequence[Sequence[Caption]], reader: CaptionReader, search: Search, kind: Format
) -> str:
    """CSV has a row for each caption: file, rank (1 is the best), caption, log_probability."""
    pairs = list(zip(images.names, found, strict=True))
    if kind == "csv":
        rows = ((name, rank, one.text, _short(one.log_prob, 4)) for name, of in pairs for rank, one in enumerate(of, 1))
        return _csv(["file", "rank", "caption", "log_probability"], rows)
    if kind == "json":
        entries = [
            {
                "file": name,
                "captions": [{"caption": one.text, "log_probability": _short(one.log_prob, 4)} for one in of],
            }
            for name, of in pairs
        ]
        about = {"codes": search.n_codes, "beam": search.beam, "max_words": search.max_words}
        vocabulary = len(reader.vocabulary)
        return _json({**about, "vocabulary": vocabulary, "images": entries, "skipped": _skipped(images.skipped)})
    lines = [("file", "log p", "caption")]
    for name, of in pairs[:_ROWS_SHOWN]:
        lines += [("" if rank else name, f"{one.log_prob:.2f}", one.text or "(no word)") for rank, one in enumerate(of)]
    return _table(lines, (1,), len(images), _ROWS_SHOWN)


# ---- evaluate ----


def matches(names: Sequence[str], found: Sequence[Match], kind: Format) -> str:
    """Images found by words, the best first."""
    rows = [(rank, names[one.place], _short(one.log_prob)) for rank, one in enumerate(found, start=1)]
    if kind == "csv":
        return _csv(("rank", "file", "log_prob"), rows)
    if kind == "json":
        return _json([{"rank": rank, "file": file, "log_prob": log_prob} for rank, file, log_prob in rows])
    table = [("rank", "file", "log p(words)"), *((str(rank), file, f"{p:.2f}") for rank, file, p in rows)]
    return _lines(columns(table, right=(0, 2)))


def evaluation(found: Evaluation, kind: Literal["text", "csv", "json"]) -> str:
    """CSV has a row for each number: metric, label (or tag) that it is of, predicted, value."""
    if kind == "json":
        return _json(found.to_dict())
    if isinstance(found, LabelEvaluation):
        return _csv(_METRIC, _label_rows(found)) if kind == "csv" else _label_text(found)
    if isinstance(found, TagEvaluation):
        return _csv(_METRIC, _tag_rows(found)) if kind == "csv" else _tag_text(found)
    values = {name: _short(value, 4) for name, value in found.values().items()}
    if kind == "csv":
        return _csv(["metric", "value"], [("n", found.n), *values.items()])
    rows = [(name, f"{value:.4g}", _MEANINGS.get(name, "")) for name, value in values.items()]
    return _lines([*columns(rows, right=(1,)), f"on {found.n:,} images"])


_METRIC = ("metric", "label", "predicted", "value")
_MEANINGS = {
    "BLEU-1": "words that are also in a caption of the image; BLEU-2 to 4: runs of words",
    "METEOR": "words matched also by stem and meaning",
    "ROUGE-L": "longest common sequence of words",
    "CIDEr": "runs of words, rare ones weighing more; 0 to 10, people reach about 1",
    "perplexity": "of the images' own captions: among so many words the model hesitates; 1 is best",
    "distinct": "different captions, per image",
    "seen in training": "captions that were learned from, word for word",
    "named rightly": "captions that name every shape, colour and relation, and nothing else",
    "mAP": "mean over tags of the average precision; 1 is best",
    "F1": "mean over tags of the harmonic mean of precision and recall at a probability of one half",
    "accuracy": "entries that are right, of those that are known",
}


def notes_of(found: Evaluation) -> Sequence[str]:
    """What people should know of the numbers."""
    return found.scores.notes if isinstance(found, CaptionEvaluation) else ()


def _label_rows(found: LabelEvaluation) -> Iterable[Sequence[Any]]:
    yield from ((name, "", "", value) for name, value in {"n": found.n, **found.values()}.items())
    for entry in found.to_dict()["classes"]:
        if entry["n"]:
            yield ("error", entry["label"], "", entry["error"])
    for true, row in zip(found.class_names, found.confusion.tolist(), strict=True):
        yield from (
            ("confusion", true, predicted, count) for predicted, count in zip(found.class_names, row, strict=True)
        )


def _label_text(found: LabelEvaluation) -> str:
    wrong = round(found.error * found.n)
    calibrated = "" if found.calibrated else "; the probabilities are not calibrated"
    lines = columns(
        [
            ("error", f"{found.error:.2%}", f"{wrong:,} of {found.n:,} images"),
            (f"top-{found.k} error", f"{found.top_k_error:.2%}", f"the label is not among the {found.k} most probable"),
            ("calibration error", f"{found.calibration_error:.2%}", f"how far probabilities are off{calibrated}"),
            ("Brier score", f"{found.brier:.4f}", "0 is best, 2 is worst"),
            ("-log p(label)", f"{found.nll:.4f}", "nats; 0 is best"),
        ],
        right=(1,),
    )
    rows = [("class", "images", "error", "most often taken for")]
    for c, (name, error) in enumerate(zip(found.class_names, error_per_class(found.confusion).tolist(), strict=True)):
        n, others = int(found.confusion[c].sum()), found.confusion[c].clone()
        others[c] = 0
        taken = f"{found.class_names[int(others.argmax())]} ({int(others.max())})" if int(others.max()) else ""
        rows.append((name, f"{n:,}", f"{error:.1%}" if n else "", taken))
    return _lines([*lines, "", *columns(rows, right=(1, 2)), "", *_matrix(found)])


def _matrix(found: LabelEvaluation) -> list[str]:
    if len(found.class_names) > _MATRIX_SHOWN:
        return ["The confusion matrix is in --format csv and json."]
    names = [name[:12] for name in found.class_names]
    rows = [("true \\ called", *names)]
    for name, counts in zip(names, found.confusion.tolist(), strict=True):
        rows.append((name, *(str(count) if count else "." for count in counts)))
    return columns(rows, right=range(1, len(names) + 1))


def _tag_rows(found: TagEvaluation) -> Iterable[Sequence[Any]]:
    yield from ((name, "", "", value) for name, value in {"n": found.n, **found.values()}.items())
    for one in found.scores.tags:
        for name, value in (("average_precision", one.average_precision), ("F1", one.f1)):
            if not math.isnan(value):
                yield (name, one.name, "", value)
        yield ("known", one.name, "", one.known)


def _tag_text(found: TagEvaluation) -> str:
    rows = [(name, f"{value:.4f}", _MEANINGS[name]) for name, value in found.values().items()]
    each = [("tag", "known", "has it", "average precision", "F1")]
    for one in found.scores.tags:
        precision, f1 = ("" if math.isnan(value) else f"{value:.3f}" for value in (one.average_precision, one.f1))
        each.append((one.name, f"{one.known:,}", f"{one.positive:,}", precision, f1))
    calibrated = "" if found.calibrated else "; the probabilities are not calibrated"
    last = f"on {found.n:,} images{calibrated}"
    return _lines([*columns(rows, right=(1,)), last, "", *columns(each, right=range(1, 5))])


# ---- suggest ----


def suggestions(
    found: Sequence[Suggestion], kind: Literal["table", "csv", "json", "label-studio"], images_at: str = LOCAL_FILES
) -> str:
    if kind == "csv":
        rows = ({"what": one.what, **_fields(one)} for one in found)
        return _csv(["what", "file", "score", "label", "guess", "probability"], (list(row.values()) for row in rows))
    if kind == "json":
        return _json({what: [_fields(one) for one in found if one.what == what] for what in ("label", "check")})
    if kind == "label-studio":
        return _json([_task(one, images_at) for one in found])
    next_, check = ([one for one in found if one.what == what] for what in ("label", "check"))
    lines = ["label these next"] if next_ else ["there is no image without a label"]
    if next_:
        rows_next = [("file", "doubt", "guess", "probability")]
        rows_next += [(one.file, f"{one.score:.2f}", ", ".join(one.guess), _percent(one.probability)) for one in next_]
        lines += columns(rows_next, right=(1, 3))
    if check:
        lines += ["", "look at these labels again"]
        marked = [("file", "against", "label", "rather", "probability")]
        marked += [
            (one.file, f"{one.score:.2f}", one.label or "", ", ".join(one.guess), _percent(one.probability))
            for one in check
        ]
        lines += columns(marked, right=(1, 4))
    return _lines(lines)


def labelling_config(names: Sequence[str], several: bool = False) -> str:
    """What to paste into Label Studio's labelling setup for these tasks; `several` labels of an image or one."""
    choices = "".join(f'<Choice value="{_escaped(name)}"/>' for name in names)
    many = ' choice="multiple"' if several else ""
    return (
        f'<View><Image name="image" value="$image"/><Choices name="label" toName="image"{many}>{choices}'
        "</Choices></View>"
    )


def _fields(one: Suggestion) -> dict[str, Any]:
    return {
        "file": one.file,
        "score": _short(one.score, 4),
        "label": one.label,
        "guess": ";".join(one.guess) or None,
        "probability": None if one.probability is None else _short(one.probability, 4),
    }


def _task(one: Suggestion, images_at: str) -> dict[str, Any]:
    """One task as Label Studio imports it; the guess comes as a prediction, which people confirm or change."""
    meta = {"file": one.file, "what": one.what, "score": _short(one.score, 4)}
    task: dict[str, Any] = {
        "data": {"image": f"{images_at}{quote(one.file)}", "file": one.file},
        "meta": meta if one.label is None else {**meta, "label": one.label},
    }
    if one.guess:
        value = {"choices": list(one.guess)}
        choice = {"from_name": "label", "to_name": "image", "type": "choices", "value": value}
        score = None if one.probability is None else _short(one.probability, 4)
        task["predictions"] = [{"model_version": "semisight", "score": score, "result": [choice]}]
    return task


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")


# ---- embed ----


def codes_csv(names: Sequence[str], codes: Codes) -> str:
    """file, code_0, code_1, ..., spread_0, ..."""
    n = codes.mean.shape[1]
    header = ["file", *(f"{word}_{j}" for word in ("code", "spread") for j in range(n))]
    rows = zip(names, codes.mean.tolist(), codes.spread.tolist(), strict=True)
    return _csv(header, ([name, *(f"{value:.6g}" for value in (*mean, *spread))] for name, mean, spread in rows))


# ---- inspect ----


def inspection(found: Inspection, kind: Literal["table", "json"]) -> str:
    return _json(_inspected(found)) if kind == "json" else _lines(_inspection_lines(found))


def _inspection_lines(found: Inspection) -> list[str]:
    channels, height, width = found.shape
    colour = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    rows = [
        ("images", f"{found.n_images:,} from {found.source}"),
        ("sizes", _list(found.sizes)),
        ("modes", _list(found.modes)),
        ("formats", _list(found.formats)),
        ("read as", f"{width} x {height} pixels, {colour}" if channels < 5 else _features(found.shape)),
        ("labels", _label_count(found)),
        ("tags", _tag_count(found)),
        ("captions", f"{found.captions.captions:,} for {found.captions.images:,} images" if found.captions else "none"),
        ("unreadable", skipped_summary(found.skipped) or "none"),
        ("duplicates", _duplicates(found.duplicates)),
        ("near-duplicates", _duplicates(found.near_duplicates, "nearly ", " ~ ")),
        ("layers", describe_architecture(found.architecture) if found.architecture else "none fit"),
        ("from pixels" if channels < 5 else "on features", _time(found.expected)),
        *_planned(found.plan),
    ]
    lines = columns([row for row in rows if row[1]])
    lines += [printable(f"note: {note}") for note in found.notes]
    if found.n_decoded < found.n_images:
        lines.append(
            f"note: of {found.n_images:,} images {found.n_decoded:,} were decoded; of the others only the headers were "
            "read, so that damage further on, and images of one colour, may be missed"
        )
    if found.classes:
        ordered = sorted(found.classes, key=lambda one: -one[1])
        lines += _counts(("class", "labels"), [(name, f"{n:,}") for name, n in ordered])
    if found.tags:
        ordered_tags = sorted(found.tags, key=lambda one: -one.has)
        lines += _counts(
            ("tag", "has it", "has it not"), [(t.name, f"{t.has:,}", f"{t.has_not:,}") for t in ordered_tags]
        )
    if not found.mistakes:
        return [*lines, "", "no likely mistakes found"]
    lines += ["", "likely mistakes"]
    for mistake in found.mistakes:
        named = f" ({_few(mistake.files)})" if mistake.files and mistake.kind != "two labels" else ""
        lines.append(printable(f"  - {mistake.message}{named}"))
    return lines


def _planned(plan: Planned | None) -> list[tuple[str, str]]:
    """What train will do, how long it takes, and what would be better."""
    if plan is None:
        return []
    about = f"about {plan.minutes:.0f} minutes" if plan.minutes >= 1.5 else f"about {60 * plan.minutes:.0f} seconds"
    named = ", ".join(network.name for network in plan.networks)
    what = {
        "auto": f"tries features of {named or 'no network'} and pixels and takes what cross-validation says: "
        f"{about} if features are taken, else up to all of --minutes",
        "features": f"learns on features of {named or 'your own'}: {about}",
    }.get(plan.encoder, f"learns from pixels: {about}")
    return [("train", what), *(("better", line) for line in plan.advice)]


def _features(shape: tuple[int, int, int]) -> str:
    return f"features of {' x '.join(map(str, shape))} numbers"


def _counts(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    more = [f"... and {len(rows) - _CLASSES:,} more: --format json gives all of them"] if len(rows) > _CLASSES else []
    return ["", *columns([header, *rows[:_CLASSES]], right=range(1, len(header))), *more]


def _inspected(found: Inspection) -> dict[str, Any]:
    architecture, expected = found.architecture, found.expected
    return {
        "source": found.source,
        "images": found.n_images,
        "decoded": found.n_decoded,
        "sizes": dict(found.sizes),
        "modes": dict(found.modes),
        "formats": dict(found.formats),
        "shape": list(found.shape),
        "labelled": found.n_labelled,
        "classes": None if found.classes is None else dict(found.classes),
        "tagged": found.n_tagged,
        "tags": None if found.tags is None else {t.name: {"has": t.has, "has_not": t.has_not} for t in found.tags},
        "captions": None if found.captions is None else dataclasses.asdict(found.captions),
        "unreadable": _skipped(found.skipped),
        "duplicates": [list(group) for group in found.duplicates],
        "near_duplicates": [list(group) for group in found.near_duplicates],
        "mistakes": [
            {"kind": m.kind, "message": m.message, "files": list(m.files[:_FILES]), "n_files": len(m.files)}
            for m in found.mistakes
        ],
        "notes": list(found.notes),
        "plan": None if found.plan is None else dataclasses.asdict(found.plan),
        "architecture": None
        if architecture is None
        else {**architecture.to_dict(), "code_size": architecture.code_size},
        "expected": None
        if expected is None
        else {
            "steps": expected.steps,
            "epochs": expected.epochs,
            "seconds_per_step": _short(expected.seconds_per_step, 5),
            "minutes": _short(expected.minutes, 2),
        },
    }


def _label_count(found: Inspection) -> str:
    if found.classes is None:
        return "none"
    share = found.n_labelled / found.n_images
    return f"{found.n_labelled:,} images ({share:.1%}) of {len(found.classes)} classes"


def _tag_count(found: Inspection) -> str:
    if found.tags is None:
        return ""
    entries = sum(tag.has + tag.has_not for tag in found.tags)
    share = entries / max(1, found.n_images * len(found.tags))
    return f"{len(found.tags)} of them, known of {found.n_tagged:,} images; {entries:,} entries ({share:.1%})"


def _duplicates(groups: Sequence[Sequence[str]], how: str = "", sign: str = " = ") -> str:
    if not groups:
        return "none"
    extra = sum(len(group) - 1 for group in groups)
    few = "; ".join(sign.join(group[:3]) + (f"{sign}..." if len(group) > 3 else "") for group in groups[:3])
    return f"{extra:,} image{f's {how}repeat' if extra != 1 else f' {how}repeats'} others, such as {few}"


def _time(expected: Expected | None) -> str:
    if expected is None:
        return ""
    minutes = expected.minutes
    long = f"{minutes:.0f} minutes" if minutes >= 1.5 else f"{60 * minutes:.0f} seconds"
    if minutes > 120:
        long = f"{minutes / 60:.1f} hours"
    steps = f"{expected.epochs:,} epochs, {expected.steps:,} steps"
    return f"at most about {long} if the machine is free: {steps}; --minutes ends it sooner"


def _list(counts: Sequence[tuple[str, int]]) -> str:
    if len(counts) == 1:
        return counts[0][0]
    shown = [f"{name} ({n:,})" for name, n in counts[:_LISTED]]
    return ", ".join(shown) + (f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
