"""What all tests share: one thread per process, tiny runs, and the folder of real data where there is one."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

# Before torch is imported, and inherited by the processes that tests start.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
# Processes that tests start find what they import compiled, also where the surroundings forbid to keep it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import pytest
import torch
from filelock import FileLock
from hypothesis import settings

from tests.cli.commands import TINY, ok

torch.set_num_threads(1)

# Examples on a busy machine may take any time; pytest-timeout catches what hangs.
settings.register_profile("semisight", deadline=None)
settings.load_profile("semisight")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder that holds `mnist/`, `cifar-10-batches-bin/` and `flickr8k/`; without it the test is skipped."""
    folder = os.environ.get("SEMISIGHT_DATA")
    if not folder:
        pytest.skip("needs real data: set SEMISIGHT_DATA to a folder holding mnist/, cifar-10-batches-bin/, flickr8k/")
    root = Path(folder)
    if not root.is_dir():
        pytest.fail(f"SEMISIGHT_DATA is {folder}, which is not a folder")
    return root


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills, by whichever of the processes that share the tests comes first."""
    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.with_suffix(".made").exists():
            make(folder)
            folder.with_suffix(".made").touch()
    return folder


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One tiny run of images alone; those that change it copy it first."""
    train = ("train", *TINY, "--epochs", "2", "--average", "0.9", "--out")
    return once(tmp_path_factory, "run", lambda folder: ok(*train, folder))


@pytest.fixture
def own_run(shared_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_run, tmp_path / "own"))


@pytest.fixture(scope="session")
def labelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that learned digits from three labels of each; not to be changed."""
    options = ("--limit", "300", "--labels-per-class", "3", "--batch-size", "96", "--epochs", "12", "--seed", "1")
    train = ("train", "builtin:digits", *options, "--no-report", "--out")
    return once(tmp_path_factory, "labelled", lambda folder: ok(*train, folder))


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `semisight reproduce all --smoke`: every row of every table, and every figure."""
    from semisight.experiments.reproduce import everything
    from semisight.experiments.table import Request

    return once(tmp_path_factory, "smoke", lambda folder: everything(Request(None, folder, smoke=True, progress=False)))


@pytest.fixture
def small_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """`semisight demo` in a moment."""
    from semisight.cli import demo

    layers = ({"maps": 4, "kernel": 3, "pool": 2, "padding": "same"}, {"maps": 4, "kernel": 3})
    scenes = {"_SCENES": "builtin:scenes?n=60&size=8", "_CAPTIONED": 20, "_STEPS": 2, "_LAYERS": layers}
    for name, value in {"_LIMIT": 150, "_EPOCHS": 3, "_EPOCHS_ALONE": 3, "_PARTS": 10, **scenes}.items():
        monkeypatch.setattr(demo, name, value)
