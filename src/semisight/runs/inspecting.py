"""`semisight inspect` without its command line: what is there, what may be wrong with it, and what train would do.

What train would do is not worked out again: the images, without their pixels, go the way that training goes
(runs/images.py, runs/recipe.py).
"""

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from semisight.backbones import resolve
from semisight.data import load
from semisight.data.caption_files import read_captions
from semisight.data.columns import CAPTIONS, LABELS, TAGS, CaptionColumn
from semisight.data.duplicates import Groups, fingerprint, nearly_same, same
from semisight.data.features import is_feature_file
from semisight.data.formats.folders import choose_size, folder_labels
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.sources import Kind, kind_of
from semisight.data.survey import Survey, survey_folder
from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.runs.encoder_choice import Planned, from_pixels, judging_minutes, planned, with_network
from semisight.runs.expected_time import Expected, expected_time, recipe_without_pixels
from semisight.runs.images import (
    BUILTIN,
    Progress,
    Sets,
    all_at_hand,
    captioned,
    own_features,
    parted,
    shape_on_disk,
    with_labels,
    with_tags,
)
from semisight.runs.settings import DataSettings, Settings
from semisight.runs.time_plan import fitted_to, minutes_of, training_minutes

CONSTANT = 2.0  # standard deviation of grey values, of 255, below which an image shows next to nothing
LONG = 3.0  # width over height (or the reverse) from which cropping to a square loses most of an image
TINY_CLASS = 3  # labels
_FOLDERS_AS_CLASSES = (2, 1000)  # least and greatest number of folders that look like classes


@dataclass(frozen=True)
class Mistake:
    """Something that is probably not as it was meant; `files` are those concerned."""

    kind: str
    message: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class Captions:
    """How many images have captions, and how many there are in all."""

    images: int
    captions: int


@dataclass(frozen=True)
class Tag:
    """Images that are known to have a tag, and to have it not."""

    name: str
    has: int
    has_not: int


@dataclass(frozen=True)
class Inspection:
    """What was found. Sizes are width x height; `classes` are names with the number of labels, None without labels."""

    source: str
    n_images: int
    n_decoded: int
    sizes: tuple[tuple[str, int], ...]
    modes: tuple[tuple[str, int], ...]
    formats: tuple[tuple[str, int], ...]
    classes: tuple[tuple[str, int], ...] | None
    tags: tuple[Tag, ...] | None
    n_tagged: int
    captions: Captions | None
    skipped: tuple[Skipped, ...]
    duplicates: Groups
    near_duplicates: Groups
    mistakes: tuple[Mistake, ...]
    notes: tuple[str, ...]
    shape: tuple[int, int, int]
    architecture: Architecture | None
    expected: Expected | None
    plan: Planned | None = None

    @property
    def n_labelled(self) -> int:
        return sum(count for _, count in self.classes or ())


@dataclass(frozen=True)
class _Look:
    """The images of any source, as far as an inspection needs them: `images` may be without pixels."""

    images: ImageSet
    shape: tuple[int, int, int]
    n_decoded: int
    sizes: Counter[str]
    modes: Counter[str]
    formats: Counter[str]
    digests: Sequence[str]
    fingerprints: Sequence[bytes | None]
    constant: tuple[str, ...]
    long: tuple[str, ...]


