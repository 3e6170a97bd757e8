"""Section 5: classification error, top-k error, confusion matrix, and mean and spread over splits.

Everything takes tensors, arrays or lists. Images whose true label is -1 are not counted; that none is left is an error.
Errors are shares between 0 and 1; the tables print them in percent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from semisight.errors import UserError

Numbers = Tensor | NDArray[Any] | Sequence[Any]


@dataclass(frozen=True)
class Summary:
    """Several runs of one thing: `spread` is the standard deviation between runs, nan for a single run."""

    mean: float
    spread: float
    n: int


def error_rate(predicted: Numbers, labels: Numbers) -> float:
    """Share of images whose predicted label, int [B], is not the true one."""
    predicted, labels = _pair(predicted, labels, n_dims=1)
    return (predicted != labels).double().mean().item()


def top_k_error(scores: Numbers, labels: Numbers, k: int = 5) -> float:
    """Share of images whose label is not among the k best of scores [B, C]; a label tied with others counts as last."""
    scores, labels = _pair(scores, labels, n_dims=2)
    if not 1 <= k <= scores.shape[1]:
        raise UserError(f"top-{k} error needs k between 1 and the {scores.shape[1]} classes")
    own = scores.gather(1, labels[:, None])
    rank = (scores >= own).sum(1)  # 1 for the only best: a model that gives all classes one score is not right
    return (rank > k).double().mean().item()


def confusion_matrix(predicted: Numbers, labels: Numbers, n_classes: int) -> Tensor:
    """int64 [C, C]: how many images of class `row` were called `column`."""
    predicted, labels = _pair(predicted, labels, n_dims=1)
    largest = int(torch.maximum(predicted, labels).max())
    if largest >= n_classes or int(predicted.min()) < 0:
        raise UserError(f"a confusion matrix of {n_classes} classes cannot hold labels {predicted.min()} to {largest}")
    return torch.bincount(labels * n_classes + predicted, minlength=n_classes**2).reshape(n_classes, n_classes)


def error_per_class(confusion: Tensor) -> Tensor:
    """float64 [C]: each true class's own error, nan for a class without images."""
    counts = confusion.double()
    return 1 - counts.diagonal() / counts.sum(1)


def labelled_pair(scores: Numbers, labels: Numbers) -> tuple[Tensor, Tensor]:
    """Scores [B, C] and labels [B] of the images that have a label, checked, on the CPU."""
    return _pair(scores, labels, n_dims=2)


def _pair(first: Numbers, labels: Numbers, n_dims: int) -> tuple[Tensor, Tensor]:
    first, labels = torch.as_tensor(first).detach().cpu(), torch.as_tensor(labels).detach().cpu().long()
    if first.dim() != n_dims or labels.shape != first.shape[:1]:
        wanted = "[images]" if n_dims == 1 else "[images, classes]"
        raise UserError(
            f"predictions {list(first.shape)} and labels {list(labels.shape)} do not fit: "
            f"predictions must be {wanted} with one label for each image"
        )
    known = labels >= 0
    if not bool(known.any()):
        raise UserError("none of the images has a label: there is nothing to compare predictions with")
    first, labels = first[known], labels[known]
    if n_dims == 2 and int(labels.max()) >= first.shape[1]:
        raise UserError(f"a label is {int(labels.max())}, but there are scores for {first.shape[1]} classes only")
    return first if n_dims == 2 else first.long(), labels
