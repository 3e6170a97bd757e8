"""Checkpoints: one safetensors file each, with everything that is not a tensor as JSON in its header.

One file, because only then is replacing it atomic: after a kill, a full disk or a power cut there is the old
checkpoint or the new one. No pickle: a checkpoint from a stranger can be opened.

Tensors are named by part:

    model:            the image model, with the weights to use (the averaged ones, where there are any)
    head.<target>:    the head of each target, likewise
    training:         what only resuming needs: weights/, average/, optimiser/, meter/, state/

Prediction reads the first two. Format 1, which had one part for the whole objective, is still read (old_format.py).
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from semisight.errors import UserError
from semisight.files import atomic_path, check_seal, seal
from semisight.training import old_format
from semisight.untrusted import parse_json

_HEADER = "semisight"  # the key of our JSON in the header
FORMAT = 2
TRAINING = "training"
T = TypeVar("T")
_TURNS = 100  # to read a file that is being replaced


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by part and name, and the JSON that belongs to them."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def part(self, name: str) -> Mapping[str, Tensor]:
        return self.tensors.get(name, {})

    def training(self, name: str) -> dict[str, Tensor]:
        """What resuming needs of one kind: weights, average, optimiser, meter or state."""
        prefix = f"{name}/"
        return {key.removeprefix(prefix): value for key, value in self.part(TRAINING).items() if key.startswith(prefix)}


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes the whole file or leaves the old one as it was (a UserError says why)."""
    flat = {
        f"{part}:{name}": value.detach().cpu().contiguous().clone()  # the format refuses tensors that share memory
        for part, tensors in checkpoint.tensors.items()
        for name, value in tensors.items()
    }
    meta = {"format": FORMAT, **checkpoint.meta}
    content = seal(save(flat, metadata={_HEADER: json.dumps(meta, allow_nan=False)}))
    # Written by Python and not by safetensors' own writer: a full disk is then an OSError, which atomic_path reports.
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_checkpoint(path: str | Path, parts: Iterable[str] | None = None) -> Checkpoint:
    """A checkpoint, on the CPU: all of it, or the named parts alone."""
    return _steadily(Path(path), lambda path: _read(path, None if parts is None else set(parts)))


def _read(path: Path, wanted: set[str] | None) -> Checkpoint:
    meta = _header(path)
    tensors: dict[str, dict[str, Tensor]] = {}
    old = meta.get("format") == old_format.FORMAT
    check_seal(path, required=not old)
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 (not a dict)
                part, _, name = key.partition(":")
                if wanted is None or part in wanted or old:
                    tensors.setdefault(part, {})[name] = file.get_tensor(key)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path} could not be read ({error}); use another checkpoint.") from error
    if old:
        tensors = old_format.parts(tensors, meta)
        meta = old_format.meta(meta)
    return Checkpoint(tensors, meta)


def read_meta(path: str | Path) -> dict[str, Any]:
    """The JSON of a checkpoint's header, without reading its tensors."""
    meta = _steadily(Path(path), _header)
    try:
        return old_format.meta(meta) if meta["format"] == old_format.FORMAT else meta
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not say how its model is built (it lacks {error}).") from error


def _steadily(path: Path, read: Callable[[Path], T]) -> T:
    """What `read` gives of one and the same file. A training may replace it meanwhile, and safetensors opens it more
    than once."""
    for _ in range(_TURNS):
        before = _identity(path)
        try:
            found = read(path)
        except UserError:
            if _identity(path) == before:
                raise
            continue
        if _identity(path) == before:
            return found
    raise UserError(f"{path} is replaced faster than it can be read; stop the training, or use another checkpoint.")


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _header(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file; use another checkpoint.")
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER)
    except FileNotFoundError:
        raise UserError(f"there is no checkpoint {path}.") from None
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({error}); use another checkpoint.") from error
    if header is None:
        raise UserError(f"{path} is a safetensors file, but not one that semisight wrote.")
    meta = parse_json(header, str(path))
    if meta.get("format") not in (FORMAT, old_format.FORMAT):
        raise UserError(f"{path} has format {meta.get('format')}, this version of semisight reads {FORMAT}.")
    return meta


def load_parts(parts: Mapping[str, nn.Module], path: str | Path) -> dict[str, Any]:
    """Fills modules with the parts of a checkpoint of their names, with the weights to use; gives the header's JSON."""
    checkpoint = read_checkpoint(path, parts)
    for name, module in parts.items():
        load_state(module, checkpoint.part(name), path)
    return dict(checkpoint.meta)


def load_state(module: nn.Module, weights: Mapping[str, Tensor], path: str | Path) -> None:
    """`load_state_dict` with an error that people can read."""
    own = module.state_dict()
    wrong = [name for name in own if name not in weights] + [name for name in weights if name not in own]
    wrong += [name for name in own if name in weights and own[name].shape != weights[name].shape]
    if wrong:
        raise UserError(f"{path} holds another model: {_some(wrong)} do not fit. Build the model it was trained with.")
    check_finite(weights, path)
    module.load_state_dict(dict(weights))


def check_finite(weights: Mapping[str, Tensor], path: str | Path) -> None:
    """A model with a weight that is no number would answer nonsense without a word."""
    wrong = [name for name, w in weights.items() if w.is_floating_point() and not bool(torch.isfinite(w).all())]
    if wrong:
        raise UserError(f"{path} is unusable: {_some(wrong)} hold numbers that are not finite. Use another checkpoint.")


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
