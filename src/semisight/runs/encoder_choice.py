"""`--encoder auto`: what the code of an image is made from, as cross-validation on the given labels says.

    features   of each pretrained network that is installed and fits the time: logistic regression, and our model;
               of a large set, those of all labelled images and of as many others as there is time for
    deep       our model from pixels, trained for a share of the time on all labels but those of a fold

All are judged on the same held-out labels; labels that are set aside for measuring are not looked at. The lowest error
is taken, pixels also where features are better by no more than chance may have it: their trainings here are short ones,
the run's is not. The small table is kept with the run. Nothing is guessed from what the files look like: on photographs
pretrained features win, on microscope images they may lose to a model that has seen nothing else.

Captions and tags of a folder of pictures are not tried both ways: where a network is installed and its features fit the
time, they are learned on these.
"""

import dataclasses
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semisight.backbones import installed, milliseconds, resolve
from semisight.data.columns import LABELS, LabelColumn
from semisight.data.feature_cache import n_missing
from semisight.data.features import is_feature_file
from semisight.data.formats.folders import walk
from semisight.data.image_set import ImageSet
from semisight.data.sources import Kind, at_hand, kind_of
from semisight.data.workers import cores
from semisight.errors import UserError
from semisight.inference.encode import encode_set
from semisight.inference.labels import FittedCalibration, decide
from semisight.runs.images import Progress, Sets, in_shards, sets_of, share_of, with_features
from semisight.runs.on_features import Judged, calibrate, clearly_better, judge
from semisight.runs.pixels import pixels_at
from semisight.runs.recipe import compose, suited
from semisight.runs.references import ON_HOG, ON_PIXELS, Way, few_enough, on_pixels, side_for
from semisight.runs.settings import CaptionSettings, DataSettings, Settings, TagSettings
from semisight.runs.time_plan import fitted_to, minutes_of, timed, with_their_labels
from semisight.setting import fields
from semisight.training.soft_em import CrossValidated, in_order, label_folds

INSTALL = "pip install 'semisight[photos]'"
SCRATCH = "our model from scratch"
# How labels are learned from pixels where nobody says otherwise. After five minutes of one core, ten labels per class:
# MNIST 1.3 % wrong, with the paper's layers (`scratch`) 2.5; CIFAR-10 68.2 and 68.8 (docs/experiments.md).
FROM_PIXELS = "deep"
_FEATURES_SHARE = 0.5  # of the minutes, at most, for the features of the first network
_FURTHER_SHARE = 0.15  # in which further networks must fit together with it: they seldom change the answer
_PROBE_SHARE = 0.1  # of the minutes, for one fold of one way from pixels
_ENOUGH_JUDGED = 150  # labels: with so many, a further fold says little more
_ALL = 10**12  # images that have to be seen
_ENOUGH_FOR_TIES = 30  # labels that were judged
_HOPELESS = 0.1  # error above the best so far, beyond chance, from which the other folds are not tried
_DECODING_MS = 5.0  # of one image
# What judging takes: passes over the codes and over the labelled features, and products a second. Estimates.
_EM_PASSES, _LOGISTIC_PASSES, _JUDGING_SECONDS, _PRODUCTS_PER_SECOND = 500, 3000, 8.0, 6e9
# Settings that mean something on features too; any other that is given speaks of learning from pixels.
_COMMON = frozenset(
    (
        *(name for name in fields(DataSettings) if name not in ("size", "channels", "images_from")),
        *("encoder", "seed", "max_minutes", "device", "threads", "progress", "tensorboard", "processes"),
    )
)
_COMMON_OF_WORDS = _COMMON | fields(CaptionSettings).keys() | fields(TagSettings).keys()
# Of those of pixels, the ones that leave open which layers learn; what counts steps or epochs does not, since a step
# of the deep encoder takes several times as long.
_ANY_LAYERS = frozenset(("size", "channels", "width", "batch_size", "learning_rate", "smoothing"))

Say = Callable[[str], None]


