"""The folder of a run, and whether a run may be resumed in it.

RUN/config.json                     settings, what the caller said about the model, the data's fingerprint
RUN/checkpoints/newest.safetensors  where resuming goes on
RUN/checkpoints/best.safetensors    the best by the validation metric (absent without a validation set)
RUN/log.csv, RUN/tensorboard/       see logs.py
RUN/data.json                       where the images came from, and what was left out
RUN/calibration.json                probabilities of labels, tag_calibration.json of tags, where there are any
RUN/vocabulary.json                 the words of captions, where there are any
RUN/captions.safetensors            which captions it has learned from, as hashes
RUN/pixels.safetensors              draws pictures from codes, for a run on features
RUN/comparison.json                 the same labels without the unlabelled images, if measured
RUN/report.html, model_card.md      to look at; data, settings, metrics and limits
RUN/unfinished.txt                  there from the first step of a training to its end, whatever ends it before

The images' place stands in a file of its own because it may change: a resumed run is told by its images' fingerprint,
not by their path.
"""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semisight import __version__
from semisight.errors import UserError
from semisight.objectives.step import Images
from semisight.training.checkpoint import FORMAT, read_meta
from semisight.training.config import TrainConfig

NEWEST = "checkpoints/newest.safetensors"
# All that a run may hold; what overwriting it replaces or removes, and nothing else that lies in the folder.
FILES = (
    *("config.json", "data.json", "log.csv", "calibration.json", "tag_calibration.json", "vocabulary.json"),
    *("captions.safetensors", "search.safetensors", "pixels.safetensors", "comparison.json", "ways.json"),
    *("report.html", "model_card.md", "unfinished.txt"),
    *(NEWEST, "checkpoints/best.safetensors", "tensorboard/events.out.tfevents.*"),
)


@dataclass(frozen=True)
class RunFolder:
    """Where the files of a run lie."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def newest(self) -> Path:
        return self.path / NEWEST

    @property
    def best(self) -> Path:
        return self.path / "checkpoints" / "best.safetensors"

    @property
    def log(self) -> Path:
        return self.path / "log.csv"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def file(self, name: str) -> Path:
        """Another file of the run, by one of the names in FILES."""
        assert name in FILES, name
        return self.path / name

    @property
    def holds_a_run(self) -> bool:
        return any(file.exists() for file in (self.config, self.newest, self.best, self.log))

    def best_or_newest(self) -> Path:
        """The checkpoint to use the model from."""
        for file in (self.best, self.newest):
            if file.exists():
                return file
        raise UserError(f"{self.path} holds no checkpoint: train there first (semisight train DATA --out {self.path}).")


def describe(
    config: TrainConfig, about: Mapping[str, Any], train: Images, valid: Images | None, threads: int, device: str
) -> dict[str, Any]:
    """What every checkpoint of a run says about it."""
    return {
        "config": config.to_dict(),
        "about": dict(about),
        "data": {"train": fingerprint(train), "valid": fingerprint(valid)},
        "versions": versions(threads, device),
    }


def check_folder(run: RunFolder, *, resume: bool, overwrite: bool) -> None:
    """Refuses a folder that is not fit for what is asked; before any image is read."""
    if resume and overwrite:
        raise UserError("resume goes on with a run and overwrite throws it away: give one of them.")
    if run.path.exists() and not run.path.is_dir():
        raise UserError(f"{run.path} is a file; a run needs a folder. Choose another name.")
    if resume and not run.holds_a_run:
        raise UserError(f"there is no run in {run.path} to resume; leave out resume to start one.")
    if run.holds_a_run and not (resume or overwrite):
        raise UserError(
            f"{run.path} already holds a run: go on with it (--resume), replace it (--overwrite), or choose another "
            "folder (--out)."
        )


def check_same(run: RunFolder, meta: Mapping[str, Any]) -> None:
    """Refuses to resume with other settings or data than the run's."""
    changed = _changes(read_meta(run.newest), meta, str(run.newest))
    if changed:
        raise UserError(
            f"{run.path} cannot be resumed with other settings or data: {'; '.join(changed)}. "
            "Resume with the former ones, or start a new run in another folder."
        )


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> list[str]:
    if old.get("format") != FORMAT:
        raise UserError(f"{where} was written by an earlier version: it can be used, but not resumed. Train it anew.")
    before, now = (TrainConfig.from_dict(meta["config"], where).must_match_on_resume() for meta in (old, new))
    return differences(before, now) + [
        line for part in ("about", "data") for line in differences({part: old[part]}, {part: new[part]})
    ]


def fingerprint(images: Images | None, samples: int = 64) -> dict[str, Any] | None:
    """Number, shape and a hash of some images: enough to notice that a run is resumed on other ones."""
    if images is None:
        return None
    index = torch.linspace(0, len(images) - 1, min(samples, len(images)), dtype=torch.float64).long()
    some = images.batch(index).float().contiguous()
    digest = hashlib.sha256(some.numpy().tobytes())
    return {"number": len(images), "shape": list(some.shape[1:]), "hash": digest.hexdigest()[:16]}


def versions(threads: int, device: str) -> dict[str, Any]:
    """What the last bits of a run depend on besides its settings."""
    return {
        "semisight": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device,
        "threads": threads,
    }


def differences(old: Any, new: Any, name: str = "") -> list[str]:
    """`key: old -> new` for everything that differs between two JSON values."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            line
            for key in keys
            for line in differences(old.get(key), new.get(key), f"{name}.{key}" if name else str(key))
        ]
    return [] if old == new else [f"{name}: {old} -> {new}"]
