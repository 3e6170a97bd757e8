"""The tables' rows still train what they trained before the objectives were rewritten as one: the same losses.

losses_before.json holds the losses of the first 20 steps of five rows at smoke size, on one thread, as the former code
gave them, and on which machine. There they are the same to the last bit; elsewhere up to the order of sums.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from semisight.data import load
from semisight.data.image_set import ImageSet, split
from semisight.data.vocabulary import Vocabulary
from semisight.experiments import image_model, label_rows, results, table2, table3
from semisight.experiments.table import Request
from semisight.objectives.gradients import gradient_named
from semisight.objectives.joint import Joint
from semisight.objectives.step import Plan, Step
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer

BEFORE = json.loads(Path(__file__).with_name("losses_before.json").read_text())
DIGITS = "builtin:digits"
STEPS = {"max_epochs": None, "max_steps": 20, "max_minutes": None}


def machine() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{results.hardware(1)}; torch {torch.__version__}; {capability}"


def request(smoke: bool = True) -> Request:
    return Request(DIGITS, smoke=smoke, progress=False)


def losses(joint: Joint, images: ImageSet, config: TrainConfig, plan: Plan | None, folder: Path) -> list[float]:
    """Of every step."""
    found: list[float] = []

    def seen(module: nn.Module, arguments: tuple[object, ...], step: Step) -> None:
        found.append(float(step.loss.detach()))

    joint.register_forward_hook(seen)
    Trainer(joint, images, folder, config=config, plan=plan).fit()
    return found


def of_images(row: str, data: str, folder: Path) -> list[float]:
    train, _ = split(load(data), 100, 0)
    setting = image_model.SETTINGS[row]
    joint = Joint(label_rows.image_model(setting, train, 0), gradient=gradient_named(setting.gradient, 0))
    return losses(joint, train, setting.training(request(), 0, **STEPS), None, folder)


def of_labels(row: str, data: str, folder: Path, smoke: bool = True) -> list[float]:
    of, setting = table2.sets(data, 10, 0, smoke), table2.SETTINGS[row]
    learner = label_rows.compose(setting, of.train, 0)
    config = setting.training(request(smoke), 0, batch_size=learner.plan.batch_size, **STEPS)
    return losses(learner.joint, of.train, config, learner.plan, folder)


def of_captions(kind: str, folder: Path, smoke: bool = True, kept: Tensor | None = None) -> list[float]:
    of = table3.varied(kind, table3.sets(table3.SCENES, 64, 0, smoke))
    texts = table3.captions_of(of.train)
    vocabulary = Vocabulary.from_captions((text for texts in texts for text in texts), of.row.min_count)
    learned = table3.given(kind, of, vocabulary, 0, kept)
    joint = table3.compose(of, table3.image_model(of, learned.used, 0), learned, 0)
    asked = Request(table3.SCENES, smoke=True, progress=False)  # without warming up
    config = table3.config(of.row, learned.plan, 0, 1e9, asked)
    config = TrainConfig.from_dict({**config.to_dict(), **STEPS})
    return losses(joint, of.train, config, learned.plan, folder)


@pytest.mark.parametrize("row", ["image-model", "printed", "consistency", "joint", "two-step"])
def test_the_first_steps_are_what_they_were(row: str, tmp_path: Path) -> None:
    if row == "image-model":
        found = of_images("local/expected", DIGITS, tmp_path)
    elif row in ("printed", "consistency"):
        found = of_labels(row, DIGITS, tmp_path)
    else:
        found = of_captions(row, tmp_path)
    before = [float.fromhex(loss) for loss in BEFORE["losses"][row]]
    assert len(before) == 20 and all(map(math.isfinite, before))
    assert found == (before if machine() == BEFORE["machine"] else pytest.approx(before, rel=1e-4))
