"""Paths of every command may be URLs: a whole working day on S3, by a server that speaks its protocol (moto)."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from semisight.cli import places
from semisight.data.remote import as_written
from semisight.runs.run import load_run
from tests.cli.commands import ok, refused
from tests.data.writers import random_image, write_image

pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
pytest.importorskip("s3fs", reason="s3:// needs s3fs")
pytest.importorskip("moto.server", reason="moto's server is not installed")
from tests.data.test_remote import bucket, s3  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(300)
N = 24
SETTINGS = """
layers: [{maps: 4, kernel: 3, pool: 2}, {maps: 6, kernel: 3}]
batch_size: 8
max_epochs: null
valid_fraction: 0.0
encoder: scratch
progress: false
tensorboard: false
checkpoint_steps: 1
"""


def test_urls_are_read_as_they_were_written() -> None:
    for text in ("s3://bucket/a/b", "gs://bucket/a", "hf://datasets/a/b", "file:///tmp/a"):
        assert as_written(text) == as_written(Path(text)) == text
    for text in ("/tmp/a", "a/b", "C:/a", "builtin:digits"):
        assert as_written(Path(text)) == str(Path(text))


def test_a_day_on_s3(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for i in range(N):
        write_image(tmp_path / "photos" / f"{i:02d}.png", random_image(i, 8, 8))
    bucket.pipe_file("bucket/labels.csv", b"file,label\n" + b"".join(b"%02d.png,%d\n" % (i, i % 2) for i in range(N)))
    bucket.pipe_file("bucket/settings.yaml", SETTINGS.encode())
    ok(
        "shard",
        tmp_path / "photos",
        "--labels",
        "s3://bucket/labels.csv",
        "--per-shard",
        "8",
        "--out",
        "s3://bucket/shards",
    )
    assert "already exists" in refused("shard", tmp_path / "photos", "--out", "s3://bucket/shards")
    assert len(bucket.glob("bucket/shards/*.tar")) == 3

    run, given = "s3://bucket/runs/a", ("--config", "s3://bucket/settings.yaml", "--no-report")
    ok("train", "s3://bucket/shards", "--out", run, "--steps", "3", *given)
    assert load_run(run, "newest").step == 3
    shutil.rmtree(tmp_path / "cache")  # another machine
    assert "--resume" in refused("train", "s3://bucket/shards", "--out", run, "--steps", "3", *given)
    shutil.rmtree(tmp_path / "cache")
    # a run decides by itself on no machine which host is asked: whoever goes on elsewhere names the images again
    assert "give DATA" in refused("train", "--out", run, "--resume", "--no-report")
    said = ok("train", "s3://bucket/shards", "--out", run, "--resume", "--no-report")
    assert "step 3" in said  # it had come to its end
    shutil.rmtree(tmp_path / "cache")
    assert load_run(run, "newest").step == 3

    ok("predict", run, "s3://bucket/shards", "--workers", "0", "--out", "s3://bucket/answers")
    ok("predict", run, tmp_path / "photos", "--workers", "1", "--out", f"file://{tmp_path}/answers.parquet")
    import pyarrow.parquet as pq

    files = [f"s3://{file}" for file in bucket.glob("bucket/answers/*.parquet")]
    rows = [row for file in files for row in pq.read_table(bucket.open(file)).to_pylist()]
    here = pq.read_table(next((tmp_path / "answers.parquet").glob("part-*.parquet"))).to_pylist()
    assert len(rows) == len(here) == N and [row["label"] for row in rows] == [row["label"] for row in here]
    ok("report", run, "--data", "s3://bucket/shards", "--out", "s3://bucket/report.html")
    assert b"</html>" in bucket.cat_file("bucket/report.html")
    assert "already exists" in refused("report", run, "--out", "s3://bucket/report.html")
    said = ok("evaluate", run, tmp_path / "photos", "--labels", "s3://bucket/labels.csv", "--format", "json")
    assert "error" in said
    assert "--labels" in refused("serve", run)
    assert not Path("s3:").exists()  # as pathlib would have it


def test_a_training_is_sent_while_it_runs(bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """What was sent when the machine was lost is what another goes on from."""
    monkeypatch.setattr(places, "SECONDS", 0.01)
    run = tmp_path / "run"
    run.mkdir()
    mirror = places._Mirror(run, "s3://bucket/run")
    with mirror.now_and_then():
        (run / "a").write_bytes(b"one")
        (run / "below").mkdir()
        (run / "below" / "b").write_bytes(b"two")
        _until(lambda: bucket.exists("bucket/run/below/b"), bucket)
        (run / "a").unlink()
        (run / "below" / "b").write_bytes(b"three")
        _until(lambda: not bucket.exists("bucket/run/a"), bucket)
    mirror.send()
    assert bucket.cat_file("bucket/run/below/b") == b"three"


def _until(true: Any, bucket: Any) -> None:  # noqa: F811
    import time

    for _ in range(1000):
        bucket.invalidate_cache()
        if true():
            return
        time.sleep(0.01)
    pytest.fail("it was not sent")