def inspect(settings: Settings, progress: Progress | None = None) -> Inspection:
    """Looks at a source as train would take it. Mistakes in tables are found and told, not raised."""
    settings, _ = with_network(dataclasses.replace(settings, data=all_at_hand(settings.data)))
    data, seed = settings.data, settings.train.seed
    look = _look(dataclasses.replace(data, backbone=None), seed, progress)
    mistakes: list[Mistake] = []
    images = dataclasses.replace(look.images, notes=())
    if not data.class_per_folder:  # these labels are there already
        images = _tried(LABELS, images, lambda: with_labels(images, data), mistakes)
    images = _tried(TAGS, images, lambda: with_tags(images, data), mistakes) if data.tags is not None else images
    images = _with_captions(images, data, mistakes)
    duplicates = same(images.names, look.digests)
    near = nearly_same(images.names, look.fingerprints, look.digests)
    mistakes += _pictures(look) + _labels(images, duplicates, near) + _straddling(images, duplicates, near, data, seed)
    if images.labels is None and data.use_labels and data.labels is None:
        mistakes += _folders_as_classes(images)
    architecture, expected, plan, shape = _plan(settings, images, look.shape, mistakes)
    per_image = images.captions
    return Inspection(
        source=images.source or data.source,
        n_images=len(images),
        n_decoded=look.n_decoded,
        sizes=tuple(look.sizes.most_common()),
        modes=tuple(look.modes.most_common()),
        formats=tuple(look.formats.most_common()),
        classes=_classes(images),
        tags=_tags(images),
        n_tagged=0 if images.tags is None else int(images.tags.present.sum()),
        captions=None if per_image is None else Captions(sum(map(bool, per_image)), sum(map(len, per_image))),
        skipped=images.skipped,
        duplicates=duplicates,
        near_duplicates=near,
        mistakes=tuple(mistakes),
        notes=() if data.backbone is not None else look.images.notes,  # of sizes that pixels would be read at
        shape=shape,
        architecture=architecture,
        expected=expected,
        plan=plan,
    )


def _tried(name: str, images: ImageSet, given: Callable[[], ImageSet], mistakes: list[Mistake]) -> ImageSet:
    """The images with what they were given, or without: what is wrong with it is a finding."""
    try:
        found = given()
        mistakes += [Mistake(name, note) for note in found.notes]
        return dataclasses.replace(found, notes=())
    except UserError as error:
        mistakes.append(Mistake(name, str(error)))
        return images.without_column(name)


def _with_captions(images: ImageSet, data: DataSettings, mistakes: list[Mistake]) -> ImageSet:
    """With the captions of all splits of a file, to count them; those that the set carries stay as they are."""
    if data.captions in (None, BUILTIN):
        if data.captions == BUILTIN and images.captions is None:
            mistakes.append(Mistake(CAPTIONS, f"{images.source or data.source} carries no captions"))
        return images

    def read() -> ImageSet:
        found, table = read_captions(Path(str(data.captions)).expanduser()).match(images.names)
        return images.with_column(CaptionColumn(found)).noted(*table.warnings)

    return _tried(CAPTIONS, images, read, mistakes)


# ---- the images ----


def _look(data: DataSettings, seed: int, progress: Progress | None) -> _Look:
    if is_feature_file(data.source):
        return _loaded(own_features(data.source))
    if data.limit is None and kind_of(data.source) is Kind.PICTURES:
        survey = survey_folder(Path(data.source).expanduser(), progress=progress)
        return _folder(survey, data, shape_on_disk(data, seed))
    return _loaded(
        load(
            data.source,
            size=data.size,
            channels=data.channels,
            class_per_folder=data.class_per_folder,
            limit=data.limit,
            seed=seed,
            progress=progress,
        )
    )


def _folder(survey: Survey, data: DataSettings, decided: tuple[tuple[int, int, int], tuple[str, ...]] | None) -> _Look:
    """`decided` is how a folder that is too large for memory will be read."""
    seen = survey.seen
    if not seen:
        raise UserError(f"no image in {survey.folder} can be read. {skipped_summary(survey.skipped)}")
    if decided is not None:
        shape, notes = decided
    else:
        height, width, notes = choose_size([one.header for one in seen], data.size)
        shape = (data.channels or (1 if all(one.header.grey for one in seen) else 3), height, width)
    names = tuple(one.name for one in seen)
    labels, class_names = folder_labels(names, survey.folder) if data.class_per_folder else (None, ())
    images = ImageSet.of(
        torch.empty(len(seen), 1, 0, 0, dtype=torch.uint8),  # nothing below looks at the pixels of a folder
        names,
        labels,
        class_names,
        skipped=survey.skipped,
        source=str(survey.folder),
        notes=notes,
    )
    sides = [(one.name, one.header.height, one.header.width) for one in seen]
    return _Look(
        images=images,
        shape=shape,
        n_decoded=survey.n_decoded,
        sizes=Counter(f"{w} x {h}" for _, h, w in sides),
        modes=Counter(one.mode for one in seen),
        formats=Counter(one.format for one in seen),
        digests=[one.digest for one in seen],
        fingerprints=[one.fingerprint for one in seen],
        constant=tuple(one.name for one in seen if one.deviation is not None and one.deviation < CONSTANT),
        long=tuple(name for name, h, w in sides if max(h, w) >= LONG * min(h, w)),
    )


