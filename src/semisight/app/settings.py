"""All that can be asked of a run, from four places: defaults, the run that is resumed, a file, the command line.

Later places win. Names are those of the options of `semisight train`, with _ for -; those of `TrainConfig` work too.
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
from semisight.learning.objective import Precision
from semisight.model.architecture import Architecture, Layer, Nonlinearity, check_keys, preset, suggest_architecture
from semisight.model.image_encoder import POOLINGS, Pooling

# The command line's words for settings of the trainer.
WORDS = {"epochs": "max_epochs", "minutes": "max_minutes", "steps": "max_steps", "average": "average_decay"}


@dataclass(frozen=True)
class DataSettings:
    """Which images, how large, and how many of them are set aside for validation."""

    source: str
    size: int | None = None
    channels: int | None = None
    limit: int | None = None
    valid_fraction: float = 0.1

    def __post_init__(self) -> None:
        for name in ("size", "channels", "limit"):
            _check_whole(name, getattr(self, name))
        fraction = self.valid_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 <= fraction < 1:
            raise UserError(f"valid_fraction must be at least 0 (no validation) and below 1, not {fraction!r}.")


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
    """Everything a run is made from."""

    data: DataSettings
    model: ModelSettings
    train: TrainConfig


def resolve(given: Mapping[str, Any], file: Path | None = None, former: Mapping[str, Any] | None = None) -> Settings:
    """Options (None where not given) over the settings of a file over those of the run to resume over the defaults."""
    options = {name: value for name, value in given.items() if value is not None}
    places = [(former or {}, "the run to resume"), (read_file(file) if file else {}, str(file)), (options, "options")]
    flat: dict[str, Any] = {}
    for values, origin in places:
        named = {_known(name, origin): value for name, value in values.items()}
        if named.get("preset") is not None or named.get("layers") is not None:
            flat = {name: value for name, value in flat.items() if name not in ("preset", "layers")}
        flat |= named
    return _build(flat)


def _build(flat: Mapping[str, Any]) -> Settings:
    def part(kind: Any) -> dict[str, Any]:
        names = {field.name for field in dataclasses.fields(kind)}
        return {name: value for name, value in flat.items() if name in names}

    model = ModelSettings(**part(ModelSettings))
    if flat.get("source") is None:
        raise UserError("say which images to learn from: semisight train DATA --out RUN.")
    data = DataSettings(**part(DataSettings))
    if model.preset is not None:  # a row of Table 5 belongs to a size of image
        channels, height, _ = preset(model.preset).image_shape
        data = dataclasses.replace(data, size=data.size or height, channels=data.channels or channels)
    return Settings(data, model, TrainConfig.from_dict(part(TrainConfig)))


def read_file(path: Path) -> dict[str, Any]:
    """Settings by name from a JSON or YAML file; the config.json of a run works as well."""
    values = read_settings(path)
    return of_run(values) if {"config", "about"} <= values.keys() else values


def of_run(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by name, of a run's config.json or a checkpoint's header; all but the data's."""
    try:
        about, architecture = meta["about"], meta["about"]["architecture"]
        model = {"layers": architecture["layers"], "nonlinearity": architecture["nonlinearity"]}
        return {**meta["config"], **model, **{name: about[name] for name in ("pooling", "gradient", "alpha0")}}
    except (KeyError, TypeError) as error:
        raise UserError(f"this run does not say how its model is built (it lacks {error}).") from error


def _known(name: str, origin: str) -> str:
    """The setting that is meant by a name; an unknown one is an error that names the nearest."""
    word = str(name).replace("-", "_")
    word = WORDS.get(word, word)
    kinds: tuple[Any, ...] = (DataSettings, ModelSettings, TrainConfig)
    known = [field.name for kind in kinds for field in dataclasses.fields(kind)]
    if word not in known:
        near = get_close_matches(word, [*known, *WORDS], n=1, cutoff=0.4)
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
