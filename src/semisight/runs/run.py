"""A trained model and all that its folder says of it: loaded, and asked for codes, labels, tags and captions.

Prediction reads the parts `model` and `head.<target>` of a checkpoint and never builds an objective.
"""

import contextlib
import dataclasses
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch

from semisight.backbones.trusted import recorded_backbone
from semisight.data.features import MARK
from semisight.data.image_set import ImageSet, Skipped
from semisight.data.remote import as_written, is_url, local_copy, recorded_url
from semisight.errors import UserError
from semisight.files import finish_bundle, write_json
from semisight.inference.captions import Caption, CaptionReader, Search, write_captions
from semisight.inference.encode import Codes, Progress, check_answer, encode_set, joined
from semisight.inference.labels import LabelAnswer, LabelReader
from semisight.inference.tags import TagAnswer, TagReader
from semisight.model.architecture import Architecture
from semisight.model.decoder import Decoder
from semisight.model.encoders.features import FeatureEncoder, ScaledFeatures, feature_architecture
from semisight.model.image_model import ImageModel
from semisight.objectives.joint import Joint
from semisight.objectives.step import Images
from semisight.runs.features import build_described
from semisight.runs.kinds import Reader, kind_named, kinds
from semisight.runs.settings import DataSettings, of_run
from semisight.setting import as_dict, part
from semisight.training.checkpoint import load_parts, read_meta
from semisight.training.config import TrainConfig, read_settings
from semisight.training.devices import choose_device
from semisight.training.folder import RunFolder
from semisight.untrusted import read_json, read_kept

Which = Literal["auto", "best", "newest"]
_SKIPPED_KEPT = 1000  # a folder of a million text files must not make a file of a million lines
OWN_FEATURES = "features of your own"  # in the place of a backbone's name
MOST_WEIGHTS = 10**10  # of a model that somebody asks for
SMALL = 10**6  # numbers of a model that may be built whatever the size of the file that describes it
DATA, COMPARISON, UNFINISHED, REPORT = "data.json", "comparison.json", "unfinished.txt", "report.html"
_READ = ("source", "labels", "tags", "captions")  # settings that say where something is read from
WAYS = "ways.json"  # what cross-validation said of every way to learn that was tried


@dataclass(frozen=True)
class DataRecord:
    """What a run learned from, as RUN/data.json keeps it."""

    settings: DataSettings
    n_train: int
    n_valid: int
    shape: tuple[int, int, int]
    skipped: tuple[Skipped, ...] = ()
    n_skipped: int = 0
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(settings: DataSettings, train: ImageSet, valid: ImageSet | None) -> "DataRecord":
        return DataRecord(
            settings=settings,
            n_train=len(train),
            n_valid=0 if valid is None else len(valid),
            shape=train.shape,
            skipped=train.skipped[:_SKIPPED_KEPT],
            n_skipped=len(train.skipped),
            notes=train.notes,
        )

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return found

    @staticmethod
    def read(folder: RunFolder) -> "DataRecord":
        path = folder.file(DATA)
        if not path.exists():
            raise UserError(f"{folder.path} does not say which images it learned from ({path.name} is not there).")
        values = read_json(path)
        try:
            return DataRecord(
                settings=_found_in(folder, part(DataSettings, values["settings"])),
                n_train=int(values["n_train"]),
                n_valid=int(values["n_valid"]),
                shape=cast(tuple[int, int, int], tuple(int(side) for side in values["shape"])),
                skipped=tuple(Skipped(str(entry["name"]), str(entry["reason"])) for entry in values["skipped"]),
                n_skipped=int(values["n_skipped"]),
                notes=tuple(str(note) for note in values["notes"]),
            )
        except (ValueError, KeyError, TypeError, UserError) as error:
            raise UserError(
                f"{path} is damaged ({type(error).__name__}: {error}); train again, or repair it."
            ) from error


