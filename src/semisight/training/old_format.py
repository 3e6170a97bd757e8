"""Reads checkpoints of format 1, in which one part, `model:`, held a whole training objective and `averaged:` its EMA.

Names of that time: `images.model.` for the image model (or `model.` of a run without labels and captions), `head.` for
the head of labels or of captions, `labels.head.` for labels beside captions.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

FORMAT = 1


def parts(tensors: Mapping[str, Mapping[str, Tensor]], meta: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """The parts of today with the weights to use. A run of that time cannot be resumed."""
    about = meta["about"]
    heads = {"head.": "captions" if about.get("captions") else "labels", "labels.head.": "labels"}
    prefixes = {"images.model.": "model", "model.": "model"} | {old: f"head.{name}" for old, name in heads.items()}
    result: dict[str, dict[str, Tensor]] = {}
    for name, value in (*tensors.get("model", {}).items(), *tensors.get("averaged", {}).items()):
        for prefix, part in prefixes.items():
            if name.startswith(prefix):
                result.setdefault(part, {})[name.removeprefix(prefix)] = value
                break
    return result


def meta(old: Mapping[str, Any]) -> dict[str, Any]:
    """The header as it would be written today."""
    about = old["about"]
    model = {name: about[name] for name in ("architecture", "pooling", "gradient", "alpha0")}
    counts = {"labels": "n_labelled", "captions": "n_captioned"}
    targets = {name: {**about[name], "n_learned": about[name][n]} for name, n in counts.items() if about.get(name)}
    return {**old, "about": {"model": model, "targets": targets}}
