"""Wheel and sdist hold what they should, and the wheel works with nothing installed but what it asks for.

The environment of the wheel has links to those installed packages alone that its requirements name, and theirs in turn:
what is forgotten there is missing here. With SEMISIGHT_CLEAN_INSTALL=1 (`make test-wheel-clean`) everything is
installed anew instead.
"""

import contextlib
import csv
import json
import os
import runpy
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[1]
CLEAN = bool(os.environ.get("SEMISIGHT_CLEAN_INSTALL"))


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, env=environment(), stdout=PIPE, stderr=STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


def required(by: metadata.Distribution, extra: str = "") -> Iterator[metadata.Distribution]:
    """The installed packages that a package asks for, and those that they ask for."""
    seen: set[tuple[str, str]] = set()
    todo = [(by, extra)]
    while todo:
        parent, asked = todo.pop()
        for requirement in map(Requirement, parent.requires or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": asked}):
                continue
            found = metadata.distribution(requirement.name)
            assert requirement.specifier.contains(found.version, prereleases=True), f"{requirement}: {found.version}"
            for key in ("", *sorted(requirement.extras)):
                if (canonicalize_name(found.name), key) not in seen:
                    seen.add((canonicalize_name(found.name), key))
                    todo.append((found, key))
                    yield found


def answered(address: str) -> bytes:
    """What a server says that has just started."""
    for _ in range(300):
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(address, timeout=60) as answer:
            return bytes(answer.read())
        time.sleep(0.1)
    pytest.fail(f"{address} never answered")


class Installed:
    """A virtual environment with the wheel, and what it requires."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        self.wheel, self.python = wheel, folder / "bin" / "python"
        self.site = Path(run(self.python, "-c", "import site; print(site.getsitepackages()[0])").strip())
        self.install()

    def install(self, extra: str = "") -> None:
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--python",
            str(self.python),
            "install",
            "-q",
        ]
        if CLEAN:
            run(*pip, "-c", ROOT / "constraints.txt", f"{self.wheel}[{extra}]" if extra else self.wheel)
            return
        run(*pip, "--no-deps", "--no-index", "--no-compile", "--force-reinstall", self.wheel)
        (package,) = metadata.distributions(name="semisight", path=[str(self.site)])
        for part in required(package, extra):
            for name in {file.parts[0] for file in part.files or ()} - {"..", "__pycache__"}:
                if not (self.site / name).exists():
                    (self.site / name).symlink_to(str(part.locate_file(name)))

    def semisight(self, *words: str | Path) -> str:
        return run(self.python.with_name("semisight"), *words)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of this tree and the wheel of that sdist."""
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=unpacked)
    return folder


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed") / "venv", next(built.glob("*.whl")))


@pytest.fixture(scope="module")
def trained(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    how = ("--labels-per-class", "3", "--limit", "300", "--steps", "2", "--batch-size", "64")
    installed.semisight("train", "builtin:digits", *how, "--out", folder)
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
        licences = [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
    package = ROOT / "src" / "semisight"
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(package.parent).as_posix() for path in files}
    assert {Path(name).suffix for name in names} <= {".py", ".c", ".html", ".css", ".js", ".svg", ".typed"}
    assert {f"semisight/{name}" for name in ("model/ops/kernels.c", "server/static/label.html", "py.typed")} <= names
    assert licences


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only a clone knows what belongs to the project")
def test_the_sdist_holds_the_project(built: Path) -> None:
    tracked = {name for name in run("git", "ls-files", cwd=ROOT).splitlines() if (ROOT / name).exists()}
    (unpacked,) = (built / "unpacked").iterdir()
    assert {name for name in tracked if not (unpacked / name).exists()} == set()


def test_the_lowest_versions_are_those_of_the_ranges() -> None:
    lowest = runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]
    pyproject = """
[project]
name = "eye"
dependencies = ["numpy>=1.26,<3", "torch>=2.6,<2.14"]
[project.optional-dependencies]
web = ["uvloop>=0.19,<1; sys_platform != 'win32'"]
remote = ["fsspec>=2024.2"]
all = ["eye[web]"]
docs = ["mkdocs>=9,<10"]
"""
    constraints = "# exact\nhypothesis==6\nnumpy==2.4\npytest==9\npytest-timeout==2\ntorch==2.13.0\n"
    tools = ["hypothesis==6", "pytest==9", "pytest-timeout==2", "torch==2.13.0"]
    ranges = ["fsspec==2024.2", "numpy==1.26", "uvloop==0.19"]
    assert sorted(lowest(pyproject, constraints)) == sorted(tools + ranges)
    assert len(lowest((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text())) > 20


def test_training_and_prediction_need_no_extra(installed: Installed, trained: Path, tmp_path: Path) -> None:
    where = run(installed.python, "-c", "import semisight; print(semisight.__file__)", cwd=tmp_path)
    assert str(installed.site) in where
    installed.semisight(
        "predict", trained, "builtin:digits", "--limit", "20", "--format", "csv", "--out", tmp_path / "labels.csv"
    )
    with (tmp_path / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and {row["label"] for row in rows} <= set("0123456789")

    fit = """
import sys
import numpy as np
from semisight import SemiSight
images = np.random.default_rng(0).random((40, 8, 8))
labels = np.where(np.arange(40) < 20, np.arange(40) % 2, -1)
assert set(SemiSight(max_steps=3).fit(images, labels).predict(images)) <= {0, 1}
assert not {"fastapi", "onnx", "tensorboard", "hypothesis", "pytest"} & sys.modules.keys()
"""
    run(installed.python, "-c", fit, cwd=tmp_path)


def test_the_server_needs_its_extra_alone(installed: Installed, trained: Path, tmp_path: Path) -> None:
    command = [installed.python.with_name("semisight"), "serve", trained, "--port", "0"]
    if not CLEAN or not (installed.site / "fastapi").exists():
        refused = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
        assert refused.returncode != 0 and "semisight[serve]" in refused.stderr
    installed.install("serve")
    server = subprocess.Popen(command, env=environment(), stdout=PIPE, stderr=STDOUT, text=True)
    try:
        assert server.stdout is not None
        said = []
        for line in server.stdout:
            said.append(line)
            if line.startswith("Serving at "):
                break
        else:
            pytest.fail("".join(said))
        address = said[-1].split()[2].rstrip("/")
        assert b"</html>" in answered(f"{address}/")
        assert json.loads(answered(f"{address}/api/status"))
    finally:
        server.terminate()
        server.communicate(timeout=60)
