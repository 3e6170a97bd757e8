"""Features of photographs through the cache, against a bare loop over onnxruntime; the second use; bytes per image.

The backbone is the installed one that is the default (a small random network in the smoke size), the photographs are
drawn: smooth colours with grain, JPEG, about 300 x 200 pixels, as Caltech-101 has them.

From a folder to answers: `semisight train` and `predict` on features that are not cached yet, against a plain script
that loops over the files, fits scikit-learn's logistic regression and predicts. Ours has two views of each image,
cross-validation and a model card; both times are by the wall, the script with one process as such scripts are.
"""

import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import nn

from benchmarks.figures import Figure, Goal
from semisight.backbones import DEFAULT, Backbone, installed, resolve
from semisight.data.feature_cache import cache_report, cached_features
from semisight.data.workers import cores


@dataclass(frozen=True)
class Photos:
    """How many photographs to draw, how many of them for the speed, in how many rounds; whether the network is real."""

    n: int = 9000
    timed: int = 200
    rounds: int = 3
    real: bool = True
    answered: int = 1000


SMALL_PHOTOS = Photos(n=12, timed=6, rounds=1, real=False, answered=24)


def draw_photos(folder: Path, n: int) -> list[str]:
    """n JPEGs of 16 pictures, each file with a number behind its end, so that no two are the same."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    few = []
    for i in range(min(n, 16)):
        colours = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize(
            (300, 200), Image.Resampling.BICUBIC
        )
        pixels = np.asarray(colours) + rng.normal(0, 8, (200, 300, 1))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.tmp", "JPEG", quality=90)
        few.append((folder / f"{i}.tmp").read_bytes())
        (folder / f"{i}.tmp").unlink()
    names = [f"{i:05d}.jpg" for i in range(n)]
    for i, name in enumerate(names):
        (folder / name).write_bytes(few[i % len(few)] + i.to_bytes(8, "little"))
    return names


BARE = """
import io, sys
import numpy as np, onnxruntime
from PIL import Image
network, size, mean, std, output, *files = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
size, entry, rows = int(size), session.get_inputs()[0].name, []
for file in files:
    image = Image.open(file).convert("RGB")
    side = 0.875 * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    image = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    x = ((np.asarray(image, np.float32) - float(mean)) / float(std)).transpose(2, 0, 1)[None]
    rows.append(session.run([output], {entry: x})[0])
