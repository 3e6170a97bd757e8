"""Section 5.1, Table 1: the parts of the data, and the time that labels of one image take."""

import time
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from semisight.data import load
from semisight.data.image_set import ImageSet, split
from semisight.errors import UserError
from semisight.inference.labels import predict_labels
from semisight.model.heads.labels import LabelHead
from semisight.model.image_model import ImageModel
from semisight.random import Stream, random_order

ERROR, MS = "error", "ms"  # metrics of every row
SHAPES = {(1, 28, 28): "mnist", (3, 32, 32): "cifar-10"}
N_VALID = {"mnist": 10_000, "cifar-10": 5_000, "smoke": 200}


@dataclass(frozen=True)
class Sets:
    """The data set's name, and its parts."""

    name: str
    train: ImageSet
    valid: ImageSet
    test: ImageSet


def sets(data: str | Path, seed: int, smoke: bool = False) -> Sets:
    """At smoke size a built-in set stands in."""
    if smoke:
        rest, test = split(load(data), N_VALID["smoke"], seed=99)
        train, valid = split(rest, N_VALID["smoke"], seed)
        return Sets("smoke", train.subset(list(range(300))), valid, test)
    images = load(data)
    name = SHAPES.get(images.shape)
    if name is None or len(images.class_names) != 10:
        raise UserError(
            f"Table 1 is measured on MNIST and CIFAR-10; {data} holds images of {images.shape} "
            f"with {len(images.class_names)} classes"
        )
    train, valid = split(images, N_VALID[name], seed)
    return Sets(name, train, valid, load(data, part="test"))


def some(images: ImageSet, count: int, seed: int, stream: Stream) -> tuple[Tensor, Tensor]:
    """Images [n, C, H, W] and labels, drawn by the seed."""
    assert images.labels is not None
    index = random_order(len(images), seed, stream)[:count]
    return images.batch(index), images.labels[index]


def milliseconds(model: ImageModel, head: LabelHead, images: Tensor, batch_size: int = 500) -> float:
    """Of the processor, per image, to predict labels; the best of three passes."""
    best = float("inf")
    for _ in range(3):
        processor = time.process_time()
        for batch in images.split(batch_size):
            predict_labels(model, head, batch)
        best = min(best, time.process_time() - processor)
    return 1000 * best / len(images)
