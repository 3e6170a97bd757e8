"""All that can be asked of a run, from four places: defaults, the run that is resumed, a file, the command line.

Later places win. Every setting is declared once, here or in training/config.py; the options of `semisight train`, the
config file, a run's record and the estimator's arguments are made from these declarations. Some defaults depend on what
there is to learn: `Settings.suited` fills in those that nobody chose.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic.fields import FieldInfo

from semisight.data.features import is_feature_file
from semisight.errors import UserError
from semisight.model.architecture import Architecture, Layer, Nonlinearity, check_keys, preset, suggest_architecture
from semisight.setting import as_dict, fields, group, names, part, setting, unknown_name, words_of
from semisight.training.config import TrainConfig, read_settings

Pooling = Literal["expected", "sampled", "max"]
GradientName = Literal["local", "straight-through", "nvil"]
EncoderName = Literal["auto", "features", "scratch", "deep"]
AugmentName = Literal["auto", "drawings", "photos", "any"]
MOST_VIEWS = 16  # of an image, whose features are used
CAPTION_VIEWS = 4  # unless chosen: a perplexity of 15.5 instead of 16.0 with the plain view alone (docs/experiments.md)
_IMAGES, _LABELS, _TAGS, _CAPTIONS, _CONSISTENCY, _MODEL = (
    *("Images", "Labels", "Tags (several labels per image)", "Captions", "Consistency", "Model"),
)


@group
class DataSettings:
    """Which images, how large, which of them carry what, and how many are set aside for validation."""

    source: str = setting(default="", help="Where the images are.")
    size: int | None = setting(
        default=None, help="Scale and crop to SIZE x SIZE pixels.", panel=_IMAGES, shown="as they are", ge=1
    )
    channels: int | None = setting(
        default=None, help="1 (grey) or 3 (colour).", panel=_IMAGES, shown="as they are", ge=1
    )
    limit: int | None = setting(default=None, help="Use at most so many images.", panel=_IMAGES, shown="all", ge=1)
    valid_fraction: float = setting(
        default=0.1, help="Share set aside for validation; 0 for none.", panel=_IMAGES, ge=0, lt=1
    )
    backbone: str | None = setting(
        default=None,
        help="Learn from the features of a pretrained network instead of pixels, the way for photographs: a name "
        "(semisight backbones lists them), an .onnx file, or a folder of transformers.",
        panel=_IMAGES,
        shown="none: from scratch, from pixels",
    )
    views: int = setting(
        default=2,
        help="Views of each image whose features are used: plain, and augmented ones.",
        shown="2; for captions, without --grid, 4",
        ge=1,
        le=MOST_VIEWS,
    )
    grid: bool = setting(
        default=False,
        help="With --backbone: the map of features with its places instead of one vector for each image. For captions.",
        panel=_IMAGES,
    )
    engine: Literal["local", "ray"] = setting(
        default="local",
        help="With --backbone: who works out the features, worker processes of this machine or a Ray cluster.",
        panel=_IMAGES,
    )
    address: str | None = setting(
        default=None,
        help="Of the Ray cluster: HOST:PORT, or auto for the one this machine belongs to.",
        panel=_IMAGES,
        shown="one that is started here",
    )
    labels: str | None = setting(
        default=None,
        help="A CSV file with the columns file,label, or a .npy array of one label for each image (-1: unknown). "
        "Images that it leaves out are unlabelled.",
        panel=_LABELS,
        shown="those that the set carries, if any",
    )
    class_per_folder: bool = setting(
        default=False, help="The folders directly below DATA are the classes.", panel=_LABELS
    )
    use_labels: bool = setting(
        default=True,
        help="Learn from the images alone, even if the set carries labels.",
        panel=_LABELS,
        flag="--no-labels",
        inverse=True,
    )
    labels_per_class: int | None = setting(
        default=None,
        help="Keep so many labels of each class and hide the others, to try out how few are enough; the error is "
        "measured on hidden ones.",
        panel=_LABELS,
        shown="all",
        ge=1,
    )
    only_labelled: bool = setting(
        default=False, help="Leave out unlabelled images, to see what they are worth.", panel=_LABELS
    )
    unlabelled: int | None = setting(
        default=None,
        help="Learn from at most so many of the images without a label, drawn at random. Those with one all stay.",
        panel=_LABELS,
        shown="all",
        ge=0,
    )
    tags: str | None = setting(
        default=None,
        help="Several labels per image: a CSV file with file,label in which a file may stand repeatedly, or with a "
        "column for each tag holding 1, 0 or nothing (unknown); a .npy array [N, C] of 1, 0 and -1; builtin: those "
        "that the set carries.",
        panel=_TAGS,
    )
    tags_known: float | None = setting(
        default=None,
        help="Keep this share of the tags' entries and hide the others.",
        panel=_TAGS,
        shown="all",
        gt=0,
        le=1,
    )
    captions: str | None = setting(
        default=None,
        help="Karpathy's or COCO's json, a Flickr token file, CSV (columns file,caption) or JSON lines; builtin: those "
        "that the set carries. Images that it leaves out are uncaptioned.",
        panel=_CAPTIONS,
    )
    split: str | None = setting(
        default=None,
        help="Which part of a caption file that parts its images: train, val, ..., or all.",
        panel=_CAPTIONS,
        shown="train and restval; evaluate: test, or val",
    )
    captioned_images: int | None = setting(
        default=None,
        help="Keep the captions of so many images and hide the others', to try out how few are enough; captions are "
        "measured on hidden ones.",
        panel=_CAPTIONS,
        shown="all",
        ge=1,
    )
    only_captioned: bool = setting(
        default=False, help="Leave out uncaptioned images, to see what they are worth.", panel=_CAPTIONS
    )
    images_from: str | None = setting(
        default=None,
        help="Take the image model of this run, leave it as it is, and learn what images carry on its codes.",
        panel=_CAPTIONS,
        flag="--two-step",
        metavar="RUN",
        shown="images and captions together",
    )

    def __post_init__(self) -> None:
        wanted = [word for word, given in self._label_words() if given]
        if not self.use_labels and wanted:
            raise UserError(f"--no-labels and {wanted[0]} exclude each other: give one of them.")
        if self.labels is not None and self.class_per_folder:
            raise UserError("--labels and --class-per-folder both say which labels the images have: give one of them.")
        stray = [word for word, given in self._caption_words() if given]
        if self.captions is None and stray:
            raise UserError(f"{stray[0]} is about captions: say which with --captions FILE (or builtin).")
        if self.grid and self.backbone is None:
            raise UserError("--grid is about the features of a pretrained network: say which with --backbone.")
        if self.address is not None and self.engine != "ray":
            raise UserError("--address is that of a Ray cluster: give --engine ray, too.")
        if self.engine == "ray" and self.backbone is None:
            raise UserError("--engine ray works out the features of a pretrained network: say which with --backbone.")
        if self.tags is None and self.tags_known is not None:
            raise UserError("--tags-known is about tags: say which with --tags FILE (or builtin).")

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
        ]

    @property
    def on_features(self) -> bool:
        """Whether features take the place of pixels: a network's, or one's own."""
        return self.backbone is not None or is_feature_file(self.source)

    @property
    def suited_views(self) -> int:
        """Views of each image, where nobody chose how many."""
        return CAPTION_VIEWS if self.captions is not None and not self.grid else self.views

    @property
    def needs_labels(self) -> bool:
        """Whether something was asked that makes no sense without labels."""
        return any(given for _, given in self._label_words())


@group
class ModelSettings:
    """What the code is made from; the layers, by a preset's name or one by one or (by default) worked out from the
    images, and how they learn."""

    encoder: EncoderName = setting(
        default="auto",
        help="What the code of an image is made from: features of a pretrained network, pixels (deep: 3x3 convolutions "
        "with batch normalisation, scratch: layers as the paper's; the network learns all by itself), or auto: tries "
        "features and deep as far as there is time, and takes what cross-validation on the given labels says.",
        panel=_MODEL,
        shown="auto with labels; with options of pixels deep, with those of layers, steps or epochs scratch",
    )
    preset: str | None = setting(
        default=None,
        help="Layers of the paper's Table 5: mnist, cifar-10, cifar-100, caltech-101, caltech-256, imagenet, flickr8k, "
        "flickr30k, coco.",
        panel=_MODEL,
        shown="suits the size of the images",
    )
    layers: tuple[Any, ...] | None = setting(
        default=None, help="Layers one by one: [{maps: 32, kernel: 5, pool: 2}, ...]."
    )
    width: float = setting(
        default=1.0,
        help="Times so many maps in every layer of the deep encoder.",
        gt=0,
        le=64,
        shown="1, or 0.5 where the time is short",
    )
    nonlinearity: Nonlinearity = setting(
        default="none", help="After pooling, in the encoder.", panel=_MODEL, shown="none; with targets: norm-relu"
    )
    pooling: Pooling = setting(
        default="expected",
        help="How the code sees the places z: their mean, a draw (the paper's), or max-pooling without z.",
        panel=_MODEL,
    )
    gradient: GradientName = setting(default="local", help="How the gradient for z is estimated.", panel=_MODEL)
    alpha0: Literal["learned", "exact"] = setting(default="learned", help="The precision of the pixels.")

    def __post_init__(self) -> None:
        if self.preset is not None and self.layers is not None:
            raise UserError("give a preset or layers, not both.")
        if self.layers is not None:
            if not self.layers:
                raise UserError("layers must be a list such as [{maps: 32, kernel: 5, pool: 2}, ...], not empty.")
            object.__setattr__(self, "layers", tuple(_layer(row) for row in self.layers))

    def architecture(self, image_shape: tuple[int, int, int]) -> Architecture:
        if self.layers is not None:
            return Architecture(image_shape, self.layers, self.nonlinearity)
        if self.preset is not None:
            return Architecture(image_shape, preset(self.preset).layers, self.nonlinearity)
        return suggest_architecture(image_shape, self.nonlinearity)

    def about(self, architecture: Architecture) -> dict[str, Any]:
        """What a checkpoint says of its model, and a run is loaded by."""
        deep = {"encoder": self.encoder, "width": self.width} if self.encoder == "deep" else {}
        return {
            **deep,
            "architecture": architecture.to_dict(),
            "pooling": self.pooling,
            "gradient": self.gradient,
            "alpha0": self.alpha0,
        }


@group
class LabelSettings:
    """How labels are learned."""

    head: Literal["softmax", "svm"] = setting(
        default="svm", help="What tells classes apart: softmax, or the Bayesian SVM.", panel=_LABELS, shown="softmax"
    )
    gamma: float = setting(default=1.0, help="Weighs the SVM's errors against its prior.", gt=0)
    xi: float | str = setting(
        default="paper",
        help="Weight of the labels beside the images: a number, paper (N_X / (C rho)), or a multiple of the paper's "
        "such as 10x.",
        panel=_LABELS,
        shown="10 C times the paper's",
    )
    xi_warmup: int = setting(default=0, help="Steps over which xi rises.", ge=0)
    threshold: float | None = setting(
        default=0.95,
        help="Probability above which only the likeliest pseudo-label is learned; null follows how sure the model is.",
        ge=0,
    )
    smoothing: float = setting(default=0.0, help="The share of a given label that is spread over all.", ge=0, lt=1)


@group
class TagSettings:
    """How tags are learned."""

    tag_head: Literal["logistic", "svm"] = setting(default="logistic", help="What decides each tag.", panel=_TAGS)
    tag_xi: float | str = setting(
        default="paper",
        help="Weight of the tags beside the images, as xi.",
        panel=_TAGS,
        shown="10 C times the paper's",
    )
    tag_threshold: float = setting(default=0.95, help="Probability above which a pseudo-tag is learned.", ge=0)


@group
class CaptionSettings:
    """How captions are learned; the defaults are the paper's."""

    cell: Literal["gru", "lstm"] = setting(
        default="gru", help="The recurrent network that writes captions.", panel=_CAPTIONS
    )
    hidden_size: int = setting(
        default=512,
        help="Its hidden units.",
        panel=_CAPTIONS,
        shown="512; with fewer than 5,000 captions 256",
        ge=1,
        le=8192,
    )
    embedding_size: int = setting(default=512, help="Numbers that a word becomes.", ge=1, le=8192)
    min_count: int = setting(
        default=5,
        help="Words that occur less often are one unknown word.",
        panel=_CAPTIONS,
        shown="5; with fewer than 5,000 captions 1",
        ge=1,
    )
    caption_xi: float | str = setting(
        default="paper",
        help="Weight of log p(caption) beside the image's bound: a number (1 is the exact bound), paper (N_X / (T "
        "rho)), or a multiple of the paper's such as 10x.",
        panel=_CAPTIONS,
        shown="10x",
    )
    caption_xi_warmup: int = setting(default=0, help="Steps over which it rises.", ge=0)
    caption_threshold: float = setting(
        default=0.9, help="Probability above which a word of a pseudo-caption is learned.", ge=0
    )
    captions_per_step: int | None = setting(
        default=1, help="Captions of an image in a step; null takes all it has.", ge=1
    )
    start: Literal["paper", "wide"] = setting(default="paper", help="Of the weights: as in appendix B, or wide.")
    code_at_every_step: bool = setting(
        default=False, help="Show the code to the recurrent network at every word, not at the first alone."
    )
    attention: bool = setting(
        default=False,
        help="Soft attention: every word weighs the places of the code, where it has several.",
        shown="with --grid, for captions alone",
    )
    caption_dropout: float = setting(
        default=0.0, help="Share of numbers left out, in training, of words and hidden units.", ge=0, lt=1
    )
    tied_words: bool = setting(
        default=False, help="Tied embeddings: one table to read and to predict words; embedding_size is hidden_size."
    )


