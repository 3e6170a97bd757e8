"""Section 5.2 and appendix A, Table 4 (figures 1 and 3 plot it): accuracy by the share of images that have a label.

    semisight reproduce table4 --data IMAGES --n 1,10,100 --splits 0,1,2
    semisight reproduce table4 --data IMAGENET --size 256 --minutes 7200     on a GPU: docs/experiments.md says how long
    semisight reproduce figure1                                              the plot of what is measured

IMAGES/train and IMAGES/val (or test) have a folder for each class, or hold WebDataset shards with labels. Pictures in
folders are decoded once into the image cache and mapped from there; shards are read into memory.

Of the training images a tenth is for validation, drawn by the split's number; of the rest N percent of every class, at
least one image, keep their label. Test images are looked at once a row, by the weights with the least validation error.

    row           what it is                                                               paper, top-1 at 1, 10, 100 %
    alexnet       baselines/alexnet.py on the labelled images alone                        0.1, 19.8, 57.1
    googlenet     baselines/googlenet.py on the labelled images alone                      4.75, 32.18, 68.7
    bsvm          ours, all images: pseudo-labels and the bound, Bayesian SVM              43.98, 48.41, 61.8
    softmax       the same but for the head, a softmax                                     42.89, 47.51, 61.53
    labels-alone  the network of `softmax` without the other images
    no-bound      `softmax` without the image model

Every row takes STEPS steps, however fast the machine is; --minutes is only a limit beyond which a row is left as it is.

From 128 pixels on the networks that are compared with have their published widths, and our decoder the layers of
Table 5; below, an eighth of them and four small layers, so that a CPU gets through. The column N is the share in
percent. Metrics: `top-1` and `top-5`, accuracy in percent.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semisight.baselines.alexnet import SMALL, AlexNet
from semisight.baselines.googlenet import GoogLeNet
from semisight.data import load
from semisight.data.columns import choose_labelled_share, hide_labels
from semisight.data.formats.folders import folder_labels
from semisight.data.formats.imagefolder import part_folders
from semisight.data.formats.webdataset import find_shards
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet, split
from semisight.errors import UserError
from semisight.experiments import label_rows, results
from semisight.experiments.label_rows import LabelRow, Parts, compose, labels_of, train
from semisight.experiments.network_rows import NetworkRow, started, train_network
from semisight.experiments.table import Cell, Measured, Request, fill
from semisight.experiments.table2 import CONSISTENCY, without_the_others
from semisight.inference.validation import decision_values
from semisight.model.architecture import Layer, preset
from semisight.objectives.consistency import Consistency

TABLE = "table4"
TOP1, TOP5 = "top-1", "top-5"
SHARES = (1, 5, 10, 20, 30, 40, 60, 80, 100)  # percent
SIZE, WIDTH = 64, 1 / 8  # pixels; of the published maps, below 128 pixels
LAYERS = (Layer(24, 5, 4, "same"), Layer(48, 5, 2, "same"), Layer(64, 5, 2, "same"), Layer(96, 3))  # 64-16-8-4-2
ALONE = "labels-alone"
STEPS = 600  # of every row
VALIDATIONS = 6

# Of validation images at 10 %, after 300 steps: softmax 32.9, balanced SVM 28.3 right. The deep encoder with its recipe
# (runs/deep.py) and the network it had before, after 400: 23.9 and 27.2, and 20.9 with an SVM that is not balanced.
OURS = replace(CONSISTENCY, beside=64, epochs=None, on_set={"small": {"layers": LAYERS}})
SETTINGS: Mapping[str, LabelRow] = {
    "bsvm": replace(OURS, softmax=False, balanced=True),
    "softmax": OURS,
    ALONE: replace(OURS, consistency=Consistency(0, contrastive=0, spreading=0, bound_images=0)),
    "no-bound": replace(OURS, consistency=Consistency(contrastive=0, spreading=0, bound_images=0)),
}


def _width(images: ImageSet) -> float:
    return WIDTH if min(images.shape[1:]) < SMALL else 1.0


_SUPERVISED = {"alone": True, "augment": True, "batch_size": 64, "learning_rate": 1e-3, "average": 0.99}
NETWORKS = {
    "alexnet": NetworkRow(
        lambda of, smoke: AlexNet(of.shape, len(of.class_names), 0.02 if smoke else _width(of)),
        steps=STEPS,
        **_SUPERVISED,  # type: ignore[arg-type]
    ),
    "googlenet": NetworkRow(
        lambda of, smoke: GoogLeNet(of.shape, len(of.class_names), 0.02 if smoke else _width(of)),
        steps=STEPS,
        **_SUPERVISED,  # type: ignore[arg-type]
    ),
}
ROWS = (*NETWORKS, *SETTINGS)
# by share, as in SHARES: top-1, top-5
_PAPER = {
    "alexnet": (
        "0.1 11.5 19.8 38.6 43.23 45.85 50.34 53.97 57.1",
        "0.5 25.5 38.60 55.58 63.12 66.53 72.18 77.06 80.2",
    ),
    "googlenet": (
        "4.75 22.13 32.18 42.83 49.61 51.90 57.78 63.82 68.7",
        "11.33 41.33 56.33 68.33 74.50 76.94 81.70 84.97 88.9",
    ),
    "bsvm": (
        "43.98 47.36 48.41 51.51 54.14 57.34 61.24 61.77 61.8",
        "60.57 62.67 64.76 75.67 78.95 80.94 82.53 83.65 84.3",
    ),
    "softmax": (
        "42.89 46.42 47.51 50.75 53.49 56.83 60.91 61.44 61.53",
        "59.20 61.40 63.58 74.96 78.39 80.46 82.12 83.13 83.88",
    ),
}


def run(request: Request) -> list[results.Row]:
    """Every cell that the results file does not hold yet."""
    rows = request.chosen(ROWS, "Table 4")
    wrong = [share for share in request.n if not 1 <= share <= 100]
    if wrong:
        raise UserError(f"--n of table4 is the share of labelled images in percent, from 1 to 100, not {wrong[0]}.")
    name = "smoke" if request.smoke else Path(request.source()).name
    kept: dict[int, Parts] = {}

    def measured(cell: Cell, place: Path) -> Measured:
        if cell.seed not in kept:
            kept.clear()
            kept[cell.seed] = sets(request, cell.seed)
        row = cell.row.split("/")[1]
        return measure(row, with_share(kept[cell.seed], int(cell.N), cell.seed), cell.seed, place, request)

    cells = [
        Cell(f"{name}/{row}", seed, (TOP1, TOP5), str(share), dict(zip((TOP1, TOP5), paper(row, share), strict=True)))
        for seed in request.splits
        for share in request.n
        for row in rows
    ]
    return fill(TABLE, request, cells, measured)


def paper(row: str, share: int) -> tuple[str, str]:
    """What the paper prints for ImageNet, top-1 and top-5."""
    one, five = (dict(zip(SHARES, text.split(), strict=False)) for text in _PAPER.get(row, ("", "")))
    return one.get(share, ""), five.get(share, "")


def sets(request: Request, seed: int) -> Parts:
    """All with their labels."""
    if request.smoke:
        return label_rows.parts(request.source(), 0, seed, smoke=True)
    train, test = (images_of(Path(request.source()), part, request) for part in ("train", "test"))
    train, valid = split(train, 0.1, seed)
    return Parts(train, valid, in_the_order_of(train.class_names, test))


def images_of(source: Path, part: str, request: Request) -> ImageSet:
    """The pictures of one part; those in folders of classes are mapped from the image cache."""
    folders = part_folders(source) if source.is_dir() else {}
    folder = folders.get(part) or (folders.get("validation") if part == "test" else None)
    if folder is None:
        raise UserError(f"{source} has no {part} images: it must have the folders train and val (or test).")
    size = request.size or SIZE
    if find_shards(folder):
        images = load(folder, size=size, channels=3)
    else:
        images = cached_folder(folder, size=size, cache=request.cache)
        images = images.with_labels(*folder_labels(images.names, folder))
    if images.labels is None or bool((images.labels < 0).any()):
        raise UserError(f"some images of {folder} have no class: put each into the folder of its class.")
    return images


def in_the_order_of(class_names: tuple[str, ...], images: ImageSet) -> ImageSet:
    """Labels by the place of their class in `class_names`, whichever of them these images have."""
    unknown = [name for name in images.class_names if name not in class_names]
    if unknown:
        raise UserError(f"the class {unknown[0]} of the test images is not among those of the training images.")
    places = torch.tensor([class_names.index(name) for name in images.class_names])
    return images.with_labels(places[labels_of(images)], class_names)


def with_share(of: Parts, share: int, seed: int) -> Parts:
    """Of the training images of every class `share` percent, at least one, keep their label."""
    labels = labels_of(of.train)
    hidden = hide_labels(labels, choose_labelled_share(labels, share, seed))
    return replace(of, train=of.train.with_labels(hidden, of.train.class_names))


def measure(row: str, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """Accuracies of the weights with the least validation error."""
    if row in NETWORKS:
        how = NETWORKS[row]
        network = started(lambda: how.build(of.train, request.smoke), seed)
        trained = train_network(how, network, of.train, of.valid, seed, place, request)
        return Measured(accuracies(trained.scores(trained.best, of.test), labels_of(of.test)), trained.before)
    setting = suited(SETTINGS[row], of.train)
    if row == ALONE:
        setting, of, _ = without_the_others(setting, of, request.smoke)
    learner = compose(setting, of.train, seed)
    ours = train(setting, learner, of, seed, place, request, **lasting(learner.plan.steps_per_epoch, request.smoke))
    scores = decision_values(*ours.weights(ours.best), of.test)
    return Measured(accuracies(scores, labels_of(of.test)), ours.before)


def lasting(steps_per_epoch: int, smoke: bool) -> dict[str, Any]:
    """STEPS steps, however many epochs these are."""
    if smoke:
        return {}
    return {"max_steps": STEPS, "validate_every": max(1, STEPS // VALIDATIONS // steps_per_epoch)}


def suited(row: LabelRow, images: ImageSet) -> LabelRow:
    """Three small layers for small photographs, those of Table 5 for ImageNet's size."""
    if images.shape == preset("imagenet").image_shape:
        return replace(row, layers=preset("imagenet").layers)
    return row.on("small") if images.shape[1:] == (SIZE, SIZE) else row


def accuracies(scores: Tensor, labels: Tensor) -> dict[str, float]:
    best = scores.topk(min(5, scores.shape[1]), 1).indices == labels[:, None]
    return {TOP1: 100 * float(best[:, 0].double().mean()), TOP5: 100 * float(best.any(1).double().mean())}
