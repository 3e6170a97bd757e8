"""RUN/model_card.md, written with every run: what it learned from, how, how good it is, what not to expect of it."""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semisight.data.columns import LABELS, LabelColumn
from semisight.data.image_set import skipped_summary
from semisight.files import write_atomic
from semisight.runs.evaluate import LabelEvaluation, evaluate_labels
from semisight.runs.images import Sets
from semisight.runs.references import read_ways, verdict
from semisight.runs.run import DataRecord, Run
from semisight.training.logs import read_log

FEW = 10  # labels of a class, from which on its error is worth mentioning
_CLASSES = 50  # listed at most


def write_model_card(run: Run, sets: Sets) -> Path:
    """Measures what can be measured and writes the card; gives its path."""
    out = run.folder.file("model_card.md")
    write_atomic(out, card(run, sets))
    return out


def card(run: Run, sets: Sets) -> str:
    record, images = run.data(), sets.measured(LABELS)
    measured = evaluate_labels(run, images) if run.has(LABELS) and images is not None else None
    parts = [
        f"# {run.folder.path.absolute().name}: model card",
        _what(run),
        "## Data\n\n" + _table(_data(run, record, sets)) + _classes(run, sets, measured),
        "## Settings\n\n" + _table(_settings(run)),
        "## Metrics\n\n" + _metrics(run, measured) + _compared(run, measured),
        "## Limits\n\n" + "\n".join(f"- {line}" for line in _limits(run, record, sets, measured)),
        "## Use\n\n" + "\n".join(f"    {line}" for line in _use(run)),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _what(run: Run) -> str:
    learned = ["images", *(f"{name} of {reader.n_learned:,} images" for name, reader in run.readers.items())]
    what = learned[0] if len(learned) == 1 else f"{', '.join(learned[:-1])} and {learned[-1]}"
    return (
        f"A variational autoencoder of {what} (Pu et al., NIPS 2016), trained with semisight "
        f"{run.meta['versions']['semisight']}. One code per image; everything else is said from the code."
    )


def _data(run: Run, record: DataRecord, sets: Sets) -> list[tuple[str, str]]:
    channels, height, width = record.shape
    rows = [
        ("source", record.settings.source),
        ("images learned from", f"{record.n_train:,}"),
        ("images set aside", f"{record.n_valid:,}"),
        ("size", f"{width} x {height} pixels, {'grey' if channels == 1 else 'colour'}"),
    ]
    for name in run.readers:
        origin = getattr(record.settings, name, None) or "carried by the set"
        rows.append((f"images with {name} to learn from", f"{sets.n_present(name):,} ({origin})"))
        rows.append((f"images with held-out {name}", f"{sets.n_held_out(name):,}"))
    if record.n_skipped:
        rows.append(("left out", skipped_summary(record.skipped)))
    return rows + [("note", note) for note in record.notes]


def _counts(sets: Sets) -> list[int]:
    column = sets.train.columns.get(LABELS)
    return column.counts.tolist() if isinstance(column, LabelColumn) else []


def _classes(run: Run, sets: Sets, measured: LabelEvaluation | None) -> str:
    if not run.has(LABELS):
        return ""
    names, counts = run.labels.class_names, _counts(sets)
    errors = _errors(measured, len(names))
    rows = [
        f"| {_cell(name)} | {count:,} | {error} |"
        for name, count, error in list(zip(names, counts, errors, strict=True))[:_CLASSES]
    ]
    more = f"\n... and {len(names) - _CLASSES:,} more classes.\n" if len(names) > _CLASSES else ""
    return "\n| class | labels | error |\n|---|---|---|\n" + "\n".join(rows) + "\n" + more


def _errors(measured: LabelEvaluation | None, n: int) -> list[str]:
    if measured is None:
        return ["not measured"] * n
    per_class = measured.to_dict()["classes"]
    return ["-" if one["error"] is None else f"{one['error']:.1%} of {one['n']:,}" for one in per_class]


def _settings(run: Run) -> list[tuple[str, str]]:
    from semisight.runs.train import describe_architecture

    config, counters, model = run.config, run.meta["counters"], run.about["model"]
    rows = [
        ("layers", describe_architecture(run.architecture)),
        ("pooling, gradient", f"{model['pooling']}, {model['gradient']}"),
        ("steps", f"{run.step:,} of batches of {config.batch_size}, in {counters['seconds'] / 60:.1f} minutes"),
        ("Adam", f"rate {config.learning_rate:g}, {config.schedule}; weights averaged: {config.average_decay or 'no'}"),
        ("seed", str(config.seed)),
    ]
    for name, reader in run.readers.items():
        rows.append((name, ", ".join(f"{key} {value}" for key, value in reader.settings.items())))
    versions = run.meta["versions"]
    return [*rows, ("made with", ", ".join(f"{name} {value}" for name, value in versions.items()))]


def _metrics(run: Run, measured: LabelEvaluation | None) -> str:
    rows: list[tuple[str, str]] = []
    if measured is not None:
        rows += [
            ("error", f"{measured.error:.2%} of {measured.n:,} labels that were not learned from"),
            (f"top-{measured.k} error", f"{measured.top_k_error:.2%}"),
            ("calibration error", f"{measured.calibration_error:.2%}"),
            ("Brier score", f"{measured.brier:.3f}"),
        ]
    for name, value in _last_validation(run).items():
        if name not in ("error", "nll"):
            rows.append((f"{name} on images set aside", f"{value:.4g}"))
    if not rows:
        return "Nothing was set aside to measure on."
    return _table(rows)


def _compared(run: Run, measured: LabelEvaluation | None) -> str:
    """What it is held against: every way that was tried, by cross-validation on the given labels."""
    ways = read_ways(run)
    if not ways:
        return ""
    lines = ["| way to learn, by cross-validation | error | 95 % interval | nats per label |", "|---|---|---|---|"]
    for way in ways:
        low, high = way.interval
        name = f"**{_cell(way.name)}** (this run)" if way.chosen else _cell(way.name)
        lines.append(f"| {name} | {way.error:.1%} of {way.n:,} | {low:.0%} to {high:.0%} | {way.nll:.2f} |")
    found = verdict(ways, None if measured is None else measured.error)
    return "\n" + "\n".join(lines) + "\n" + "".join(f"\n{line}\n" for line in found)


def _last_validation(run: Run) -> dict[str, float]:
    log = read_log(run.folder.log) if run.folder.log.exists() else []
    rows: list[Any] = [row for row in log if row["split"] == "valid" and float(row["step"]) <= run.step]
    if not rows:
        return {}
    kept = ("step", "epoch", "split", "seconds")
    return {name: float(value) for name, value in rows[-1].items() if name not in kept}


def _limits(run: Run, record: DataRecord, sets: Sets, measured: LabelEvaluation | None) -> list[str]:
    _, height, width = record.shape
    lines = [
        f"It saw every image at {width} x {height} pixels: what is smaller than that is lost.",
        "Images unlike those it learned from still get an answer. Python's score_samples is a novelty score.",
        "Nothing was done to find out whether it treats groups of people or of things unequally: look at the table of "
        "classes, and measure on images of your own use (semisight evaluate).",
        *(reader.believable() for reader in run.readers.values()),
    ]
    if run.has(LABELS):
        few = [f"{name} ({n})" for name, n in zip(run.labels.class_names, _counts(sets), strict=True) if n < FEW]
        if few:
            lines.append(f"Learned from fewer than {FEW} labels: {_some(few)}.")
        if measured is None and not any(way.chosen for way in read_ways(run)):
            lines.append("Every label was learned from, so that its error is not known.")
        elif measured is None:
            lines.append("Every label was learned from: its error is known by cross-validation alone.")
        elif LABELS not in sets.truth:
            lines.append("The labels that it was measured on also chose its weights and its calibration.")
    return lines


def _use(run: Run) -> list[str]:
    name = run.folder.path.name
    commands = {"labels": f"semisight predict {name} IMAGES --format csv", "tags": f"semisight predict {name} IMAGES",
                "captions": f"semisight caption {name} IMAGES"}  # fmt: skip
    lines = [f"semisight report {name}", *(commands[of] for of in run.readers if of in commands)]
    return [*lines, f'python -c "from semisight import SemiSight; model = SemiSight.load({name!r})"']


def _table(rows: Sequence[tuple[str, str]]) -> str:
    lines = ["| | |", "|---|---|", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """No cell ends early, and no name of a class or a file is taken for HTML."""
    return html.escape(text, quote=False).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")
