"""All that can be asked of a run, from four places: defaults, the run that is resumed, a file, the command line.

Later places win. Names are those of the options of `semisight train`, with _ for -; those of `TrainConfig` and of
`LabelSettings` and `CaptionSettings` work too (the captions' xi is `caption_xi`, as xi alone is that of labels). Some
defaults differ where there are labels or captions to learn: see `Settings.for_labels` and `Settings.for_captions`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer, Nonlinearity, check_keys, preset, suggest_architecture
from semisight.model.encoders.paper import POOLINGS, Pooling
from semisight.objectives.gradients import ESTIMATORS, EstimatorName
from semisight.objectives.image_objective import Precision
from semisight.runs.caption_training import CaptionSettings
from semisight.runs.label_training import LabelSettings, XiRule, is_dealt, labelled_beside
from semisight.training.config import TrainConfig, read_settings

# The command line's words for settings of the trainer.
WORDS = {"epochs": "max_epochs", "minutes": "max_minutes", "steps": "max_steps", "average": "average_decay"}

# Where labels are learned and nobody chose otherwise (docs/symbols.md says why).
LABEL_DEFAULTS: dict[str, Any] = {
    "nonlinearity": "norm-relu",
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "average_decay": 0.99,
    "patience": None,  # the rate has to come down first
    "head": "softmax",
    "xi": "tenfold",
}
UNLABELLED_PER_BATCH, SUPERVISED_BATCH = 256, 128
LEAST_EPOCHS, LEAST_STEPS = 20, 4000
STEPS_BETWEEN_VALIDATIONS = 40  # a small set passes by in a few steps: it is not validated after each pass

# Where captions are learned. The labels' head and xi hold for labels beside captions.
CAPTION_DEFAULTS: dict[str, Any] = {
    "nonlinearity": "norm-relu",
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "average_decay": 0.99,
    "batch_size": 64,
    "caption_start": "wide",
    "caption_pull": True,
    "caption_xi_scale": 10.0,
    "head": "softmax",
    "xi": "pixels",
}
MANY_CAPTIONS = 5000  # with fewer, rare words are kept, and a smaller network is enough
FEW_CAPTIONS: dict[str, Any] = {"min_count": 1, "hidden_size": 256, "embedding_size": 256}
CAPTION_STEPS, CAPTION_STEPS_TO_VALIDATION, CAPTION_PATIENCE = 4000, 100, 10

# Names of CaptionSettings that are taken by LabelSettings, and how they are called beside these.
_CAPTION_NAMES = {
    name: f"caption_{name}"
    for name in ("xi", "xi_scale", "xi_warmup", "start", "pull", "confident", "threshold", "bound_images")
}

# Sections 4 and 5.2 as printed; what --paper sets.
PAPER: dict[str, Any] = {
    "nonlinearity": "none",
    "learning_rate": 2e-4,
    "schedule": "constant",
    "average_decay": None,
    "patience": 10,
    "batch_size": 64,
    "max_epochs": 100,
    "head": "svm",
    "xi": "paper",
    "pull": False,
    "labelled_per_batch": 32,
    "caption_start": "paper",
    "caption_pull": False,
    "caption_xi_scale": 1.0,
}


@dataclass(frozen=True)
class DataSettings:
    """Which images, how large, and how many of them are set aside for validation."""

    source: str
    size: int | None = None
    channels: int | None = None
    limit: int | None = None
    valid_fraction: float = 0.1
    labels: str | None = None  # a file of labels; None: those that the set carries, if any
    class_per_folder: bool = False
    use_labels: bool = True
    labels_per_class: int | None = None  # keep so many and hide the others, to try out how few are enough
    only_labelled: bool = False  # leave out images without a label, to see what they are worth
    captions: str | None = None  # a file of captions, or "builtin": those that the set carries
    split: str | None = None  # of a caption file that parts its images: train, val, ...; None: those to train on
    captioned_images: int | None = None  # keep the captions of so many and hide the others'
    only_captioned: bool = False  # leave out images without a caption
    tags: str | None = None  # a file of tags (several labels per image), or "builtin": those that the set carries
    tags_known: float | None = None  # keep this share of the tags' entries and hide the others
    images_from: str | None = None  # two steps: the run whose image model is taken and left as it is

    def __post_init__(self) -> None:
        for name in ("size", "channels", "limit", "labels_per_class", "captioned_images"):
            _check_whole(name, getattr(self, name))
        for name in ("class_per_folder", "use_labels", "only_labelled", "only_captioned"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        wanted = [word for word, given in self._label_words() if given]
        if not self.use_labels and wanted:
            raise UserError(f"--no-labels and {wanted[0]} exclude each other: give one of them.")
        if self.labels is not None and self.class_per_folder:
            raise UserError("--labels and --class-per-folder both say which labels the images have: give one of them.")
        stray = [word for word, given in self._caption_words() if given]
        if self.captions is None and stray:
            raise UserError(f"{stray[0]} is about captions: say which with --captions FILE (or builtin).")
        known = self.tags_known
        if known is not None and (self.tags is None or isinstance(known, bool) or not 0 < known < 1):
            raise UserError(f"tags_known is a share of the tags, above 0 and below 1, and needs --tags: not {known!r}.")
        fraction = self.valid_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
            raise UserError(f"valid_fraction must be at least 0 (no validation) and below 1, not {fraction!r}.")

    def _label_words(self) -> list[tuple[str, bool]]:
        return [
            ("--labels", self.labels is not None),
            ("--class-per-folder", self.class_per_folder),
            ("--labels-per-class", self.labels_per_class is not None),
            ("--only-labelled", self.only_labelled),
        ]

    def _caption_words(self) -> list[tuple[str, bool]]:
        return [
            ("--split", self.split is not None),
            ("--captioned-images", self.captioned_images is not None),
            ("--only-captioned", self.only_captioned),
            ("--two-step", self.images_from is not None),
        ]

    @property
    def needs_labels(self) -> bool:
        """Whether something was asked that makes no sense without labels."""
        return any(given for _, given in self._label_words())


@dataclass(frozen=True)
class ModelSettings:
    """The layers, by a preset's name or one by one or (by default) worked out from the images, and how they learn."""

    preset: str | None = None
    layers: tuple[Layer, ...] | None = None
    nonlinearity: Nonlinearity = "none"
    pooling: Pooling = "expected"
    gradient: EstimatorName = "local"
    alpha0: Precision = "learned"

    def __post_init__(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "nonlinearity": get_args(Nonlinearity),
            "pooling": POOLINGS,
            "gradient": ESTIMATORS,
            "alpha0": get_args(Precision),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}.")
        if self.preset is not None and self.layers is not None:
            raise UserError("give a preset or layers, not both.")
        if self.layers is not None:
            object.__setattr__(self, "layers", tuple(_layer(row) for row in _rows(self.layers)))

    def architecture(self, image_shape: tuple[int, int, int]) -> Architecture:
        if self.layers is not None:
            return Architecture(image_shape, self.layers, self.nonlinearity)
        if self.preset is not None:
            return Architecture(image_shape, preset(self.preset).layers, self.nonlinearity)
        return suggest_architecture(image_shape, self.nonlinearity)

    def about(self, architecture: Architecture) -> dict[str, Any]:
        """What a checkpoint says of its model, and `load_run` builds it from."""
        return {
            "architecture": architecture.to_dict(),
            "pooling": self.pooling,
            "gradient": self.gradient,
            "alpha0": self.alpha0,
        }


