"""Where the work runs: worker processes on this machine, or actors of a Ray cluster.

A job is a list of parts and the name of a class; the class is made once in every worker, with what the job says, and
called with one part after another. What it answers is small: the work itself it writes down. An engine knows nothing
of models or images.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

Engine = Literal["local", "ray"]
Done = Callable[[Mapping[str, Any]], None]  # told the answer to each part, in any order


class Worker(Protocol):
    """What does the work, made from the job's JSON; called with a part as text."""

    def __call__(self, part: str) -> Mapping[str, Any]: ...


def run_parts(
    engine: Engine,
    worker: str,
    job: Mapping[str, Any],
    parts: Sequence[str],
    done: Done,
    *,
    workers: int | None = None,
    address: str | None = None,
) -> None:
    """Every part through a worker; `worker` is "module:Class", `workers` by default one per core."""
    if engine == "ray":
        from semisight.engines.ray_data import run_on_ray

        run_on_ray(worker, job, parts, done, workers, address)
    else:
        from semisight.engines.processes import run_in_processes

        run_in_processes(worker, job, parts, done, workers)