def _found_in(folder: RunFolder, data: DataSettings) -> DataSettings:
    """With recorded paths made absolute, as they are written: `~` in a run means nothing.

    Who works out features is a matter of whoever asks: a Ray cluster that a stranger's run names could run code here.
    """
    paths = {name: getattr(data, name) for name in ("source", "labels", "tags", "captions", "images_from")}
    kept = {"builtin", "arrays given in Python"}
    found = {
        name: str(folder.path.absolute() / text)
        for name, text in paths.items()
        if text and text not in kept and not text.startswith(("builtin:", MARK)) and not is_url(text)
    }
    if data.backbone is not None:
        found["backbone"] = recorded_backbone(data.backbone)
    return dataclasses.replace(data, **cast(Any, found), engine="local", address=None)


def check_urls(
    data: DataSettings, folder: Path, *, source: str, given: Container[str] = (), names: Sequence[str] = _READ
) -> None:
    """Before the recorded settings are read from: URLs among them, but for those `given` anew, were named here before.

    `source` is the option that names other images.
    """
    for name in names:
        text = getattr(data, name)
        if text and name not in given and is_url(text):
            others = {"source": ("its images", source), "images_from": ("the run of its first step", "--two-step RUN")}
            what, option = others.get(name, (f"its file of {name}", f"--{name} FILE"))
            recorded_url(text, folder, what=what, option=option)


@dataclass(frozen=True)
class Comparison:
    """What the same labels gave without the unlabelled images: the error, a share, on the images measured on."""

    error: float

    def write(self, folder: RunFolder) -> None:
        write_json(folder.file(COMPARISON), {"error_without_unlabelled": self.error})

    @staticmethod
    def read(folder: RunFolder) -> "Comparison | None":
        return read_kept(folder.file(COMPARISON), lambda kept: Comparison(float(kept["error_without_unlabelled"])))


