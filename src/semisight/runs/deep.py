"""Beyond the paper: how the deep encoder learns labels, on any set. What depends on the images is asked of them.

    optimiser      AdamW, one cycle of the rate that ends with the minutes (or steps, or epochs) that are given
    augmentation   crops, and the symmetries that the training labels allow (data/symmetries.py), are the weak one; the
                   strong one is affine, bent, lighter or darker, with a grey square
                   few labels: learned on strongly augmented images, the averaged model is asked about weakly augmented
                   labels for half of the images or more, and at least MANY_LABELS: learned on weakly augmented
    threshold      of pseudo-labels: follows how sure the averaged model is, class by class; classes are balanced
    bound          weighs BOUND nats per number of the image beside one nat per label

No constant here depends on a set; docs/experiments.md says on which sets they were tried.
"""

from typing import Any

import torch
from torch import Tensor

from semisight.data.augment import Augment, crops, strong
from semisight.data.image_set import ImageSet
from semisight.data.symmetries import kept_symmetries
from semisight.objectives.consistency import Consistency

LEARNING_RATE, WEIGHT_DECAY = 4e-3, 0.05
AVERAGE = 0.995
SMOOTHING = 0.1
BOUND = 0.01
BOUND_IMAGES = 32
MANY, MANY_LABELS = 0.5, 2000  # of the images have a label; and so many of them
_ASKED = 600  # labelled images at most: with these the answer takes about a second

TRAINING: dict[str, Any] = {
    "learning_rate": LEARNING_RATE,
    "weight_decay": WEIGHT_DECAY,
    "schedule": "one-cycle",
    "average_decay": AVERAGE,
}


def has_many(labels: Tensor) -> bool:
    """Whether most images carry a label, and these are enough to learn shapes from as they are."""
    known = labels >= 0
    return float(known.float().mean()) >= MANY and int(known.sum()) >= MANY_LABELS


def augmentations(images: ImageSet, labels: Tensor, seed: int) -> tuple[Augment, Augment]:
    """What is learned from, and what the averaged model is asked about."""
    known = (labels >= 0).nonzero().squeeze(1)
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))[:_ASKED]]
    symmetries = kept_symmetries(images.batch(known), labels[known], seed)
    weak = crops(symmetries)
    return weak if has_many(labels) else strong(symmetries), weak


def deep_consistency(
    images: ImageSet, labels: Tensor, seed: int, pseudo_labels: float = 1.0, bound_weight: float = BOUND
) -> Consistency:
    learned, weak = augmentations(images, labels, seed)
    return Consistency(
        pseudo_labels=pseudo_labels,
        contrastive=0.0,
        spreading=0.0,
        augment=learned,
        strong=1.0,
        weak_augment=weak,
        bound_images=BOUND_IMAGES,
        bound_weight=bound_weight,
    )
