"""Several workers behind one port: what one knows all know, one that dies is replaced, and none is left behind."""

import contextlib
import json
import multiprocessing
import os
import re
import secrets
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from semisight.errors import UserError
from semisight.server.access import main as tokens
from semisight.server.limits import Limits
from semisight.server.retraining import Busy
from semisight.server.workers import SharedTraining, Trainings, _look_after, serve_training, training_at
from tests.server.conftest import png
from tests.server.server import Served

linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in Linux's /proc")


def until(done: Callable[[], Any], what: str, seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return found


class Workers(Served):
    """A server with two workers, of which one alone can be made to answer."""

    token = ""

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()
        return [int(child) for child in children if b"resource_tracker" not in _command(int(child))]

    @contextlib.contextmanager
    def only(self, worker: int) -> Iterator[None]:
        others = [process for process in self.workers() if process != worker]
        try:
            for process in others:
                os.kill(process, signal.SIGSTOP)
            yield
        finally:
            for process in others:
                os.kill(process, signal.SIGCONT)

    def ask(self, path: str, content: Any = None, **headers: str) -> Any:
        """The body of the answer, over a connection of its own; JSON as what it means."""
        body = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        kind = {"Content-Type": "image/png" if isinstance(content, bytes) else "application/json"}
        given = headers or {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.address + path, body, {**kind, **given})
        with urllib.request.urlopen(request, timeout=60) as answer:
            self.headers = answer.headers
            text = answer.read()
        return json.loads(text) if answer.headers["Content-Type"] == "application/json" else text.decode()

    def figure(self, name: str) -> float:
        found = re.findall(rf"^{re.escape(name)} (\S+)$", self.ask("/metrics"), re.MULTILINE)
        return float(found[0])


def _command(process: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


@linux
@pytest.mark.timeout(400)  # four processes are started, and a busy machine takes long for each
def test_two_workers(digits_run: Path, tmp_path: Path) -> None:
    server = Workers(digits_run, tmp_path / "labels.csv", "--workers", "2", "--tokens", str(tmp_path / "people"))
    server.token = tokens([str(tmp_path / "people"), "add", "ann"])
    server.start()
    try:
        one, other = until(lambda: len(found := server.workers()) == 2 and found, "two workers")
        for worker in (one, other):
            with server.only(worker):
                until(lambda: server.ask("/api/status")["reading"]["state"] == "ready", "images")
        # a session that one has given, and a label that it was told, hold at the other
        with server.only(one):
            server.ask("/api/session", {"token": server.token})
            cookie = server.headers["Set-Cookie"].split(";")[0]
            first, second = (image["file"] for image in server.ask("/api/suggestions?n=2", Cookie=cookie)["images"])
            server.ask("/api/labels", {"file": first, "label": "strange"}, Cookie=cookie)
            server.ask("/api/labels/skip", {"file": second}, Cookie=cookie)
        with server.only(other):
            assert not {first, second} & {image["file"] for image in server.ask("/api/suggestions?n=9")["images"]}
            assert server.ask("/api/labels/undo", {"file": first}, Cookie=cookie)["label"] == ""
            assert server.ask("/api/suggestions?n=1")["images"][0]["file"] == first
        with server.only(one):
            assert server.ask("/api/suggestions?n=1")["images"][0]["file"] == first
            assert server.ask("/api/predict", png())["images"][0]["labels"]
        # the figures are those of both
        assert server.figure("semisight_workers") == 2
        assert server.figure("semisight_label_changes_total") == 2
        # whoever is revoked is out everywhere
        tokens([str(tmp_path / "people"), "add", "ben"])
        tokens([str(tmp_path / "people"), "revoke", "ann"])
        time.sleep(2.5)
        for worker in (one, other):
            with server.only(worker), pytest.raises(urllib.error.HTTPError, match="401"):
                server.ask("/api/status", Cookie=cookie)
        # one that dies is replaced, and meanwhile there is an answer
        os.kill(one, signal.SIGKILL)
        assert server.ask("/healthz")["ready"]
        replaced = until(lambda: len(found := {*server.workers()} - {one}) == 2 and found, "another worker")
        assert other in replaced
        code, said = server.kill(signal.SIGTERM), server.said
        assert code == 0 and f"worker {one} has ended (signal 9)" in "".join(said) and "Traceback" not in "".join(said)
        assert not any(_command(worker) for worker in replaced)
        # and when the one that looks after them is killed, they end too
        server.start()
        left = until(lambda: len(found := server.workers()) == 2 and found, "two workers")
        server.kill(signal.SIGKILL)
        until(lambda: not any(_command(worker) for worker in left), "the end of the workers")
    finally:
        server.close()


def test_each_worker_has_its_share() -> None:
    whole = Limits()
    for workers in (2, 3, 7):
        share = whole.shared(workers)
        for name in ("requests", "waiting", "upload_total", "connections", "waiting_per_address", "writes"):
            assert getattr(whole, name) <= workers * getattr(share, name) < getattr(whole, name) + workers
        assert (share.upload_bytes, share.pixels, share.head_seconds) == (
            whole.upload_bytes,
            whole.pixels,
            whole.head_seconds,
        )


def test_a_training_is_one_for_all_and_its_run_is_taken_over_by_each(tmp_path: Path) -> None:
    trainings, key = Trainings(tmp_path / "old"), secrets.token_bytes(16)
    address, taken = serve_training(trainings, key), {"one": [], "other": []}  # type: tuple[str, dict[str, list[Path]]]
    one, other = (SharedTraining(into.append, remote=training_at(address, key), finished=0) for into in taken.values())
    with pytest.raises(multiprocessing.AuthenticationError):
        training_at(address, b"another key")
    try:
        waits = "import sys, time\nwhile not __import__('os').path.exists(sys.argv[1] + '/go'): time.sleep(0.02)"
        one.start(lambda out: [sys.executable, "-c", waits, str(out)], tmp_path / "run")
        folder = tmp_path / "run-2"
        assert other.progress().state == "running" and other.progress().run == str(folder)
        with pytest.raises(Busy):
            other.start(lambda out: [], tmp_path / "run")
        (folder / "go").touch()
        for training in (one, other):
            until(lambda training=training: training.progress().state == "done", "the end of the training")
        assert taken == {"one": [folder], "other": [folder]} and trainings.finished() == (1, folder)
        other.start(lambda out: [sys.executable, "-c", "import time; time.sleep(60)", str(out)], tmp_path / "run")
        one.stop()
        until(lambda: other.progress().state == "stopped", "its stop")

        def broken(_: Path) -> list[str]:
            raise UserError("no captions")

        with pytest.raises(UserError, match="no captions"):
            one.start(broken, tmp_path / "run")
        assert other.progress().state == "failed" and "no captions" in other.progress().message
    finally:
        trainings.close()


def test_a_run_that_one_worker_cannot_load_is_said(tmp_path: Path) -> None:
    trainings, key = Trainings(tmp_path), secrets.token_bytes(16)

    def fail(_: Path) -> None:
        raise UserError("it is damaged")

    training = SharedTraining(fail, remote=training_at(serve_training(trainings, key), key), finished=0)
    training.start(lambda out: [sys.executable, "-c", "pass"], tmp_path / "run")
    progress = until(lambda: (found := training.progress()).state == "failed" and found, "the failure")
    assert progress.message == "it is damaged"


def test_workers_that_cannot_live_end_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, started = multiprocessing.get_context("fork"), []

    def start() -> Any:
        child = context.Process(target=os._exit, args=(3,))
        child.start()
        started.append(child)
        return child

    never, _ = os.pipe()
    with pytest.raises(UserError, match="as soon as they are started"):
        _look_after({start(): time.monotonic()}, start, never, str(tmp_path))
    assert len(started) == 3 and capsys.readouterr().err.count("has ended (code 3)") == 2