@dataclass(frozen=True)
class Decision:
    """How to learn.

    settings   with `encoder` either features or a way from pixels, and what follows from it
    judged     the features with all ways on them judged, where these were tried and chosen
    ways       the small table; the chosen one is marked
    fitted     probabilities by cross-validation, for a model from pixels whose labels are too few to hold some out
    lines      what people should know of the choice
    """

    settings: Settings
    judged: Judged | None = None
    ways: tuple[Way, ...] = ()
    fitted: FittedCalibration | None = None
    lines: tuple[str, ...] = ()

    @property
    def on_features(self) -> bool:
        return self.settings.data.backbone is not None or is_feature_file(self.settings.data.source)


# ---- what is asked for ----


def networks() -> list[str]:
    """The pretrained networks that can be used here by name, the best first."""
    if importlib.util.find_spec("onnxruntime") is None:
        return []
    return [entry.name for entry in installed() if entry.n_bytes is not None]


def by_hand(settings: Settings) -> list[str]:
    """Settings that were given and speak of learning from pixels."""
    return sorted(settings.chosen - _COMMON)


def asked(settings: Settings) -> str:
    """auto, features or a way from pixels, by what was given alone."""
    data, encoder = settings.data, settings.model.encoder
    if data.backbone is not None or is_feature_file(data.source):
        if encoder in ("scratch", "deep"):
            raise UserError(f"--encoder {encoder} learns from pixels, and --backbone gives features: leave one out.")
        return "features"
    if encoder != "auto":
        return encoder
    others = data.tags is not None or data.captions is not None or data.images_from is not None or not data.use_labels
    unlabelled = kind_of(data.source) is Kind.PICTURES and data.labels is None and not data.class_per_folder
    if others or unlabelled:
        return "scratch"
    given = set() if "encoder" in settings.chosen else set(by_hand(settings))
    if not given:
        return "auto"
    return FROM_PIXELS if given <= _ANY_LAYERS and timed(settings) else "scratch"


def resolved(settings: Settings, encoder: str, **changes: Any) -> Settings:
    """With the encoder decided."""
    found = settings.replace({"encoder": encoder, **changes})
    return dataclasses.replace(found, chosen=found.chosen | {"encoder", *changes})


def from_pixels(settings: Settings, images: ImageSet) -> Settings:
    """As pixels would be learned from, if they were taken."""
    if asked(settings) in ("auto", FROM_PIXELS) and LABELS in images.columns:
        return resolved(settings, FROM_PIXELS)
    return settings


def with_network(settings: Settings) -> tuple[Settings, tuple[str, ...]]:
    """On features, where captions or tags of a folder of pictures are asked for and nothing speaks of pixels; and what
    people should know of it. From scratch, photographs are not described in the time that people have (on Flickr8k
    half an hour ends at a CIDEr of 0.18, on features ten minutes at 0.53); trying both would take as long again."""
    data = settings.data
    if (
        (data.captions is None and data.tags is None)
        or data.images_from is not None
        or data.backbone is not None
        or settings.model.encoder != "auto"
        or settings.chosen - _COMMON_OF_WORDS
        or kind_of(data.source) is not Kind.PICTURES
    ):
        return settings, ()
    asked_for = "captions" if data.captions is not None else "tags"
    names = networks()
    if not names:
        line = f"No pretrained network is installed ({INSTALL} brings one): {asked_for} are learned from pixels."
        return settings, (line,)
    folder = Path(data.source).expanduser()
    files = walk(folder).names
    most = data.suited_views
    for views in (data.views,) if "views" in settings.chosen else (most, *(n for n in (2, 1) if n < most)):
        missing = missing_in(folder, files, dataclasses.replace(data, views=views))
        chosen, lines = affordable(names, missing, views, minutes_of(settings), _ALL)
        if chosen:
            break
    else:
        return settings, tuple(lines)
    line = (
        f"{asked_for.capitalize()} are learned on features of {chosen[0].name}, a pretrained network. For drawings and "
        "other pictures unlike photographs, --encoder scratch learns them from pixels."
    )
    return resolved(settings, "features", backbone=chosen[0].name, views=views), (line,)


def best_network() -> str:
    found = networks()
    if not found:
        raise UserError(f"--encoder features needs a pretrained network: {INSTALL}, or name one with --backbone.")
    return found[0]


# ---- how long ----


