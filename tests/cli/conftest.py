"""One tiny run that the tests of this room share; those that change it copy it first."""

import shutil
from pathlib import Path

import pytest

from tests.cli.commands import TINY, ok


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("app") / "run"
    ok("train", *TINY, "--out", folder, "--epochs", "2", "--average", "0.9")
    return folder


@pytest.fixture
def own_run(shared_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_run, tmp_path / "own"))


@pytest.fixture(scope="session")
def labelled_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that learned digits from three labels of each; not to be changed."""
    folder = tmp_path_factory.mktemp("labelled") / "run"
    options = ("--limit", "300", "--labels-per-class", "3", "--batch-size", "96", "--epochs", "12", "--seed", "1")
    ok("train", "builtin:digits", *options, "--out", folder, "--no-report")
    return folder