@group
class ConsistencySettings:
    """What images without a target contribute (objectives/consistency.py). None: as suits what there is to learn."""

    consistency: bool = setting(
        default=True,
        help="Learn on augmented images, and from images without a label or caption: pseudo-labels of the averaged "
        "model, a contrastive term between two augmented views, and label spreading over a graph of codes.",
        panel=_CONSISTENCY,
        flag="--consistency/--no-consistency",
    )
    pseudo_labels: float = setting(default=1.0, help="Weight of pseudo-labels.", panel=_CONSISTENCY, ge=0)
    contrastive: float | None = setting(
        default=None,
        help="Weight of the contrastive term.",
        panel=_CONSISTENCY,
        shown="1 with labels, 0 with captions alone",
        ge=0,
    )
    spreading: float = setting(default=1.0, help="Weight of spread labels.", panel=_CONSISTENCY, ge=0)
    augment: AugmentName = setting(
        default="auto",
        help="How images are augmented: photos (a little, and mirrored), drawings (further, never mirrored: also for "
        "writing and signs), any (with the symmetries that the labels allow), or auto (the deep encoder: any; else "
        "images in colour are taken for photos). With captions always gently.",
        panel=_CONSISTENCY,
    )
    augment_strength: float | None = setting(
        default=None, help="Strength of the augmentation that is learned from.", shown="1.3; with captions 1", ge=0
    )
    bound_images: int | None = setting(
        default=-1,
        help="Images of a batch that enter the bound; 0 leaves the image model out, null takes all, -1 as suits.",
        ge=-1,
    )
    bound_weight: float | None = setting(
        default=None,
        help="Nats of the bound per number of the image beside one nat per label; null: weight 1 beside xi.",
        ge=0,
    )
    labelled_per_batch: int = setting(default=32, help="Images of a batch that carry a target, where few do.", ge=1)