@dataclass(frozen=True)
class Network:
    """A pretrained network and the seconds that its features take here, of images that the cache does not hold;
    `unlabelled`: of so many images without a label, None for all."""

    name: str
    seconds: float
    unlabelled: int | None = None


def seconds_for_features(name: str, missing: int, views: int) -> float:
    """Of so many images that are not in the cache yet, with a process for each core."""
    if missing == 0:
        return 0.0
    # The mean: a median leaves out the turns in which other work had the processor, and features then took so much
    # longer than planned that no time was left for pixels.
    each = milliseconds(resolve(name), 0.5, statistics.mean)
    return missing * (each * views + _DECODING_MS) / 1000 / cores()


def affordable(
    names: Sequence[str], missing: Callable[[str], int], views: int, minutes: float, labelled: int
) -> tuple[list[Network], list[str]]:
    """The networks whose features fit the time, and what is left out; `missing` counts images that a network has not
    seen yet, `labelled` those with a label."""
    chosen: list[Network] = []
    late: list[tuple[Network, int]] = []
    spent = 0.0
    for name in names:
        n = missing(name)
        network = Network(name, seconds_for_features(name, n, views))
        share = _FURTHER_SHARE if chosen else _FEATURES_SHARE
        if spent + network.seconds <= share * minutes * 60:
            chosen.append(network)
            spent += network.seconds
        else:
            late.append((network, n))
    if chosen or not late:
        return chosen, []
    first, n = min(late, key=lambda found: found[0].seconds)
    there_is_time_for = int(n * _FEATURES_SHARE * minutes * 60 / first.seconds)
    wanted = f"--minutes {first.seconds / 60 / _FEATURES_SHARE + 1:.0f}"
    if there_is_time_for < labelled:
        return [], [
            f"Features of {first.name} would take about {first.seconds / 60:.1f} minutes here, too long beside all "
            f"else in {minutes:g}: {wanted} tries them."
        ]
    some = Network(first.name, first.seconds * there_is_time_for / n, there_is_time_for - labelled)
    return [some], [
        f"There is time for the features of {there_is_time_for:,} images: all labelled ones, and some of the others. "
        f"{wanted} learns from all."
    ]


def missing_in(source: Path | ImageSet, names: Sequence[str] | None, data: DataSettings) -> Callable[[str], int]:
    """For `affordable`: of a folder's files or of images in memory."""

    def missing(name: str) -> int:
        return min(n_missing(source, resolve(name), data.views, names), data.limit or 10**12)

    return missing


@dataclass(frozen=True)
class Planned:
    """What train will do, before it does it.

    encoder    auto, features or a way from pixels
    minutes    that it will take here if pretrained features are taken (of a way from pixels: that)
    networks   whose features will be tried
    advice     what would be better with more time or with an extra
    """

    encoder: str
    minutes: float
    networks: tuple[Network, ...] = ()
    advice: tuple[str, ...] = ()


def planned(settings: Settings, images: ImageSet, training: float | None) -> Planned:
    """For images with what they carry, those of a folder without pixels; `training`: minutes of one from pixels."""
    data, how, minutes = settings.data, asked(settings), minutes_of(settings)
    whole = training if training is not None else minutes
    if settings.model.encoder == "auto" and how in ("auto", FROM_PIXELS) and LABELS not in images.columns:
        how = "scratch"
    found = networks()
    if how == "auto" and not found:
        return Planned(
            FROM_PIXELS, whole, advice=(f"{INSTALL} brings a pretrained network, to be tried beside pixels.",)
        )
    if how not in ("auto", "features"):
        lines = []
        if found and LABELS in images.columns and settings.model.encoder == "auto" and by_hand(settings):
            lines.append(
                f"without --{by_hand(settings)[0].replace('_', '-')}, pretrained features would be tried, too."
            )
        return Planned(how, whole, advice=tuple(lines))
    if how == "features":
        found = [data.backbone] if data.backbone is not None else found[:1]
    folder = kind_of(data.source) is Kind.PICTURES
    missing = missing_in(Path(data.source).expanduser() if folder else images, images.names if folder else None, data)
    if how == "features":
        chosen = [Network(name, seconds_for_features(name, missing(name), data.views)) for name in found]
        return Planned(how, sum(n.seconds for n in chosen) / 60 + judging_minutes(images, data.views), tuple(chosen))
    chosen, lines = affordable(found, missing, data.views, minutes, _n_labelled(images, data))
    on_features = sum(network.seconds for network in chosen) / 60 + len(chosen) * judging_minutes(images, data.views)
    left = [name for name in found if name not in {network.name for network in chosen}]
    if chosen and left:
        lines.append(f"with more --minutes {' and '.join(left)} would be tried, too.")
    return Planned("auto", min(minutes, on_features + _PROBE_SHARE * minutes), tuple(chosen), tuple(lines))


