"""Worker processes on this machine: each takes the next part as soon as it is done with one.

A process that dies (memory, kill -9) is replaced, and its part is given to another; a part that killed two is named.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from semisight.data.workers import cores
from semisight.engines import Done
from semisight.engines.worker import make
from semisight.errors import UserError

_DEATHS = 2  # of processes at one part


def run_in_processes(
    worker: str, job: Mapping[str, Any], parts: Sequence[str], done: Done, workers: int | None = None
) -> None:
    """`workers` 0 does all of it in this process."""
    n_workers = min(len(parts), cores() if workers is None else workers)
    if n_workers == 0:
        here = make(worker, job) if parts else None
        for part in parts:
            assert here is not None
            done(here(part))
        return
    waiting: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    answers: queue.SimpleQueue[Mapping[str, Any] | BaseException] = queue.SimpleQueue()
    for part in parts:
        waiting.put((part, 0))
    started: list[_Process] = []
    lock, stopped = threading.Lock(), threading.Event()

    def follow() -> None:
        process = None
        try:
            while not stopped.is_set():
                try:
                    part, deaths = waiting.get_nowait()
                except queue.Empty:
                    return
                if process is None:
                    process = _Process(worker, job)
                    with lock:
                        started.append(process)
                answer = process.ask(part)
                if answer is not None:
                    answers.put(answer)
                    continue
                code, process = process.close(), None
                if stopped.is_set():
                    return
                if deaths + 1 >= _DEATHS:
                    raise UserError(
                        f"{_DEATHS} worker processes ended (the last with code {code}) at the same part, {part[:200]}: "
                        "is there memory left? What was done is kept: the same command goes on."
                    )
                waiting.put((part, deaths + 1))
        except BaseException as error:
            answers.put(error)
        finally:
            if process is not None:
                process.close()

    threads = [threading.Thread(target=follow, daemon=True) for _ in range(n_workers)]
    for thread in threads:
        thread.start()
    try:
        for _ in parts:
            answer = answers.get()
            if isinstance(answer, BaseException):
                raise answer
            if "error" in answer:
                raise UserError(str(answer["error"]))
            done(answer)
    finally:  # when one fails, or the user interrupts, the others stop, too
        stopped.set()
        with lock:
            for process in started:
                process.kill()
        for thread in threads:
            thread.join()


class _Process:
    """A running worker."""

    def __init__(self, worker: str, job: Mapping[str, Any]) -> None:
        # one thread each: as many processes as cores, each with as many threads, would wait for each other
        own = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "semisight.engines.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | own, text=True,
        )  # fmt: skip
        self._write(json.dumps({"worker": worker, "job": job}))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def ask(self, part: str) -> Mapping[str, Any] | None:
        """The answer; None if the process ended without one."""
        self._write(part)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        code = self._process.wait()
        self._process.stdout.close()
        return code