def _loaded(images: ImageSet) -> _Look:
    digests, constant = [], list[str]()
    fingerprints: list[bytes | None] = []
    for index in torch.arange(len(images)).split(1024):
        pixels = images.images[index]
        scale = 1.0 if pixels.dtype == torch.uint8 else 255.0
        deviations = pixels.float().flatten(1).std(1, correction=0) * scale
        constant += [images.names[i] for i in index[deviations < CONSTANT].tolist()]
        digests += [hashlib.blake2b(one.numpy().tobytes(), digest_size=16).hexdigest() for one in pixels]
        grey = (pixels.float() * scale).mean(1).round().to(torch.uint8).numpy()
        fingerprints += [fingerprint(one) for one in grey]
    channels, height, width = images.shape
    n = len(images)
    mode = {1: "L", 3: "RGB"}.get(channels, f"{channels} channels")
    return _Look(
        images, images.shape, n, Counter({f"{width} x {height}": n}), Counter({mode: n}), Counter(), digests,
        fingerprints, tuple(constant), (),
    )  # fmt: skip


# ---- what may be wrong ----


def _pictures(look: _Look) -> list[Mistake]:
    found = []
    if look.constant:
        found.append(Mistake("constant", f"{_images(look.constant)} nearly of one colour", look.constant))
    if look.long:
        message = f"{_images(look.long)} more than {LONG:g} times as long as wide: cropping to a square loses most"
        found.append(Mistake("long", message, look.long))
    return found


def _labels(images: ImageSet, duplicates: Groups, near: Groups) -> list[Mistake]:
    if images.labels is None:
        return []
    place = {name: i for i, name in enumerate(images.names)}
    label_of = images.labels.tolist()
    found = []
    alike = {"the same": duplicates, "nearly the same": near}
    for what, group in ((what, group) for what, groups in alike.items() for group in groups):
        known = {label_of[place[name]] for name in group} - {-1}
        if len(known) > 1:
            words = " and ".join(images.class_names[c] for c in sorted(known))
            message = f"{what} picture has the labels {words}: {', '.join(group[:5])}"
            found.append(Mistake("two labels", message, tuple(group)))
    counts = _classes(images) or ()
    tiny = [f"{name} ({count})" for name, count in counts if 0 < count < TINY_CLASS]
    if tiny:
        message = f"{_few(tiny)}: classes with fewer than {TINY_CLASS} labels are hardly learned"
        found.append(Mistake("tiny class", message))
    spelled: dict[str, list[str]] = defaultdict(list)
    for name in images.class_names:
        spelled["".join(name.split()).casefold().replace("_", "").replace("-", "")].append(name)
    for names in spelled.values():
        if len(names) > 1:
            listed = ", ".join(repr(name) for name in names)
            found.append(Mistake("alike classes", f"classes that differ in spelling only: {listed}"))
    return found


