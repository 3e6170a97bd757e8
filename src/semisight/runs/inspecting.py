"""`semisight inspect` without its command line: what is there, what may be wrong with it, and what train would do."""

import dataclasses
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from semisight.data import load
from semisight.data.caption_files import read_captions
from semisight.data.columns import LABELS
from semisight.data.formats.folders import choose_size, folder_labels
from semisight.data.image_set import ImageSet, Skipped, skipped_summary
from semisight.data.sources import Kind, kind_of
from semisight.data.survey import Survey, survey_folder
from semisight.errors import UserError
from semisight.model.architecture import Architecture
from semisight.runs.expected_time import Expected, expected_time
from semisight.runs.images import Progress, with_labels
from semisight.runs.settings import DataSettings, Settings, resolve

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
class Inspection:
    """What was found. Sizes are width x height; `classes` are names with the number of labels, None without labels."""

    source: str
    n_images: int
    n_decoded: int
    sizes: tuple[tuple[str, int], ...]
    modes: tuple[tuple[str, int], ...]
    formats: tuple[tuple[str, int], ...]
    classes: tuple[tuple[str, int], ...] | None
    captions: Captions | None
    skipped: tuple[Skipped, ...]
    duplicates: tuple[tuple[str, ...], ...]
    mistakes: tuple[Mistake, ...]
    notes: tuple[str, ...]
    shape: tuple[int, int, int]
    architecture: Architecture | None
    expected: Expected | None

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
    constant: tuple[str, ...]
    long: tuple[str, ...]


def inspect(data: DataSettings, captions: str | None = None, progress: Progress | None = None) -> Inspection:
    """Looks at a source as train would take it. Mistakes in tables are found and told, not raised."""
    mistakes: list[Mistake] = []
    look = _look(data, progress)
    images = look.images
    if not data.class_per_folder:  # these labels are there already
        try:
            images = with_labels(dataclasses.replace(images, notes=()), data)
            mistakes += [Mistake("labels", note) for note in images.notes]
        except UserError as error:
            mistakes.append(Mistake("labels", str(error)))
            images = images.without_column(LABELS)
    captioned = _captions(images, captions, mistakes)
    duplicates = _same(images.names, look.digests)
    mistakes += _pictures(look) + _labels(images, duplicates)
    if images.labels is None and data.use_labels and data.labels is None:
        mistakes += _folders_as_classes(images, data.source)
    settings = resolve({"source": data.source, "size": data.size, "channels": data.channels})
    architecture, expected = _plan(settings, images, look.shape, mistakes)
    return Inspection(
        source=images.source or data.source,
        n_images=len(images),
        n_decoded=look.n_decoded,
        sizes=tuple(look.sizes.most_common()),
        modes=tuple(look.modes.most_common()),
        formats=tuple(look.formats.most_common()),
        classes=_classes(images),
        captions=captioned,
        skipped=images.skipped,
        duplicates=duplicates,
        mistakes=tuple(mistakes),
        notes=look.images.notes,
        shape=look.shape,
        architecture=architecture,
        expected=expected,
    )


# ---- the images ----


def _look(data: DataSettings, progress: Progress | None) -> _Look:
    path = Path(data.source).expanduser()
    if data.limit is None and kind_of(data.source) is Kind.PICTURES:
        return _folder(survey_folder(path, progress=progress), data)
    return _loaded(
        load(
            data.source,
            size=data.size,
            channels=data.channels,
            class_per_folder=data.class_per_folder,
            limit=data.limit,
            progress=progress,
        )
    )


def _folder(survey: Survey, data: DataSettings) -> _Look:
    seen = survey.seen
    if not seen:
        raise UserError(f"no image in {survey.folder} can be read. {skipped_summary(survey.skipped)}")
    height, width, notes = choose_size([one.header for one in seen], data.size)
    channels = data.channels or (1 if all(one.header.grey for one in seen) else 3)
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
        shape=(channels, height, width),
        n_decoded=survey.n_decoded,
        sizes=Counter(f"{w} x {h}" for _, h, w in sides),
        modes=Counter(one.mode for one in seen),
        formats=Counter(one.format for one in seen),
        digests=[one.digest for one in seen],
        constant=tuple(one.name for one in seen if one.deviation is not None and one.deviation < CONSTANT),
        long=tuple(name for name, h, w in sides if max(h, w) >= LONG * min(h, w)),
    )


