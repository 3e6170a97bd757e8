"""Imports point down the list of rooms and nowhere else; the model room knows torch only."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "semisight"

# From top to bottom: a room may import itself and the rooms after it.
ROOMS = (
    *("cli", "server", "report", "estimator", "experiments", "baselines", "runs", "engines", "inference"),
    *("training", "objectives", "sampling", "model", "backbones", "data", "metrics"),
)
SHARED = ("errors", "random", "setting", "files", "untrusted", "licences")  # files below all rooms, in order
FRONT = ("__init__", "__main__")  # the package's face, above all rooms
MODEL_MAY_IMPORT = {"torch", *sys.stdlib_module_names}


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that is imported, also inside functions, `if TYPE_CHECKING`, `import_module("...")`.

    `from a.b import c` gives `a.b.c`: whether c is a module or a name in one does not matter for rooms.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def violations(source: str, path: str) -> list[str]:
    """What is wrong with the imports of a file at `path` (relative to the package), as `path:line: reason`."""
    parts = Path(path).with_suffix("").parts
    room = parts[0]
    package = ".".join(["semisight", *parts[:-1]])
    if room in FRONT:
        return []
    if room not in ROOMS and room not in SHARED:
        return [f"{path}:1: {room} is not a room"]

    found = []
    for line, name in imported_names(ast.parse(source), package):
        top, *rest = name.split(".")
        if top != "semisight":
            if room == "model" and top not in MODEL_MAY_IMPORT:
                found.append(f"{path}:{line}: model imports {name}; only torch and the standard library are allowed")
            continue
        target = rest[0] if rest else ""
        if target == "__version__" and room != "model":
            continue
        if not may_import(room, target):
            found.append(f"{path}:{line}: {room} imports {name}; arrows only point down {' > '.join(ROOMS)}")
    return found


def may_import(room: str, target: str) -> bool:
    if room == "model":
        return target in ("model", "errors")
    if room in SHARED:
        return target in SHARED[: SHARED.index(room)]
    # Anything else is a name of the package's face, whose home could be any room: import it from there.
    return target in SHARED or (target in ROOMS and ROOMS.index(target) >= ROOMS.index(room))


def test_imports_only_point_down() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > len(ROOMS)
    found = [v for file in files for v in violations(file.read_text(), file.relative_to(SOURCE).as_posix())]
    assert not found, "\n".join(found)


def test_every_room_exists_and_says_what_it_is() -> None:
    for room in ROOMS:
        file = SOURCE / f"{room}.py"  # a room may be a single file
        tree = ast.parse((file if file.exists() else SOURCE / room / "__init__.py").read_text())
        assert ast.get_docstring(tree), f"{room} has no docstring"


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("data/idx.py", "from semisight.model.architecture import Layer"),
        ("data/idx.py", "import semisight.objectives.bound as b"),
        ("data/idx.py", "from semisight import cli"),
        ("data/idx.py", "from semisight import Trainer"),
        ("data/idx.py", "import semisight"),
        ("data/idx.py", "from ..cli import main"),
        ("data/idx.py", "from .. import cli"),
        ("data/readers/idx.py", "from ...cli import main"),
        ("data/__init__.py", "from ..cli import main"),
        ("metrics/timing.py", "def f():\n    from semisight.data import load\n"),
        (
            "objectives/bound.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from semisight.cli import main\n",
        ),
        ("objectives/bound.py", "import importlib\nimportlib.import_module('semisight.cli.main')"),
        ("model/pooling.py", "import numpy as np"),
        ("model/pooling.py", "from semisight.data import load"),
        ("model/pooling.py", "from semisight.metrics import timing"),
        ("model/pooling.py", "from semisight.files import write_atomic"),
        ("errors.py", "from semisight.files import write_atomic"),
        ("files.py", "from semisight.data import load"),
        ("helpers/things.py", "import math"),
    ],
)
def test_the_checker_sees_a_wrong_import(path: str, source: str) -> None:
    assert len(violations(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("cli/main.py", "from semisight.training.trainer import Trainer\nfrom semisight.experiments import table_1"),
        ("cli/main.py", "from semisight import __version__"),
        ("training/trainer.py", "import lightning.fabric\nfrom semisight.model.architecture import Layer"),
        (
            "training/trainer.py",
            "from semisight.files import write_atomic\nfrom . import bounds\nfrom .bounds import Bound",
        ),
        ("model/pooling.py", "import math\nimport torch.nn.functional as F\nfrom torch import Tensor"),
        ("model/pooling.py", "from semisight.errors import UserError\nfrom .architecture import Layer"),
        ("data/idx.py", "import numpy\nfrom semisight.metrics import timing"),
        ("files.py", "from semisight.errors import UserError"),
        ("__main__.py", "from semisight.cli.main import main"),
    ],
)
def test_the_checker_lets_right_imports_pass(path: str, source: str) -> None:
    assert violations(source, path) == []
