"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8 pixels, built in."""

import numpy as np
import torch

from semisight.data.image_set import ImageSet


def read_digits() -> ImageSet:
    """The digits with their labels, their 17 grey levels spread over 0..255."""
    from sklearn.datasets import load_digits  # half a second to import, and needed for nothing else here

    bunch = load_digits()
    images = np.rint(bunch.images * (255.0 / 16.0)).astype(np.uint8)[:, None]
    return ImageSet.of(
        images=torch.from_numpy(images),
        names=tuple(f"digits/{i:05d}" for i in range(len(images))),
        labels=torch.from_numpy(bunch.target.astype(np.int64)),
        class_names=tuple(str(c) for c in range(10)),
        source="builtin:digits",
    )
