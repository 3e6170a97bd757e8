"""The images that a run is asked about: its own again, or others as its model takes them, with values to compare."""

import dataclasses
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from semisight.backbones import resolve
from semisight.backbones.trusted import recorded_backbone
from semisight.data import load
from semisight.data.caption_files import read_captions
from semisight.data.columns import CAPTIONS, LABELS, TAGS, CaptionColumn
from semisight.data.features import MARK, is_feature_file
from semisight.data.image_set import ImageSet
from semisight.data.preprocessing import Backbone
from semisight.data.remote import is_url
from semisight.data.sources import Kind, at_hand, kind_of
from semisight.errors import UserError
from semisight.runs.images import (
    BUILTIN,
    EVERY_SPLIT,
    TRAIN_SPLITS,
    Progress,
    Sets,
    in_shards,
    own_features,
    sets_of,
    with_features,
    with_labels,
    with_tags,
)
from semisight.runs.run import OWN_FEATURES, Run, check_urls
from semisight.runs.settings import DataSettings
from semisight.runs.train import lasting
from semisight.untrusted import recorded_file

REPORT_SPLITS = ("test", "val")  # of a caption file: the first that there is
_OPTION = {LABELS: "--labels labels.csv", TAGS: "--tags tags.csv", CAPTIONS: "--captions captions.csv"}


def load_for(
    run: Run,
    source: str,
    limit: int | None = None,
    progress: Progress | None = None,
    *,
    class_per_folder: bool = False,
    part: str | None = None,
) -> ImageSet:
    """Images as the run's model takes them: its size and channels, or the features of its backbone."""
    if run.backbone == OWN_FEATURES:
        return own_features_for(run, source, limit)
    if run.backbone is not None:
        return _features_for(run, recorded_backbone(run.backbone), source, limit, progress, class_per_folder, part)
    channels, height, width = run.architecture.image_shape
    images = load(
        source,
        size=height if height == width else None,
        channels=channels,
        limit=limit,
        progress=progress,
        class_per_folder=class_per_folder,
        part=part,
    )
    if images.shape != (channels, height, width):
        raise UserError(
            f"the model takes images of {width} x {height}, but those of {source} are {images.shape[2]} x "
            f"{images.shape[1]}: scale them first."
        )
    return images


def network_of(run: Run) -> Backbone | None:
    """The pretrained network whose features a run takes; None of one that takes pixels."""
    if run.backbone is None:
        return None
    if run.backbone == OWN_FEATURES:
        raise UserError(f"{run.folder.path} learned from features of your own: their network is not known.")
    return resolve(recorded_backbone(run.backbone), pooled=not run.about["model"]["features"].get("grid", False))


def own_features_for(run: Run, source: str, limit: int | None) -> ImageSet:
    """Features of the user's own, for a run that learned from such."""
    shape = run.architecture.image_shape
    if not is_feature_file(source):
        raise UserError(
            f"{run.folder.path} learned from features of your own, {shape[0]} numbers for each image: give such a file "
            f"(.npz with `features` and `files`, Parquet, or {MARK}FILE.npy), not {source}."
        )
    found = own_features(source)
    if found.shape != shape:
        raise UserError(f"{source} has {found.shape[0]} numbers for each image; the model takes {shape[0]}.")
    return found if limit is None else found.subset(torch.arange(min(limit, len(found))))


def _features_for(
    run: Run,
    backbone: str,
    source: str,
    limit: int | None,
    progress: Progress | None,
    class_per_folder: bool,
    part: str | None,
) -> ImageSet:
    views, grid = int(run.about["model"]["features"]["views"]), run.has_grid
    if part is None and (kind_of(source) is Kind.PICTURES or in_shards(str(at_hand(source)))):
        data = DataSettings(source=source, limit=limit, class_per_folder=class_per_folder, backbone=backbone,
                            views=views, grid=grid, valid_fraction=0.0, use_labels=class_per_folder)  # fmt: skip
        return sets_of(data, 0, progress).train
    images = load(source, limit=limit, progress=progress, class_per_folder=class_per_folder, part=part)
    return with_features(images, None, backbone, views, progress, grid=grid)


def reload_sets(
    run: Run,
    source: str | None = None,
    labels: str | None = None,
    progress: Progress | None = None,
    captions: str | None = None,
    tags: str | None = None,
) -> Sets:
    """The images that a run learned from, parted as they were; `source`, `labels`, ... if they have moved."""
    data = run.data().settings
    given = {"source": source, "labels": labels, "captions": captions, "tags": tags}
    moved: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in ("labels", "captions", "tags"):  # a path that stands in a run is used as it is written, if it is there
        recorded = getattr(data, name)
        if name not in moved and recorded not in (None, BUILTIN) and not is_url(recorded):
            recorded_file(recorded, run.folder.path, what=f"its file of {name}", option=f"--{name} FILE")
    check_urls(data, run.folder.path, source="the images (DATA, IMAGES or --data)", given=moved)
    try:
        return sets_of(dataclasses.replace(data, **moved), run.config.seed, progress)
    except UserError as error:
        if moved:
            raise
        options = [f"--{name} if the {name} have" for name in ("labels", "tags", "captions")
                   if getattr(data, name) not in (None, BUILTIN)]  # fmt: skip
        advice = ", ".join(["Give --data if the images have moved", *options])
        raise UserError(f"what {run.folder.path} learned from cannot be read: {error}\n{advice}.") from error


def renumbered(images: ImageSet, class_names: Sequence[str]) -> ImageSet:
    """The images with their labels numbered as the classifier numbers its classes, matched by name."""
    if images.labels is None or images.class_names == tuple(class_names):
        return images
    used = images.labels[images.labels >= 0].unique().tolist()
    strange = [images.class_names[c] for c in used if images.class_names[c] not in class_names]
    if strange:
        near = difflib.get_close_matches(strange[0], class_names, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UserError(
            f"{images.source} has labels that the run did not learn: {', '.join(strange[:5])}"
            f"{', ...' if len(strange) > 5 else ''}; it learned {', '.join(list(class_names)[:10])}"
            f"{', ...' if len(class_names) > 10 else ''}.{hint}"
        )
    number = torch.full((len(images.class_names) + 1,), -1)  # the last entry is for -1
    for c in used:
        number[c] = list(class_names).index(images.class_names[c])
    return images.with_labels(number[images.labels], class_names)


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
    names = run.labels.class_names
    if source is None:
        _refuse_without_source(LABELS, labels or class_per_folder or part or limit)
        return _not_learned_from(run, LABELS, progress)
    images = load_for(run, source, limit, progress, class_per_folder=class_per_folder, part=part)
    if labels is not None:
        images = with_labels(images, DataSettings(source=source, labels=labels), names)
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
        run, source, part, with_tags(images, DataSettings(source=source, tags=tags or BUILTIN), tag_names)
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