def _loaded(images: ImageSet) -> _Look:
    digests, constant = [], []
    for index in torch.arange(len(images)).split(1024):
        pixels = images.images[index]
        scale = 1.0 if pixels.dtype == torch.uint8 else 255.0
        deviations = pixels.float().flatten(1).std(1, correction=0) * scale
        constant += [images.names[i] for i in index[deviations < CONSTANT].tolist()]
        digests += [hashlib.blake2b(one.numpy().tobytes(), digest_size=16).hexdigest() for one in pixels]
    channels, height, width = images.shape
    n = len(images)
    mode = {1: "L", 3: "RGB"}.get(channels, f"{channels} channels")
    return _Look(
        images, images.shape, n, Counter({f"{width} x {height}": n}), Counter({mode: n}), Counter(), digests,
        tuple(constant), (),
    )  # fmt: skip


# ---- what may be wrong ----


def _same(names: Sequence[str], digests: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of images that are the same, the largest first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name, digest in zip(names, digests, strict=True):
        groups[digest].append(name)
    return tuple(sorted((tuple(group) for group in groups.values() if len(group) > 1), key=lambda g: (-len(g), g)))


def _pictures(look: _Look) -> list[Mistake]:
    found = []
    if look.constant:
        found.append(Mistake("constant", f"{_images(look.constant)} nearly of one colour", look.constant))
    if look.long:
        message = f"{_images(look.long)} more than {LONG:g} times as long as wide: cropping to a square loses most"
        found.append(Mistake("long", message, look.long))
    return found


def _labels(images: ImageSet, duplicates: Sequence[Sequence[str]]) -> list[Mistake]:
    if images.labels is None:
        return []
    place = {name: i for i, name in enumerate(images.names)}
    label_of = images.labels.tolist()
    found = []
    for group in duplicates:
        known = {label_of[place[name]] for name in group} - {-1}
        if len(known) > 1:
            words = " and ".join(images.class_names[c] for c in sorted(known))
            message = f"the same picture has the labels {words}: {', '.join(group[:5])}"
            found.append(Mistake("two labels", message, tuple(group)))
    counts = _classes(images) or ()
    tiny = [f"{name} ({count})" for name, count in counts if 0 < count < TINY_CLASS]
    if tiny:
        message = f"{_few(tiny)}: classes with fewer than {TINY_CLASS} labels are hardly learned"
        found.append(Mistake("tiny class", message))
    alike: dict[str, list[str]] = defaultdict(list)
    for name in images.class_names:
        alike["".join(name.split()).casefold().replace("_", "").replace("-", "")].append(name)
    for names in alike.values():
        if len(names) > 1:
            listed = ", ".join(repr(name) for name in names)
            found.append(Mistake("alike classes", f"classes that differ in spelling only: {listed}"))
    return found


def _folders_as_classes(images: ImageSet, source: str) -> list[Mistake]:
    """Images that all lie in folders, and no labels: perhaps the folders are the classes."""
    folders = Counter(name.split("/")[0] for name in images.names if "/" in name)
    least, greatest = _FOLDERS_AS_CLASSES
    if sum(folders.values()) == len(images) and least <= len(folders) <= greatest:
        listed = _few([f"{name} ({count})" for name, count in sorted(folders.items())])
        message = f"all images lie in {len(folders)} folders ({listed}): if these are classes, give --class-per-folder"
        return [Mistake("folders", message)]
    return []


def _captions(images: ImageSet, path: str | None, mistakes: list[Mistake]) -> Captions | None:
    per_image = images.captions
    if path is not None:
        try:
            per_image, table = read_captions(Path(path).expanduser()).match(images.names)
            mistakes += [Mistake("captions", warning) for warning in table.warnings]
        except UserError as error:
            mistakes.append(Mistake("captions", str(error)))
            return None
    if per_image is None:
        return None
    return Captions(sum(bool(captions) for captions in per_image), sum(map(len, per_image)))


# ---- what train would do ----


def _plan(
    settings: Settings, images: ImageSet, shape: tuple[int, int, int], mistakes: list[Mistake]
) -> tuple[Architecture | None, Expected | None]:
    n_labelled = 0 if images.labels is None else int((images.labels >= 0).sum())
    if n_labelled:
        settings = settings.for_labels(n_labelled, len(images) - n_labelled)
    try:
        architecture = settings.model.architecture(shape)
    except UserError as error:
        mistakes.append(Mistake("size", str(error)))
        return None, None
    labels = torch.full((len(images),), -1) if images.labels is None else images.labels
    return architecture, expected_time(settings, architecture, labels, len(images.class_names))


def _classes(images: ImageSet) -> tuple[tuple[str, int], ...] | None:
    if images.labels is None:
        return None
    counts = torch.bincount(images.labels[images.labels >= 0], minlength=len(images.class_names)).tolist()
    return tuple(zip(images.class_names, counts, strict=True))


def _images(names: Sequence[str]) -> str:
    return f"{len(names):,} image{'s are' if len(names) != 1 else ' is'}"


def _few(words: Sequence[str], most: int = 5) -> str:
    return ", ".join(words[:most]) + (", ..." if len(words) > most else "")
