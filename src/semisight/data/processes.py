"""Work on many files by several processes: jobs in as JSON, one line of JSON back for each thing done.

A process by itself and not Python's multiprocessing: nothing is pickled, torch is not imported, and the user's script,
which need not guard its main part, is not run again.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from semisight.errors import UserError

_PIPE = subprocess.PIPE


def cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def run_jobs(
    module: str,
    jobs: Sequence[Any],
    counts: Sequence[int],
    answer: Callable[[Any], None],
    what: Callable[[int, int], str],
) -> None:
    """Starts `python -m module` for every job and gives it the job on its standard input.

    counts  how many lines each must answer; fewer, or another exit code than 0, is an error
    answer  called with every line, decoded; by one thread at a time
    what    names what process i was at when it had answered n lines, for the error
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    # -P: a file named numpy.py in the folder one happens to work in is not numpy
    command = [sys.executable, "-P", "-m", module]
    processes = [subprocess.Popen(command, stdin=_PIPE, stdout=_PIPE, env=environment) for _ in jobs]
    lock = threading.Lock()

    def follow(number: int) -> None:
        process = processes[number]
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(json.dumps(jobs[number]).encode())
        answered = 0
        for line in process.stdout:
            answered += 1
            with lock:
                answer(json.loads(line))
        if process.wait() != 0 or answered < counts[number]:
            raise UserError(
                f"a process that reads images ended with code {process.returncode} at {what(number, answered)}, "
                f"after {answered} of its {counts[number]} images. Is there memory left?"
            )

    try:
        with ThreadPoolExecutor(max(1, len(jobs))) as pool:
            following = [pool.submit(follow, number) for number in range(len(jobs))]
            try:
                for future in as_completed(following):
                    future.result()
            except BaseException:  # when one fails, or the user interrupts, the others stop, too
                for process in processes:
                    process.kill()
                raise
    finally:
        for process in processes:
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