def _n_labelled(images: ImageSet, data: DataSettings) -> int:
    column = images.columns[LABELS]
    assert isinstance(column, LabelColumn)
    if data.labels_per_class is not None:
        return data.labels_per_class * len(column.class_names)
    return int(column.present.sum())


def judging_minutes(images: ImageSet, views: int) -> float:
    """Cross-validation on features, the run and its report."""
    n_classes = len(images.class_names)
    known = 0 if images.labels is None else int((images.labels >= 0).sum())
    products = (_EM_PASSES * len(images) * views + _LOGISTIC_PASSES * known * 5) * 256 * n_classes
    return (_JUDGING_SECONDS + products / _PRODUCTS_PER_SECOND) / 60


# ---- the choice ----


def choose_encoder(settings: Settings, say: Say, progress: Progress | None = None) -> Decision:
    """Decides how to learn, by what was given or by trying."""
    started = time.monotonic()
    settings, said = with_network(settings)
    how = asked(settings)
    if how == "features":
        data = settings.data
        name = data.backbone if data.backbone is not None or is_feature_file(data.source) else best_network()
        return Decision(resolved(settings, "features", backbone=name), lines=said)
    if how != "auto":
        lines = [*said]
        given = by_hand(settings)
        if settings.model.encoder == "auto" and given and networks() and _has_labels(settings.data):
            lines.append(
                f"note: {given[0]} speaks of learning from pixels, and so it is done; --encoder auto also tries "
                "pretrained features."
            )
        if how == FROM_PIXELS and settings.model.encoder == "auto" and not _only_labels_in(settings):
            how = "scratch"
        return Decision(resolved(settings, how), lines=tuple(lines))
    pixels = None if kind_of(settings.data.source) is Kind.PICTURES else sets_of(settings.data, settings.train.seed)
    if pixels is not None and not _only_labels(pixels):
        return Decision(resolved(settings, "scratch"))
    names = networks()
    if not names:
        line = f"No pretrained network is installed ({INSTALL} brings one): learning from scratch, from pixels."
        return Decision(resolved(settings, FROM_PIXELS), lines=(line,))
    return _tried(settings, pixels, names, say, progress, started)


def _has_labels(data: DataSettings) -> bool:
    return data.use_labels and data.tags is None and data.captions is None and data.images_from is None


def _only_labels_in(settings: Settings) -> bool:
    """Whether the source carries labels and nothing else; a folder's come from a file or its subfolders."""
    return kind_of(settings.data.source) is Kind.PICTURES or _only_labels(sets_of(settings.data, settings.train.seed))


def _only_labels(sets: Sets) -> bool:
    return list(sets.train.columns) == [LABELS]


