"""What `SemiSight.fit` does with images in memory: it trains in a temporary folder and keeps the files of the run."""

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from semisight.data.batches import Shuffled
from semisight.objectives.step import Plan
from semisight.runs.captioner import write_files
from semisight.runs.images import Sets
from semisight.runs.recipe import recipe_for, vocabulary_of
from semisight.runs.run import DataRecord, data_file, load_run
from semisight.runs.settings import Settings
from semisight.runs.train import calibrate
from semisight.training.checkpoint import Checkpoint, load_weights, write_checkpoint
from semisight.training.folder import RunFolder

_STEPS_BETWEEN_CHECKPOINTS = 50
IN_MEMORY = "arrays given in Python"


@dataclass(frozen=True)
class Longer:
    """A plan whose epochs are counted several at a time: a small set would be saved and validated at every step."""

    plan: Plan
    times: int

    @property
    def steps_per_epoch(self) -> int:
        return self.plan.steps_per_epoch * self.times

    def indices(self, step: int, seed: int) -> Tensor:
        return self.plan.indices(step, seed)


def learn(settings: Settings, sets: Sets) -> dict[str, bytes]:
    """Trains in a temporary folder; gives the files of the run, without what only resuming needs."""
    architecture = settings.model.architecture(sets.train.shape)
    with tempfile.TemporaryDirectory(prefix="semisight-") as path:
        folder = RunFolder(Path(path))
        vocabulary = vocabulary_of(settings, sets) if sets.has("captions") else None
        recipe = recipe_for(settings, sets, architecture, vocabulary, None)
        if vocabulary is not None:
            write_files(folder, vocabulary, sets.train.captions or ())
        plan = recipe.plan or Shuffled(len(sets.train), recipe.config.batch_size)
        times = max(1, _STEPS_BETWEEN_CHECKPOINTS // plan.steps_per_epoch)
        dataclasses.replace(recipe, plan=Longer(plan, times)).trainer(sets, folder.path).fit(overwrite=True)
        DataRecord.of(dataclasses.replace(settings.data, source=IN_MEMORY), sets.train, sets.valid).write(
            data_file(folder)
        )
        run = load_run(path)
        if sets.has("labels"):
            calibrate(run, sets)
        assert isinstance(recipe.objective, torch.nn.Module)
        load_weights(recipe.objective, run.checkpoint)
        slim = folder.path / "slim.safetensors"
        write_checkpoint(slim, Checkpoint({"model": recipe.objective.state_dict()}, run.meta))
        return files_of(folder, slim)


def files_of(folder: RunFolder, checkpoint: Path) -> dict[str, bytes]:
    """The small files of a run, and one checkpoint."""
    names = ("config.json", "data.json", "calibration.json", "vocabulary.json", "captions.safetensors")
    files = {name: (folder.path / name).read_bytes() for name in names if (folder.path / name).exists()}
    return {**files, "checkpoints/newest.safetensors": checkpoint.read_bytes()}
