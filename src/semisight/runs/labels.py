"""Sections 3.1 and 5.2: one label per image as a kind of target, from the settings to the reader of a finished run."""

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.data.augment import augment_for
from semisight.data.batches import is_dealt, labelled_beside
from semisight.data.columns import LABELS, LabelColumn
from semisight.errors import UserError
from semisight.files import json_bytes
from semisight.inference.encode import encode
from semisight.inference.labels import FittedCalibration, LabelReader, decide, fit_calibration, fit_to_augmentation
from semisight.inference.validation import decision_values, label_terms
from semisight.model.heads.labels import BayesianSVM, LabelHead, Softmax
from semisight.model.image_model import ImageModel
from semisight.objectives.labels import Labels
from semisight.objectives.targets import Target, Xi
from semisight.random import Stream, random_order, reseed
from semisight.runs import deep
from semisight.runs.images import Sets
from semisight.runs.kinds import Terms
from semisight.runs.settings import DataSettings, Settings, parse_xi
from semisight.training.folder import RunFolder
from semisight.untrusted import names_in, read_kept

UNLABELLED_PER_BATCH, SUPERVISED_BATCH = 256, 128
LEAST_EPOCHS, LEAST_STEPS = 20, 4000
STEPS_BETWEEN_VALIDATIONS = 40  # a small set passes by in a few steps: it is not validated after each pass
XI_PER_CLASS = 10.0  # times C times the paper's: found on MNIST, docs/experiments.md
_MOST_BYTES, _BYTES_PER_PLACE, _LEAST_IMAGES = 3.0e9, 1800, 16
CALIBRATION = "calibration.json"
_ENOUGH_AUGMENTED, _MOST_AUGMENTED = 50, 1000  # images


def most_images(shape: tuple[int, int, int]) -> int:
    """Of a batch that a training of the default layers has memory for: it takes about 1.8 kB for each place of an
    image, 8.3 GB with 288 images of 128 x 128 pixels."""
    return max(_LEAST_IMAGES, int(_MOST_BYTES / (_BYTES_PER_PLACE * max(1, shape[1] * shape[2]))))


