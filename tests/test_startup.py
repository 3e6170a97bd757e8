"""`import semisight` and `semisight --help` are quick and leave torch alone; names of the package exist."""

import importlib
import json
import resource
import subprocess
import sys

import pytest

import semisight

LIMIT = 0.5  # seconds of the processor; 0.2 to 0.25 on an idle machine, up to 0.35 on a busy one
HEAVY = ("torch", "numpy", "sklearn", "matplotlib", "lightning", "tensorboard", "PIL")
IMPORT = "import semisight"
HELP = """
from semisight.cli.main import main
try:
    main(["--help"])
except SystemExit as stop:
    assert not stop.code
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_loads_nothing_heavy(code: str) -> None:
    listing = "\nimport json, sys; print(json.dumps([m.split('.')[0] for m in sys.modules]), file=sys.stderr)"
    loaded = set(json.loads(run(code + listing).stderr))
    assert "semisight" in loaded
    assert loaded.isdisjoint(HEAVY)


def children_seconds() -> float:
    """Processor time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.parametrize("code", [IMPORT, HELP], ids=["import", "help"])
def test_is_quick(code: str) -> None:
    # The best of several, in processor time: what else the machine does can only add. The first writes the byte code.
    run(code)
    best = float("inf")
    for _ in range(20):
        start = children_seconds()
        run(code)
        best = min(best, children_seconds() - start)
        if best < LIMIT:
            break
    assert best < LIMIT, f"took {best:.2f} s"


def test_help_shows_the_name_and_the_purpose() -> None:
    text = run(HELP).stdout
    assert "semisight" in text
    assert "few carry a label" in text


def test_names_of_the_package_exist() -> None:
    for name in semisight.__all__:
        assert name in dir(semisight)
        assert getattr(semisight, name) is not None
    assert set(semisight._HOME_OF) == set(semisight.__all__) - {"__version__"}
    assert semisight.UserError is importlib.import_module("semisight.errors").UserError


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        semisight.Nonsense  # noqa: B018