found = io.BytesIO()  # a pipe has no position, which numpy may ask for
np.save(found, np.concatenate(rows).astype(np.float16))
sys.stdout.buffer.write(found.getvalue())
"""


def measure_features(photos: Photos) -> Iterator[Figure]:
    """In turns: the bare loop in a process of its own, and the cache, empty, with one worker.

    The clock is the processor time of this process and of those it started: other work on the machine hardly matters.
    """
    backbone = _backbone(photos.real)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "photos")
        names = draw_photos(folder, photos.n)
        timed, bare, ours, wall = names[: photos.timed], list[float](), list[float](), list[float]()
        for turn in range(photos.rounds):
            start = _processor_seconds()
            right = _bare_loop(backbone, [folder / name for name in timed])
            bare.append(_processor_seconds() - start)
            start, by_the_wall = _processor_seconds(), time.perf_counter()
            found = cached_features(folder, backbone, names=timed, cache=Path(temporary, f"{turn}"), workers=1)
            ours.append(_processor_seconds() - start)
            wall.append(time.perf_counter() - by_the_wall)
            np.testing.assert_allclose(found.values().flatten(1), right, rtol=5e-2, atol=5e-3)
        yield Figure(
            f"features of {photos.timed} photographs per second through the cache, over a bare onnxruntime loop",
            statistics.median(a / b for a, b in zip(bare, ours, strict=True)),
            "ratio of processor times",
            Goal(">=", 0.9),
            {
                "backbone": backbone.name,
                "seconds": {"bare loop": bare, "cache, one worker": ours, "cache, wall": wall},
                "ms_per_image": 1e3 * statistics.median(ours) / photos.timed,
            },
        )
        report = cache_report(Path(temporary, "0"))
        index = (report.folder / "index.sqlite").stat().st_size
        per_image = (report.n_bytes + index) / photos.timed
        yield Figure(
            "features on the disk, pooled", per_image, "bytes per image", None, {"of_index": index / photos.timed}
        )
        # The second use of a large folder is stat calls and the index: a network that takes no time will do.
        quick = _backbone(real=False)
        cached_features(folder, quick, cache=Path(temporary, "whole"))
        by_the_wall = time.perf_counter()
        cached_features(folder, quick, cache=Path(temporary, "whole")).values()
        seconds = time.perf_counter() - by_the_wall
        yield Figure(f"features of {photos.n:,} photographs from the cache", seconds, "s, wall", Goal("<=", 20))


PLAIN = """
import os, sys
from pathlib import Path
import numpy as np, onnxruntime
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
network, size, mean, std, output, folder, known = sys.argv[1:]
options = onnxruntime.SessionOptions()  # by itself it takes a thread for each core, also for those it may not use
options.intra_op_num_threads = len(os.sched_getaffinity(0))
session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
size, entry, rows, names = int(size), session.get_inputs()[0].name, [], []
for file in sorted(Path(folder).rglob("*.jpg")):
    image = Image.open(file).convert("RGB")
    side = 0.875 * min(image.size)
    left, top = (image.width - side) / 2, (image.height - side) / 2
    image = image.resize((size, size), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    x = ((np.asarray(image, np.float32) - float(mean)) / float(std)).transpose(2, 0, 1)[None]
    value = session.run([output], {entry: x})[0]
    rows.append(value.reshape(value.shape[0], value.shape[1], -1).mean(2)[0] if value.ndim == 4 else value[0])
    names.append(file.parent.name)
rows, names = StandardScaler().fit_transform(np.stack(rows)), np.array(names)
given = np.concatenate([np.flatnonzero(names == name)[: int(known)] for name in np.unique(names)])
said = LogisticRegression(C=0.01, max_iter=1000).fit(rows[given], names[given]).predict(rows)
print((said != names).mean())
"""
_CLASSES, _KNOWN = 4, 5


def measure_answers(photos: Photos) -> Iterator[Figure]:
    """Seconds from a folder of photographs to a label for each, and the memory of the training."""
    backbone = _backbone(photos.real)
    assert backbone.job is not None
    how, network = backbone.preprocessing, backbone.job.network
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "photos")
        for i, name in enumerate(draw_photos(Path(temporary, "all"), photos.answered)):
            below = folder / f"class-{i % _CLASSES}"
            below.mkdir(parents=True, exist_ok=True)
            (below / name).symlink_to(Path(temporary, "all", name))
        arguments = [str(value) for value in (network["path"], how.size, how.mean, how.std, network["output"])]
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", PLAIN, *arguments, str(folder), str(_KNOWN)], capture_output=True, check=True
        )
        plain = time.perf_counter() - start
        spec = str(network["path"])
        if backbone.name == DEFAULT:
            spec = DEFAULT
        else:
            Path(spec).with_suffix(".yaml").write_text(
                f"size: {how.size}\nscale: {how.scale}\nmean: {how.mean}\nstd: {how.std}\noutput: {network['output']}\n"
            )
        environment = os.environ | {"XDG_CACHE_HOME": str(Path(temporary, "cache"))}
        words = [sys.executable, "-m", "semisight"]
        train = ["train", str(folder), "--class-per-folder", "--labels-per-class", str(_KNOWN), "--backbone", spec]
        start = time.perf_counter()
        run = f"{temporary}/run"
        for command in ([*train, "--out", run, "--no-report"], ["predict", run, str(folder)]):
            subprocess.run([*words, *command], cwd=root, env=environment, capture_output=True, check=True)
        ours = time.perf_counter() - start
        start = time.perf_counter()  # again with features that are there: the rest of `ours` is the network's
        again = [*words, *train, "--out", f"{temporary}/again", "--no-report"]
        subprocess.run(again, cwd=root, env=environment, capture_output=True, check=True)
        cached = time.perf_counter() - start
    details = {
        "images": photos.answered,
        "backbone": backbone.name,
        "cores": cores(),
        "seconds": {"script": plain, "semisight": ours, "training again, from the cache": cached},
    }
    yield Figure("from a folder to answers, over a plain script", ours / plain, "ratio, wall", Goal("<=", 1.5), details)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6
    yield Figure("memory of learning on features, the largest process", peak, "MB", Goal("<=", 4000))


def _processor_seconds() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _backbone(real: bool) -> Backbone:
    if real and any(entry.name == DEFAULT and entry.n_bytes for entry in installed()):
        return resolve(DEFAULT)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 1280, 32, stride=32), nn.ReLU())
    return resolve(network, preprocessing={"size": 128, "scale": 1.0, "mean": 127.0, "std": 128.0})


def _bare_loop(backbone: Backbone, files: list[Path]) -> npt.NDArray[np.float32]:
    assert backbone.job is not None
    how, network = backbone.preprocessing, backbone.job.network
    arguments = [str(value) for value in (network["path"], how.size, how.mean, how.std, network["output"], *files)]
    done = subprocess.run([sys.executable, "-c", BARE, *arguments], capture_output=True)
    if done.returncode:
        raise RuntimeError(f"the bare loop failed:\n{done.stderr.decode(errors='replace')}")
    return np.load(io.BytesIO(done.stdout)).astype(np.float32)