def _tried(
    settings: Settings, pixels: Sets | None, names: list[str], say: Say, progress: Progress | None, started: float
) -> Decision:
    data, seed, minutes, given = settings.data, settings.train.seed, minutes_of(settings), settings.data.unlabelled
    if pixels is None:
        folder = Path(data.source).expanduser()
        missing = missing_in(folder, walk(folder).names, data)
    else:
        missing = missing_in(pixels.train, None, data)
    of = with_their_labels(settings) if pixels is None else pixels.train
    if LABELS not in of.columns:
        return Decision(resolved(settings, "scratch"))
    chosen, lines = affordable(names, missing, data.views, minutes, _n_labelled(of, data))
    if chosen and chosen[0].unlabelled is not None:  # pixels are judged on the same images
        some = chosen[0].unlabelled if data.unlabelled is None else min(chosen[0].unlabelled, data.unlabelled)
        settings, data = settings.replace({"unlabelled": some}), dataclasses.replace(data, unlabelled=some)
        pixels = None if pixels is None else sets_of(data, seed)
    best: Judged | None = None
    ways: list[Way] = []
    for network in chosen:
        found = dataclasses.replace(data, backbone=network.name)
        say(f"Trying {network.name}: features, then cross-validation on the given labels")
        # of shards a network sees the pictures as they are, not scaled to the pixels that others learn from
        as_files = pixels is None or in_shards(str(at_hand(data.source)))
        read = sets_of(found, seed, progress) if as_files or pixels is None else _with_features(pixels, found, progress)
        if not _only_labels(read):
            return Decision(resolved(settings, "scratch"))
        judged = judge(resolved(settings, "features", backbone=network.name), read)
        if judged.said is None:
            line = (
                "Too few labels to compare ways of learning: two of a class are needed. Pretrained features are taken."
            )
            return Decision(judged.settings, judged, (), lines=(*lines, line))
        named = [dataclasses.replace(way, name=_named(way, network.name), chosen=False) for way in judged.ways]
        for way in named:
            say(f"  {way.words()}")
        ways += named
        assert judged.said is not None
        if best is None or best.said is None or judged.said.error < best.said.error:
            best = judged
    said: CrossValidated | None = None if best is None else best.said
    left = minutes - (time.monotonic() - started) / 60
    scratch = _from_pixels(resolved(settings, FROM_PIXELS), pixels, said, left, minutes, say, progress)
    if scratch is not None:
        ways.append(Way.of(SCRATCH, scratch))
        say(f"  {ways[-1].words()}")
    else:
        lines.append("No time was left to try pixels: more --minutes would.")
    if scratch is not None and (said is None or _preferred(scratch, said.at(scratch.index))):
        # Pixels have time for all images, and for larger ones than those that were tried. The minutes stay those of the
        # whole command: what is spent by now is taken off once, where the training begins (train.py).
        final = resolved(settings, FROM_PIXELS).replace({"max_minutes": minutes, "unlabelled": given})
        calibration, error = calibrate(scratch)
        fitted = FittedCalibration(calibration, 0, len(scratch.labels), error, "cross-validation")
        marked = tuple(dataclasses.replace(way, chosen=way.name == SCRATCH) for way in ways)
        final = dataclasses.replace(final, chosen=final.chosen | {"max_minutes"})
        return Decision(final, None, _with_reference(marked, data, pixels, best, seed), fitted, tuple(lines))
    if best is None:
        return Decision(resolved(settings, FROM_PIXELS), lines=tuple(lines))
    taken = {way.name for way in best.ways if way.chosen}
    network_name = best.settings.data.backbone or ""
    marked = tuple(
        dataclasses.replace(way, chosen=way.name in {_named_as(one, network_name) for one in taken}) for way in ways
    )
    marked = _with_reference(marked, data, pixels, best, seed)
    if scratch is None:
        lines += _pixels_may_be_better(marked)
    return Decision(best.settings, best, marked, None, tuple(lines))


def _pixels_may_be_better(ways: Sequence[Way]) -> list[str]:
    """What to say where pixels were not tried, and a reference that has only pixels is better than what is taken."""
    taken = [way.error for way in ways if way.chosen]
    better = [way for way in ways if way.name in (ON_HOG, ON_PIXELS) and taken and way.error < min(taken)]
    return [
        f"{way.name.capitalize().replace('hog', 'HOG')} is better than all that was tried on features: these images "
        "seem to be of another kind than those that the network has learned from. --encoder deep learns from pixels."
        for way in better
    ]


def _preferred(pixels: CrossValidated, features: CrossValidated) -> bool:
    """Whether to learn from pixels, by what both say of the same labels.

    A short training from pixels says too little of a long one: it will learn for several times as long, and features
    will not get better. So pixels are taken unless features are better by more than a standard error; of fewer labels
    than _ENOUGH_FOR_TIES that is hardly a test, and the lower error is taken.
    """
    if len(pixels.labels) < _ENOUGH_FOR_TIES:
        return pixels.error < features.error
    return not clearly_better(features, pixels)


