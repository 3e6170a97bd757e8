"""`semisight demo`: handwritten digits of which two of each kind have a label, learned with and without the others.

The second training, on the labelled images alone, says what the unlabelled ones were worth. Nothing is left of it but
its error (RUN/comparison.json).
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semisight.app.evaluating import evaluate
from semisight.app.report.build import Findings, write_report
from semisight.app.runs import Comparison, DataRecord, data_file, load_run, report_file
from semisight.app.sets import Progress
from semisight.app.settings import Settings, resolve
from semisight.app.training import Say, train_run
from semisight.errors import UserError
from semisight.learning.runs import RunFolder

DEFAULT_FOLDER = "semisight-demo"
_SOURCE, _LIMIT = "builtin:digits", None
_PER_CLASS = 2
_EPOCHS, _EPOCHS_ALONE = 180, 400  # 900 steps of 288 images, and 400 of 20
_MINUTES = 2.0  # at most, should the machine be busy; otherwise less than one


@dataclass(frozen=True)
class Shown:
    """What the demo found out, and the page that shows it."""

    findings: Findings
    report: Path


def demo_settings(minutes: float | None = None, seed: int = 0, *, alone: bool = False) -> Settings:
    """For all images, or for the labelled ones `alone`."""
    settings: dict[str, Any] = {
        "source": _SOURCE,
        "limit": _LIMIT,
        "valid_fraction": 0.25,
        "labels_per_class": _PER_CLASS,
        "only_labelled": alone,
        "learning_rate": 4e-3,
        "xi": 400.0,  # a little below the default: the images are to be seen, too
        "epochs": _EPOCHS_ALONE if alone else _EPOCHS,
        "minutes": (minutes or _MINUTES) / (4 if alone else 1),
        "seed": seed,
        # Two threads gain a little on an idle machine and lose up to tenfold on a busy one.
        "threads": 1,
        "tensorboard": False,
    }
    return resolve(settings)


def run_demo(
    path: Path | None, *, minutes: float | None, seed: int, say: Say, progress: Progress | None = None
) -> Shown:
    """Trains in `path`, replacing an earlier demo there but nothing else, and writes the report."""
    folder = RunFolder(path if path is not None else free_folder(Path(DEFAULT_FOLDER)))
    settings = demo_settings(minutes, seed)
    trained = train_run(settings, folder.path, resume=False, overwrite=is_demo(folder), say=say, progress=progress)
    say("Now the same labels once more, without the unlabelled images, to see what these were worth.")
    Comparison(error_alone(minutes, seed)).write(folder)
    report = report_file(folder)
    return Shown(write_report(load_run(folder.path), trained.sets, report), report)


def error_alone(minutes: float | None, seed: int) -> float:
    """The error, on the same images, of the same training with the labelled images alone."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "alone"
        settings = demo_settings(minutes, seed, alone=True)
        trained = train_run(settings, path, resume=False, overwrite=False, say=lambda line: None)
        assert trained.sets.measured is not None
        return evaluate(load_run(path).labels(), trained.sets.measured).error


def free_folder(wanted: Path) -> Path:
    """`wanted`, or wanted-2, -3, ... where something that is no demo has that name."""
    for number in range(1, 1000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if empty or is_demo(RunFolder(path)):
            return path
    raise UserError(f"there are too many folders named {wanted}-...: give one with --out.")


def is_demo(folder: RunFolder) -> bool:
    """Whether the folder holds an earlier demo, which a new one may replace."""
    try:
        return folder.holds_a_run and DataRecord.read(data_file(folder)).settings == demo_settings().data
    except UserError:
        return False
