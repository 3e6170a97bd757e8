"""What the tests of one kind of report do with their own run, `trial`."""

from pathlib import Path

import pytest

from semisight.runs.images import Sets
from semisight.runs.run import Run, load_run
from semisight.runs.run_images import reload_sets


@pytest.fixture(scope="module")
def loaded(trial: Path) -> tuple[Run, Sets]:
    run = load_run(trial)
    return run, reload_sets(run)
