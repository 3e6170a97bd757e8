"""The cost model of docs/scale.md: processor time per image of each part of the work; the model against a whole job.

    predict    start + n (read + decode + answer + write)      seconds of one core
    train      steps x (first + batch x more)                  by two sizes of the batch, checked at a third

Parts are measured alone, by the processor's clock, so that other work on the machine hardly matters; then a whole job,
of other images than the parts were measured on, is compared with what the model says of it.
"""

import io
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.features import draw_photos
from benchmarks.figures import Figure, Goal
from benchmarks.folder import make_folder
from semisight.backbones import DEFAULT, installed, resolve
from semisight.data.formats.pictures import read_pixels, read_upright
from semisight.data.samples import parts_of, read_part
from semisight.model.architecture import preset
from semisight.model.image_model import ImageModel
from semisight.objectives.joint import Joint
from semisight.objectives.step import Batch, Rows
from semisight.runs.bulk import Answerer, Asked, answer
from semisight.runs.settings import resolve as settings_of
from semisight.runs.train import train_run


@dataclass(frozen=True)
class Cost:
    """How many images the parts are measured on, how many the whole job has; photographs; batches of a step."""

    parts: int = 1000
    whole: int = 4000
    photos: int = 40
    batches: tuple[int, int, int] = (32, 128, 64)
    preset: str = "mnist"


SMALL_COST = Cost(parts=20, whole=40, photos=2, batches=(4, 16, 8))


def seconds(action: Callable[[], Any], rounds: int = 1) -> float:
    start = time.process_time()
    for _ in range(rounds):
        action()
    return (time.process_time() - start) / rounds


def measure_cost(size: Cost) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        yield from _predict(place, size)
        yield from _photos(place, size)
    yield _step(size)


def _predict(place: Path, size: Cost) -> Iterator[Figure]:
    make_folder(place / "parts", size.parts)
    make_folder(place / "whole", size.whole)
    chosen = {"source": "builtin:scenes?n=300&size=32&seed=1", "labels_per_class": 10, "max_steps": 2, "threads": 1}
    quiet = {"progress": False, "tensorboard": False, "valid_fraction": 0.0}
    train_run(settings_of({**chosen, **quiet}), place / "run", resume=False, overwrite=False, say=lambda line: None)
    run = str(place / "run")
    worker = Answerer(vars(Asked("predict", run, "", str(place / "one"))))
    n, parts = size.parts, parts_of(str(place / "parts"))
    samples = [sample for part in parts for sample in read_part(part)]
    channels, height, width = worker.run.architecture.image_shape
    read = seconds(lambda: [sample for part in parts for sample in read_part(part)]) / n
    decode = (
        seconds(lambda: [read_pixels(io.BytesIO(one.image or b""), height, width, channels) for one in samples]) / n
    )
    batch = samples[:250]
    worker._rows(batch, 0)
    rows = seconds(lambda: worker._rows(batch, 0), 3) / len(batch) - decode
    (place / "few").mkdir()
    (place / "few" / "one.png").write_bytes(samples[0].image or b"")
    start = seconds(lambda: answer(Asked("predict", run, str(place / "few"), str(place / "out-few")), workers=0))
    expected = start + size.whole * (read + decode + rows)
    asked = Asked("predict", run, str(place / "whole"), str(place / "out-whole"))
    found = seconds(lambda: answer(asked, workers=0))
    details: dict[str, Any] = {"images": size.whole, "start_s": start}
    details |= {"ms_per_image": {"read": 1e3 * read, "decode": 1e3 * decode, "answer": 1e3 * rows}}
    details |= {"expected_s": expected, "measured_s": found}
    yield Figure("predict, measured over the cost model", found / expected, "times", Goal("<=", 1.2, 0.8), details)


def _photos(place: Path, size: Cost) -> Iterator[Figure]:
    """Photographs of about 300 x 200 pixels through the default backbone."""
    if not any(one.name == DEFAULT for one in installed()):
        return
    network = resolve(DEFAULT)
    names, side = draw_photos(place / "photos", size.photos), network.preprocessing.size
    contents = [(place / "photos" / name).read_bytes() for name in names]
    images = [read_upright(io.BytesIO(content), 2 * side) for content in contents]
    decode = seconds(lambda: [read_upright(io.BytesIO(content), 2 * side) for content in contents]) / len(names)
    pictures = [network.preprocessing.picture(image, 0, "0") for image in images]
    prepare = seconds(lambda: [network.preprocessing.picture(image, 0, "0") for image in images]) / len(names)
    network.features(pictures[0][None])
    features = seconds(lambda: [network.features(picture[None]) for picture in pictures]) / len(names)
    total = decode + prepare + features
    details = {"ms_per_image": {"decode": 1e3 * decode, "prepare": 1e3 * prepare, "features": 1e3 * features}}
    yield Figure(f"photographs through {DEFAULT}", 1 / total, "images per second and core", None, details)


def _step(size: Cost) -> Figure:
    """A step of the image model: a line through two sizes of the batch, checked at the third."""
    architecture = preset(size.preset)
    objective, generator = Joint(ImageModel.of(architecture, "expected", 0)), torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(objective.parameters())

    def of(batch: int) -> float:
        images = torch.rand(batch, *architecture.image_shape, generator=generator)

        def step() -> None:
            optimiser.zero_grad()
            objective(Batch(images, torch.arange(batch)), generator, Rows(0, batch, batch)).loss.backward()
            optimiser.step()

        step()
        return seconds(step, 5)

    low, high, third = size.batches
    times = {batch: of(batch) for batch in size.batches}
    more = (times[high] - times[low]) / (high - low)
    expected = times[low] + more * (third - low)
    details = {"preset": size.preset, "ms_per_step": {str(batch): 1e3 * value for batch, value in times.items()}}
    name = f"training step at batch {third}, measured over the cost model"
    return Figure(name, times[third] / expected, "times", Goal("<=", 1.2, 0.8), details)
