"""The folder of a run as people use it: the trainer's files, what it learned from, and its report.

    RUN/config.json, checkpoints/, log.csv, tensorboard/   the trainer's (learning/runs.py)
    RUN/data.json                                          where the images came from, and what was left out
    RUN/calibration.json                                   probabilities of labels (classifier.py), where there are any
    RUN/vocabulary.json, captions.safetensors              of captions (captioning.py), where there are any
    RUN/comparison.json                                    the same labels without the unlabelled images, if measured
    RUN/report.html                                        the page to look at
    RUN/model_card.md                                      data, settings, metrics and limits (model_card.py)

The images' place stands in a file of its own because it may change: a resumed run is told by its images' fingerprint,
not by their path.
"""

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from semisight.data.image_set import ImageSet, Skipped
from semisight.errors import UserError
from semisight.files import write_atomic
from semisight.model.architecture import Architecture
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.objectives.caption_objective import CaptionObjective, CaptionXi, LabelTerm
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.label_objective import LabelObjective, Xi
from semisight.runs.caption_training import CaptionSettings, build_caption_head
from semisight.runs.captioner import Captioner, captions_of, read_captioner
from semisight.runs.classifier import Classifier, Fitted, labels_of
from semisight.runs.label_training import LabelSettings, build_head, build_label_objective
from semisight.runs.settings import DataSettings, of_run
from semisight.training.checkpoint import load_weights, read_meta
from semisight.training.config import TrainConfig, read_settings
from semisight.training.folder import RunFolder

Which = Literal["auto", "best", "newest"]
_SKIPPED_KEPT = 1000  # a folder of a million text files must not make a file of a million lines


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

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @staticmethod
    def read(path: Path) -> "DataRecord":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return DataRecord(
                settings=DataSettings(**values["settings"]),
                n_train=int(values["n_train"]),
                n_valid=int(values["n_valid"]),
                shape=tuple(values["shape"]),
                skipped=tuple(Skipped(**entry) for entry in values["skipped"]),
                n_skipped=int(values["n_skipped"]),
                notes=tuple(values["notes"]),
            )
        except FileNotFoundError:
            raise UserError(
                f"{path.parent} does not say which images it learned from ({path.name} is not there)."
            ) from None
        except OSError as error:
            raise UserError(f"could not read {path}: {error.strerror or error}.") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{path} is damaged ({type(error).__name__}: {error}); train again, or repair it."
            ) from error


def data_file(folder: RunFolder) -> Path:
    return folder.path / "data.json"


def report_file(folder: RunFolder) -> Path:
    return folder.path / "report.html"


def comparison_file(folder: RunFolder) -> Path:
    return folder.path / "comparison.json"


def calibration_file(folder: RunFolder) -> Path:
    return folder.path / "calibration.json"


def unfinished_file(folder: RunFolder) -> Path:
    """There from the first step of a training to its end, whoever or whatever ends it before."""
    return folder.path / "unfinished.txt"


