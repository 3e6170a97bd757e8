"""The command line of the torture."""

import argparse
import csv
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import benchmarks.torture
from benchmarks.torture import PARTS, run
from benchmarks.torture.rows import Row

COLUMNS = ("promise", "tried", "survived", "worst", "unit", "seed", "commit", "hardware")


def _hardware() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name}; {os.cpu_count()} cores"


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.torture", description=benchmarks.torture.__doc__)
    options.add_argument("--only", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    options.add_argument("--share", type=float, default=1.0, help="of the full count")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, help="rows are added to this CSV file")
    options.add_argument("--keep", type=Path, default=Path("torture"), help="where what broke is written")
    given = options.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    broken = 0
    for name in given.only.split(","):
        for row in run([name], given.share, given.seed, given.keep):
            broken += len(row.broken)
            print(f"{row.promise:45} {row.survived:>7} of {row.tried:>7}  {row.worst:g} {row.unit}", flush=True)
            for what in row.broken[:3]:
                print(f"    {what[:300]}", flush=True)
            if given.out is not None:
                _add(given.out, row, given.seed)
    sys.exit(1 if broken else 0)


def _add(path: Path, row: Row, seed: int) -> None:
    from semisight.files import write_atomic

    text = StringIO(path.read_text() if path.exists() else "", newline="")
    text.seek(0, os.SEEK_END)
    writer = csv.writer(text, lineterminator="\n")
    if not text.getvalue():
        writer.writerow(COLUMNS)
    writer.writerow([row.promise, row.tried, row.survived, row.worst, row.unit, seed, _commit(), _hardware()])
    write_atomic(path, text.getvalue())


if __name__ == "__main__":
    main()