def _named(way: Way, network: str) -> str:
    return _named_as(way.name, network)


def _named_as(name: str, network: str) -> str:
    return f"{name.removesuffix(' on the same features')} on {network}"


def _with_features(sets: Sets, data: DataSettings, progress: Progress | None) -> Sets:
    """Of images in memory, parted as they are."""

    def of(images: ImageSet) -> ImageSet:
        return with_features(images, None, data.backbone or "", data.views, progress, share=share_of(data))

    return dataclasses.replace(sets, train=of(sets.train), valid=None if sets.valid is None else of(sets.valid))


# ---- from pixels ----


def _from_pixels(
    settings: Settings,
    pixels: Sets | None,
    said: CrossValidated | None,
    left: float,
    minutes: float,
    say: Say,
    progress: Progress | None,
) -> CrossValidated | None:
    """What short trainings, of a size that fits the time, say of labels they had not seen; None if there is no time."""
    each = _PROBE_SHARE * minutes
    if left < 3 * each:
        return None
    settings = fitted_to(settings, pixels, each)
    if pixels is None or settings.data.size is not None:
        pixels = sets_of(settings.data, settings.train.seed, progress)
    column = pixels.train.columns[LABELS]
    assert isinstance(column, LabelColumn)
    folds = label_folds(column.values, seed=settings.train.seed)
    if not folds:
        return None
    say(f"  (from pixels: up to {len(folds)} trainings of {60 * each:.0f} seconds)")
    parts: list[CrossValidated] = []
    for aside in folds:
        parts.append(_fold(settings, pixels, column, aside, each))
        found = in_order(parts)
        if len(found.labels) >= _ENOUGH_JUDGED or left < 2 * each + each * (1 + len(parts)):
            break
        best = 1.0 if said is None else said.error
        if found.error - 2 * (found.error * (1 - found.error) / len(found.labels)) ** 0.5 > best + _HOPELESS:
            break
    return in_order(parts)


def _fold(settings: Settings, sets: Sets, column: LabelColumn, aside: Tensor, minutes: float) -> CrossValidated:
    """What a short training that has not seen these images says of them."""
    from semisight.runs.train import train_in_memory

    kept = torch.ones(len(sets.train), dtype=torch.bool)
    kept[aside] = False
    train = sets.train.subset(kept)
    part = Sets(train, None)
    quiet = {"max_minutes": minutes, "tensorboard": False, "checkpoint_minutes": None}
    recipe = compose(suited(settings.replace(quiet), part), part)
    run = train_in_memory(recipe)
    held_out = sets.train.subset(aside)
    found = [decide(run.labels.head, codes).value.cpu() for _, codes, _ in encode_set(run.model, held_out)]
    return CrossValidated(aside, torch.cat(found), column.values[aside])


# ---- a reference that needs no network ----


def _with_reference(
    ways: tuple[Way, ...], data: DataSettings, pixels: Sets | None, judged: Judged | None, seed: int
) -> tuple[Way, ...]:
    sets = judged.sets if judged is not None else pixels
    if sets is None:
        return ways
    found = reference(data, sets.train if pixels is None else pixels.train, seed)
    return ways if found is None else (*ways, found)


def reference(data: DataSettings, train: ImageSet, seed: int) -> Way | None:
    """Logistic regression on HOG or pixels of the labelled images; None where there are no pixels or too few labels."""
    if is_feature_file(data.source) or train.labels is None:
        return None
    started, index = time.monotonic(), few_enough(train.labels, seed)
    read = labelled_pixels(data, train, index)
    if read is None:
        return None
    images, kept = read
    labels = train.labels[index[kept]]
    found = on_pixels(images, labels, len(train.class_names), seed)
    return None if found is None else Way.of(*found, ours=False, seconds=time.monotonic() - started)


def labelled_pixels(data: DataSettings, train: ImageSet, index: Tensor) -> tuple[Tensor, Tensor] | None:
    """Images [n, C, h, w] in [0, 1] at these places, as small as HOG wants them, and which of the places they are."""
    pictures = kind_of(data.source) is Kind.PICTURES or train.are_features
    return pixels_at(data.source, train, index, side_for(10**6 if pictures else min(train.shape[1:])), 1)
