"""The images that a run is measured on: others with values of their own, or those that it did not learn from."""

import dataclasses
from pathlib import Path

from semisight.data.caption_files import read_captions
from semisight.data.columns import CAPTIONS, LABELS, TAGS, CaptionColumn
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.runs.evaluating import renumbered
from semisight.runs.images import BUILTIN, EVERY_SPLIT, TRAIN_SPLITS, Progress, with_labels, with_tags
from semisight.runs.outputs import load_for
from semisight.runs.run import Run
from semisight.runs.settings import DataSettings
from semisight.runs.train import lasting, reload_sets

REPORT_SPLITS = ("test", "val")  # of a caption file: the first that there is
_OPTION = {LABELS: "--labels labels.csv", TAGS: "--tags tags.csv", CAPTIONS: "--captions captions.csv"}


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
        _refuse_without_source(LABELS, labels or class_per_folder or part or limit)
        return _not_learned_from(run, LABELS, progress)
    images = load_for(run, source, limit, progress, class_per_folder=class_per_folder, part=part)
    if labels is not None:
        images = with_labels(images, DataSettings(source, labels=labels), names)
    return _learned_from_some(run, source, part, renumbered(images, names))


def tagged_images(
    run: Run,
    source: str | None,
    tag_names: tuple[str, ...],
    *,
    tags: str | None = None,
    part: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The same with tags, in the order of `tag_names`, those of the run."""
    if source is None:
        _refuse_without_source(TAGS, tags or part or limit)
        return _not_learned_from(run, TAGS, progress)
    images = load_for(run, source, limit, progress, part=part)
    return _learned_from_some(
        run, source, part, with_tags(images, DataSettings(source, tags=tags or BUILTIN), tag_names)
    )


def captioned_images(
    run: Run,
    source: str | None,
    *,
    captions: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """The same with captions."""
    if source is None:
        _refuse_without_source(CAPTIONS, captions or split or limit)
        return _not_learned_from(run, CAPTIONS, progress)
    if captions not in (None, BUILTIN):
        images = load_for(run, source, None, progress)
        found = _with_captions(images, Path(str(captions)).expanduser(), split, limit)
        return found if found.notes != images.notes else _learned_from_some(run, source, None, found)
    images = load_for(run, source, limit, progress)
    if images.captions is None:
        raise UserError(f"{source} carries no captions: give a file of them with --captions.")
    return _learned_from_some(run, source, None, images)


def _with_captions(images: ImageSet, path: Path, split: str | None, limit: int | None) -> ImageSet:
    """The images that the file has captions for; of one that parts its images, those to report on."""
    table = read_captions(path)
    warnings = table.warnings
    known = {name for name in table.splits if name}
    if split is None:
        split = next((name for name in REPORT_SPLITS if name in known), None)
        if split is not None:
            warnings = (*warnings, f"measured on the split {split} of {path}; --split chooses another")
    if split not in (None, EVERY_SPLIT):
        table = dataclasses.replace(table.subset(*str(split).split(",")), warnings=())
    captions, matched = table.match(images.names, f"the images of {images.source}")
    warnings = (*warnings, *matched.warnings[len(table.warnings) :])
    if known & set(TRAIN_SPLITS) and (split in (None, EVERY_SPLIT) or known & set(TRAIN_SPLITS) & {split}):
        warnings = (*warnings, "these include captions of the training split, which the run may have learned from")
    places = [i for i, of_image in enumerate(captions) if of_image][:limit]
    return images.with_column(CaptionColumn(captions)).subset(places).noted(*warnings)


def _refuse_without_source(name: str, given: object) -> None:
    if given:
        raise UserError(f"say which images the {name} belong to: semisight evaluate RUN DATA {_OPTION[name]}")


def _learned_from_some(run: Run, source: str, part: str | None, images: ImageSet) -> ImageSet:
    """With a note if the run has learned from some of these."""
    if lasting(source) != run.data().settings.source or part == "test":
        return images
    return images.noted("the run learned from some of these images: leave out DATA to measure on the others only")


def _not_learned_from(run: Run, name: str, progress: Progress | None) -> ImageSet:
    sets = reload_sets(run, progress=progress)
    images = sets.measured(name)
    if images is None:
        raise UserError(
            f"all {name} of {run.folder.path} were learned from: give other images with {name} "
            f"(semisight evaluate RUN DATA {_OPTION[name]})."
        )
    if name in sets.truth:
        return images.noted(f"measured on {len(images):,} images whose {name} were hidden from the training")
    return images.noted(f"measured on {len(images):,} held-out images, whose {name} also chose the weights")
