"""`semisight demo`: digits of which two of each kind have a label, and scenes most of which have no caption.

Digits are learned twice. The second training, on the labelled images alone, says what the unlabelled ones were worth;
nothing is left of it but its error (RUN/comparison.json). Scenes are a run of their own, RUN/scenes. One page shows it
all: RUN/report.html. Where a pretrained network is installed, it is shown at work on parts of the two photographs that
scikit-learn brings; nothing is left of that but what is said.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semisight.cli.console import prepare_process, reading, say, stopping
from semisight.errors import UserError

if TYPE_CHECKING:
    from semisight.runs.images import Progress
    from semisight.runs.settings import Settings
    from semisight.runs.train import Trained

DEFAULT_FOLDER = "semisight-demo"
_PARTS, _PART = 40, 160  # of each photograph, and their side in pixels
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
_MINUTES = (1.05, 0.25, 1.25)


def demo(
    out: Annotated[Path | None, typer.Option(help="Folder of the demo's run.", show_default="semisight-demo")] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="How long each training may take.", show_default="about one")
    ] = None,
    seed: int = 0,
) -> None:
    """Learn to read digits from two labels of each and to caption scenes most of which have no caption.

    It writes a page to look at, takes less than three minutes and needs no data.

    Example:

        semisight demo
    """
    prepare_process()
    say("Learning from handwritten digits, of which two of each kind have a label, and then captions of scenes;")
    say("all in all less than three minutes.")
    with stopping("Run semisight demo again to start anew."), reading() as progress:
        words, report = run_demo(out, minutes, seed, progress)
    say("\nWhat it learned:")
    for line in words:
        say(f"  - {line}")
    say(f"\nReport: {report}")
    say("Open it in a browser: labels, confusion, images with their captions, reconstructions, dictionaries and more.")
    say("The same with photos of your own: semisight train photos/ --labels labels.csv --out runs/photos")


def run_demo(path: Path | None, minutes: float | None, seed: int, progress: "Progress") -> tuple[list[str], Path]:
    """Trains in `path`, replacing an earlier demo there but nothing else, and writes the report: what was learned, in
    lines for people, and the page."""
    from semisight.report.build import write_report
    from semisight.runs.run import REPORT, Comparison, load_run
    from semisight.runs.train import train_run
    from semisight.training.folder import RunFolder

    folder = path if path is not None else free_folder(Path(DEFAULT_FOLDER))
    scenes = folder / SCENES_FOLDER
    if scenes.exists() and not is_demo(scenes) and (not scenes.is_dir() or any(scenes.iterdir())):
        raise UserError(f"{scenes} is there and not of a demo: give another folder with --out.")
    settings, of_scenes = demo_settings(minutes, seed), scene_settings(minutes, seed)
    trained = train_run(settings, folder, resume=False, overwrite=is_demo(folder), say=say, progress=progress)
    say("Now the same labels once more, without the unlabelled images, to see what these were worth.")
    Comparison(error_alone(minutes, seed)).write(RunFolder(folder))
    say("\nNow captions: scenes of coloured shapes, of which most have none.")
    captioned = train_run(of_scenes, scenes, resume=False, overwrite=is_demo(scenes), say=say, progress=progress)
    sections, lines = _about_scenes(scenes, captioned)
    found = write_report(load_run(folder), trained.sets, folder / REPORT, shows=sections)
    if captioned.fitted.step < _STEPS:  # the machine was busy
        lines.append(f"The time was over after {captioned.fitted.step:,} of {_STEPS:,} steps: on an idle machine the "
                     "captions come out better.")  # fmt: skip
    lines = [f"Scenes: {line}" for line in lines]
    return [*found.words(), *lines, *photographs(seed)], folder / REPORT


def photographs(seed: int) -> list[str]:
    """What a pretrained network does with photographs, in a line; none where no network is installed."""
    import tempfile

    from semisight.runs.encoder_choice import networks
    from semisight.runs.evaluate import evaluate_labels
    from semisight.runs.run import load_run
    from semisight.runs.settings import resolve
    from semisight.runs.train import train_run

    found = networks()
    if not found:
        return []
    say("\nNow photographs, by a pretrained network: parts of the two that scikit-learn brings.")
    with tempfile.TemporaryDirectory() as scratch:
        source, run = Path(scratch, "photos"), Path(scratch, "run")
        names = draw_parts(source, seed)
        settings = resolve({
            "source": str(source), "class_per_folder": True, "labels_per_class": _PER_CLASS, "valid_fraction": 0.5,
            "backbone": found[-1], "seed": seed, "threads": 1,
        })  # fmt: skip
        trained = train_run(settings, run, resume=False, overwrite=False, say=lambda line: None)
        measured = trained.sets.measured("labels")
        assert measured is not None
        error = evaluate_labels(load_run(run), measured).error
    return [
        f"Photographs: on {Path(found[-1]).stem} with {_PER_CLASS} labels of each, parts of {names[0]} told "
        f"from parts of {names[1]} (photographs of scikit-learn): {1 - error:.0%} of {len(measured)} right."
    ]


def draw_parts(folder: Path, seed: int) -> list[str]:
    """Square parts of each photograph, drawn at random, a folder for each; gives the photographs' names."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    rng, found = np.random.default_rng(seed), load_sample_images()
    names = [Path(name).stem for name in found.filenames]
    for name, pixels in zip(names, found.images, strict=True):
        (folder / name).mkdir(parents=True)
        for i in range(_PARTS):
            top, left = (int(rng.integers(0, side - _PART)) for side in pixels.shape[:2])
            part = Image.fromarray(pixels[top : top + _PART, left : left + _PART])
            part.save(folder / name / f"{i:02d}.jpg", quality=90)
    return names


