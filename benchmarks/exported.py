"""One image through the encoder and the label head: ONNX against torch, in turns."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.figures import Figure
from semisight.estimator import SemiSight
from semisight.inference.export import export_onnx


def measure_export(side: int) -> Iterator[Figure]:
    """For grey images of side x side and ten classes; 28 is MNIST's preset."""
    images = torch.rand(20, side, side, generator=torch.Generator().manual_seed(0))
    run = SemiSight(max_steps=1, batch_size=8, consistency=False).fit(images, list(range(10)) * 2).run_
    with tempfile.TemporaryDirectory() as folder:
        done = export_onnx(run.model, list(run.readers.values()), Path(folder, "model.onnx"))
    yield Figure(
        f"{side} x {side} pixels, latency of one image, torch over ONNX",
        done.torch_ms / done.onnx_ms,
        "ratio of medians",
        None,
        {"torch_ms": done.torch_ms, "onnx_ms": done.onnx_ms, "largest_difference": done.difference},
    )
