"""Two "machines" on one: two network namespaces joined by a pair of virtual cables, each with its own address; and a
Ray cluster of both that predicts 100,000 small images and loses one of them half-way.

Namespaces need Linux, root and the command ip. Also used by tests/test_two_machines.py.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, Goal
from benchmarks.folder import make_folder

CABLE, ADDRESSES = "ss0", ("10.77.0.1", "10.77.0.2")


class NoNamespaces(Exception):
    """Why there are no network namespaces here."""


@dataclass(frozen=True)
class Machine:
    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command begins with that runs there."""
        own = ("env", f"GLOO_SOCKET_IFNAME={CABLE}")
        ray = ("RAY_USAGE_STATS_ENABLED=0", "RAY_AUTH_MODE=disabled", "RAY_health_check_period_ms=1000")
        # Ray's workers stand back (15) behind whatever else runs on the one machine that both of these are
        return ("ip", "netns", "exec", self.name, *own, *ray, "RAY_worker_niceness=0")

    def pids(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False).stdout
        return [int(word) for word in found.split()]

    def kill(self) -> None:
        """Everything that runs there, at once: as if someone had pulled the plug."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def two_machines() -> Iterator[tuple[Machine, Machine]]:
    """Raises NoNamespaces where they cannot be made."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoNamespaces("network namespaces need Linux, root and the command ip")
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
            raise NoNamespaces(f"no network namespaces here: {error.stderr.decode().strip()}") from error
        yield both[0], both[1]
    finally:
        for machine in both:
            machine.kill()
            ip("netns", "del", machine.name, check=False)


@dataclass(frozen=True)
class Lost:
    """How a job ended whose cluster lost a machine: parts that were done by then, and of all; rows of each file."""

    done: int
    parts: int
    rows: Counter[str]
    seconds: float


def lose_a_machine(
    machines: tuple[Machine, Machine], run: str, photos: Path, out: Path, n: int, per_part: int, limit: float = 250
) -> Lost:
    """A Ray cluster of both machines predicts n photos; at half of the parts the second machine is killed."""
    import pyarrow.dataset

    logs = Path(tempfile.mkdtemp(prefix=f"ss{os.getpid()}-"))  # short: the names of Ray's sockets begin with it
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
    ray += ["--object-store-memory", "100000000"]
    head = ["--head", "--port", "6379", "--include-dashboard", "false", "--temp-dir", str(logs / "ray")]
    nodes = []
    # the job begins once there is an actor on each machine; else one could be through before the other is there
    program = (
        "import sys; import ray.data; ray.data.DataContext.get_current().wait_for_min_actors_s = 250\n"
        "from semisight.runs.bulk import Asked, answer\n"
        f"print(answer(Asked('predict', *sys.argv[1:4]), per_part={per_part}, engine='ray', address=sys.argv[4]))"
    )
    try:
        for machine, own in zip(machines, (head, ["--address", f"{ADDRESSES[0]}:6379"]), strict=True):
            command = [*machine.prefix, *ray, "--node-ip-address", machine.address, *own]
            log = logs / machine.name
            with log.open("w") as file:
                nodes.append(subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True))
            wait_until(partial(_says, log, "This command will now block"), nodes[-1])
        address = f"{ADDRESSES[0]}:6379"
        command = [*machines[0].prefix, sys.executable, "-c", program, run, str(photos), str(out), address]
        start = time.monotonic()
        with (logs / "driver").open("w") as file:
            driver = subprocess.Popen(command, stdout=file, stderr=file)
        parts = -(-n // per_part)
        wait_until(lambda: len(list(out.glob("part-*.parquet"))) >= parts // 2, driver, limit)
        assert _works(machines[1]), "the second machine had no actor"
        machines[1].kill()
        done = len(list(out.glob("part-*.parquet")))
        assert driver.wait(timeout=4 * limit) == 0, (logs / "driver").read_text()
        seconds = time.monotonic() - start
    finally:
        for machine in machines:
            machine.kill()
        for node in nodes:
            node.wait()
        shutil.rmtree(logs, ignore_errors=True)
    found = pyarrow.dataset.dataset(out).to_table(columns=["file"])
    return Lost(done, parts, Counter(found.column("file").to_pylist()), seconds)


def wait_until(there: Callable[[], bool], process: "subprocess.Popen[Any]", seconds: float = 250) -> None:
    deadline = time.monotonic() + seconds
    while not there():
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        assert time.monotonic() < deadline, "the job did not get there"
        time.sleep(0.01)


def _says(log: Path, words: str) -> bool:
    return words in log.read_text()


def _works(machine: Machine) -> bool:
    """Whether an actor of ours runs on the machine."""
    for pid in machine.pids():
        with contextlib.suppress(OSError):
            if b"MapWorker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
    return False


def measure_machines(n: int, per_part: int) -> Iterator[Figure]:
    """Nothing where there are no namespaces, or no Ray."""
    from benchmarks.scale import train_few

    if importlib.util.find_spec("ray") is None:
        return
    with tempfile.TemporaryDirectory() as temporary, contextlib.suppress(NoNamespaces):
        place = Path(temporary)
        make_folder(place / "images", n)
        train_few(place / "run", 2, 1)
        with two_machines() as machines:
            lost = lose_a_machine(machines, str(place / "run"), place / "images", place / "out", n, per_part, 1200)
        wrong = abs(n - len(lost.rows)) + sum(count != 1 for count in lost.rows.values())
        details = {"images": n, "rows": sum(lost.rows.values()), "parts": lost.parts, "parts_done_when_lost": lost.done}
        name = "images without exactly one row after a Ray cluster of two machines lost one"
        yield Figure(name, wrong, "images", Goal("<=", 0), {**details, "seconds": lost.seconds})
