"""A chain on disk: one safetensors file with JSON in its header, replaced in one step, no pickle.

The header names the kind of chain and a digest of the images and labels it ran on: a chain resumed on other data would
go on from latent variables that belong to other pictures.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.files import write_atomic

_HEADER = "semisight-chain"
_FORMAT = 2  # 1: without the parameters that both kinds of chain keep


def data_digest(images: Tensor, labels: Tensor | None) -> str:
    """A fingerprint of images and labels, as long as their bytes are the same."""
    digest = hashlib.sha256()
    for tensor in (images, labels):
        if tensor is None:
            digest.update(b"none")
            continue
        digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
        for part in tensor.detach().cpu().split(1024):
            digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()


def write_chain(path: str | Path, kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    flat = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    header = json.dumps({"format": _FORMAT, "kind": kind, **meta}, allow_nan=False)
    write_atomic(path, save(flat, metadata={_HEADER: header}))


def read_chain(path: str | Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = Path(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise UserError(f"there is no saved chain {path}.") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); use another saved chain.") from error
    if header is None:
        raise UserError(f"{path} is a safetensors file, but not a saved chain.")
    meta: dict[str, Any] = json.loads(header)
    if meta.get("format") != _FORMAT or meta.get("kind") != kind:
        raise UserError(
            f"{path} holds a {meta.get('kind')} chain of format {meta.get('format')}; "
            f"this reads {kind} chains of format {_FORMAT}."
        )
    return tensors, meta


def check_same(path: str | Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuses a saved chain whose data, model or settings differ from the ones at hand."""
    if saved.get("data") != now["data"]:
        raise UserError(
            f"{path} was saved by a chain on other images or labels; its latent variables belong to those. "
            "Give the data it was started with, or start a new chain."
        )
    for name in now:
        if saved.get(name) != now[name]:
            raise UserError(
                f"{path} was saved with {name} = {saved.get(name)}, this chain has {now[name]}. "
                "Use the settings it was started with, or start a new chain."
            )


def module_tensors(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}:{name}": value for name, value in module.state_dict().items()}


def take(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors named `prefix:...`, without the prefix."""
    return {name.partition(":")[2]: t for name, t in tensors.items() if name.startswith(f"{prefix}:")}


def load_module(path: str | Path, tensors: Mapping[str, Tensor], prefix: str, module: nn.Module) -> None:
    try:
        module.load_state_dict(take(tensors, prefix))
    except RuntimeError as error:
        raise UserError(f"{path} holds another model than the one to be resumed: {error}") from error


def generator_from(state: Tensor) -> torch.Generator:
    generator = torch.Generator()
    generator.set_state(state)
    return generator


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """The same values as they come back from a header: tuples become lists."""
    result: dict[str, Any] = json.loads(json.dumps(value))
    return result