def batch_defaults(settings: Settings, n_labelled: int, n_unlabelled: int, most: int | None = None) -> dict[str, Any]:
    """Batches, epochs and validations that suit the number of images; `most` of a batch have room in memory.

    Few labels: a batch has some of them beside unlabelled images, and an epoch is a pass over the latter. Many labels:
    batches as chance has it. A small set gets as many epochs as make a few thousand steps.
    """
    n, chosen = n_labelled + n_unlabelled, settings.chosen
    beside = min(UNLABELLED_PER_BATCH, n_unlabelled)
    labelled = labelled_beside(n_labelled, n_unlabelled, beside)
    few = is_dealt(n_labelled, n, labelled, labelled + beside)
    size = labelled + beside if few else min(SUPERVISED_BATCH, n)
    size = settings.train.batch_size if "batch_size" in chosen else size
    if chosen & {"batch_size", "labelled_per_batch"} or not few:
        labelled = min(settings.consistency.labelled_per_batch, max(1, size // 2))
    if most is not None and size > most and "batch_size" not in chosen:
        smaller = dataclasses.replace(settings.replace({"batch_size": most}), chosen=chosen | {"batch_size"})
        return batch_defaults(smaller, n_labelled, n_unlabelled)
    dealt = is_dealt(n_labelled, n, labelled, size)
    size = min(size, labelled + n_unlabelled) if dealt else size
    steps = max(1, n_unlabelled // (size - labelled) if dealt else n // size)
    found = {"batch_size": size, "labelled_per_batch": labelled}
    if not chosen & {"max_epochs", "max_steps"}:
        found["max_epochs"] = max(LEAST_EPOCHS, -(-LEAST_STEPS // steps))
    return found | {"validate_every": -(-STEPS_BETWEEN_VALIDATIONS // steps)}


def build_head(settings: Mapping[str, Any], code_size: int, n_classes: int, seed: int = 0) -> BayesianSVM | Softmax:
    generator = reseed(torch.Generator(), seed, Stream.LABEL_HEAD, 0)
    if settings["head"] == "softmax":
        return Softmax(code_size, n_classes, generator=generator)
    if settings["head"] != "svm":
        raise UserError(
            f"this run was trained with a head of your own, {settings['head']}: it is used where it is made."
        )
    return BayesianSVM(code_size, n_classes, settings["gamma"], generator=generator)


def _settings_of(head: nn.Module) -> dict[str, Any]:
    """What `build_head` needs; a head of one's own is named, and its run is used in Python."""
    if isinstance(head, BayesianSVM):
        gamma = head.gamma.tolist()
        return {"head": "svm", "gamma": gamma[0] if len(set(gamma)) == 1 else gamma}
    return {"head": "softmax" if isinstance(head, Softmax) else type(head).__name__, "gamma": 1.0}


class LabelKind:
    name = LABELS

    def metric(self, settings: Settings) -> tuple[str, bool]:
        return "nll", False

    def defaults(self, settings: Settings, sets: Sets) -> dict[str, Any]:
        n_labelled = sets.n_present(LABELS)
        if settings.model.encoder == "deep":
            return {
                **deep.TRAINING,
                "nonlinearity": "norm-relu",  # of the layers that suit the images: those of the decoder
                "patience": None,
                "head": "softmax",
                "smoothing": deep.SMOOTHING,
                "threshold": None,
                "augment": "any",
                "spreading": 0.0,
                **batch_defaults(settings, n_labelled, len(sets.train) - n_labelled),
            }
        return {
            "nonlinearity": "norm-relu",
            "learning_rate": 1e-3,
            "schedule": "cosine",
            "average_decay": 0.99,
            "patience": None,  # the rate has to come down first
            "head": "softmax",
            "xi": f"{XI_PER_CLASS * len(_column(sets).class_names):g}x",
            **batch_defaults(settings, n_labelled, len(sets.train) - n_labelled, most_images(sets.train.shape)),
        }

    def target(self, settings: Settings, sets: Sets, model: ImageModel, seed: int) -> Labels:
        column, how = _column(sets), settings.labels
        value, times = parse_xi(how.xi)
        head = build_head({"head": how.head, "gamma": how.gamma}, model.code_size, len(column.class_names), seed)
        xi = Xi(value, times, how.xi_warmup)
        return Labels(
            head, column.values, xi=xi, class_names=column.class_names, threshold=how.threshold, smoothing=how.smoothing
        )

    def about(self, target: Target, held_out: int) -> dict[str, Any]:
        assert isinstance(target, Labels)
        return {
            "class_names": list(target.class_names),
            "n_learned": int(target.present.sum()),
            "held_out": held_out,
            "hash": hashlib.sha256(target.values.numpy().tobytes()).hexdigest()[:16],
            "settings": _settings_of(target.head),
        }

    def terms(self, settings: Settings, sets: Sets, target: Target) -> Terms | None:
        if sets.valid is None or not sets.n_held_out(LABELS):
            return None
        labels, valid = _column(sets, "valid").values, sets.valid
        return lambda model, head: label_terms(model, cast(LabelHead, head), valid, labels)

    def describe(self, settings: Settings, sets: Sets, target: Target) -> list[str]:
        n_held_out, n = sets.n_held_out(LABELS), sets.n_present(LABELS) + sets.n_held_out(LABELS)
        lines = [f"labels: {n:,} images of {len(_column(sets).class_names)} classes ({_origin(settings.data)})"]
        if n_held_out:
            lines.append(f"  {n_held_out:,} are held out, to choose the weights and to calibrate probabilities")
        else:
            why = "none are held out" if settings.data.valid_fraction == 0 else "too few to hold some out"
            last = "last weights" if settings.train.average_decay is None else "last averaged weights"
            lines.append(f"  {why}: the {last} are used, and no held-out labels calibrate the probabilities")
        return lines

    def n_weights(self, about: Mapping[str, Any], code_size: int) -> int:
        return code_size * len(names_in(about["class_names"]))

    def head(self, about: Mapping[str, Any], code_size: int) -> nn.Module:
        return build_head(about["settings"], code_size, len(about["class_names"]))

    def reader(self, folder: RunFolder, about: Mapping[str, Any], head: nn.Module, step: int) -> LabelReader:
        fitted = read_kept(folder.file(CALIBRATION), FittedCalibration.from_dict)
        if fitted is not None and not fitted.calibration.fits(len(about["class_names"])):
            raise UserError(f"{folder.file(CALIBRATION)} is of another model; delete it to go without.")
        return LabelReader(
            head=cast(LabelHead, head),
            class_names=tuple(about["class_names"]),
            fitted=fitted if fitted is not None and fitted.step == step else None,
            n_learned=int(about["n_learned"]),
            n_held_out=int(about["held_out"]),
            settings=about["settings"],
        )

    def reader_of(self, target: Target) -> LabelReader:
        assert isinstance(target, Labels)
        return LabelReader(target.label_head, target.class_names, n_learned=int(target.present.sum()))

    def calibrate(self, reader: LabelReader, model: ImageModel, sets: Sets, step: int, seed: int) -> LabelReader:
        """Fits probabilities to held-out labels, or to augmented images where there are none."""
        if sets.n_held_out(LABELS) and sets.valid is not None:
            labels = _column(sets, "valid").values
            known = (labels >= 0).nonzero().squeeze(1)
            fitted = fit_calibration(
                decision_values(model, reader.head, sets.valid, index=known), labels[known], step, seed
            )
            return dataclasses.replace(reader, fitted=fitted)
        found = _augmented_decisions(model, reader.head, sets, seed)
        if found is None:  # too few images: the probabilities stay the model's own
            return reader
        return dataclasses.replace(reader, fitted=fit_to_augmentation(*found, step))

    def saved(self, reader: LabelReader) -> dict[str, bytes]:
        return {} if reader.fitted is None else {CALIBRATION: json_bytes(reader.fitted.to_dict())}

    def missing(self, folder: RunFolder) -> str:
        return (
            f"{folder.path} has learned no labels: train a run with labels first "
            "(semisight train DATA --labels labels.csv --out RUN)."
        )


def _column(sets: Sets, which: str = "train") -> LabelColumn:
    images = sets.train if which == "train" else sets.valid
    assert images is not None
    column = images.columns[LABELS]
    assert isinstance(column, LabelColumn)
    return column


@torch.no_grad()
def _augmented_decisions(model: ImageModel, head: LabelHead, sets: Sets, seed: int) -> tuple[Tensor, Tensor] | None:
    """Of unlabelled images that were learned from, as they are and weakly augmented; None if they are too few."""
    without = (~_column(sets).present).nonzero().squeeze(1)
    if len(without) < _ENOUGH_AUGMENTED:
        return None
    chosen = without[random_order(len(without), seed, Stream.CALIBRATED)[:_MOST_AUGMENTED].sort().values]
    generator, augment = reseed(torch.Generator(), seed, Stream.AUGMENTED, 0), augment_for(sets.train.shape[0])
    plain: list[Tensor] = []
    augmented: list[Tensor] = []
    for index in chosen.split(250):
        images = sets.train.batch(index).to(model.device)
        for found, seen in ((plain, images), (augmented, augment(images, generator))):
            found.append(decide(head, encode(model, seen, generator)).value.cpu())
    return torch.cat(plain), torch.cat(augmented)


def _origin(data: DataSettings) -> str:
    if data.labels is not None:
        origin = f"from {data.labels}"
    elif data.class_per_folder:
        origin = "a class per folder"
    else:
        origin = "carried by the set; --no-labels leaves them out"
    return origin if data.labels_per_class is None else f"{origin}; all but {data.labels_per_class} per class hidden"
