"""A folder of Hugging Face's `transformers` as a backbone: config.json and safetensors, never code that came with it.

    pooled   CLIP and SigLIP: the image's embedding; networks with a class token: that token; convolutional ones: their
             pooled output; else the mean over places
    map      the last layer, place by place

`hf:NAME` (or `hf:OWNER/NAME`) is downloaded when it is named so, and only its configuration and safetensors.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from semisight.backbones.converting import as_backbone
from semisight.backbones.modules import split
from semisight.backbones.onnx_file import file_hash
from semisight.data.preprocessing import Backbone, Preprocessing
from semisight.errors import UserError
from semisight.untrusted import MOST_SETTINGS, parse_yaml, read_json, read_text

_NEEDED = "pip install 'semisight[transformers]'"
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers, as the files have them
_DOWNLOADED = ("config.json", "preprocessor_config.json", "README.md", "*.safetensors", "*.safetensors.index.json")


def is_transformers_folder(path: Path) -> bool:
    return (path / "config.json").is_file()


def download(name: str) -> Path:
    """A network from the Hugging Face hub, in its own cache; called only for what was named as hf:NAME."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(f"to download hf:{name}, transformers is needed: {_NEEDED}") from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(_DOWNLOADED)))
    except Exception as error:  # no network, no such name, no permission: the hub has many errors of its own
        first = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"hf:{name} could not be downloaded: {first or type(error).__name__}") from error


def open_folder(
    folder: Path,
    *,
    pooled: bool = True,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Backbone:
    """The network of a folder."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickled = ", ".join(file.name for file in sorted([*folder.glob("*.bin"), *folder.glob("*.pt*")]))
        there = f" (there is {pickled}, which may run code when read)" if pickled else ""
        raise UserError(
            f"{folder} holds no .safetensors{there}: save the network with "
            "model.save_pretrained(folder, safe_serialization=True)"
        )
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise UserError(f"to use {folder}, transformers is needed: {_NEEDED}") from None
    if not isinstance(preprocessing, Preprocessing):
        given = {**read_preprocessing(folder), **(preprocessing or {})}
        preprocessing = Preprocessing.from_mapping(given, str(folder))
    # The configuration decides what the numbers are used for.
    hashes = "".join(file_hash(file) for file in (folder / "config.json", *weights))
    return as_backbone(
        lambda: _network(folder),
        hashes,
        preprocessing,
        pooled=pooled,
        name=name or folder.resolve().name,
        licence=_licence(folder),
    )


def read_preprocessing(folder: Path) -> dict[str, Any]:
    """What preprocessor_config.json says, as our settings; without that file, ImageNet's at the network's size."""
    file = folder / "preprocessor_config.json"
    config, said = read_json(folder / "config.json"), read_json(file) if file.is_file() else {}
    own = config.get("image_size") or (config.get("vision_config") or {}).get("image_size")
    if not file.is_file():
        if not isinstance(own, int):
            raise UserError(
                f"{folder} has no preprocessor_config.json, and its config.json names no image size: give "
                "preprocessing=dict(size=224, mean=..., std=...)"
            )
        return {"size": own}
    short, (height, width) = _sizes(said.get("size"), own)
    settings: dict[str, Any] = {"crop": 1.0, "interpolation": _RESAMPLE.get(said.get("resample", 3), "bicubic")}
    if said.get("do_center_crop") and said.get("crop_size"):
        _, (height, width) = _sizes(said["crop_size"], own)
        settings["crop"] = min(1.0, height / short) if short and height else 1.0
    elif said.get("crop_pct") and short:  # ConvNeXt: scaled to size / crop_pct, then cropped to size
        settings["crop"], height, width = float(said["crop_pct"]) if short < 384 else 1.0, short, short
    else:
        settings["squash"] = short is None
    if height is None or height != width:
        raise UserError(f"{file} asks for images of {width} x {height}; only square ones can be had")
    settings["size"] = int(height)
    settings["scale"] = float(said.get("rescale_factor", 1 / 255)) if said.get("do_rescale", True) else 1.0
    normalise = said.get("do_normalize", True)
    settings["mean"] = said.get("image_mean", [0.5, 0.5, 0.5]) if normalise else 0.0
    settings["std"] = said.get("image_std", [0.5, 0.5, 0.5]) if normalise else 1.0
    return settings


def _sizes(said: Any, own: Any) -> tuple[int | None, tuple[int | None, int | None]]:
    """The short side that images are scaled to, if the shape of an image is kept, and height and width."""
    if isinstance(said, int):
        return said, (said, said)
    if isinstance(said, dict) and "shortest_edge" in said:
        edge = int(said["shortest_edge"])
        return edge, (edge, edge)
    if isinstance(said, dict) and "height" in said:
        return None, (int(said["height"]), int(said["width"]))
    return None, (own, own) if isinstance(own, int) else (None, None)


def _network(folder: Path) -> nn.Module:
    """Images to (pooled, map), on what AutoModel makes of the folder."""
    from transformers import AutoModel

    try:
        model = AutoModel.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
    except Exception as error:  # garbled weights, an unknown kind of network, code that would have to be run
        first = (str(error).splitlines() or [""])[0][:300]
        raise UserError(f"transformers cannot load the network in {folder}: {first}") from error
    return PooledAndMap(model.float().eval())


class PooledAndMap(nn.Module):
    """What a network of transformers says of images, as (pooled [B, C], map [B, C, h, w])."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        vision = getattr(model, "vision_model", None)  # CLIP and SigLIP have a model of words beside it
        self.vision = vision if isinstance(vision, nn.Module) else model
        projection = getattr(model, "visual_projection", None)
        self.projection = projection if isinstance(projection, nn.Module) else None
        self.embeds = self.vision is not model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        found = self.vision(pixel_values=images)
        parts = split(found.last_hidden_state)
        pooler = getattr(found, "pooler_output", None)
        if isinstance(pooler, Tensor) and (self.embeds or found.last_hidden_state.ndim == 4):
            # A ViT's own pooler is left alone: checkpoints often come without it, and it is then random.
            pooled = pooler.flatten(1)
            parts = (pooled if self.projection is None else self.projection(pooled), *parts[1:])
        return parts


def _licence(folder: Path) -> str:
    """As the model card says."""
    try:
        card = read_text(folder / "README.md", MOST_SETTINGS)
        head = card.split("---")[1] if card.startswith("---") else ""
        return str(parse_yaml(head, "README.md").get("license", "not stated"))
    except (UserError, IndexError):
        return "not stated"
