"""Two "machines" on one: two network namespaces joined by a pair of virtual cables, each with its own address.

torchrun over both trains labels, tags and captions as one process does, also when a process, or a machine, is killed in
the middle and comes back; of a Ray cluster of both one is killed, and every image has one row. Where namespaces can be
made (Linux, root, the command ip); SEMISIGHT_TWO_MACHINES=1 adds a training without a loss and takes 100,000 images.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.runs.test_bulk import rows, run  # noqa: F401 (a fixture)
from tests.runs.test_processes import assert_same, children, one, start, wait_for_step  # noqa: F401 (a fixture)

LARGE = "SEMISIGHT_TWO_MACHINES" in os.environ  # 100,000 images, and what takes longer
CABLE, ADDRESSES = "ss0", ("10.77.0.1", "10.77.0.2")
pytestmark = pytest.mark.timeout(1800 if LARGE else 600)


@dataclass(frozen=True)
class Machine:
    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with that runs there."""
        own = ("env", f"GLOO_SOCKET_IFNAME={CABLE}")
        ray = ("RAY_USAGE_STATS_ENABLED=0", "RAY_AUTH_MODE=disabled", "RAY_health_check_period_ms=1000")
        return ("ip", "netns", "exec", self.name, *own, *ray)

    def pids(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False).stdout
        return [int(word) for word in found.split()]

    def kill(self) -> None:
        """Everything that runs there, at once: as if someone had pulled the plug."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need Linux, root and the command ip")
    both = tuple(Machine(f"semisight-{os.getpid()}-{which}", ADDRESSES[which]) for which in range(2))

    def ip(*words: str, check: bool = True) -> None:
        subprocess.run(["ip", *words], check=check, capture_output=True)

    try:
        try:
            for machine in both:
                ip("netns", "add", machine.name)
            ends = [f"ss{os.getpid()}{end}" for end in "ab"]
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for machine, end in zip(both, ends, strict=True):
                ip("link", "set", end, "netns", machine.name)
                ip("-n", machine.name, "link", "set", end, "name", CABLE)
                ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", CABLE)
                ip("-n", machine.name, "link", "set", CABLE, "up")
                ip("-n", machine.name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        yield both[0], both[1]
    finally:
        for machine in both:
            machine.kill()
            ip("netns", "del", machine.name, check=False)


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
    n, per_part = (100_000, 250) if LARGE else (600, 5)
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    for i in range(n):
        Image.fromarray(np.full((16, 16, 3), i % 256, np.uint8)).save(photos / f"{i:06d}.png")
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
    ray += ["--object-store-memory", "100000000"]
    head = ["--head", "--port", "6379", "--include-dashboard", "false", "--temp-dir", f"/tmp/ss{os.getpid()}"]
    nodes, logs = [], []
    for machine, own in zip(machines, (head, ["--address", f"{ADDRESSES[0]}:6379"]), strict=True):
        logs.append(log := (tmp_path / f"{machine.name}.log").open("w"))
        command = [*machine.prefix, *ray, "--node-ip-address", machine.address, *own]
        nodes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
    for node, log in zip(nodes, logs, strict=True):
        _wait_until(lambda log=log: "This command will now block" in Path(log.name).read_text(), node)
    # the job begins once there is an actor on each machine; else one could be through before the other is there
    program = (
        "import sys; import ray.data; ray.data.DataContext.get_current().wait_for_min_actors_s = 250\n"
        "from semisight.runs.bulk import Asked, answer\n"
        f"print(answer(Asked('predict', *sys.argv[1:4]), per_part={per_part}, engine='ray', address=sys.argv[4]))"
    )
    command = [*machines[0].prefix, sys.executable, "-c", program, run, str(photos), str(out), f"{ADDRESSES[0]}:6379"]
    driver = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        _wait_until(lambda: len(list(out.glob("part-*.parquet"))) >= n // per_part // 2, driver)
        assert _works(machines[1])
        machines[1].kill()
        done = len(list(out.glob("part-*.parquet")))
        output = driver.communicate(timeout=1500 if LARGE else 280)[0]
        assert driver.returncode == 0, output
    finally:
        for machine in machines:
            machine.kill()
        for node in nodes:
            node.wait()
        shutil.rmtree(f"/tmp/ss{os.getpid()}", ignore_errors=True)
    assert done < n // per_part  # the machine was lost while there was work to do
    found = Counter(row["file"] for row in rows(out))
    assert len(found) == n and set(found.values()) == {1}


def _wait_until(there: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 250) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the job did not get there"
        time.sleep(0.01)


def _works(machine: Machine) -> bool:
    """Whether an actor of ours runs on the machine."""
    for pid in machine.pids():
        with contextlib.suppress(OSError):
            if b"MapWorker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False
