"""Beyond the paper: photographs with few labels, on the features of a pretrained network.

    semisight reproduce photos --data CALTECH101 --n 2,5,10,30 --splits 0,1,2,3,4    features once, a minute a split
    semisight reproduce photos --data CIFAR10 --n 4,25,400 --splits 0,1,2,3,4        features once, 25 minutes
    semisight reproduce photos --compare caltech101/ours,caltech101/logistic-regression

CALTECH101 is a folder with one folder for each class (BACKGROUND_Google left out). Of every class 20 images are for the
test and N have a label, drawn by the split's number; all other images are unlabelled. The constants of `ours` were
chosen by hand on the test images of other splits (100 to 108) of these same photographs, so that splits share images
with those: only a set that nobody tuned on is a fair test of them. CIFAR10 (the folder of its binary files) is one:
20,000 of its training images, its own 10,000 test images, nothing chosen on any of them. Whether unlabelled images are
used, and the temperature, are chosen by cross-validation on the given labels. Features: EfficientNet-Lite2, pooled, the
plain view and one random part of each image (`ours` averages both; logistic regression and scikit-learn's
semi-supervised classifiers have the plain view, as people use them; `logistic-regression-two-views` has what `ours`
has).

    row                            what it is
    logistic-regression            scaling (standardised or unit length) and C by cross-validation on the given labels
    logistic-regression-two-views  the same scaling and C, fitted to both views, its probabilities averaged over both
    label-spreading                scikit-learn's LabelSpreading, k nearest neighbours, unit length
    self-training                  scikit-learn's SelfTrainingClassifier around the logistic regression
    ours                           code in closed form, head by soft EM, with few labels times a prior for each class,
                                   all cross-validated (runs/on_features.py)
    ours-labels-alone              the same head without the unlabelled images
    ours-without-class-prior       the same without that prior (as `ours` where it is not tried: 4 labels and more)
    class-prior                    the prior for each class alone: EM, the labels of all others summed over
    class-prior-labels-alone       the same without the unlabelled images in its means
    ours-without-bound             `ours` on the scaled features themselves: no image model
    ours-one-view                  `ours` with the plain view alone

Metrics: `error` in percent, `calibration_error` in percent, `nats` per test label. Expect 13.1 against 20.6 percent
with two labels of each class, 8.6 against 10.0 with ten; without the image model 13.9, and no difference with ten.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from semisight.data import load
from semisight.data.image_set import ImageSet
from semisight.data.sources import Kind, kind_of
from semisight.errors import UserError
from semisight.experiments import results
from semisight.experiments.table import Cell, Measured, Request, fill
from semisight.metrics.calibration import expected_calibration_error, negative_log_likelihood
from semisight.metrics.classification import error_rate
from semisight.model.encoders.features import FeatureEncoder
from semisight.model.posterior import batch_last, flat_code
from semisight.random import Stream, random_order
from semisight.runs.images import sets_of, with_features
from semisight.runs.on_features import WAYS, choose
from semisight.runs.settings import DataSettings
from semisight.training.class_prior import ClassPrior
from semisight.training.soft_em import mean_decision

TABLE = "photos"
BACKBONE, VIEWS, PER_CLASS = "efficientnet-lite2", 2, 20
MOST_TO_LEARN_FROM = 20_000  # of the images of a set that comes in parts: features of all would take an hour
METRICS = ("error", "calibration_error", "nats")


@dataclass(frozen=True)
class Split:
    """Features of each view, [N, C]; labels [N], -1 where unknown or of a test image; the test images' own labels."""

    views: list[Tensor]
    labels: Tensor
    test: Tensor  # positions
    truth: Tensor
    n_classes: int

    @property
    def train(self) -> Tensor:
        kept = torch.ones(len(self.labels), dtype=torch.bool)
        kept[self.test] = False
        return kept.nonzero().squeeze(1)


@dataclass(frozen=True)
class Photos:
    """Features of all images; the last `n_test` are the set's own test images, if it has any."""

    images: ImageSet
    n_test: int = 0


