"""Two "machines" on one: two network namespaces joined by a pair of virtual cables, each with its own address.

torchrun over both trains labels, tags and captions as one process does, also when a process, or a machine, is killed in
the middle and comes back; of a Ray cluster of both one is killed, and every image has one row. Where namespaces can be
made (Linux, root, the command ip); SEMISIGHT_TWO_MACHINES=1 adds a training without a loss and takes 100,000 images.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.folder import make_folder
from benchmarks.machines import ADDRESSES, Machine, NoNamespaces, lose_a_machine, two_machines
from tests.runs.test_bulk import run  # noqa: F401 (a fixture)
from tests.runs.test_processes import assert_same, children, one, start, wait_for_step  # noqa: F401 (a fixture)

LARGE = "SEMISIGHT_TWO_MACHINES" in os.environ  # 100,000 images, and what takes longer
pytestmark = pytest.mark.timeout(3600 if LARGE else 600)


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    try:
        with two_machines() as both:
            yield both
    except NoNamespaces as error:
        pytest.skip(str(error))


def torchrun(machine: Machine) -> tuple[str, ...]:
    return (
        *("-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:29500", "--rdzv-id", "two-machines"),
        *("--local-addr", machine.address, "--monitor-interval", "1"),
        *("--rdzv-conf", f"is_host={machine.address == ADDRESSES[0]},last_call_timeout=1,keep_alive_interval=1"),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    [
        pytest.param("nothing", marks=pytest.mark.skipif(not LARGE, reason="the others train over both machines, too")),
        "a process",  # its torchrun starts it again
        "a machine",  # torchrun is gone, too; the machine comes back
    ],
)
def test_torchrun_over_two_machines_equals_one_process(
    lost: str,
    machines: tuple[Machine, Machine],
    tmp_path: Path,
    one: Path,  # noqa: F811
) -> None:
    # torch 2.13 tells a machine that comes back its store's address only without sharing that of torchrun
    own = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",) if lost == "a machine" else ()

    def begin(machine: Machine) -> "subprocess.Popen[str]":
        return start(tmp_path, tmp_path / "run", launcher=torchrun(machine), prefix=(*machine.prefix, *own))

    first, second = (begin(machine) for machine in machines)
    if lost != "nothing":
        wait_for_step(first, tmp_path / "run", 2)
    if lost == "a process":
        (worker,) = children(second.pid)
        os.kill(worker, signal.SIGKILL)
    elif lost == "a machine":
        machines[1].kill()
        second.communicate()
        second = begin(machines[1])
    outputs = [process.communicate(timeout=280)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), "\n".join(outputs)
    assert ("another of the 2 processes of this training ended" in outputs[0]) == (lost != "nothing")
    assert_same(one, tmp_path / "run")


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_machine_gives_every_image_one_row(
    machines: tuple[Machine, Machine],
    tmp_path: Path,
    run: str,  # noqa: F811
) -> None:
    pytest.importorskip("ray.data", reason="--engine ray needs ray")
    n, per_part = (100_000, 250) if LARGE else (600, 5)  # python -m benchmarks --only machines takes 100,000, too
    make_folder(tmp_path / "photos", n)
    lost = lose_a_machine(machines, run, tmp_path / "photos", tmp_path / "out", n, per_part, 1200 if LARGE else 250)
    assert lost.done < lost.parts  # the machine was lost while there was work to do
    assert len(lost.rows) == n and set(lost.rows.values()) == {1}