@dataclass(frozen=True)
class Run:
    """A trained model with what it learned beside images: a reader for each target, by name.

    Example:
        >>> import semisight as ss
        >>> images = ss.load("builtin:digits", limit=60)
        >>> model = ss.ImageModel.suited_to(images)
        >>> labels = ss.Labels(ss.Softmax(model.code_size, 10), images.labels)
        >>> run = ss.train(ss.Joint(model, [labels]), images, steps=2)
        >>> run.encode(images).mean.shape == (60, model.code_size)
        True
        >>> run.predict(images).probabilities.shape
        torch.Size([60, 10])
    """

    model: ImageModel
    readers: Mapping[str, Reader] = field(default_factory=dict)
    folder: RunFolder = field(default_factory=lambda: RunFolder(Path(".")))
    checkpoint: Path = Path(".")
    meta: Mapping[str, Any] = field(default_factory=dict)

    # ---- asking ----

    def encode(self, images: Images, progress: Progress | None = None) -> Codes:
        """q(s | X) of every image.

        Args:
            images: a set, as `load` gives it.
            progress: told how many images are done, of how many.

        Returns:
            Codes with `mean` and `spread`, [N, J] each.
        """
        found = joined([codes.cpu() for _, codes, _ in encode_set(self.model, images, progress=progress)])
        check_answer(found.mean, found.spread)
        return found

    def ask(self, name: str, images: Images, progress: Progress | None = None) -> Any:
        """What the reader of that name says of every image."""
        reader = self.reader(name)
        found = encode_set(self.model, images, progress=progress)
        return reader.joined([reader(codes, generator) for _, codes, generator in found])

    def predict(self, images: Images, progress: Progress | None = None) -> LabelAnswer:
        """Labels with probabilities and spread."""
        return cast(LabelAnswer, self.ask("labels", images, progress))

    def tag(self, images: Images, progress: Progress | None = None) -> TagAnswer:
        """The probability of every tag."""
        return cast(TagAnswer, self.ask("tags", images, progress))

    def caption(
        self, images: Images, search: Search | None = None, progress: Progress | None = None
    ) -> list[tuple[Caption, ...]]:
        """The best captions of every image, as the search says."""
        return write_captions(self.model, self.captions, images, search, progress=progress)

    # ---- what it has ----

    def has(self, name: str) -> bool:
        return name in self.readers

    def reader(self, name: str) -> Reader:
        """The reader of that name, or an error that says how to get one."""
        if name not in self.readers:
            raise UserError(kind_named(name).missing(self.folder))
        return self.readers[name]

    @property
    def labels(self) -> LabelReader:
        return cast(LabelReader, self.reader("labels"))

    @property
    def tags(self) -> TagReader:
        return cast(TagReader, self.reader("tags"))

    @property
    def captions(self) -> CaptionReader:
        return cast(CaptionReader, self.reader("captions"))

    @property
    def architecture(self) -> Architecture:
        return self.model.architecture

    @property
    def about(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.meta["about"]
        return found

    @property
    def backbone(self) -> str | None:
        """The pretrained network whose features it takes, or OWN_FEATURES, if it takes features."""
        found = self.about["model"].get("features")
        return None if found is None else str(found["backbone"] or OWN_FEATURES)

    @property
    def has_grid(self) -> bool:
        """Whether it takes the map of features with its places, not one vector."""
        return bool(self.about["model"].get("features", {}).get("grid", False))

    @property
    def config(self) -> TrainConfig:
        return TrainConfig.from_dict(self.meta["config"], where=str(self.checkpoint))

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def step(self) -> int:
        return int(self.meta["counters"]["step"])

    @property
    def objective(self) -> Joint:
        """The bound of the images alone, for validation."""
        return Joint(self.model).eval()

    @property
    def unfinished(self) -> str:
        """What to know of a run whose training has not come to its end; "" of one that has."""
        if not self.folder.file(UNFINISHED).exists():
            return ""
        return (
            f"The training of {self.folder.path} has not come to its end: what it had learned at step {self.step:,} is "
            f"used. To go on with it: semisight train --out {self.folder.path} --resume"
        )

    def data(self) -> DataRecord:
        return DataRecord.read(self.folder)


def load_run(path: str | Path, which: Which = "auto", device: str = "cpu", model: ImageModel | None = None) -> Run:
    """The model of a run folder, in evaluation mode.

    Args:
        path: the folder; one at a URL (s3:// and the like) is copied here first.
        which: "auto" is its best checkpoint, or the newest where there is no best; the newest also where targets were
            learned and none held out, for then `best` is only the best at drawing images.
        device: auto, cpu, cuda, cuda:1 or mps.
        model: for a run that was trained with an encoder of your own, a model of the same parts.

    Returns:
        A `Run`: `run.predict`, `run.encode`, `run.caption`, `run.tag`.

    Example:
        >>> import semisight as ss, tempfile
        >>> images = ss.load("builtin:digits", limit=60)
        >>> objective = ss.Joint(ss.ImageModel.suited_to(images))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     trained = ss.train(objective, images, out=folder, steps=2, overwrite=True)
        ...     ss.load_run(folder).step
        2
    """
    url = as_written(path)
    folder = open_folder(local_copy(url) if is_url(url) else path)
    named = {"best": folder.best, "newest": folder.newest}
    checkpoint = _chosen(folder) if which == "auto" else named[which]
    other = " Its other checkpoint may be whole: --checkpoint newest." if checkpoint == folder.best else ""
    try:
        meta = read_meta(checkpoint)
        about, step = meta["about"], int(meta["counters"]["step"])
        room = SMALL + checkpoint.stat().st_size
        model = build_model(about["model"], room=room) if model is None else model
        targets = {name: of for name, of in about["targets"].items() if _known(name)}
        for name, of in targets.items():
            if kind_named(name).n_weights(of, model.code_size) > room:
                raise UserError(f"{checkpoint} describes a head of {name} that is larger than the whole file")
        heads = {name: kind_named(name).head(of, model.code_size) for name, of in targets.items()}
        load_parts({"model": model, **{f"head.{name}": head for name, head in heads.items()}}, checkpoint)
        for module in (model, *heads.values()):
            module.to(choose_device(device)).eval()
        readers = {
            name: kind_named(name).reader(folder, about["targets"][name], head, step) for name, head in heads.items()
        }
        return Run(model, readers, folder, checkpoint, meta)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{checkpoint} does not say how its model is built ({error}); train it with semisight train.{other}"
        ) from error
    except UserError as error:
        raise UserError(f"{error}{other}") from error