KINDS = (DataSettings, ModelSettings, TrainConfig, LabelSettings, TagSettings, CaptionSettings, ConsistencySettings)
NAMES = tuple(names(KINDS))
# Shorter words for settings, as the command line has them.
WORDS = {
    flag.strip("-").replace("-", "_"): name
    for kind in KINDS
    for name, info in fields(kind).items()
    if (flag := words_of(info)["flag"]) and "/" not in flag and not words_of(info)["inverse"]
}

# Sections 4 and 5.2 as printed; what --paper sets.
PAPER: dict[str, Any] = {
    "encoder": "scratch",
    "nonlinearity": "none",
    "learning_rate": 2e-4,
    "schedule": "constant",
    "average_decay": None,
    "patience": 10,
    "batch_size": 64,
    "max_epochs": 100,
    "head": "svm",
    "tag_head": "svm",
    "xi": "paper",
    "tag_xi": "paper",
    "caption_xi": "paper",
    "consistency": False,
    "labelled_per_batch": 32,
    "start": "paper",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything a run is made from; `chosen` are the names that were given, not left to their defaults."""

    data: DataSettings
    model: ModelSettings
    train: TrainConfig
    labels: LabelSettings
    tags: TagSettings
    captions: CaptionSettings
    consistency: ConsistencySettings
    chosen: frozenset[str] = frozenset()

    def flat(self) -> dict[str, Any]:
        """All settings by name."""
        return {name: value for one in self._groups() for name, value in as_dict(one).items()}

    def _groups(self) -> tuple[Any, ...]:
        return (self.data, self.model, self.train, self.labels, self.tags, self.captions, self.consistency)

    def replace(self, values: Mapping[str, Any]) -> "Settings":
        """With other values, by name."""
        changed: Any = [_changed(one, values) for one in self._groups()]
        return Settings(*changed, chosen=self.chosen)  # type: ignore[misc]

    def suited(self, defaults: Mapping[str, Any]) -> "Settings":
        """With these values where nobody chose otherwise."""
        return self.replace({name: value for name, value in defaults.items() if name not in self.chosen})


def _changed(one: Any, values: Mapping[str, Any]) -> Any:
    mine = {name: value for name, value in values.items() if name in fields(type(one))}
    return dataclasses.replace(one, **mine) if mine else one


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
    return build(flat)


def build(flat: Mapping[str, Any]) -> Settings:
    """From settings by name, all known."""
    if not flat.get("source"):
        raise UserError("say which images to learn from: semisight train DATA --out RUN.")
    groups = [part(kind, flat) for kind in KINDS]
    data, model = cast(DataSettings, groups[0]), cast(ModelSettings, groups[1])
    if model.preset is not None:  # a row of Table 5 belongs to a size of image
        channels, height, _ = preset(model.preset).image_shape
        groups[0] = dataclasses.replace(data, size=data.size or height, channels=data.channels or channels)
    if data.backbone is not None and "views" not in flat:
        groups[0] = dataclasses.replace(cast(DataSettings, groups[0]), views=data.suited_views)
    for name in ("xi", "tag_xi", "caption_xi"):
        parse_xi(flat.get(name, "paper"), name)
    return Settings(*cast(Any, groups), chosen=frozenset(flat))  # type: ignore[misc]


def parse_xi(xi: float | str, name: str = "xi") -> tuple[float | None, float]:
    """(value, times the paper's) of a number, "paper", or a multiple such as "10x"."""
    if isinstance(xi, str):
        text = xi.strip().lower()
        try:
            if text == "paper":
                return None, 1.0
            if text.endswith("x") and float(text[:-1]) >= 0:
                return None, float(text[:-1])
            xi = float(text)
        except ValueError:
            raise UserError(f"{name} must be a number, paper, or a multiple such as 10x, not {xi!r}.") from None
    if not 0 <= xi < float("inf"):
        raise UserError(f"{name} must be a number of at least 0, not {xi!r}.")
    return float(xi), 1.0


def read_file(path: Path) -> dict[str, Any]:
    """Settings by name from a JSON or YAML file; the config.json of a run works as well."""
    values = read_settings(path)
    return of_run(values) if {"config", "about"} <= values.keys() else values


def of_run(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, by name, of a run's config.json or a checkpoint's header; all but the data's."""
    try:
        about = meta["about"]
        model = about.get("model", about)  # format 1 kept it one level up
        if "features" in model and "architecture" not in model:
            raise UserError("it was learned in closed form, within seconds: there is nothing to resume. Train it anew.")
        architecture = model["architecture"]
        layers = {"layers": architecture["layers"], "nonlinearity": architecture["nonlinearity"]}
        saved = about.get("settings", {})
        own = {name: model[name] for name in ("pooling", "gradient", "alpha0")}
        own |= {name: model[name] for name in ("encoder", "width") if name in model}
        found = {**meta["config"], **layers, **own, **{name: saved[name] for name in saved if name in NAMES}}
        # a stranger's says neither which network is loaded nor which host is asked, nor how many processes start
        kept = {name: value for name, value in found.items() if name not in fields(DataSettings)}
        few = {name: _no_more_than_cores(kept[name]) for name in ("processes", "threads") if name in kept}
        return {**kept, **few}
    except (KeyError, TypeError) as error:
        raise UserError(f"this run does not say how its model is built (it lacks {error}).") from error


def _no_more_than_cores(count: Any) -> Any:
    return min(count, os.cpu_count() or 1) if isinstance(count, int) else count


def _known(name: str, origin: str) -> str:
    """The setting that is meant by a name; an unknown one is an error that names the nearest."""
    word = str(name).replace("-", "_")
    word = WORDS.get(word, word)
    if word not in NAMES:
        raise unknown_name(str(name), [*NAMES, *WORDS, "paper"], origin)
    return word


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


def options() -> Iterable[tuple[str, FieldInfo]]:
    """The settings that are options of the command line, with their declarations."""
    for kind in KINDS:
        yield from ((name, info) for name, info in fields(kind).items() if words_of(info)["panel"] is not None)
