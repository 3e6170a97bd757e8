"""Features of many images by an engine: workers send them back, and only the process that asked writes its cache.

So the cache may lie where no other machine sees it, a worker or a machine that is lost leaves nothing half behind, and
a part that is done twice is written once. The images and the network must be where all workers see them.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from semisight.data.feature_cache import Share
from semisight.data.feature_worker import Answer, from_array, from_files, work_out
from semisight.engines import Engine, run_parts
from semisight.errors import UserError

_IMAGES_OF_PART = 32  # a second of a photograph's network: what is lost with a worker, and sent at a time


class FeatureWorker:
    """Works out parts: JSON [[number, name, views], ...] of images to their rows of float16."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        from semisight.backbones.onnx_file import OnnxBackbone

        for path in (job["network"]["path"], job["array"] or job["folder"]):
            if not Path(path).exists():
                raise UserError(
                    f"a worker does not see {path}: images and network must be where every machine sees them."
                )
        self.backbone = OnnxBackbone.from_job(job["network"])
        self.read = from_array(np.load(job["array"], mmap_mode="r")) if job["array"] else from_files(job["folder"])

    def __call__(self, part: str) -> Mapping[str, Any]:
        held, lines = _Held(), list[Answer]()
        work_out([tuple(one) for one in json.loads(part)], self.read, self.backbone, held, lines.append)
        return {"lines": lines, "rows": base64.b64encode(b"".join(held.rows)).decode()}


class _Held:
    """Rows that are sent instead of written; a row's number is its place among them."""

    name = "sent"

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.n_rows = 0

    def append(self, rows: npt.NDArray[np.float16]) -> None:
        self.rows.append(rows.tobytes())
        self.n_rows += len(rows)

    def sync(self) -> None:
        """Nothing to wait for: whoever writes them waits for the disk."""


def share_by(engine: Engine, workers: int | None = None, address: str | None = None) -> Share:
    """How `cached_features` has features worked out by an engine."""

    def share(job: Mapping[str, Any], todo: Any, done: Any) -> None:
        parts = [json.dumps(todo[at : at + _IMAGES_OF_PART]) for at in range(0, len(todo), _IMAGES_OF_PART)]

        def told(answer: Mapping[str, Any]) -> None:
            done(answer["lines"], base64.b64decode(answer["rows"]))

        run_parts(engine, f"{__name__}:FeatureWorker", job, parts, told, workers=workers, address=address)

    return share
