"""`semisight demo`: digits of which two of each kind have a label, and scenes most of which have no caption.

Digits are learned twice. The second training, on the labelled images alone, says what the unlabelled ones were worth;
nothing is left of it but its error (RUN/comparison.json). Scenes are a run of their own, RUN/scenes. One page shows it
all: RUN/report.html.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from semisight.errors import UserError
from semisight.report import captions
from semisight.report.build import SECTIONS, Findings, look, write_report
from semisight.report.captions_seen import caption_words
from semisight.report.material import Material
from semisight.report.page import Section
from semisight.runs.evaluating import evaluate
from semisight.runs.images import Progress
from semisight.runs.run import Comparison, DataRecord, data_file, load_run, report_file
from semisight.runs.settings import DataSettings, Settings, resolve
from semisight.runs.train import Say, train_run
from semisight.training.folder import RunFolder

DEFAULT_FOLDER = "semisight-demo"
SCENES_FOLDER = "scenes"
_SOURCE, _LIMIT = "builtin:digits", None
_PER_CLASS = 2
_EPOCHS, _EPOCHS_ALONE = 180, 400  # 900 steps of 288 images, and 400 of 20
_SCENES, _CAPTIONED, _STEPS = "builtin:scenes?n=5000&size=32", 1500, 430
# 32-16-2-1: shapes are pooled over a quarter of the picture, so that one learned in one place is known in all.
_LAYERS = (
    {"maps": 16, "kernel": 5, "pool": 2, "padding": "same"},
    {"maps": 48, "kernel": 5, "pool": 8, "padding": "same"},
    {"maps": 128, "kernel": 2},
)
# At most, should the machine be busy; otherwise less. Digits, the same alone, scenes.
_MINUTES = (1.2, 0.3, 1.4)


@dataclass(frozen=True)
class Shown:
    """What the demo found out, and the page that shows it."""

    findings: Findings
    scenes: tuple[str, ...]
    report: Path

    def words(self) -> list[str]:
        return [*self.findings.words(), *self.scenes]


def demo_settings(minutes: float | None = None, seed: int = 0, *, alone: bool = False) -> Settings:
    """Of the digits: all images, or the labelled ones `alone`."""
    settings: dict[str, Any] = {
        "source": _SOURCE,
        "limit": _LIMIT,
        "valid_fraction": 0.25,
        "labels_per_class": _PER_CLASS,
        "only_labelled": alone,
        "learning_rate": 4e-3,
        "xi": 400.0,  # a little below the default: the images are to be seen, too
        "epochs": _EPOCHS_ALONE if alone else _EPOCHS,
        "minutes": (minutes / 4 if minutes else _MINUTES[1]) if alone else minutes or _MINUTES[0],
        "seed": seed,
        # Two threads gain a little on an idle machine and lose up to tenfold on a busy one.
        "threads": 1,
        "tensorboard": False,
    }
    return resolve(settings)


def scene_settings(minutes: float | None = None, seed: int = 0) -> Settings:
    """Small pictures and a small network. It has to be quick: number, relation and colours of the objects are learned
    in this time, and most shapes."""
    settings: dict[str, Any] = {
        "source": _SCENES,
        "captions": "builtin",
        "captioned_images": _CAPTIONED,
        "use_labels": False,
        "valid_fraction": 0.1,
        "layers": _LAYERS,
        "nonlinearity": "norm-relu",
        "hidden_size": 256,
        "embedding_size": 256,
        "batch_size": 40,
        "captioned_per_batch": 32,
        "learning_rate": 3e-3,
        "caption_confident": 0.0,  # pays only later
        "caption_bound_images": 4,
        "schedule": "cosine",
        "max_steps": _STEPS,
        "max_epochs": None,
        "patience": None,
        "minutes": minutes or _MINUTES[2],
        "seed": seed,
        "threads": 1,
        "tensorboard": False,
    }
    return resolve(settings)


def run_demo(
    path: Path | None, *, minutes: float | None, seed: int, say: Say, progress: Progress | None = None
) -> Shown:
    """Trains in `path`, replacing an earlier demo there but nothing else, and writes the report."""
    folder = RunFolder(path if path is not None else free_folder(Path(DEFAULT_FOLDER)))
    scenes = RunFolder(folder.path / SCENES_FOLDER)
    _refuse_others(scenes)
    settings = demo_settings(minutes, seed)
    trained = train_run(settings, folder.path, resume=False, overwrite=is_demo(folder), say=say, progress=progress)
    say("Now the same labels once more, without the unlabelled images, to see what these were worth.")
    Comparison(error_alone(minutes, seed)).write(folder)
    say("\nNow captions: scenes of coloured shapes, of which most have none.")
    wanted = scene_settings(minutes, seed)
    captioned = train_run(wanted, scenes.path, resume=False, overwrite=is_demo(scenes), say=say, progress=progress)
    seen = look(load_run(scenes.path), captioned.sets)
    assert seen.captions is not None
    report = report_file(folder)
    found = write_report(load_run(folder.path), trained.sets, report, shows=(*_about_scenes(seen), *SECTIONS))
    lines = caption_words(seen.captions)
    if captioned.fitted.step < _STEPS:  # the machine was busy
        lines.append(f"The time was over after {captioned.fitted.step:,} of {_STEPS:,} steps: on an idle machine the "
                     "captions come out better.")  # fmt: skip
    return Shown(found, tuple(f"Scenes: {line}" for line in lines), report)


def _about_scenes(seen: Material) -> tuple[Any, ...]:
    """What the page says of the other run, as sections of this one."""

    def show(section: Section) -> Any:
        return lambda material: replace(section, title=f"{section.title} (of scenes, a second run)")

    return tuple(show(section) for section in captions.sections(seen))


def error_alone(minutes: float | None, seed: int) -> float:
    """The error, on the same images, of the same training with the labelled images alone."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "alone"
        settings = demo_settings(minutes, seed, alone=True)
        trained = train_run(settings, path, resume=False, overwrite=False, say=lambda line: None)
        measured = trained.sets.measured("labels")
        assert measured is not None
        return evaluate(load_run(path).labels(), measured).error


def free_folder(wanted: Path) -> Path:
    """`wanted`, or wanted-2, -3, ... where something that is no demo has that name."""
    for number in range(1, 1000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if empty or is_demo(RunFolder(path)):
            return path
    raise UserError(f"there are too many folders named {wanted}-...: give one with --out.")


def _refuse_others(scenes: RunFolder) -> None:
    if scenes.path.exists() and not is_demo(scenes) and (not scenes.path.is_dir() or any(scenes.path.iterdir())):
        raise UserError(f"{scenes.path} is there and not of a demo: give another folder with --out.")


def is_demo(folder: RunFolder) -> bool:
    """Whether the folder holds an earlier demo, or its scenes, which a new one may replace."""
    known: tuple[DataSettings, ...] = (demo_settings().data, scene_settings().data)
    try:
        return folder.holds_a_run and DataRecord.read(data_file(folder)).settings in known
    except UserError:
        return False