@dataclass(frozen=True)
class Settings:
    """Everything a run is made from; `chosen` are the names that were given, not left to their defaults."""

    data: DataSettings
    model: ModelSettings
    train: TrainConfig
    labels: LabelSettings = dataclasses.field(default_factory=LabelSettings)
    chosen: frozenset[str] = frozenset()
    captions: CaptionSettings = dataclasses.field(default_factory=CaptionSettings)

    def for_labels(self, n_labelled: int, n_unlabelled: int) -> "Settings":
        """With the defaults for learning labels, suited to the number of images, where nobody chose otherwise.

        Few labels: a batch has some of them beside unlabelled images, and an epoch is a pass over the latter. Many
        labels: batches as chance has it. A small set gets as many epochs as make a few thousand steps.
        """
        n = n_labelled + n_unlabelled
        flat = dict(LABEL_DEFAULTS)
        beside = min(UNLABELLED_PER_BATCH, n_unlabelled)
        labelled = labelled_beside(n_labelled, n_unlabelled, beside)
        few = is_dealt(n_labelled, n, labelled, labelled + beside)
        flat["batch_size"] = labelled + beside if few else min(SUPERVISED_BATCH, n)
        flat = {name: value for name, value in flat.items() if name not in self.chosen}
        size = flat.get("batch_size", self.train.batch_size)
        if self.chosen & {"batch_size", "labelled_per_batch"} or not few:
            labelled = min(self.labels.labelled_per_batch, max(1, size // 2))
        flat["labelled_per_batch"] = labelled
        dealt = is_dealt(n_labelled, n, labelled, size)
        if dealt:
            size = flat["batch_size"] = min(size, labelled + n_unlabelled)
        steps = max(1, n_unlabelled // (size - labelled) if dealt else n // size)
        if not self.chosen & {"max_epochs", "max_steps"}:
            flat["max_epochs"] = max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))
        if "validate_every" not in self.chosen:
            flat["validate_every"] = -(-STEPS_BETWEEN_VALIDATIONS // steps)
        return self._with(flat)

    def for_captions(self, n_captioned: int, n_others: int, n_captions: int) -> "Settings":
        """With the defaults for learning captions, where nobody chose otherwise; see learning/caption_training.py.

        n_captioned  images that have a caption (or a label), n_others those that have nothing
        n_captions   captions to learn from
        """
        flat = {**CAPTION_DEFAULTS, "two_step": self.data.images_from is not None}
        if flat["two_step"]:  # no bound to balance against, and nothing that images could pull on
            flat |= {"caption_pull": False, "caption_xi_scale": 1.0}
        if n_captions < MANY_CAPTIONS:
            flat |= FEW_CAPTIONS
        flat = {name: value for name, value in flat.items() if name not in self.chosen}
        size = flat["batch_size"] = min(flat.get("batch_size", self.train.batch_size), n_captioned + n_others)
        per_batch = flat["captioned_per_batch"] = min(self.captions.captioned_per_batch, max(1, size - 1))
        beside = 0 if flat.get("two_step", self.captions.two_step) else n_others
        steps = max(1, beside // min(size - per_batch, beside) if beside else n_captioned // size)
        if not self.chosen & {"max_epochs", "max_steps"}:
            flat["max_epochs"] = max(LEAST_EPOCHS, -(-CAPTION_STEPS // steps))
        if "validate_every" not in self.chosen:
            flat["validate_every"] = max(1, round(CAPTION_STEPS_TO_VALIDATION / steps))
        if "patience" not in self.chosen:  # counted in epochs
            flat["patience"] = CAPTION_PATIENCE * flat.get("validate_every", self.train.validate_every)
        return self._with(flat)

    def _with(self, flat: Mapping[str, Any]) -> "Settings":
        return dataclasses.replace(
            self,
            model=dataclasses.replace(self.model, **_part(ModelSettings, flat)),
            train=dataclasses.replace(self.train, **_part(TrainConfig, flat)),
            labels=dataclasses.replace(self.labels, **_part(LabelSettings, flat)),
            captions=dataclasses.replace(self.captions, **_caption_part(flat)),
        )


def resolve(given: Mapping[str, Any], file: Path | None = None, former: Mapping[str, Any] | None = None) -> Settings:
    """Options (None where not given) over the settings of a file over those of the run to resume over the defaults.

    `paper: true` in a place stands for the settings of PAPER there, under what else that place says.
    """
    options = {name: value for name, value in given.items() if value is not None}
    places = [(former or {}, "the run to resume"), (read_file(file) if file else {}, str(file)), (options, "options")]
    flat: dict[str, Any] = {}
    for values, origin in places:
        paper = values.get("paper", False)
        named = {_known(name, origin): value for name, value in values.items() if name != "paper"}
        if named.get("preset") is not None or named.get("layers") is not None:
            flat = {name: value for name, value in flat.items() if name not in ("preset", "layers")}
        flat |= {**PAPER, **named} if paper else named
    return _build(flat)


def _part(kind: Any, flat: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in flat.items() if name in names}


def _caption_part(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of captions, under their own names."""
    names = {field.name for field in dataclasses.fields(CaptionSettings)}
    words = {name: _CAPTION_NAMES.get(name, name) for name in names}
    return {name: flat[word] for name, word in words.items() if word in flat}


def _build(flat: Mapping[str, Any]) -> Settings:
    model = ModelSettings(**_part(ModelSettings, flat))
    if flat.get("source") is None:
        raise UserError("say which images to learn from: semisight train DATA --out RUN.")
    data = DataSettings(**_part(DataSettings, flat))
    if model.preset is not None:  # a row of Table 5 belongs to a size of image
        channels, height, _ = preset(model.preset).image_shape
        data = dataclasses.replace(data, size=data.size or height, channels=data.channels or channels)
    labels = LabelSettings(**_part(LabelSettings, _numbers(flat)))
    train = TrainConfig.from_dict(_part(TrainConfig, flat))
    return Settings(data, model, train, labels, frozenset(flat), CaptionSettings(**_caption_part(flat)))


def _numbers(flat: Mapping[str, Any]) -> dict[str, Any]:
    """xi is a number or a rule's name, so it may come as text from a command line, and as 1e3 from YAML."""
    xi = flat.get("xi")
    if not isinstance(xi, str) or xi in get_args(XiRule):
        return dict(flat)
    try:
        return {**flat, "xi": float(xi)}
    except ValueError:
        rules = " or ".join(get_args(XiRule))
        raise UserError(f"xi must be a number, or {rules}, not {xi!r}.") from None


def read_file(path: Path) -> dict[str, Any]:
    """Settings by name from a JSON or YAML file; the config.json of a run works as well."""
    values = read_settings(path)
    return of_run(values) if {"config", "about"} <= values.keys() else values


def of_run(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by name, of a run's config.json or a checkpoint's header; all but the data's."""
    try:
        about, architecture = meta["about"], meta["about"]["architecture"]
        model = {"layers": architecture["layers"], "nonlinearity": architecture["nonlinearity"]}
        labels = about["labels"]["settings"] if about.get("labels") else {}
        captions = about["captions"]["settings"] if about.get("captions") else {}
        return {
            **meta["config"],
            **model,
            **{name: about[name] for name in ("pooling", "gradient", "alpha0")},
            **{_CAPTION_NAMES.get(name, name): value for name, value in captions.items()},
            **labels,
        }
    except (KeyError, TypeError) as error:
        raise UserError(f"this run does not say how its model is built (it lacks {error}).") from error


def _known(name: str, origin: str) -> str:
    """The setting that is meant by a name; an unknown one is an error that names the nearest."""
    word = str(name).replace("-", "_")
    word = WORDS.get(word, word)
    kinds: tuple[Any, ...] = (DataSettings, ModelSettings, TrainConfig, LabelSettings)
    known = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    known += [_CAPTION_NAMES.get(field.name, field.name) for field in dataclasses.fields(CaptionSettings)]
    if word not in known:
        near = get_close_matches(word, [*known, *WORDS, "paper"], n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}."
        raise UserError(f"{origin}: there is no setting {name!r}.{hint}")
    return word


def _check_whole(name: str, value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise UserError(f"{name} must be a whole number of at least 1, not {value!r}.")


def _rows(layers: Any) -> list[Any]:
    if not isinstance(layers, list | tuple) or not layers:
        raise UserError(f"layers must be a list such as [{{maps: 32, kernel: 5, pool: 2}}, ...], not {layers!r}.")
    return list(layers)


def _layer(row: Any) -> Layer:
    if isinstance(row, Layer):
        return row
    if not isinstance(row, Mapping):
        raise UserError(f"a layer is written as {{maps: 32, kernel: 5, pool: 2}}, not {row!r}.")
    check_keys(row, [field.name for field in dataclasses.fields(Layer)], "layer")
    for name in ("maps", "kernel"):
        if name not in row:
            raise UserError(f"the layer {dict(row)} has no {name}.")
    return Layer(**cast(dict[str, Any], row))
