"""All that can be asked of a run, from four places: defaults, the run that is resumed, a file, the command line.

Later places win. Names are those of the options of `semisight train`, with _ for -; those of `TrainConfig` and of
`LabelSettings` work too. Some defaults differ where there are labels to learn: see `Settings.for_labels`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast, get_args

from semisight.errors import UserError
from semisight.learning.config import TrainConfig, read_settings
from semisight.learning.gradients import ESTIMATORS, EstimatorName
from semisight.learning.label_training import LabelSettings, XiRule
from semisight.learning.objective import Precision
from semisight.model.architecture import Architecture, Layer, Nonlinearity, check_keys, preset, suggest_architecture
from semisight.model.image_encoder import POOLINGS, Pooling

# The command line's words for settings of the trainer.
WORDS = {"epochs": "max_epochs", "minutes": "max_minutes", "steps": "max_steps", "average": "average_decay"}

# Where labels are learned and nobody chose otherwise (docs/symbols.md says why).
LABEL_DEFAULTS: dict[str, Any] = {
    "nonlinearity": "relu",
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "average_decay": 0.99,
    "patience": None,  # the rate has to come down first
    "head": "softmax",
    "xi": "pixels",
}
LABELLED_PER_BATCH, UNLABELLED_PER_BATCH, SUPERVISED_BATCH = 32, 256, 128
LEAST_EPOCHS, LEAST_STEPS = 20, 4000
STEPS_BETWEEN_VALIDATIONS = 40  # a small set passes by in a few steps: it is not validated after each pass

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

    def __post_init__(self) -> None:
        for name in ("size", "channels", "limit", "labels_per_class"):
            _check_whole(name, getattr(self, name))
        for name in ("class_per_folder", "use_labels", "only_labelled"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} must be true or false, not {getattr(self, name)!r}.")
        wanted = [word for word, given in self._label_words() if given]
        if not self.use_labels and wanted:
            raise UserError(f"--no-labels and {wanted[0]} exclude each other: give one of them.")
        if self.labels is not None and self.class_per_folder:
            raise UserError("--labels and --class-per-folder both say which labels the images have: give one of them.")
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

    def for_labels(self, n_labelled: int, n_unlabelled: int) -> "Settings":
        """With the defaults for learning labels, suited to the number of images, where nobody chose otherwise.

        Few labels: a batch has some of them beside unlabelled images, and an epoch is a pass over the latter. Many
        labels: batches as chance has it. A small set gets as many epochs as make a few thousand steps.
        """
        n = n_labelled + n_unlabelled
        flat = dict(LABEL_DEFAULTS)
        if n_labelled / n < LABELLED_PER_BATCH / (LABELLED_PER_BATCH + UNLABELLED_PER_BATCH):
            flat["batch_size"] = LABELLED_PER_BATCH + min(UNLABELLED_PER_BATCH, n_unlabelled)
        else:
            flat["batch_size"] = min(SUPERVISED_BATCH, n)
        flat = {name: value for name, value in flat.items() if name not in self.chosen}
        size = flat.get("batch_size", self.train.batch_size)
        labelled = flat["labelled_per_batch"] = min(self.labels.labelled_per_batch, max(1, size // 2))
        dealt = n_labelled / n < labelled / size  # as learning/label_training.py decides it
        if dealt:
            size = flat["batch_size"] = min(size, labelled + n_unlabelled)
        steps = max(1, n_unlabelled // (size - labelled) if dealt else n // size)
        if not self.chosen & {"max_epochs", "max_steps"}:
            flat["max_epochs"] = max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))
        if "validate_every" not in self.chosen:
            flat["validate_every"] = -(-STEPS_BETWEEN_VALIDATIONS // steps)
        return dataclasses.replace(
            self,
            model=dataclasses.replace(self.model, **_part(ModelSettings, flat)),
            train=dataclasses.replace(self.train, **_part(TrainConfig, flat)),
            labels=dataclasses.replace(self.labels, **_part(LabelSettings, flat)),
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


def _build(flat: Mapping[str, Any]) -> Settings:
    model = ModelSettings(**_part(ModelSettings, flat))
    if flat.get("source") is None:
        raise UserError("say which images to learn from: semisight train DATA --out RUN.")
    data = DataSettings(**_part(DataSettings, flat))
    if model.preset is not None:  # a row of Table 5 belongs to a size of image
        channels, height, _ = preset(model.preset).image_shape
        data = dataclasses.replace(data, size=data.size or height, channels=data.channels or channels)
    labels = LabelSettings(**_part(LabelSettings, _numbers(flat)))
    return Settings(data, model, TrainConfig.from_dict(_part(TrainConfig, flat)), labels, frozenset(flat))


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
        return {
            **meta["config"],
            **model,
            **{name: about[name] for name in ("pooling", "gradient", "alpha0")},
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
