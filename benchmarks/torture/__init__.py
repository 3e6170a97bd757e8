"""`make torture`: what is promised in SECURITY.md, tried until it breaks. Minutes; a row per promise in a CSV file.

    python -m benchmarks.torture --out results/torture.csv       all of it
    python -m benchmarks.torture --only labels,readers --share 0.05

tried and survived are counts; `worst` is in the unit that the row names. Whatever does not survive is written to
--keep FOLDER with its seed, so that it can be tried again (`--seed`). The tests run a short form.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.torture import clients, disks, faults, inputs, kills
from benchmarks.torture.rows import Row, Torture

PARTS: dict[str, Callable[[Torture], Row | list[Row]]] = {
    "overwrite": kills.kills_of_overwriting,
    "train": kills.kills_of_training,
    "labels": kills.kills_of_labels,
    "cache": kills.kills_of_caches,
    "features": kills.kills_of_features,
    "export": kills.kills_of_exports,
    "report": kills.kills_of_reports,
    "pairs": disks.pairs_of_writers,
    "disk": disks.full_disks,
    "full": faults.full_disks_at_every_write,
    "read-only": faults.read_only_disks_at_every_write,
    "flush": disks.flushed_renames,
    "readers": inputs.mutated_inputs,
    "server": clients.clients,
    "load": clients.steady_load,
}


def run(names: list[str], share: float, seed: int, keep: Path | None = None) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"torture-{name}-") as folder:
            found = PARTS[name](Torture(share, seed, Path(folder)))
        rows += found if isinstance(found, list) else [found]
    if keep is not None and any(row.broken for row in rows):
        keep.mkdir(parents=True, exist_ok=True)
        text = "".join(f"seed {seed}, {row.promise}: {what}\n" for row in rows for what in row.broken)
        (keep / "broken.txt").write_text(text)
    return rows
