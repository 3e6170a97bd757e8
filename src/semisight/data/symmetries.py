"""Which symmetries keep what the images show: mirror images, upside down, quarter turns. Asked of the training labels.

    kept  <=>  accuracy(turned) - chance  >=  KEPT (accuracy(plain) - chance)

A classifier of small pixels (RBF SVM) is fitted on plain labelled images and asked about others, plain and turned
(cross-validation). A mirrored 2 is taken for something else; a mirrored cat is as good as a cat; a cell has no upside.
Only the training images and their labels are seen, never a set's name. A second of work.
"""

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from semisight.random import Stream, random_order

KEPT = 0.75
LEAST = 20  # labelled images; with fewer nothing is known, and no symmetry is used
_MOST, _SIDE, _FOLDS = 1500, 16, 5


@dataclass(frozen=True)
class Symmetries:
    """Under which the label of an image stays what it is."""

    mirror: bool = False
    flip: bool = False  # upside down
    turn: bool = False  # by a quarter; only of square images


def kept_symmetries(images: Tensor, labels: Tensor, seed: int = 0) -> Symmetries:
    """From labelled images [N, C, H, W] and their labels [N], all known."""
    kept = retained(images, labels, seed)
    return Symmetries(**{name: share >= KEPT for name, share in kept.items()})


def retained(images: Tensor, labels: Tensor, seed: int = 0) -> dict[str, float]:
    """By symmetry, how much of what is recognised above chance in plain images is recognised in turned ones."""
    from sklearn.svm import SVC

    turned = {"mirror": (-1,), "flip": (-2,)}
    nothing = dict.fromkeys((*turned, "turn"), 0.0)
    chosen = random_order(len(labels), seed, Stream.SYMMETRIES)[:_MOST]
    x, y = images[chosen], labels[chosen].numpy()
    counts = np.unique(y, return_counts=True)[1]
    if len(y) < LEAST or len(counts) < 2:
        return nothing
    if max(x.shape[2:]) > _SIDE:
        x = F.adaptive_avg_pool2d(x, (min(_SIDE, x.shape[2]), min(_SIDE, x.shape[3])))
    views = {"plain": x, **{name: x.flip(axes) for name, axes in turned.items()}}
    if x.shape[2] == x.shape[3]:
        views["turn"] = x.rot90(1, (2, 3))
    rows = {name: view.flatten(1).double().numpy() for name, view in views.items()}
    right = dict.fromkeys(rows, 0)
    folds = np.arange(len(y)) % _FOLDS
    for fold in range(_FOLDS):
        learned = folds != fold
        if len(np.unique(y[learned])) < 2:
            continue
        classifier = SVC(C=10.0).fit(rows["plain"][learned], y[learned])
        for name, of in rows.items():
            right[name] += int((classifier.predict(of[~learned]) == y[~learned]).sum())
    chance = float((counts / len(y)).max())
    above = right["plain"] / len(y) - chance
    if above <= 0.05:  # the classifier has learned nothing that a symmetry could break
        return nothing
    return nothing | {name: (right[name] / len(y) - chance) / above for name in rows if name != "plain"}
