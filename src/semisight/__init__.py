"""Learns from a pile of images of which only a few carry a label or a caption.

The names below are imported when first used, so that `import semisight` and the command line's help stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from semisight.data.augment import Augment
    from semisight.data.features import Features
    from semisight.data.image_set import ImageSet
    from semisight.data.sources import load
    from semisight.data.stream import SampleStream
    from semisight.data.vocabulary import Vocabulary
    from semisight.errors import UserError
    from semisight.estimator import SemiSight
    from semisight.model.architecture import Architecture, Layer
    from semisight.model.decoder import Decoder
    from semisight.model.encoders.deep import DeepEncoder
    from semisight.model.encoders.paper import PaperEncoder
    from semisight.model.heads.captions import CaptionHead
    from semisight.model.heads.labels import BayesianSVM, Softmax
    from semisight.model.heads.tags import TagHead
    from semisight.model.image_model import ImageModel
    from semisight.model.posterior import NetworkEncoder, Posterior
    from semisight.objectives.captions import Captions
    from semisight.objectives.consistency import Consistency
    from semisight.objectives.gradients import NVIL, Local, StraightThrough
    from semisight.objectives.joint import Joint
    from semisight.objectives.labels import Labels
    from semisight.objectives.tags import Tags
    from semisight.objectives.targets import Side, Target, Xi
    from semisight.runs.run import Run, load_run
    from semisight.runs.train import train

_HOME_OF = {
    "Architecture": "model.architecture",
    "Augment": "data.augment",
    "BayesianSVM": "model.heads.labels",
    "CaptionHead": "model.heads.captions",
    "Captions": "objectives.captions",
    "Consistency": "objectives.consistency",
    "Decoder": "model.decoder",
    "DeepEncoder": "model.encoders.deep",
    "Features": "data.features",
    "ImageModel": "model.image_model",
    "ImageSet": "data.image_set",
    "Joint": "objectives.joint",
    "Labels": "objectives.labels",
    "Layer": "model.architecture",
    "Local": "objectives.gradients",
    "NVIL": "objectives.gradients",
    "NetworkEncoder": "model.posterior",
    "PaperEncoder": "model.encoders.paper",
    "Posterior": "model.posterior",
    "Run": "runs.run",
    "SampleStream": "data.stream",
    "SemiSight": "estimator",
    "Side": "objectives.targets",
    "Softmax": "model.heads.labels",
    "StraightThrough": "objectives.gradients",
    "TagHead": "model.heads.tags",
    "Tags": "objectives.tags",
    "Target": "objectives.targets",
    "UserError": "errors",
    "Vocabulary": "data.vocabulary",
    "Xi": "objectives.targets",
    "load": "data.sources",
    "load_run": "runs.run",
    "train": "runs.train",
}

__all__ = [
    "NVIL",
    "Architecture",
    "Augment",
    "BayesianSVM",
    "CaptionHead",
    "Captions",
    "Consistency",
    "Decoder",
    "DeepEncoder",
    "Features",
    "ImageModel",
    "ImageSet",
    "Joint",
    "Labels",
    "Layer",
    "Local",
    "NetworkEncoder",
    "PaperEncoder",
    "Posterior",
    "Run",
    "SampleStream",
    "SemiSight",
    "Side",
    "Softmax",
    "StraightThrough",
    "TagHead",
    "Tags",
    "Target",
    "UserError",
    "Vocabulary",
    "Xi",
    "__version__",
    "load",
    "load_run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'semisight' has no attribute {name!r}")
    value = getattr(import_module(f"semisight.{_HOME_OF[name]}"), name)
    globals()[name] = value  # the next use does not come through here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
