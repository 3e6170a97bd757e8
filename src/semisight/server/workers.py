"""`semisight serve --workers N`: processes that answer at one port, and the one that looks after them.

    supervisor    opens the port, starts the workers, replaces those that die, and trains in the background
    worker        a server as ever (running.py) on the supervisor's socket, with a model of its own

What is one for all of them:

    sessions      signed with the secret that the supervisor made up
    labels        the journal beside the table: every worker appends to it under its lock, and reads what others did
    training      in the supervisor, asked through a local socket; each worker takes the new run over
    limits        each worker has its share (Limits.shared)
    figures       in files of a temporary folder (metrics.py)

A worker ends when the supervisor does, however that ends.
"""

import contextlib
import functools
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.managers import BaseManager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from semisight.data.label_table import journal_of
from semisight.errors import UserError
from semisight.runs.run import Run, load_run
from semisight.server.access import Access
from semisight.server.metrics import FOLDER
from semisight.server.retraining import Progress, Retraining
from semisight.server.running import answer
from semisight.server.service import Options, Service, table_for
from semisight.training.allocator import keep_memory

_YOUNG = 20.0  # seconds: a worker that dies before may be one that cannot live
_PATIENCE = 30.0  # seconds for a worker to end
_POLL = 0.5  # seconds between a worker's looks at the training
_ASKED = ("reserve", "launch", "abandon", "stop", "progress", "finished")  # of the training, by workers


@dataclass(frozen=True)
class Job:
    """All that a worker is told."""

    path: Path
    options: Options
    access: Access
    threads: int
    address: str  # of the training
    key: bytes
    finished: int  # trainings so far


class Trainings(Retraining):
    """The training of all workers, and how many have come to their end: each worker loads the newest run itself."""

    def __init__(self, path: Path) -> None:
        super().__init__(self._count)
        self.path = path
        self._finished_so_far = 0

    def _count(self, folder: Path) -> None:
        self.path = folder
        self._finished_so_far += 1

    def finished(self) -> tuple[int, Path]:
        return self._finished_so_far, self.path


class SharedTraining:
    """The supervisor's training as a worker sees it; `take_over` is called with a new run once there is one."""

    def __init__(self, take_over: Callable[[Path], None], *, remote: Any, finished: int) -> None:
        self._remote, self._take_over, self._seen = remote, take_over, finished
        self._problem = ""
        threading.Thread(target=self._watch, name="semisight-training", daemon=True).start()

    def start(self, command: Callable[[Path], list[str]], beside: Path) -> None:
        folder = self._remote.reserve(beside)
        try:
            words = command(folder)
        except BaseException as error:
            self._remote.abandon(str(error))
            raise
        self._remote.launch(words)

    def stop(self) -> None:
        self._remote.stop()

    def close(self) -> None:
        """It belongs to the supervisor."""

    def progress(self) -> Progress:
        found: Progress = self._remote.progress()
        if found.state != "done":
            return found
        if self._problem:
            return replace(found, state="failed", message=self._problem)
        return found if self._seen == self._remote.finished()[0] else replace(found, state="loading")

    def _watch(self) -> None:
        with contextlib.suppress(EOFError, OSError):  # the supervisor is gone: so are we, in a moment
            while True:
                time.sleep(_POLL)
                count, folder = self._remote.finished()
                if count != self._seen:
                    try:
                        self._take_over(folder)
                        self._problem = ""
                    except Exception as error:  # the page must say it; the old run goes on answering
                        self._problem = str(error)
                    self._seen = count


def supervise(
    path: Path,
    run: Run,
    options: Options,
    access: Access,
    listening: socket.socket,
    workers: int,
    greet: Callable[[], object],
) -> None:
    """Keeps so many workers answering until a signal says that it is enough."""
    table = table_for(run, options)
    with contextlib.suppress(OSError):
        options = replace(options, session=journal_of(table.resolve()).stat().st_size)
    options = replace(options, limits=options.limits.shared(workers), session=options.session or 0)
    training, key = Trainings(path), secrets.token_bytes(32)
    with tempfile.TemporaryDirectory(prefix="semisight-serve-") as folder, _signals() as stopped:
        address = serve_training(training, key)

        def start() -> BaseProcess:
            count, newest = training.finished()
            job = Job(newest, options, access, torch.get_num_threads(), address, key, count)
            child = multiprocessing.get_context("spawn").Process(target=work, args=(job, listening), daemon=False)
            with _told_of(folder):
                child.start()
            return child

        alive = {child: time.monotonic() for child in (start() for _ in range(workers))}
        try:
            greet()
            _look_after(alive, start, stopped, folder)
        finally:
            _end(list(alive))
            training.close()


def _look_after(alive: dict[BaseProcess, float], start: Callable[[], BaseProcess], stopped: int, folder: str) -> None:
    from prometheus_client.multiprocess import mark_process_dead

    young = 0
    while stopped not in wait([stopped, *(child.sentinel for child in alive)]):
        for child, born in list(alive.items()):
            if child.is_alive():
                continue
            del alive[child]
            young = young + 1 if time.monotonic() - born < _YOUNG else 0
            if young > 2 * (len(alive) + 1):
                raise UserError("the workers end as soon as they are started; why is said above.")
            code = child.exitcode or 0
            how = f"signal {-code}" if code < 0 else f"code {code}"
            print(f"worker {child.pid} has ended ({how}): another one is started", file=sys.stderr, flush=True)
            mark_process_dead(child.pid, folder)
            if young:
                wait([stopped], 0.5 * young)
            alive[start()] = time.monotonic()


def _end(children: list[BaseProcess]) -> None:
    for child in children:
        child.terminate()
    end = time.monotonic() + _PATIENCE
    for child in children:
        child.join(max(0.1, end - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor that can be read once SIGINT or SIGTERM has come."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def stop(*_: object) -> None:
        with contextlib.suppress(OSError):
            os.write(writing, b"!")

    former = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield reading
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


@contextlib.contextmanager
def _told_of(folder: str) -> Iterator[None]:
    """prometheus_client looks for the folder when it is imported: in the worker, not here."""
    os.environ[FOLDER] = folder
    try:
        yield
    finally:
        del os.environ[FOLDER]


def serve_training(training: Trainings, key: bytes) -> str:
    """Makes it answer workers that know the key, in a thread; gives the address."""

    class Manager(BaseManager):
        pass

    Manager.register("training", lambda: training, exposed=_ASKED)
    server = Manager(None, key).get_server()  # a socket in a folder that only this user can enter
    threading.Thread(target=server.serve_forever, name="semisight-training", daemon=True).start()
    return str(server.address)


def training_at(address: str, key: bytes) -> Any:
    """The same, as a worker asks it."""

    class Manager(BaseManager):
        pass

    Manager.register("training", exposed=_ASKED)
    manager: Any = Manager(address, key)
    manager.connect()
    return manager.training()


def work(job: Job, listening: socket.socket) -> None:
    """One worker, as a process of its own."""
    with contextlib.suppress(OSError):
        os.setsid()  # Ctrl-C is for the supervisor, which then ends the workers
    threading.Thread(target=_end_with_parent, name="semisight-parent", daemon=True).start()
    keep_memory()
    torch.set_num_threads(job.threads)
    remote = training_at(job.address, job.key)
    training = functools.partial(SharedTraining, remote=remote, finished=job.finished)
    run = load_run(job.path, job.options.checkpoint, job.options.device)
    answer(Service(run, job.options, training), job.access, listening, lambda: None)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os._exit(1)
