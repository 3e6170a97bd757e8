"""A row for each promise: how often it was tried and how often it held; and what every part needs."""

import contextlib
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Row:
    """What was tried of a promise, and how often it held."""

    promise: str
    tried: int = 0
    survived: int = 0
    worst: float = 0.0
    unit: str = ""
    broken: list[str] = field(default_factory=list)

    def count(self, held: bool, what: str = "") -> None:
        self.tried += 1
        self.survived += held
        if not held:
            self.broken.append(what)


@dataclass(frozen=True)
class Torture:
    """How much of it, from which seed, and where runs may be written."""

    share: float
    seed: int
    folder: Path

    def times(self, full: int) -> int:
        return max(3, round(full * self.share))

    def chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")


def learn(folder: Path, limit: int = 250, **settings: Any) -> None:
    """A small run, without a word; over another one if there is one."""
    from semisight.runs.settings import resolve
    from semisight.runs.train import train_run

    asked = {
        "source": "builtin:digits",
        "limit": limit,
        "labels_per_class": 3,
        "epochs": 1,
        "batch_size": 64,
        **settings,
    }
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        wanted = resolve({**asked, **settings})
        train_run(wanted, folder, resume=False, overwrite=folder.exists(), say=lambda line: None)


def write_pictures(folder: Path, count: int) -> None:
    import numpy as np
    from PIL import Image

    for i in range(count):
        pixels = np.random.default_rng(i).integers(0, 255, (16, 16), np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")


def write_network(path: Path) -> Path:
    """A small network for features, with its preprocessing beside it."""
    import numpy as np
    import onnx
    from onnx import helper

    kind, weights = onnx.TensorProto.FLOAT, np.random.default_rng(0).normal(size=(5, 3, 4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["map"], strides=[4, 4]),
        helper.make_node("ReduceMean", ["map", "axes"], ["pooled"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", kind, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("pooled", kind, ["n", 5])],
        [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(np.array([2, 3]), "axes")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))
    path.with_suffix(".yaml").write_text("size: 8\nmean: [0.4, 0.5, 0.6]\nstd: 0.5\nlicence: MIT\n")
    return path
