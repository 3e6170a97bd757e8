"""Ray Data: parts as rows of a data set, mapped by actors that make their worker once.

Ray gives the parts of a node that is lost to the others. A part may so be done twice; its answer is written whole, to a
place of its own, so that the second time changes nothing.
"""

import json
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from semisight.engines import Done
from semisight.engines.worker import make
from semisight.errors import UserError

_REACHED = 10.0  # seconds for an address to answer
# Of a core, as Ray counts: there are as many actors as cores, and those of a machine that is lost must find room on the
# others, or the parts that they were at would wait for ever.
_SHARE = 0.01


class Actor:
    """A worker inside of a Ray actor: a batch is one part."""

    def __init__(self, worker: str, job: Mapping[str, Any]) -> None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self.error = ""
        try:
            self.worker = make(worker, job)
        except UserError as error:  # told once by the driver, not as often as Ray would try again
            self.error = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        return {"answer": [self._answer(str(part)) for part in batch["part"]]}

    def _answer(self, part: str) -> str:
        try:
            return json.dumps({"error": self.error} if self.error else dict(self.worker(part)))
        except UserError as error:
            return json.dumps({"error": str(error)})


def run_on_ray(
    worker: str, job: Mapping[str, Any], parts: Sequence[str], done: Done, workers: int | None, address: str | None
) -> None:
    """On the cluster at `address` ("auto": the one that this machine is part of), or on one that is started here."""
    try:
        import ray
        import ray.data
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'semisight[ray]', or leave --engine out.") from None
    if not parts:
        return
    mine = not ray.is_initialized()
    if mine:
        _connect(ray, address)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False  # our own shows images, on stderr
        context.max_errored_blocks = 0
        logging.getLogger("ray.data").setLevel(logging.ERROR)  # plans and progress bars are not for its user
        most = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        rows = ray.data.from_items([{"part": part} for part in parts], override_num_blocks=len(parts))
        answers = rows.map_batches(
            Actor,
            fn_constructor_args=(worker, dict(job)),
            batch_size=1,
            num_cpus=_SHARE,
            compute=ray.data.ActorPoolStrategy(size=min(most, len(parts)), max_tasks_in_flight_per_actor=2),
        )
        for row in answers.iter_rows():
            answer = json.loads(row["answer"])
            if "error" in answer:
                raise UserError(str(answer["error"]))
            done(answer)
    except ray.exceptions.RayError as error:
        raise UserError(
            f"Ray gave up: {str(error).strip().splitlines()[-1][:300]} What was done is kept: the same command goes on."
        ) from error
    finally:
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    if address not in (None, "auto", "local") and not str(address).startswith("ray://"):
        host, _, port = str(address).rpartition(":")
        try:
            with socket.create_connection((host, int(port)), timeout=_REACHED):
                pass
        except (OSError, ValueError) as error:
            raise UserError(
                f"no Ray cluster answers at {address} ({error}): start one (ray start --head), or leave --address out."
            ) from error
    try:
        ray.init(
            address=address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False
        ) if address is None else ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        said, cause = str(error), error.__cause__
        while cause is not None:
            if isinstance(cause, ray.exceptions.AuthenticationError):
                said = "it asks for a token. Set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN where this machine has none."
            cause = cause.__cause__
        raise UserError(f"the Ray cluster at {address or 'this machine'} cannot be used: {said}") from error
