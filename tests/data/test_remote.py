"""s3:// against a server that speaks S3's protocol on this machine (moto), file://, and what goes wrong with either."""

import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semisight.data import load, remote
from semisight.data.samples import parts_of, read_part
from semisight.data.shards import write_shards
from semisight.errors import UserError

pytest.importorskip("s3fs", reason="s3:// needs s3fs")
moto_server = pytest.importorskip("moto.server", reason="moto's server is not installed")


def png(i: int) -> bytes:
    held = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(held, "PNG")
    return held.getvalue()


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A file system of S3 with an empty bucket, credentials in the environment, and a cache of one's own."""
    import s3fs

    for name, value in (
        *(("AWS_ENDPOINT_URL", s3), ("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")),
        *(("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_EC2_METADATA_DISABLED", "true")),
        *(
            ("XDG_CACHE_HOME", str(tmp_path / "cache")),
            ("AWS_CONFIG_FILE", "/nowhere"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
        ),
    ):
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem()
    if system.exists("bucket"):
        system.rm("bucket", recursive=True)
    system.mkdir("bucket")
    yield system
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_folder_on_s3_is_copied_once_and_what_changes_again(bucket: Any) -> None:
    for i in range(5):
        bucket.pipe_file(f"bucket/photos/{'ab'[i % 2]}/{i}.png", png(i))
    images = load("s3://bucket/photos", class_per_folder=True)
    assert len(images) == 5 and images.class_names == ("a", "b")
    copied = sorted(remote.local_copy("s3://bucket/photos").rglob("*.png"))
    before = [file.stat().st_mtime_ns for file in copied]
    bucket.pipe_file("bucket/photos/a/0.png", png(200))
    bucket.rm_file("bucket/photos/b/3.png")
    remote.filesystem("s3://bucket")[0].invalidate_cache()
    images = load("s3://bucket/photos", class_per_folder=True)
    assert len(images) == 4 and int(images.images[0].max()) == 200  # the new one, without the one that is gone
    kept = [file.stat().st_mtime_ns for file in copied[1:] if file.exists()]
    assert len(kept) == 3 and set(kept) <= set(before)  # the others were not copied again


def test_shards_on_s3_are_read_as_they_come(bucket: Any, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    for i in range(7):
        (tmp_path / "plain" / f"{i}.png").write_bytes(png(i))
    for form, ending in (("webdataset", "tar"), ("parquet", "parquet")):
        write_shards(str(tmp_path / "plain"), tmp_path / form, format=form, per_shard=3)  # type: ignore[arg-type]
        for file in (tmp_path / form).glob(f"*.{ending}"):
            bucket.put_file(str(file), f"bucket/{form}/{file.name}")
        remote.filesystem("s3://bucket")[0].invalidate_cache()
        parts = parts_of(f"s3://bucket/{form}")
        assert len(parts) == 3
        found = [sample for part in parts for sample in read_part(part)]
        assert [sample.image for sample in found] == [png(i) for i in range(7)]
    assert not (tmp_path / "cache").exists()  # nothing was copied to the disk


def test_file_urls_are_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(3))
    assert remote.local_copy(f"file://{tmp_path}/a.png") == tmp_path / "a.png"
    assert len(load(f"file://{tmp_path}")) == 1


def test_a_bucket_that_does_not_exist(bucket: Any) -> None:
    with pytest.raises(UserError, match=r"s3://no-such-bucket/photos does not exist: check the bucket and the path"):
        load("s3://no-such-bucket/photos")


def test_missing_credentials(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    type(bucket).clear_instance_cache()
    with pytest.raises(UserError, match="without credentials: set AWS_ACCESS_KEY_ID"):
        load("s3://bucket/photos")


def test_an_address_that_nobody_answers(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    type(bucket).clear_instance_cache()
    with pytest.raises(UserError, match="cannot be reached"):
        load("s3://bucket/photos")


def test_a_scheme_that_nobody_knows_and_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="nonsense"):
        load("nonsense://bucket/photos")
    from fsspec.registry import known_implementations

    monkeypatch.setitem(known_implementations, "gs", {"class": "no_such_module.X", "err": "install gcsfs"})
    with pytest.raises(UserError, match=r"gs:// needs the package gcsfs .*semisight\[remote\]"):
        load("gs://bucket/photos")


def test_two_that_copy_at_once_do_not_meet(bucket: Any) -> None:
    for i in range(6):
        bucket.pipe_file(f"bucket/both/{i}.png", png(i))
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(load("s3://bucket/both")))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [6, 6]
