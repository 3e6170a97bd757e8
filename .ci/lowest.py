"""Prints the lowest versions that pyproject.toml allows, as constraints (`make test-lowest`).

What these packages need in their turn is taken as new as pip finds it, as people get it. torch, of which only one CPU
build is at hand, and the tests' own tools are those of constraints.txt.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_PART = ("dev", "docs")  # extras that no user of the library installs
TOOLS = ("hypothesis", "pytest", "pytest-timeout", "torch")


def lowest(pyproject: str, constraints: str) -> list[str]:
    project = tomllib.loads(pyproject)["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in extras if name not in NO_PART for line in extras[name])]
    pins = dict(line.split("==") for line in constraints.splitlines() if not line.startswith("#"))
    found = {}
    for line in wanted:
        if not line.startswith(f"{project['name']}["):  # an extra made of others
            name, version = re.fullmatch(r"([\w-]+)>=([\w.]+)(?:[,;].*)?", line).groups()  # type: ignore[union-attr]
            found[name] = version
    found |= {name: pins[name] for name in TOOLS}
    return [f"{name}=={version}" for name, version in sorted(found.items())]


if __name__ == "__main__":
    print("\n".join(lowest((ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text())))
