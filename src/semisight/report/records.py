"""The last sections of the page: curves of every term, settings, data, skipped files."""

import json

from markupsafe import Markup

from semisight.data.image_set import skipped_summary
from semisight.report import charts, page
from semisight.report.material import Material
from semisight.report.page import Section
from semisight.runs.run import DataRecord
from semisight.runs.train import describe_architecture

_TERMS = (
    ("bound", "Bound", "what training raises: reconstruction minus both costs"),
    ("reconstruction", "Reconstruction", "log-probability of the image given code and places; higher is better"),
    ("kl_s", "KL of s", "nats spent on what is there"),
    ("kl_z", "KL of z", "nats spent on where it is"),
    ("side", "Side term", "labels and captions"),
    ("error", "Error on held-out labels", "percent"),
    ("nll", "Doubt on held-out labels", "mean of -log p(label) in nats; the weights with the least are kept"),
    ("labels", "Labels", "log-probability of the known labels; higher is better"),
    ("labels_pseudo", "Pseudo-labels", "log-probability of what the averaged model believes of unlabelled images"),
    ("labels_sure", "Sure pseudo-labels", "share of the unlabelled images"),
    ("labels_spread", "Spread labels", "log-probability of what the graph of codes says about unlabelled images"),
    ("contrastive", "Contrastive term", "nats that the codes of two augmented views share"),
    ("tags", "Tags", "log-probability of a known tag; higher is better"),
    ("mAP", "Mean average precision", "of held-out tags"),
    ("perplexity", "Perplexity", "of held-out captions; the weights with the least are kept"),
    ("captions", "Captions", "log-probability of a word of the captions; higher is better"),
    ("alpha0", "alpha0", "precision: 1 / variance of what is left to chance"),
    ("rate", "Learning rate", ""),
)


def curves(m: Material) -> Section:
    known = [name for name, _, _ in _TERMS]
    fixed = ("step", "epoch", "split", "seconds", "bad_steps", *known)
    others = sorted({name for row in m.log for name in row if name not in fixed})
    figures: list[tuple[str, str, Markup]] = []
    for name, title, meaning in (*_TERMS, *((name, name, "") for name in others)):
        lines = [
            charts.Line(
                word,
                css,
                [(float(row["step"]), float(row[name])) for row in m.log if row["split"] == split and name in row],
            )
            for split, word, css in (("train", "training", "first"), ("valid", "validation", "second"))
        ]
        values = [y for line in lines for _, y in line.points]
        if not values or (name == "side" and not any(values)):
            continue
        last = ", ".join(f"{line.name} {charts.number(line.points[-1][1])}" for line in lines if line.points)
        small = f"{meaning}; last: {last}" if meaning else f"last: {last}"
        figures.append((title, small, charts.chart(title, lines, "step", f"clip-{len(figures)}")))
    caption = (
        "Means per image against the number of steps. The first steps may lie outside the frame, so that the rest can "
        "be read. Where validation falls while training still rises, the model has begun to learn its images by heart."
    )
    if not figures:
        return Section("curves", "Curves of every term", "Nothing was logged yet: the run is too short.", Markup())
    key = page.key([("first", "training"), ("second", "validation")])
    return Section("curves", "Curves of every term", "", key + page.figure(page.charts(*figures), caption))


def settings(m: Material) -> Section:
    run, data, meta = m.run, m.record, m.run.meta
    counters = meta["counters"]
    channels, height, width = data.shape
    rows = [
        ("images", f"{data.settings.source}: {data.n_train:,} to learn from, {data.n_valid:,} for validation"),
        ("size", f"{width} x {height} pixels, {'grey' if channels == 1 else 'colour'}"),
        ("architecture", describe_architecture(run.architecture)),
        ("model", ", ".join(f"{name} {run.about['model'][name]}" for name in ("pooling", "gradient", "alpha0"))
         + f", nonlinearity {run.architecture.nonlinearity}"),
        *_targets(m),
        ("parameters", f"{sum(p.numel() for p in run.model.parameters()):,}"),
        ("checkpoint", f"{run.checkpoint.name}, step {counters['step']:,}, after {_duration(counters['seconds'])}"),
        *([] if m.seen is None else [("noise", f"{m.seen.numbers.noise:.3f}, the spread of what the model leaves to "
                                      "chance (black 0, white 1)")]),
        ("steps left out", f"{counters['bad_steps']} were not finite"),
    ]  # fmt: skip
    rows += [("note", note) for note in data.notes]
    everything = [(name, json.dumps(value)) for name, value in meta["config"].items()]
    versions = [(name, str(value)) for name, value in meta["versions"].items()]
    body = page.table(rows) + _skipped(data)
    body += page.fold("All settings of the training", page.table(everything))
    body += page.fold("Versions", page.table(versions))
    return Section("settings", "Settings and data", "", body)


def _targets(m: Material) -> list[tuple[str, str]]:
    rows = []
    for name, reader in m.run.readers.items():
        origin = getattr(m.record.settings, name) or "carried by the set"
        rows.append((name, f"{origin}: {reader.n_learned:,} images to learn from, {reader.n_held_out:,} held out"))
        rows.append((f"head of {name}", ", ".join(f"{key} {value}" for key, value in reader.settings.items())))
    return rows


def _skipped(data: DataRecord) -> Markup:
    if not data.n_skipped:
        return page.headed("Skipped files", page.paragraphs(["None: every file was read."]))
    some_rows = [(entry.name, entry.reason) for entry in data.skipped[:200]]
    more = f" The first {len(some_rows)} are listed." if data.n_skipped > len(some_rows) else ""
    summary = f"{data.n_skipped:,} files could not be read and were left out."
    if data.n_skipped == len(data.skipped):
        summary = skipped_summary(data.skipped) + "."
    listing = page.fold("Which, and why", page.table(some_rows))
    return page.headed("Skipped files", page.paragraphs([summary + more]) + listing)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
