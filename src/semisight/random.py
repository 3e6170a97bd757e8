"""Where chance comes from: every stream of random numbers in the package, by name, so that no two are the same.

Numbers are drawn from (seed, stream, ...) and nothing else: the same seed gives the same run.

    order   permutations by `random_order`: which images are set aside, shown, or come next
    noise   `reseed` of a torch generator: what the model draws in a step, and the first weights of a head
    scenes  what the generated pictures of builtin:scenes show
"""

from enum import Enum, unique

import numpy as np
import torch
from torch import Tensor


@unique
class Stream(Enum):
    """(family, number). Numbers of one family differ; those that decide an old run's images or weights never change."""

    SPLIT = ("order", 1)  # images alone: those set aside
    CHOICE = ("order", 2)  # the labels of each class that are kept
    EPOCHS = ("order", 3)
    ROUNDS = ("order", 4)
    CLASSES = ("order", 5)
    LIMIT = ("order", 6)
    START = ("order", 7)  # images that the first weights are fitted to
    SHOWN = ("order", 8)  # images of the report
    LABELS_ASIDE = ("order", 9)
    FOLDS = ("order", 10)  # of the calibration
    LABELS_SHOWN = ("order", 11)
    FEWER_LABELS = ("order", 12)  # of the report's curve over numbers of labels
    CAPTIONS_SHOWN = ("order", 13)
    TABLE3_SHARE = ("order", 14)
    TABLE3_PICK = ("order", 15)
    TABLE1_SUBSET = ("order", 16)
    CAPTIONS_LIMIT = ("order", 17)
    CAPTIONS_KEPT = ("order", 18)
    CAPTIONS_ASIDE = ("order", 19)
    SUGGEST_FIRST = ("order", 21)
    SUGGEST_RANDOM = ("order", 22)
    NOVELTY_SAMPLE = ("order", 31)
    HEADERS = ("order", 33)  # files of a large folder that decide about size and channels
    STREAMED_ASIDE = ("order", 34)  # the same as SPLIT, for folders that stay on the disk
    INDEXED = ("order", 35)  # images that the server encodes
    CALIBRATED = ("order", 36)  # images without a label that calibrate
    TABLE1_REST = ("order", 37)
    TABLE1_TESTS = ("order", 38)
    TAGS_ASIDE = ("order", 39)
    TAGS_HIDDEN = ("order", 40)
    PHOTOS = ("order", 44)  # test images and labels of the table of photographs
    UNLABELLED = ("order", 62)  # those that are learned from, where not all are
    REFERENCE = ("order", 61)  # labels that a reference is fitted to, where there are very many
    PICTURES = ("order", 41)  # of the documentation
    TAGS_SHOWN = ("order", 42)
    PIXELS = ("order", 65)  # images that the pixel decoder beside a run on features learns from
    MAPPED = ("order", 45)  # images of the report's map
    SYMMETRIES = ("order", 60)  # labelled images that say which symmetries keep the label
    STREAM_PARTS = ("order", 51)  # shards of a stream
    STREAM_SAMPLES = ("order", 52)  # samples within some of them

    TRAINING = ("noise", 0)
    VALIDATION = ("noise", 1)
    LABEL_HEAD = ("noise", 11)
    REFRESH = ("noise", 12)
    CAPTION_HEAD = ("noise", 13)
    TAG_HEAD = ("noise", 14)
    AUGMENTED = ("noise", 15)  # images that calibrate
    DROPOUT = ("noise", 16)
    VIEWS = ("noise", 17)  # which view of an image's features comes in a step

    SCENE_LAYOUT = ("scenes", 7)
    SCENE_PAINT = ("scenes", 8)
    SCENE_GRAIN = ("scenes", 9)
    SCENE_CAPTIONS = ("scenes", 10)

    def number(self, family: str) -> int:
        """The number of a stream of this family; another family's would be drawn twice."""
        if self.value[0] != family:
            raise ValueError(f"{self} is no stream of {family}")
        return self.value[1]


def random_order(n: int, seed: int, stream: Stream, *further: int) -> Tensor:
    """A permutation of n that depends on nothing but its arguments; `further` numbers tell several uses apart.

    A stream has either none of them or always as many: numpy pads with zeros, so (3,) and (3, 0) would be one.
    """
    return torch.from_numpy(np.random.default_rng((seed, stream.number("order"), *further)).permutation(n))


def reseed(generator: torch.Generator, seed: int, stream: Stream, number: int) -> torch.Generator:
    """The generator, put to the start of the sequence that belongs to (seed, stream, number)."""
    # The generator on the CPU keeps only the low 32 bits, so the three are mixed well (splitmix64) before.
    mixed = 0
    for word in (seed, stream.number("noise"), number):
        mixed = ((mixed + 0x9E3779B97F4A7C15) ^ word) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return generator.manual_seed(mixed)


def scene_numbers(seed: int, stream: Stream, *further: int) -> np.random.Generator:
    """Numbers for generated pictures, by the seed of the set."""
    return np.random.default_rng((seed, stream.number("scenes"), *further))