def _straddling(images: ImageSet, duplicates: Groups, near: Groups, data: DataSettings, seed: int) -> list[Mistake]:
    """Pictures that train would learn from and also measure on, in another copy."""
    if data.valid_fraction <= 0:
        return []
    try:
        valid = parted(images, data, seed).valid
    except UserError:  # told elsewhere
        return []
    aside = set() if valid is None else set(valid.names)
    both = [group for group in (*duplicates, *near) if 0 < len(aside.intersection(group)) < len(group)]
    files = list(dict.fromkeys(name for group in both for name in group))
    if not files:
        return []
    message = (
        f"{len(files):,} images that are the same or nearly so fall on both sides of training and held-out images: "
        "what is measured on the held-out ones will look too good. Remove copies first"
    )
    return [Mistake("on both sides", message, tuple(files))]


def _folders_as_classes(images: ImageSet) -> list[Mistake]:
    """Images that all lie in folders, and no labels: perhaps the folders are the classes."""
    folders = Counter(name.split("/")[0] for name in images.names if "/" in name)
    least, greatest = _FOLDERS_AS_CLASSES
    if sum(folders.values()) == len(images) and least <= len(folders) <= greatest:
        listed = _few([f"{name} ({count})" for name, count in sorted(folders.items())])
        message = f"all images lie in {len(folders)} folders ({listed}): if these are classes, give --class-per-folder"
        return [Mistake("folders", message)]
    return []


# ---- what train would do ----


def _plan(
    settings: Settings, images: ImageSet, shape: tuple[int, int, int], mistakes: list[Mistake]
) -> tuple[Architecture | None, Expected | None, Planned | None, tuple[int, int, int]]:
    """The layers and the time of a training with these settings, all that train would try, and the shape of images from
    pixels; why there would be none is a finding."""
    data = settings.data
    try:
        if data.captions is None:
            images = images.without_column(CAPTIONS)  # nobody asked for them
        elif data.captions != BUILTIN and CAPTIONS in images.columns:
            images = captioned(images, read_captions(Path(data.captions).expanduser()), data, settings.train.seed)
        images = images if data.tags is not None else images.without_column(TAGS)
        if data.backbone is not None and (data.captions or data.tags):
            shape = resolve(data.backbone, pooled=not data.grid).feature_shape
        if is_feature_file(data.source):
            return None, None, Planned("features", judging_minutes(images, 1)), shape
        whole = Sets(images, None)
        minutes = training_minutes(settings, len(images))
        pixels = settings if data.captions or data.tags else from_pixels(settings.replace({"backbone": None}), images)
        fitted = pixels if minutes is None else fitted_to(pixels, whole, minutes, shape)
        if fitted.data.size is not None:
            shape = (shape[0], fitted.data.size, fitted.data.size)
        recipe = recipe_without_pixels(fitted, images, shape)
        expected = expected_time(recipe)
        plan = planned(settings, images, _minutes(expected, minutes, settings))
    except UserError as error:
        if str(error) not in (mistake.message for mistake in mistakes):
            mistakes.append(Mistake("training", str(error)))
        return None, None, None, shape
    return recipe.objective.model.architecture, expected, plan, shape


def _minutes(expected: Expected | None, limit: float | None, settings: Settings) -> float | None:
    """Of a training from pixels with its report: as long as its steps take, or until the time is over."""
    if expected is None:
        return None if limit is None else minutes_of(settings)
    return expected.minutes if limit is None or expected.minutes < limit else minutes_of(settings)


def _tags(images: ImageSet) -> tuple[Tag, ...] | None:
    if images.tags is None:
        return None
    has, has_not = ((images.tags.values == value).sum(0).tolist() for value in (1, 0))
    return tuple(Tag(*one) for one in zip(images.tags.names, has, has_not, strict=True))


def _classes(images: ImageSet) -> tuple[tuple[str, int], ...] | None:
    if images.labels is None:
        return None
    counts = torch.bincount(images.labels[images.labels >= 0], minlength=len(images.class_names)).tolist()
    return tuple(zip(images.class_names, counts, strict=True))


def _images(names: Sequence[str]) -> str:
    return f"{len(names):,} image{'s are' if len(names) != 1 else ' is'}"


def _few(words: Sequence[str], most: int = 5) -> str:
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")