@dataclass(frozen=True)
class Comparison:
    """What the same labels gave without the unlabelled images: the error, a share, on the images measured on."""

    error: float

    def write(self, folder: RunFolder) -> None:
        write_atomic(comparison_file(folder), json.dumps({"error_without_unlabelled": self.error}) + "\n")

    @staticmethod
    def read(folder: RunFolder) -> "Comparison | None":
        try:
            values = json.loads(comparison_file(folder).read_text(encoding="utf-8"))
            return Comparison(float(values["error_without_unlabelled"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{comparison_file(folder)} is damaged ({error}); delete it to go without.") from error


@dataclass(frozen=True)
class Run:
    """A trained model with all that its checkpoint says about it.

    `classifier` is there if it learned labels, `captioner` if it learned captions.
    """

    folder: RunFolder
    checkpoint: Path
    objective: ImageObjective
    meta: Mapping[str, Any]
    classifier: Classifier | None = None
    captioner: Captioner | None = None

    @property
    def model(self) -> ImageModel:
        return self.objective.model

    @property
    def architecture(self) -> Architecture:
        return self.model.architecture

    @property
    def config(self) -> TrainConfig:
        return TrainConfig.from_dict(self.meta["config"], where=str(self.checkpoint))

    @property
    def device(self) -> torch.device:
        return self.model.decoder.log_alpha0.device

    @property
    def step(self) -> int:
        return int(self.meta["counters"]["step"])

    @property
    def unfinished(self) -> str:
        """What to know of a run whose training has not come to its end; "" of one that has."""
        if not unfinished_file(self.folder).exists():
            return ""
        return (
            f"The training of {self.folder.path} has not come to its end: what it had learned at step {self.step:,} is "
            f"used. To go on with it: semisight train --out {self.folder.path} --resume"
        )

    def data(self) -> DataRecord:
        return DataRecord.read(data_file(self.folder))

    def labels(self) -> Classifier:
        """The classifier, or an error that says how to get one."""
        if self.classifier is None:
            raise UserError(
                f"{self.folder.path} learned {'captions' if self.captioner else 'from images alone'} and knows no "
                "labels: train a run with labels first (semisight train DATA --labels labels.csv --out RUN)."
            )
        return self.classifier

    def captions(self) -> Captioner:
        """The captioner, or an error that says how to get one."""
        if self.captioner is None:
            raise UserError(
                f"{self.folder.path} learned no captions: train a run with captions first "
                "(semisight train DATA --captions captions.csv --out RUN)."
            )
        return self.captioner


def load_run(path: str | Path, which: Which = "auto", device: str = "cpu") -> Run:
    """The model of a run folder, in evaluation mode.

    "auto" is its best checkpoint, or the newest where there is no best; the newest also where labels or captions were
    learned and none held out, for then `best` is only the best at drawing images.
    """
    from semisight.training.devices import choose_device

    folder = open_folder(path)
    named = {"best": folder.best, "newest": folder.newest}
    checkpoint = _chosen(folder) if which == "auto" else named[which]
    other = " Its other checkpoint may be whole: --checkpoint newest." if checkpoint == folder.best else ""
    try:
        meta = read_meta(checkpoint)
        objective = _build(meta)
        load_weights(objective, checkpoint)
        objective = objective.to(choose_device(device)).eval()
        if isinstance(objective, ImageObjective):
            return Run(folder, checkpoint, objective, meta)
        model = objective.images.model
        if isinstance(objective, LabelObjective):
            return Run(
                folder, checkpoint, objective.images, meta, _classifier(folder, model, objective.label_head, meta)
            )
        term, about = objective.labels, meta["about"]["captions"]
        classifier = None if term is None else _classifier(folder, model, term.label_head, meta)
        captioner = read_captioner(folder, model, objective.head, about)
        return Run(folder, checkpoint, objective.images, meta, classifier, captioner)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{checkpoint} does not say how its model is built ({error}); train it with semisight train.{other}"
        ) from error
    except UserError as error:
        raise UserError(f"{error}{other}") from error


def _chosen(folder: RunFolder) -> Path:
    with contextlib.suppress(UserError, KeyError):  # a newest that is missing or damaged leaves the best
        about = read_meta(folder.newest)["about"]
        learned = captions_of(about) or labels_of(about)  # with both, captions choose the weights
        if learned is not None and not learned["held_out"]:
            return folder.newest
    return folder.best_or_newest()


def _build(meta: Mapping[str, Any]) -> ImageObjective | LabelObjective | CaptionObjective:
    seed, about = int(meta["config"]["seed"]), meta["about"]
    images = build_objective(about, seed)
    labels, captions = labels_of(about), captions_of(about)
    if captions is not None:
        return _captions(images, captions, labels, seed)
    if labels is None:
        return images
    settings, n_classes = LabelSettings(**labels["settings"]), len(labels["class_names"])
    unknown = torch.full((int(labels["n_train"]),), -1)
    return build_label_objective(images, unknown, n_classes, settings, int(meta["config"]["batch_size"]), seed)


def _captions(
    images: ImageObjective, captions: Mapping[str, Any], labels: Mapping[str, Any] | None, seed: int
) -> CaptionObjective:
    size, n_symbols = images.model.architecture.code_size, int(captions["vocab_size"])
    head = build_caption_head(CaptionSettings(**captions["settings"]), size, n_symbols, seed)
    nothing = torch.zeros(1, dtype=torch.int64)
    none = EncodedCaptions(nothing[:0].int(), nothing, nothing, n_symbols)
    term = None
    if labels is not None:
        label_head = build_head(LabelSettings(**labels["settings"]), size, len(labels["class_names"]), seed)
        term = LabelTerm(label_head, Xi(0.0), int(labels["n_labelled"]))
    return CaptionObjective(images, head, none, CaptionXi(0.0), labels=term)


def _classifier(folder: RunFolder, model: ImageModel, head: LabelHead, meta: Mapping[str, Any]) -> Classifier:
    labels = meta["about"]["labels"]
    fitted = Fitted.read(calibration_file(folder))
    return Classifier(
        model=model,
        head=head,
        class_names=tuple(labels["class_names"]),
        settings=LabelSettings(**labels["settings"]),
        fitted=fitted if fitted is not None and fitted.step == int(meta["counters"]["step"]) else None,
        n_labelled=int(labels["n_labelled"]),
        n_held_out=int(labels["held_out"]),
    )


def open_folder(path: str | Path) -> RunFolder:
    """The folder, if it holds a run."""
    folder = RunFolder(Path(path).expanduser())
    how = f"Train one with: semisight train DATA --out {path}"
    if not folder.path.exists():
        raise UserError(f"there is no run at {path}: the folder does not exist. {how}")
    if not folder.path.is_dir():
        raise UserError(f"{path} is a file, not the folder of a run. Give the folder that semisight train --out made.")
    if not folder.holds_a_run:
        raise UserError(f"{path} is a folder, but not one of a run: it has neither config.json nor checkpoints. {how}")
    return folder


def former_settings(folder: RunFolder) -> dict[str, Any]:
    """The settings, by name, of the run in a folder: what resuming starts from."""
    meta = read_meta(folder.newest) if folder.newest.exists() else read_settings(folder.config)
    return {**of_run(meta), **dataclasses.asdict(DataRecord.read(data_file(folder)).settings)}


def build_objective(about: Mapping[str, Any], seed: int) -> ImageObjective:
    """The untrained model that `ModelSettings.about` describes; the same seed gives the same start."""
    model = ImageModel.of(Architecture.from_dict(about["architecture"]), about["pooling"], seed=seed)
    return ImageObjective(model, about["gradient"], about["alpha0"], seed=seed)
