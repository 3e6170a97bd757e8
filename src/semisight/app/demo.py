"""`semisight demo`: learns from generated pictures in about a minute, and shows what it learned."""

from dataclasses import dataclass
from pathlib import Path

from semisight.app.report.build import write_report
from semisight.app.report.observe import Numbers
from semisight.app.runs import DataRecord, data_file, load_run, report_file
from semisight.app.settings import Settings, resolve
from semisight.app.training import Progress, Say, train_run
from semisight.errors import UserError
from semisight.learning.runs import RunFolder

DEFAULT_FOLDER = "semisight-demo"
_SOURCE = "builtin:scenes?n=3000&size=24&seed=1"
_MINUTES = 1.1  # of training; reading, drawing and the report take the rest of a minute and a half


@dataclass(frozen=True)
class Shown:
    """What the demo found out, and the page that shows it."""

    numbers: Numbers
    report: Path


def demo_settings(minutes: float | None = None, seed: int = 0) -> Settings:
    return resolve(
        {
            "source": _SOURCE,
            "layers": [
                {"maps": 16, "kernel": 5, "pool": 2},
                {"maps": 40, "kernel": 5, "pool": 2},
                {"maps": 80, "kernel": 3},
            ],
            "batch_size": 32,
            "learning_rate": 3e-3,
            "average": 0.99,
            "minutes": minutes or _MINUTES,
            "epochs": 1000,
            "seed": seed,
            "log_every": 10,
            # Two threads gain a little on an idle machine and lose up to tenfold on a busy one.
            "threads": 1,
            "tensorboard": False,
        }
    )


def run_demo(
    path: Path | None, *, minutes: float | None, seed: int, say: Say, progress: Progress | None = None
) -> Shown:
    """Trains in `path`, replacing an earlier demo there but nothing else, and writes the report."""
    folder = RunFolder(path if path is not None else free_folder(Path(DEFAULT_FOLDER)))
    settings = demo_settings(minutes, seed)
    trained = train_run(settings, folder.path, resume=False, overwrite=is_demo(folder), say=say, progress=progress)
    report = report_file(folder)
    return Shown(write_report(load_run(folder.path), trained.sets, report), report)


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
        return folder.holds_a_run and DataRecord.read(data_file(folder)).settings.source == _SOURCE
    except UserError:
        return False
