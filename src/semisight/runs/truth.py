"""The labelled images that a run is measured on."""

import dataclasses

from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.runs.evaluating import renumbered
from semisight.runs.outputs import load_for
from semisight.runs.run import Run
from semisight.runs.sets import Progress, with_labels
from semisight.runs.settings import DataSettings
from semisight.runs.train import lasting, reload_sets


def labelled_images(
    run: Run,
    source: str | None,
    *,
    labels: str | None = None,
    class_per_folder: bool = False,
    part: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Images as the model takes them, with labels numbered as it numbers them; without `source`, those that the run
    did not learn from. What people should know of them is in the notes."""
    names = run.labels().class_names
    if source is None:
        if labels is not None or class_per_folder or part is not None or limit is not None:
            raise UserError("say which images the labels belong to: semisight evaluate RUN DATA --labels ...")
        return _not_learned_from(run, progress)
    images = load_for(run, source, limit, progress, class_per_folder=class_per_folder, part=part)
    if labels is not None:
        images = with_labels(images, DataSettings(source, labels=labels), names)
    images = renumbered(images, names)
    if lasting(source) == run.data().settings.source and part != "test":
        known = "the run learned from some of these images: leave out DATA to measure on the others only"
        images = dataclasses.replace(images, notes=(*images.notes, known))
    return images


def _not_learned_from(run: Run, progress: Progress | None) -> ImageSet:
    sets = reload_sets(run, progress=progress)
    if sets.measured is None:
        raise UserError(
            f"every label of {run.folder.path} was learned from: give other images with labels "
            "(semisight evaluate RUN DATA --labels labels.csv)."
        )
    if sets.hidden is not None:
        note = f"measured on {len(sets.measured):,} images whose labels were hidden from the training"
    else:
        note = f"measured on {len(sets.measured):,} held-out images, which also chose the weights and the calibration"
    return dataclasses.replace(sets.measured, notes=(*sets.measured.notes, note))