def split_of(photos: Photos, n: int, seed: int, per_class: int = PER_CLASS) -> Split:
    """Of every class n labels, drawn by the seed, and `per_class` test images where the set has none of its own."""
    images, n_train = photos.images, len(photos.images) - photos.n_test
    assert images.labels is not None
    test, labels = [torch.arange(n_train, len(images))], torch.full_like(images.labels, -1)
    per_class = 0 if photos.n_test else per_class
    for c in range(len(images.class_names)):
        members = (images.labels[:n_train] == c).nonzero().squeeze(1)
        if len(members) < per_class + 1:
            raise UserError(f"{images.class_names[c]} has {len(members)} images: {per_class} are needed for the test.")
        members = members[random_order(len(members), seed, Stream.PHOTOS, c + 1)]
        test.append(members[:per_class])
        given = members[per_class : per_class + n]
        labels[given] = images.labels[given]
    chosen = torch.cat(test).sort().values
    views = [view.flatten(1).float() for view in (images.images, *images.views)]
    return Split(views, labels, chosen, images.labels[chosen], len(images.class_names))


def run(request: Request) -> list[results.Row]:
    """Every cell that the results file does not hold yet."""
    photos, name = photos_of(request)
    per_class = 5 if request.smoke else PER_CLASS
    cells = [
        Cell(f"{name}/{row}", seed, METRICS, str(n))
        for n in ((2,) if request.smoke else request.n)
        for seed in request.splits
        for row in request.chosen(tuple(ROWS), "the table of photographs")
    ]
    splits: dict[tuple[int, int], Split] = {}

    def measure(cell: Cell, _: object) -> Measured:
        key = (int(cell.N), cell.seed)
        if key not in splits:
            splits.clear()
            splits[key] = split_of(photos(), *key, per_class)
        of = splits[key]
        p = ROWS[cell.row.split("/")[1]](of, cell.seed)
        return Measured(
            {
                "error": 100 * error_rate(p.argmax(1), of.truth),
                "calibration_error": 100 * expected_calibration_error(p, of.truth),
                "nats": negative_log_likelihood(p.clamp_min(1e-12), of.truth),
            }
        )

    return fill(TABLE, request, cells, measure)


def photos_of(request: Request) -> tuple[Callable[[], Photos], str]:
    """Read when the first cell is measured; at smoke size digits stand in, their pixels for features."""
    if request.smoke:
        data = DataSettings(source="builtin:digits", valid_fraction=0.0, limit=700)
        digits = sets_of(data, 0).train
        rows = digits.batch(torch.arange(len(digits))).flatten(1)[..., None, None]
        view = (rows + 0.05 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))).clamp_min(0)
        return lambda: Photos(ImageSet(rows, digits.names, digits.columns, views=(view,))), "smoke"
    source = str(request.source())
    has_parts = kind_of(source) is Kind.CIFAR

    @functools.cache
    def read() -> Photos:
        if not has_parts:
            data = DataSettings(
                source=source, class_per_folder=True, backbone=BACKBONE, views=VIEWS, valid_fraction=0.0
            )
            return Photos(sets_of(data, 0).train)
        parts = (load(source, part="train", limit=MOST_TO_LEARN_FROM), load(source, part="test"))
        train, test = (with_features(part, None, BACKBONE, VIEWS) for part in parts)
        assert train.labels is not None and test.labels is not None
        views = [torch.cat(pair) for pair in zip((train.images, *train.views), (test.images, *test.views), strict=True)]
        both = ImageSet(views[0], (*train.names, *(f"test/{name}" for name in test.names)), views=tuple(views[1:]))
        return Photos(both.with_labels(torch.cat([train.labels, test.labels]), train.class_names), len(test))

    return read, "cifar10" if has_parts else source.rstrip("/").rsplit("/", 1)[-1]


# ---- rows ----


def ours(of: Split, seed: int, n_views: int = VIEWS, with_bound: bool = True, ways: int = len(WAYS)) -> Tensor:
    learned, labels, test = codes_of_split(of, n_views, with_bound)
    chosen = choose(learned, labels, of.n_classes, seed, ways)
    decision = mean_decision(chosen.how(learned, labels, of.n_classes), test)
    return decision.softmax(1) if chosen.calibration is None else chosen.calibration.probabilities(decision)


def class_prior(of: Split, seed: int, how: ClassPrior) -> Tensor:
    """As it is: neither chosen nor calibrated by anything."""
    learned, labels, test = codes_of_split(of)
    return mean_decision(how(learned, labels, of.n_classes), test).softmax(1)