def _about_scenes(scenes: Path, captioned: "Trained") -> tuple[tuple[Any, ...], list[str]]:
    """What the page says of the other run, before its own sections; and the same in lines."""
    from dataclasses import replace

    from semisight.report import captions
    from semisight.report.build import SECTIONS, look
    from semisight.runs.run import load_run

    seen = look(load_run(scenes), captioned.sets)
    found = seen.found["captions"]
    titled = [replace(one, title=f"{one.title} (of scenes, a second run)") for one in captions.sections(seen, found)]
    return (*((lambda material, one=one: one) for one in titled), *SECTIONS), captions.words(found)


def demo_settings(minutes: float | None = None, seed: int = 0, *, alone: bool = False) -> "Settings":
    """Of the digits: all images, or the labelled ones `alone`."""
    from semisight.runs.settings import resolve

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


def scene_settings(minutes: float | None = None, seed: int = 0) -> "Settings":
    """Small pictures and a small network. It has to be quick: number, relation and colours of the objects are learned
    in this time, and most shapes."""
    from semisight.runs.settings import resolve

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
        "labelled_per_batch": 32,
        "learning_rate": 3e-3,
        "pseudo_labels": 0.0,  # pays only later
        "bound_images": 4,
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


def error_alone(minutes: float | None, seed: int) -> float:
    """The error, on the same images, of the same training with the labelled images alone."""
    import tempfile

    from semisight.runs.evaluate import evaluate_labels
    from semisight.runs.run import load_run
    from semisight.runs.train import train_run

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "alone"
        settings = demo_settings(minutes, seed, alone=True)
        trained = train_run(settings, path, resume=False, overwrite=False, say=lambda line: None)
        measured = trained.sets.measured("labels")
        assert measured is not None
        return evaluate_labels(load_run(path), measured).error


def free_folder(wanted: Path) -> Path:
    """`wanted`, or wanted-2, -3, ... where something that is no demo has that name."""
    for number in range(1, 1000):
        path = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        empty = not path.exists() or (path.is_dir() and not any(path.iterdir()))
        if empty or is_demo(path):
            return path
    raise UserError(f"there are too many folders named {wanted}-...: give one with --out.")


def is_demo(path: Path) -> bool:
    """Whether the folder holds an earlier demo, or its scenes, which a new one may replace."""
    from semisight.runs.run import DataRecord
    from semisight.training.folder import RunFolder

    folder = RunFolder(path)
    try:
        known = (demo_settings().data, scene_settings().data)
        return folder.holds_a_run and DataRecord.read(folder).settings in known
    except UserError:
        return False
