"""`semisight suggest` without its command line: which images to label next, and which given labels to look at again.

A run with labels goes by their doubt over codes. One with tags alone by the mean doubt of its tags; one with neither
chooses images that are unlike each other.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from semisight.data.columns import LABELS, TAGS
from semisight.data.image_set import ImageSet
from semisight.inference.acquisition import LabelCheck, check_by_planting, choose_next, doubt_in_labels, see
from semisight.inference.encode import encode_set, mean_codes
from semisight.inference.tags import TagAnswer
from semisight.runs.images import BUILTIN, Progress, with_labels, with_tags
from semisight.runs.run import Run
from semisight.runs.run_images import load_for, reload_sets, renumbered
from semisight.runs.settings import DataSettings

What = Literal["label", "check"]

CHECK_FROM = 0.5  # more than half of what neighbours and model say is against a label
LEAST_PRECISION = 0.3  # of the list of labels to check; a list that is mostly wrong is not shown
WEAK = 0.5  # share of labels about which the nearest other labels are wrong
Say = Callable[[str], None]


@dataclass(frozen=True)
class Suggestion:
    """An image to label, or a label to check.

    score  label: doubt of the model, 0 to 1; check: how much speaks against the label, 0 to 1
    guess  the labels that the model would give (check: rather give); none without labels and tags
    probability  of the guess; of several tags none
    """

    what: What
    file: str
    score: float
    label: str | None
    guess: tuple[str, ...]
    probability: float | None


def images_to_choose_from(
    run: Run,
    source: str | None = None,
    labels: str | None = None,
    tags: str | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Images as the model takes them, with what is known of them; by default those that the run has."""
    if source is None:
        sets = reload_sets(run, labels=labels, tags=tags, progress=progress)
        parts = [_known(run, images) for images in (sets.train, sets.valid) if images is not None]
        return _joined(parts) if len(parts) > 1 else parts[0]
    images = load_for(run, source, progress=progress)
    if run.has(LABELS) and labels is not None:
        images = with_labels(images, DataSettings(source=source, labels=labels), run.labels.class_names)
    if run.has(TAGS) and (tags is not None or images.tags is not None):
        images = with_tags(images, DataSettings(source=source, tags=tags or BUILTIN), run.tags.names)
    return _known(run, images)


def _known(run: Run, images: ImageSet) -> ImageSet:
    """With labels as the run numbers them: a table that has grown may number its classes otherwise."""
    return renumbered(images, run.labels.class_names) if run.has(LABELS) else images.without_column(LABELS)


def _joined(parts: Sequence[ImageSet]) -> ImageSet:
    first = parts[0]
    labels = [part.labels for part in parts if part.labels is not None]
    tags = [part.tags for part in parts if part.tags is not None]
    return ImageSet.of(
        torch.cat([part.images for part in parts]),
        [name for part in parts for name in part.names],
        torch.cat(labels) if len(labels) == len(parts) else None,
        first.class_names,
        tags=dataclasses.replace(tags[0], values=torch.cat([tag.values for tag in tags]))
        if len(tags) == len(parts)
        else None,
        source=first.source,
        notes=first.notes,
    )


def suggest(
    run: Run, images: ImageSet, n: int, progress: Progress | None = None, say: Say = lambda line: None
) -> list[Suggestion]:
    """At most n images to label, the most useful first, and then at most n labels to check, the worst first; `say` is
    told how far to believe the latter."""
    if run.has(LABELS):
        return _by_labels(run, images, n, say)
    if run.has(TAGS):
        return _by_tags(run, images, n, progress)
    codes = mean_codes(run.model, images)  # nothing is known: everything is in equal doubt
    chosen = choose_next(codes, torch.ones(len(images)), torch.ones(len(images), dtype=torch.bool), n)
    return [Suggestion("label", images.names[i], 1.0, None, (), None) for i in chosen]


def _by_labels(run: Run, images: ImageSet, n: int, say: Say) -> list[Suggestion]:
    reader = run.labels
    seen, names = see(run.model, reader.head, images, reader.calibration.probabilities), reader.class_names
    labels = torch.full((len(images),), -1) if images.labels is None else images.labels
    found = []
    for i in choose_next(seen.codes, seen.doubt, labels < 0, n):
        best = int(seen.probabilities[i].argmax())
        guess, probability = (names[best],), float(seen.probabilities[i, best])
        found.append(Suggestion("label", images.names[i], float(seen.doubt[i]), None, guess, probability))
    if not _checks_are_worth_it(check_by_planting(seen, labels, CHECK_FROM), say):
        return found
    against, instead = doubt_in_labels(seen, labels)
    worst = [i for i in against.argsort(descending=True).tolist() if float(against[i]) > CHECK_FROM][:n]
    for i in worst:
        given, other = names[int(labels[i])], names[int(instead[i])]
        probability = float(seen.probabilities[i, instead[i]])
        found.append(Suggestion("check", images.names[i], float(against[i]), given, (other,), probability))
    return found


def _checks_are_worth_it(check: LabelCheck | None, say: Say) -> bool:
    """Whether a list of doubtful labels is shown, and what is said of it."""
    if check is None:
        return True  # too few labels to say anything of it
    if check.error >= WEAK or check.precision < LEAST_PRECISION:
        say(
            "No labels to check are listed: the model does not tell these classes apart well enough yet to doubt a "
            f"label (tried with labels made wrong on purpose: {check.found:.0%} of them were found, and "
            f"{1 - check.precision:.0%} of the labels found were correct ones). Label more images first."
        )
        return False
    say(
        f"Labels to check: if one label in ten were wrong, {check.found:.0%} of the wrong ones would be listed, and "
        f"{check.precision:.0%} of the list would be wrong (estimated with labels made wrong on purpose)."
    )
    return True


def _by_tags(run: Run, images: ImageSet, n: int, progress: Progress | None) -> list[Suggestion]:
    """The doubt of a tag is 1 at a probability of one half, 0 where it is certain."""
    means, parts = [], []
    for _, codes, generator in encode_set(run.model, images, progress=progress):
        means.append(codes.mean.cpu())
        parts.append(run.tags(codes, generator))
    answer: TagAnswer = run.tags.joined(parts)
    open_ = torch.ones(answer.probabilities.shape, dtype=torch.bool)
    if images.tags is not None:
        open_ = images.tags.values < 0
    each = (1 - (2 * answer.probabilities - 1).abs()) * open_  # what is known is in no doubt
    doubt = each.sum(1) / open_.sum(1).clamp_min(1)
    chosen = choose_next(torch.cat(means), doubt, open_.any(1), n)
    names = ((i, tuple(name for name, _ in answer.tags(i))) for i in chosen)
    return [Suggestion("label", images.names[i], float(doubt[i]), None, guess, None) for i, guess in names]
