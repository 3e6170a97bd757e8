"""`semisight suggest` without its command line: which images to label next, and which given labels to look at again.

Written as a table, CSV, JSON, or tasks for Label Studio, which shows the guess beside the image.
"""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import torch
from torch import Tensor

from semisight.data.columns import LABELS
from semisight.data.image_set import ImageSet
from semisight.inference.acquisition import Seen, choose_next, doubt_in_labels, see
from semisight.model.image_model import ImageModel
from semisight.runs.evaluating import renumbered
from semisight.runs.images import Progress, with_labels
from semisight.runs.outputs import load_for
from semisight.runs.predicting import columns
from semisight.runs.run import Run
from semisight.runs.settings import DataSettings
from semisight.runs.train import reload_sets

Format = Literal["table", "csv", "json", "label-studio"]
What = Literal["label", "check"]

LOCAL_FILES = "/data/local-files/?d="  # how Label Studio names files that lie on its own disk
CHECK_FROM = 0.5  # more than half of what neighbours and model say is against a label
_DIGITS = 4


@dataclass(frozen=True)
class Suggestion:
    """An image to label, or a label to check.

    score  label: doubt of the model, 0 to 1; check: how much speaks against the label, 0 to 1
    guess  the label that the model would give (check: rather give), and its probability; None without labels
    """

    what: What
    file: str
    score: float
    label: str | None
    guess: str | None
    probability: float | None


def images_to_choose_from(
    run: Run, source: str | None = None, labels: str | None = None, progress: Progress | None = None
) -> ImageSet:
    """Images as the model takes them, with the labels that are known; by default those that the run has."""
    if source is None:
        return _own_images(run, labels, progress)
    images = load_for(run, source, progress=progress)
    if run.classifier is None:
        return images.without_column(LABELS)
    names = run.classifier.class_names
    if labels is not None:
        return with_labels(images, DataSettings(source, labels=labels), names)
    return images if images.labels is None else renumbered(images, names)


def _own_images(run: Run, labels: str | None, progress: Progress | None) -> ImageSet:
    """Those that the run learned from and those that were set aside."""
    sets = reload_sets(run, labels=labels, progress=progress)
    train, valid = sets.train, sets.valid
    if run.classifier is not None:  # a table that has grown may number its classes otherwise
        train = renumbered(train, run.classifier.class_names)
        valid = None if valid is None else renumbered(valid, run.classifier.class_names)
    if valid is None:
        return train
    both = None if train.labels is None or valid.labels is None else torch.cat([train.labels, valid.labels])
    images, names = torch.cat([train.images, valid.images]), (*train.names, *valid.names)
    return ImageSet.of(images, names, both, train.class_names, source=train.source, notes=train.notes)


def suggest(run: Run, images: ImageSet, n: int) -> list[Suggestion]:
    """At most n images to label, the most useful first, and then at most n labels to check, the worst first."""
    seen = _see(run, images)
    labels = torch.full((len(images),), -1) if images.labels is None else images.labels
    names = () if run.classifier is None else run.classifier.class_names
    chosen = choose_next(seen.codes, seen.doubt, labels < 0, n)
    found = [
        Suggestion("label", images.names[i], float(seen.doubt[i]), None, *_guess(seen.probabilities[i], names))
        for i in chosen
    ]
    if images.labels is None or not names:
        return found
    against, instead = doubt_in_labels(seen, labels)
    worst = [i for i in against.argsort(descending=True).tolist() if float(against[i]) > CHECK_FROM][:n]
    for i in worst:
        given, other = names[int(labels[i])], names[int(instead[i])]
        probability = float(seen.probabilities[i, instead[i]])
        found.append(Suggestion("check", images.names[i], float(against[i]), given, other, probability))
    return found


def _see(run: Run, images: ImageSet) -> Seen:
    if run.classifier is not None:
        calibration = run.classifier.calibration
        return see(run.model, run.classifier.head, images, calibration.probabilities)
    codes = mean_codes(run.model, images)
    return Seen(codes, torch.full((len(images), 2), 0.5))  # nothing is known: everything is in equal doubt


@torch.no_grad()
def mean_codes(model: ImageModel, images: ImageSet, batch_size: int = 500, seed: int = 0) -> Tensor:
    """The means of q(s | X), [N, J]."""
    device = model.decoder.log_alpha0.device
    parts = []
    for number, index in enumerate(torch.arange(len(images)).split(batch_size)):
        generator = torch.Generator().manual_seed(seed + number)
        parts.append(model.mean_code(images.batch(index).to(device), generator).cpu())
    return torch.cat(parts)


def _guess(probabilities: Tensor, names: Sequence[str]) -> tuple[str | None, float | None]:
    if not names:
        return None, None
    best = int(probabilities.argmax())
    return names[best], float(probabilities[best])


def written(found: Sequence[Suggestion], kind: Format, images_at: str = LOCAL_FILES) -> str:
    """Text that ends in a line break."""
    if kind == "csv":
        return _as_csv(found)
    if kind == "json":
        parts = {what: [_fields(one) for one in found if one.what == what] for what in ("label", "check")}
        return json.dumps(parts, indent=1, ensure_ascii=False) + "\n"
    if kind == "label-studio":
        return json.dumps([_task(one, images_at) for one in found], indent=1, ensure_ascii=False) + "\n"
    return _as_table(found)


def labelling_config(names: Sequence[str]) -> str:
    """What to paste into Label Studio's labelling setup for these tasks."""
    choices = "".join(f'<Choice value="{_escaped(name)}"/>' for name in names)
    return f'<View><Image name="image" value="$image"/><Choices name="label" toName="image">{choices}</Choices></View>'


def _fields(one: Suggestion) -> dict[str, Any]:
    return {
        "file": one.file,
        "score": round(one.score, _DIGITS),
        "label": one.label,
        "guess": one.guess,
        "probability": None if one.probability is None else round(one.probability, _DIGITS),
    }


def _as_csv(found: Sequence[Suggestion]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, ["what", "file", "score", "label", "guess", "probability"], lineterminator="\n")
    writer.writeheader()
    for one in found:
        writer.writerow({"what": one.what, **_fields(one)})
    return text.getvalue()


def _task(one: Suggestion, images_at: str) -> dict[str, Any]:
    """One task as Label Studio imports it; the guess comes as a prediction, which people confirm or change."""
    meta = {"file": one.file, "what": one.what, "score": round(one.score, _DIGITS)}
    task: dict[str, Any] = {
        "data": {"image": f"{images_at}{quote(one.file)}", "file": one.file},
        "meta": meta if one.label is None else {**meta, "label": one.label},
    }
    if one.guess is not None:
        choice = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [one.guess]}}
        score = None if one.probability is None else round(one.probability, _DIGITS)
        task["predictions"] = [{"model_version": "semisight", "score": score, "result": [choice]}]
    return task


def _as_table(found: Sequence[Suggestion]) -> str:
    next_, check = ([one for one in found if one.what == what] for what in ("label", "check"))
    lines = ["label these next"] if next_ else ["there is no image without a label"]
    if next_:
        rows = [("file", "doubt", "guess", "probability")]
        rows += [(one.file, f"{one.score:.2f}", one.guess or "", _percent(one.probability)) for one in next_]
        lines += columns(rows, right=(1, 3))
    if check:
        lines += ["", "look at these labels again"]
        marked = [("file", "against", "label", "rather", "probability")]
        marked += [
            (one.file, f"{one.score:.2f}", one.label or "", one.guess or "", _percent(one.probability)) for one in check
        ]
        lines += columns(marked, right=(1, 4))
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
