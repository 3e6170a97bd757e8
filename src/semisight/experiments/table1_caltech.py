"""Section 5.1, Table 1 on Caltech-101: 30 training images of every class, at 128 pixels or as pretrained features.

    semisight reproduce table1 --data CALTECH101 --rows vae-pretrained,logistic-pretrained --splits 0,1,2     minutes
    semisight reproduce table1 --data CALTECH101 --rows vae,vae-d --minutes 30                 from scratch, one core

CALTECH101 is a folder with one folder for each class (BACKGROUND_Google left out). The seed draws 30 training images of
every class; at most 50 of the others are its test images. Rows from scratch learn from 27 of the 30 and stop early by
the other 3: every class has 31 images or more, so that nothing is left to validate by. The others choose by
cross-validation on the 30.

    row                          what it is                                                              paper
    vae, vae-d, vae-ours, ...    the rows of table1.py, layers of Table 5, within --minutes              11.99, 14.79
    vae-pretrained               features of EfficientNet-Lite2 in place of a VAE that was trained on    6.91
                                 ImageNet: the model of `photos.py`, its other images unlabelled
    vae-pretrained-labels-alone  the same without the other images
    vae-pretrained-no-bound      the same without the image model
    logistic-pretrained          logistic regression on the same features

The network that made the features has seen ImageNet's labels, as the paper's has.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from semisight.data.formats.folders import folder_labels
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.experiments import photos
from semisight.experiments.label_rows import Parts, labels_of, parts
from semisight.experiments.table import Request
from semisight.metrics.classification import error_rate
from semisight.model.architecture import preset
from semisight.random import Stream, random_order
from semisight.runs.images import sets_of
from semisight.runs.settings import DataSettings

NAME = "caltech101"
TRAINED, VALIDATED, MOST_TESTED = 30, 3, 50  # of a class
LAYERS = preset("caltech-101").layers
SIZE = 128

PRETRAINED: dict[str, Callable[[photos.Split, int], Tensor]] = {
    "vae-pretrained": photos.ours,
    "vae-pretrained-labels-alone": partial(photos.ours, ways=1),
    "vae-pretrained-no-bound": partial(photos.ours, with_bound=False),
    "logistic-pretrained": photos.logistic_regression,
}


def is_caltech(data: str | Path) -> bool:
    """Whether a source is a folder of pictures with a folder for each class."""
    folder = Path(data)
    return folder.is_dir() and (folder / "accordion").is_dir() and (folder / "yin_yang").is_dir()


def drawn(labels: Tensor, seed: int, trained: int = TRAINED) -> tuple[Tensor, Tensor]:
    """Positions of the training images, class by class in random order, and of the test images."""
    train, test = [], []
    for c in range(int(labels.max()) + 1):
        members = (labels == c).nonzero().squeeze(1)
        if len(members) <= trained:
            raise UserError(f"class {c} has {len(members)} images: Table 1 needs {trained} to learn from, and more.")
        members = members[random_order(len(members), seed, Stream.PHOTOS, c + 1)]
        train.append(members[:trained])
        test.append(members[trained : trained + MOST_TESTED])
    return torch.cat(train), torch.cat(test)


def sets(data: str | Path, seed: int, cache: Path | None) -> Parts:
    """Pixels, all labelled."""
    images = cached_folder(data, size=SIZE, cache=cache)
    images = images.with_labels(*folder_labels(images.names, Path(data)))
    train, test = drawn(labels_of(images), seed)
    aside = torch.arange(len(train)) % TRAINED < VALIDATED
    return Parts(images.subset(train[~aside]), images.subset(train[aside]), images.subset(test))


def features(request: Request) -> ImageSet:
    """Pooled features of all images in two views; at smoke size digits stand in, their pixels for features."""
    if request.smoke:
        digits = parts(request.source(), 0, 0, smoke=True).train
        rows = digits.batch(torch.arange(len(digits))).flatten(1)[..., None, None]
        return ImageSet(rows, digits.names, digits.columns, views=(rows,))
    data = DataSettings(
        source=str(request.source()),
        class_per_folder=True,
        backbone=photos.BACKBONE,
        views=photos.VIEWS,
        valid_fraction=0.0,
    )
    return sets_of(data, 0).train


def error_of(row: str, images: ImageSet, seed: int, trained: int = TRAINED) -> float:
    """Test error in percent of a row on features."""
    known, test = drawn(labels_of(images), seed, trained)
    labels = torch.full_like(labels_of(images), -1)
    labels[known] = labels_of(images)[known]
    views = [view.flatten(1).float() for view in (images.images, *images.views)]
    of = photos.Split(views, labels, test, labels_of(images)[test], len(images.class_names))
    return 100 * error_rate(PRETRAINED[row](of, seed).argmax(1), of.truth)
