"""A run folder from a stranger, a folder that cannot be written, a lock that another program holds."""

import fcntl
import io
import json
import tarfile
import threading
import time
from pathlib import Path

import pytest
from PIL import Image

from semisight.data import label_table
from semisight.errors import UserError
from semisight.runs.run import load_run
from semisight.server.service import Options, Service
from tests.cli.commands import refused
from tests.server.conftest import client_of, png, wait_until_read


def recorded(run: Path, **settings: str) -> None:
    data = json.loads((run / "data.json").read_text())
    data["settings"] |= settings
    del data["checksum"]  # whoever writes a run can write any checksum too
    (run / "data.json").write_text(json.dumps(data))


@pytest.mark.parametrize("labels", ["~/.ssh/authorized_keys", "HOME/.ssh/authorized_keys", "../../new.csv", "$HOME/x"])
def test_a_strangers_run_does_not_say_where_labels_go(
    labels: str, own_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: pytest.fail("it was served"))  # not for ever
    recorded(own_digits, labels=labels.replace("HOME", str(home)), labels_per_class=None)  # type: ignore[arg-type]
    before = sorted(tmp_path.rglob("*"))
    assert "give --labels TABLE.csv" in refused("serve", own_digits, "--port", "0")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_that_is_no_table_is_not_touched(own_digits: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("ssh-ed25519 AAAA me\n")
    recorded(own_digits, labels=str(precious))
    service = Service(load_run(own_digits), Options())
    service.start()
    service._reader.join()
    service.close()
    assert service.reading.state == "failed" and "no column" in service.reading.message
    assert precious.read_text() == "ssh-ed25519 AAAA me\n"
    assert not precious.with_name("precious.journal").exists()


def test_a_table_that_is_a_link_out_of_the_run_is_not_begun(own_digits: Path, tmp_path: Path) -> None:
    (own_digits / "labels.csv").symlink_to(tmp_path / "new")
    with pytest.raises(UserError, match="give --labels"):
        Service(load_run(own_digits), Options())
    assert not (tmp_path / "new").exists()


def test_a_run_that_cannot_be_written_is_served_and_says_so(own_digits: Path) -> None:
    (own_digits / "labels.csv.journal").mkdir()  # holds for root too, who may write everywhere
    with client_of(own_digits) as client:
        wait_until_read(client)
        problem = client.get("/api/status").json()["table"]["problem"]
        assert "give a table elsewhere with --labels" in problem
        name = client.get("/api/suggestions?n=1").json()["images"][0]["file"]
        answer = client.post("/api/labels", json={"file": name, "label": "x"})
        assert answer.status_code == 409 and answer.json()["detail"] == problem
    assert not (own_digits / "labels.csv").exists()


def test_a_lock_of_another_program_stops_neither_pages_nor_the_end(
    own_digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_table, "_WAIT", 3.0)
    table = tmp_path / "labels.csv"
    with client_of(own_digits, labels=table) as client:
        wait_until_read(client)
        name = client.get("/api/suggestions?n=1").json()["images"][0]["file"]
        with label_table.journal_of(table).open() as held:
            fcntl.flock(held, fcntl.LOCK_SH)
            statuses: list[int] = []

            def put() -> None:
                statuses.append(client.post("/api/labels", json={"file": name, "label": "x"}).status_code)

            writers = [threading.Thread(target=put) for _ in range(2)]
            for writer in writers:
                writer.start()
            time.sleep(0.2)
            slowest = 0.0
            for path in ("/", "/label", "/api/status", "/api/suggestions?n=3", "/healthz") * 3:
                started = time.monotonic()
                assert client.get(path).status_code == 200
                slowest = max(slowest, time.monotonic() - started)
            assert not statuses and slowest < 2, "they waited for the lock too"
            for writer in writers:
                writer.join()
            assert statuses == [503, 503]
            started = time.monotonic()
        assert client.post("/api/labels", json={"file": name, "label": "x"}).status_code == 200
    assert time.monotonic() - started < 15


def test_no_name_in_an_archive_leads_to_a_file_on_disk(own_digits: Path, tmp_path: Path) -> None:
    secret, archive = tmp_path / "secret.png", tmp_path / "shards" / "set.tar"
    secret.write_bytes(png(5, size=64))
    archive.parent.mkdir()
    names = [f"{i}.png" for i in range(12)] + [str(secret), "../secret.png"]
    with tarfile.open(archive, "w") as tar:
        for number, name in enumerate(names):
            member = tarfile.TarInfo(name)
            content = png(number, size=8)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    for source in (archive, archive.parent):
        with client_of(own_digits, labels=tmp_path / "labels.csv", images=str(source)) as client:
            wait_until_read(client)
            found = [one["file"] for one in client.get("/api/suggestions?n=50").json()["images"]]
            assert len(found) == len(names) and str(secret) in found
            for name in found:
                shown = client.get("/api/images", params={"file": name})
                assert Image.open(io.BytesIO(shown.content)).size == (8, 8), "what lies on disk has 64 pixels"


def test_an_origin_that_is_no_address_is_another_page(own_digits: Path, tmp_path: Path) -> None:
    with client_of(own_digits, labels=tmp_path / "labels.csv") as client:
        for origin in ("http://[", "http://[::1", "//[x]", "\x7f"):
            assert client.post("/api/labels", headers={"Origin": origin}).status_code == 403