def build_model(about: Mapping[str, Any], seed: int = 0, room: int = MOST_WEIGHTS) -> ImageModel:
    """The untrained model that a checkpoint describes; `room` is how many numbers it can have at most, by the size of
    its file: a stranger may describe anything."""
    if "network" in about.get("features", {}):
        architecture = Architecture.from_dict(about["architecture"])
        hidden = int(about["features"]["network"]["hidden_size"])
        _check_size(architecture.n_weights, room)
        _check_size(hidden * (architecture.image_shape[0] + hidden + 2 * architecture.code_shape[0]), room)
        return build_described(about, seed)
    if "features" in about:
        of = about["features"]
        _check_size(int(of["n_features"]) * int(of["code_size"]), room)
        if of.get("scaled", False):
            _check_size(int(of["n_features"]) ** 2, room)
            return ImageModel(
                ScaledFeatures(int(of["n_features"])),
                Decoder(feature_architecture(int(of["n_features"]), int(of["n_features"]))),
            )
        encoder = FeatureEncoder(int(of["n_features"]), int(of["code_size"]))
        return ImageModel(encoder, Decoder(feature_architecture(int(of["n_features"]), int(of["code_size"]))))
    if "architecture" not in about:
        raise UserError(
            f"this run was trained with parts of your own ({about.get('encoder', 'an encoder')}): give load_run a "
            "model of the same parts (model=...)."
        )
    architecture = Architecture.from_dict(about["architecture"])
    _check_size(architecture.n_weights, room)
    if about.get("encoder") == "deep":
        width = float(about["width"])
        _check_size(int(architecture.n_weights * max(1.0, width) ** 2), 100 * room)  # its maps are of its own number
        return ImageModel.deep(architecture, seed, width, about["pooling"] != "max")
    return ImageModel.of(architecture, about["pooling"], seed=seed)


def _check_size(n_weights: int, room: int) -> None:
    if not 0 <= n_weights <= room:
        raise UserError(f"it describes a model of {n_weights:,} numbers, larger than its file")


def _known(name: str) -> bool:
    """Whether a target is of a kind that is read here; one of a user's own is read in Python."""
    return any(kind.name == name for kind in kinds())


def _chosen(folder: RunFolder) -> Path:
    with contextlib.suppress(UserError, KeyError, TypeError, AttributeError):  # a damaged newest leaves the best
        targets = read_meta(folder.newest)["about"]["targets"]
        if targets and not list(targets.values())[-1]["held_out"]:  # the last of them chooses the weights
            return folder.newest
    return folder.best_or_newest()


def open_folder(path: str | Path) -> RunFolder:
    """The folder, if it holds a run."""
    folder = RunFolder(Path(path).expanduser())
    how = f"Train one with: semisight train DATA --out {path}"
    if not folder.path.exists():
        raise UserError(f"there is no run at {path}: the folder does not exist. {how}")
    if not folder.path.is_dir():
        raise UserError(f"{path} is a file, not the folder of a run. Give the folder that semisight train --out made.")
    finish_bundle(folder.path)
    if not folder.holds_a_run:
        raise UserError(f"{path} is a folder, but not one of a run: it has neither config.json nor checkpoints. {how}")
    return folder


def former_settings(folder: RunFolder, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The settings, by name, of the run in a folder: what resuming starts from; `given` will replace some of them."""
    meta = read_meta(folder.newest) if folder.newest.exists() else read_settings(folder.config)
    data = DataRecord.read(folder).settings
    anew = {name for name, value in (given or {}).items() if value is not None}
    source = "DATA: semisight train DATA --out RUN --resume"
    check_urls(data, folder.path, source=source, given=anew, names=(*_READ, "images_from"))
    return {**of_run(meta), **as_dict(data)}