def codes_of_split(
    of: Split, n_views: int = VIEWS, with_bound: bool = True
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Codes of each view to learn from, their labels, and codes of each view of the test images."""
    train, views = of.train, of.views[:n_views]
    rows = views[0][train]
    encoder = FeatureEncoder.fit(rows, 256 if with_bound else rows.shape[1])
    if not with_bound:  # every direction as it is: the scaled features themselves
        encoder.axes.copy_(torch.eye(rows.shape[1])[:, : encoder.axes.shape[1]])
    codes = [flat_code(encoder.moments(batch_last(view[..., None, None]))[0]) for view in views]
    return [code[train] for code in codes], of.labels[train], [code[of.test] for code in codes]


def logistic_regression(of: Split, seed: int) -> Tensor:
    x, y, test = _plain(of)
    return _probabilities(_best_logistic(x, y, seed).fit(x, y), test, of.n_classes)


def logistic_regression_two_views(of: Split, seed: int) -> Tensor:
    """Scaling and C are those of the plain view: a fold that had one view of an image would know the other."""
    x, y, _ = _plain(of)
    best, known = _best_logistic(x, y, seed), of.labels >= 0
    model = best.fit(np.concatenate([view[known].numpy() for view in of.views]), np.tile(y, len(of.views)))
    said = [_probabilities(model, view[of.test].numpy(), of.n_classes) for view in of.views]
    return torch.stack(said).mean(0)


def label_spreading(of: Split, seed: int) -> Tensor:
    from sklearn.preprocessing import normalize
    from sklearn.semi_supervised import LabelSpreading

    rows, labels = normalize(of.views[0][of.train].numpy()), of.labels[of.train].numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LabelSpreading(kernel="knn", n_neighbors=10, alpha=0.8).fit(rows, labels)
        return _probabilities(model, normalize(of.views[0][of.test].numpy()), of.n_classes)


def self_training(of: Split, seed: int) -> Tensor:
    from sklearn.semi_supervised import SelfTrainingClassifier

    x, y, test = _plain(of)
    rows, labels = of.views[0][of.train].numpy(), of.labels[of.train].numpy()
    model = SelfTrainingClassifier(_best_logistic(x, y, seed), threshold=0.75).fit(rows, labels)
    return _probabilities(model, test, of.n_classes)


def _plain(of: Split) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    known = of.labels >= 0
    return of.views[0][known].numpy(), of.labels[known].numpy(), of.views[0][of.test].numpy()


def _best_logistic(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], seed: int):  # type: ignore[no-untyped-def]
    """Scaling and C by cross-validation on the given labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import Normalizer, StandardScaler

    folds = StratifiedKFold(max(2, min(3, int(np.bincount(y).min()))), shuffle=True, random_state=seed)
    grid = [
        {"scale": [StandardScaler()], "model__C": [0.0003, 0.001, 0.01, 0.1]},
        {"scale": [Normalizer()], "model__C": [1.0, 10.0, 100.0]},
    ]
    pipeline = Pipeline([("scale", StandardScaler()), ("model", LogisticRegression(max_iter=1000, tol=1e-6))])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GridSearchCV(pipeline, grid, cv=folds).fit(x, y).best_estimator_


def _probabilities(model: object, test: npt.NDArray[np.float32], n_classes: int) -> Tensor:
    found = torch.zeros(len(test), n_classes, dtype=torch.float64)
    said = np.nan_to_num(model.predict_proba(test))  # type: ignore[attr-defined]  # no neighbour has a label: nothing is said
    found[:, torch.as_tensor(model.classes_)] = torch.from_numpy(said).double()  # type: ignore[attr-defined]
    found[found.sum(1) == 0] = 1.0
    return found / found.sum(1, keepdim=True)


ROWS: dict[str, Callable[[Split, int], Tensor]] = {
    "logistic-regression": logistic_regression,
    "logistic-regression-two-views": logistic_regression_two_views,
    "label-spreading": label_spreading,
    "self-training": self_training,
    "ours": ours,
    "ours-labels-alone": lambda of, seed: ours(of, seed, ways=1),
    "ours-without-class-prior": lambda of, seed: ours(of, seed, ways=2),
    "class-prior": lambda of, seed: class_prior(of, seed, ClassPrior()),
    "class-prior-labels-alone": lambda of, seed: class_prior(of, seed, ClassPrior(weight=0.0)),
    "ours-without-bound": lambda of, seed: ours(of, seed, with_bound=False),
    "ours-one-view": lambda of, seed: ours(of, seed, n_views=1),
}
