"""Features by either engine: the same bytes, written by one process, and a job that is killed goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semisight.backbones import Backbone, resolve
from semisight.data.feature_cache import Share, cache_report, cached_features
from semisight.data.image_set import ImageSet
from semisight.engines import features
from semisight.engines.features import share_by
from semisight.errors import UserError
from tests.backbones.networks import CHANNELS, write_network
from tests.cli.commands import ok
from tests.data.writers import random_image, write_image

N, VIEWS = 40, 2
ROW = 2 * CHANNELS  # bytes of a pooled row in float16
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    for i in range(N):
        write_image(images / f"{i:02d}.png", random_image(i, 20, 24))
    (images / "20.png").write_bytes(b"no picture")
    return images


@pytest.fixture
def backbone(tmp_path: Path) -> Backbone:
    return resolve(write_network(tmp_path / "net" / "tiny.onnx"))


def rows(place: Path) -> list[bytes]:
    """Of the only shard; sorted, for parts may be done in any order."""
    [shard] = (place / "features").glob("*.f16")
    content = shard.read_bytes()
    return sorted(content[at : at + ROW] for at in range(0, len(content), ROW))


def made(images: Path | ImageSet, backbone: Backbone, place: Path, share: Share | None) -> Any:
    calls: list[tuple[int, int]] = []
    found = cached_features(
        images, backbone, views=VIEWS, cache=place, workers=0, share=share, progress=lambda *one: calls.append(one)
    )
    return found, len(calls)


def assert_same_bytes(folder: Path, backbone: Backbone, tmp_path: Path, share: Share) -> None:
    plain, _ = made(folder, backbone, tmp_path / "plain", None)
    found, worked = made(folder, backbone, tmp_path / "shared", share)
    assert worked == N and found.names == plain.names and found.skipped == plain.skipped and len(found) == N - 1
    for view in range(VIEWS):
        assert torch.equal(found.values(view=view), plain.values(view=view))
    assert len(rows(tmp_path / "plain")) == (N - 1) * VIEWS
    assert rows(tmp_path / "shared") == rows(tmp_path / "plain")
    assert made(folder, backbone, tmp_path / "shared", share)[1] == 0
    assert made(folder, backbone, tmp_path / "shared", None)[1] == 0  # one cache, whoever filled it


def test_worker_processes_write_the_same_bytes(folder: Path, backbone: Backbone, tmp_path: Path) -> None:
    assert_same_bytes(folder, backbone, tmp_path, share_by("local", workers=1))


def test_ray_writes_the_same_bytes(
    folder: Path, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray.data", reason="--engine ray needs ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    assert_same_bytes(folder, backbone, tmp_path, share_by("ray", workers=1))


def test_sets_in_memory_and_answers_in_any_order(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "_IMAGES_OF_PART", 3)
    pixels = np.stack([random_image(i, 12, 12).transpose(2, 0, 1) for i in range(10)])
    images = ImageSet(torch.from_numpy(pixels), tuple("abcdefghij"))
    plain, _ = made(images, backbone, tmp_path / "plain", None)

    def backwards(engine: str, worker: str, job: Any, parts: list[str], done: Any, **options: Any) -> None:
        here = features.FeatureWorker(json.loads(json.dumps(job)))
        for part in reversed(parts):
            done(json.loads(json.dumps(here(part))))

    monkeypatch.setattr(features, "run_parts", backwards)
    found, worked = made(images, backbone, tmp_path / "shared", share_by("ray"))
    assert worked == 10 and all(torch.equal(found.values(view=v), plain.values(view=v)) for v in range(VIEWS))
    assert not list((tmp_path / "shared" / "features").glob("semisight-*"))  # the workers' copy is gone


STARTED = """
import sys, time
from semisight.backbones import resolve
from semisight.data import feature_cache
from semisight.engines import features
net, folder, cache = sys.argv[1:]
feature_cache._COMMIT_SECONDS, features._IMAGES_OF_PART = 0, 4
def progress(done, total):
    if done == 16:
        print("here", flush=True)
        time.sleep(1000)
share = features.share_by("local", 1)
feature_cache.cached_features(folder, resolve(net), views=2, cache=cache, share=share, progress=progress)
"""


def test_what_was_killed_goes_on(folder: Path, backbone: Backbone, tmp_path: Path) -> None:
    place = tmp_path / "cache"
    arguments = [str(tmp_path / "net" / "tiny.onnx"), str(folder), str(place)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED, *arguments], stdout=subprocess.PIPE, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "here\n"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert cache_report(place).backbones[0].rows == 16 * VIEWS
    found, worked = made(folder, backbone, place, share_by("local", workers=0))
    plain, _ = made(folder, backbone, tmp_path / "plain", None)
    assert worked == N - 16 and all(torch.equal(found.values(view=v), plain.values(view=v)) for v in range(VIEWS))
    assert len(rows(place)) == (N - 1) * VIEWS


def test_train_has_features_from_an_engine(
    folder: Path, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    asked: list[tuple[str, Any]] = []

    def here(engine: str, worker: str, job: Any, parts: list[str], done: Any, **options: Any) -> None:
        asked.append((engine, options["address"]))
        for part in parts:
            done(features.FeatureWorker(job)(part))

    monkeypatch.setattr(features, "run_parts", here)
    (tmp_path / "labels.csv").write_text("file,label\n" + "".join(f"{i:02d}.png,{i % 2}\n" for i in range(16)))
    command: list[str | Path] = [
        "train",
        folder,
        "--labels",
        tmp_path / "labels.csv",
        "--backbone",
        tmp_path / "net" / "tiny.onnx",
    ]
    ok(*command, "--engine", "ray", "--address", "auto", "--out", tmp_path / "run", "--no-report")
    assert asked == [("ray", "auto")] and cache_report().backbones[0].images == N - 1


def test_mistakes_are_told(folder: Path, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semisight.runs.settings import resolve as settings

    with pytest.raises(UserError, match=r"--engine ray works out the features .*--backbone"):
        settings({"source": str(folder), "engine": "ray"})
    with pytest.raises(UserError, match=r"--address is that of a Ray cluster: give --engine ray"):
        settings({"source": str(folder), "backbone": "x.onnx", "address": "auto"})
    job = {"network": {"path": str(tmp_path / "net" / "tiny.onnx")}, "folder": "/not/here", "array": None}
    with pytest.raises(UserError, match=r"a worker does not see /not/here: .*every machine"):
        features.FeatureWorker(job)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs Ray: pip install 'semisight\[ray\]'"):
        made(folder, backbone, tmp_path / "none", share_by("ray"))

    class Here:
        job = None

        def __getattr__(self, name: str) -> Any:
            return getattr(backbone, name)

    with pytest.raises(UserError, match="runs in this process only"):
        made(folder, Here(), tmp_path / "none", share_by("local"))
