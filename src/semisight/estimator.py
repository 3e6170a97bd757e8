"""`semisight.SemiSight`: the whole model behind scikit-learn's interface.

model = SemiSight().fit(images, labels)        labels: -1 or None where unknown; images alone work too
model.predict(more), .predict_proba(more)      labels, and how probable they are
model.transform(more), .score_samples(more)    codes, and how usual an image is
model.caption(more)                            if fit(images, labels, captions) had captions
model.reconstruct(x), .sample(9), .impute(x)   pictures; impute fills pixels that are NaN
model.save("folder"); SemiSight.load("folder") the folder is one that every command takes as RUN
"""

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from semisight.data.columns import CAPTIONS, LABELS, TAGS, CaptionColumn
from semisight.data.image_set import ImageSet
from semisight.estimator_input import (
    Form,
    InputError,
    Labels,
    form_of,
    from_images,
    is_set,
    read_captions,
    read_labels,
    read_set,
    to_images,
    value_errors,
)
from semisight.estimator_learning import IN_MEMORY, files_of, learn
from semisight.files import write_atomic
from semisight.inference.imputation import impute
from semisight.inference.novelty import Usual, draw_set, learn_usual, squared_error
from semisight.random import Stream, random_order
from semisight.runs.captioner import Search
from semisight.runs.images import parted
from semisight.runs.run import Run, load_run
from semisight.runs.settings import Settings, resolve
from semisight.runs.train import suited
from semisight.training.folder import RunFolder

Floats = npt.NDArray[np.float64]

_ABOUT, _USUAL = "estimator.json", "usual.safetensors"


# scikit-learn's conventions are inherited: cloning, parameters, scores and tags come from there.
class SemiSight(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Learns from images of which only some have a label or a caption.

    Images are arrays [N, H, W], [N, H, W, C] or [N, C, H, W] (whole numbers 0..255, floats 0..1, or any range that the
    training images show), rows of numbers with `image_shape`, lists of paths, a folder or other source of images, or
    an `ImageSet`.

    max_steps       steps of learning; more is better and slower
    image_shape     (H, W), (H, W, C) or (C, H, W) of images that come as rows
    pixel_range     the values that are black and white, if they are not 0..255 or 0..1
    size            scale images to size x size
    batch_size, learning_rate, head, pull, valid_fraction, device, threads   as the options of `semisight train`
    unknown_label   what stands for an unknown label besides None and NaN
    settings        any other setting of `semisight train` by name
    random_state    the same number gives the same model
    verbose         show a bar while learning

    After fit: `classes_` (if labels were given), `n_features_in_` (of rows), `run_` (the model with all its parts).
    """

    __metadata_request__fit: ClassVar = {"labels": UNUSED}  # the second argument, which scikit-learn calls y

    def __init__(
        self,
        *,
        max_steps: int = 500,
        image_shape: tuple[int, ...] | None = None,
        pixel_range: tuple[float, float] | None = None,
        size: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        head: str | None = None,
        pull: bool | None = None,
        valid_fraction: float = 0.1,
        unknown_label: Any = -1,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        threads: int | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.max_steps = max_steps
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.size = size
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.head = head
        self.pull = pull
        self.valid_fraction = valid_fraction
        self.unknown_label = unknown_label
        self.settings = settings
        self.device = device
        self.threads = threads
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.input_tags.three_d_array = True
        return tags

    # ---- learning ----

    def fit(self, images: Any, labels: Any = None, captions: Sequence[Any] | None = None) -> Self:
        """Learns from images, from the labels of some, and from captions (a text, several, or None for each image).

        Without `labels` (and `captions`) those that a set or a source carries are used.
        """
        with value_errors():
            form, found = self._read_first(images)
            known = self._known_labels(found, labels)
            if captions is not None:
                found = found.with_column(CaptionColumn(read_captions(captions, len(found))))
            elif found.captions is not None and not any(found.captions):
                found = found.without_column(CAPTIONS)
            found = found.without_column(LABELS, TAGS)
            if known is not None:
                found = found.with_labels(known.numbers, known.names)
            settings = self._settings()
            sets = parted(found, settings.data, settings.train.seed)
            files = learn(suited(settings, sets), sets)
        self.form_ = form
        if known is not None:
            self.classes_ = known.classes
        elif "classes_" in vars(self):
            del self.classes_
        self._files = files
        self._open()
        self._usual: Usual | None = self._learn_usual(sets.train)
        return self

    def _settings(self) -> Settings:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if isinstance(self.random_state, int | np.integer):
            seed = int(self.random_state)
        chosen = {
            "seed": seed,
            "max_steps": self.max_steps,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "head": self.head,
            "pull": self.pull,
            "valid_fraction": self.valid_fraction,
            "device": self.device,
            "threads": self.threads,
        }
        # what a run in a temporary folder has no use for
        quiet = {"progress": self.verbose, "tensorboard": False, "validate_every": 1}
        settings = resolve({"source": IN_MEMORY, **quiet, **chosen, **(self.settings or {})})
        train = dataclasses.replace(settings.train, max_epochs=None, patience=None, checkpoint_minutes=None)
        return dataclasses.replace(settings, train=train, chosen=settings.chosen | {"max_epochs", "patience"})

    def _read_first(self, images: Any) -> tuple[Form, ImageSet]:
        if is_set(images):
            found = read_set(images, self.size)
            return Form("planes" if found.shape[0] == 1 else "last", found.shape), found
        array = self._array(images, reset=True)
        form = form_of(array, self.image_shape, self.size, self.pixel_range)
        return form, _as_set(to_images(array, form, self.image_shape))

    def _known_labels(self, images: ImageSet, labels: Any) -> Labels | None:
        if labels is None:
            if images.labels is None or not bool((images.labels >= 0).any()):
                return None
            names = np.array(images.class_names)
            labels = [None if c < 0 else names[c] for c in images.labels.tolist()]
        values = labels if isinstance(labels, list | tuple) else column_or_1d(labels, warn=True)
        check_consistent_length(np.empty(len(images)), values)
        known = read_labels(values, self.unknown_label)
        if not len(known.classes):
            return None
        check_classification_targets(known.classes)
        if len(known.classes) < 2:
            raise InputError(
                f"all known labels are one class, {known.classes[0]!r}: there is nothing to tell apart; "
                "give labels of at least two classes, or none"
            )
        return known

    def _learn_usual(self, train: ImageSet) -> Usual:
        order = random_order(len(train), 0, Stream.NOVELTY_SAMPLE)[:4000]
        some = train.subset(order)
        drawn = draw_set(self.run_.model, some)
        return learn_usual(drawn.codes, squared_error(some.batch(torch.arange(len(some))), drawn.images))

    # ---- using what was learned ----

    def predict(self, images: Any) -> npt.NDArray[Any]:
        """The most probable label of each image."""
        best = self._probabilities(images).argmax(1)
        return self.classes_[best]

    def predict_proba(self, images: Any) -> Floats:
        """[N, classes]: how probable each label is; calibrated where enough labels could be held out."""
        return self._probabilities(images)

    def _probabilities(self, images: Any) -> Floats:
        check_is_fitted(self)
        if self.run_.classifier is None:
            raise InputError("this model was fitted without labels: fit(images, labels) learns them")
        with value_errors():
            found = self.run_.classifier(self._set(images))
        values = found.probabilities.double().numpy()
        return values / values.sum(1, keepdims=True)

    def transform(self, images: Any) -> Floats:
        """[N, J]: the codes, as means of q(s | X)."""
        check_is_fitted(self)
        with value_errors():
            return draw_set(self.run_.model, self._set(images)).codes.double().numpy()

    @property
    def _n_features_out(self) -> int:
        return int(self.run_.architecture.code_size)

    def score_samples(self, images: Any) -> Floats:
        """[N]: how usual each image is. 0 is the middle of the training images, far below is strange."""
        check_is_fitted(self)
        if self._usual is None:
            raise InputError("this model was not fitted in Python and does not know how usual its training images were")
        with value_errors():
            found = self._set(images)
            drawn = draw_set(self.run_.model, found)
            unlike = squared_error(found.batch(torch.arange(len(found))), drawn.images)
            return self._usual.score(drawn.codes, unlike).numpy()

    def caption(self, images: Any, n_codes: int = 20, beam: int = 5) -> list[str]:
        """The best caption of each image."""
        check_is_fitted(self)
        if self.run_.captioner is None:
            raise InputError("this model was fitted without captions: fit(images, labels, captions) learns them")
        with value_errors():
            found = self.run_.captioner(self._set(images), search=Search(n_codes=n_codes, beam=beam))
            return [best[0].text if best else "" for best in found]

    def reconstruct(self, images: Any) -> Floats:
        """The images as the model draws them from their codes, in the layout and range of the training images."""
        check_is_fitted(self)
        with value_errors():
            drawn = draw_set(self.run_.model, self._set(images))
            return from_images(drawn.images, self.form_, self.image_shape)

    def sample(self, n: int = 1, random_state: Any = 0) -> Floats:
        """n images that the model makes up."""
        check_is_fitted(self)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        with value_errors(), torch.no_grad():
            drawn = self.run_.model.generate(n, torch.Generator().manual_seed(seed)).cpu()
            return from_images(drawn, self.form_, self.image_shape)

    def impute(self, images: Any) -> Floats:
        """The images with every pixel that is NaN drawn by the model; the others stay as they are."""
        check_is_fitted(self)
        array = check_array(images, allow_nd=True, ensure_all_finite="allow-nan", dtype=np.float64)
        with value_errors():
            pixels = to_images(array, self.form_, self.image_shape)
            known, device = ~pixels.isnan(), self.run_.device
            parts = [
                impute(self.run_.model, x.nan_to_num(0.0).to(device), there.to(device)).cpu()
                for x, there in zip(pixels.split(250), known.split(250), strict=True)
            ]
            filled = from_images(torch.cat(parts), self.form_, self.image_shape)
        if filled.shape != array.shape:
            raise InputError(f"images {list(array.shape)} come in another form than those of the training")
        return np.where(np.isnan(array), filled, array)

    # ---- keeping it ----

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Writes a folder of safetensors and JSON that `load`, and every command that takes a RUN, can read."""
        check_is_fitted(self)
        path = Path(folder).expanduser()
        if not overwrite and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} is not empty: choose another folder, or give overwrite=True")
        for name, content in self._files.items():
            write_atomic(path / name, content)
        if self._usual is not None:
            write_atomic(path / _USUAL, save_tensors(dataclasses.asdict(self._usual)))
        write_atomic(path / _ABOUT, json.dumps(self._about(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Self:
        """What `save` wrote, or a run of `semisight train`."""
        path = Path(folder).expanduser()
        with value_errors():
            run = load_run(path, device=device)
            model = cls(device=device)
            form, usual = Form("planes" if run.architecture.image_shape[0] == 1 else "last", (0, 0, 0)), None
            form = dataclasses.replace(form, shape=run.architecture.image_shape)
            classes = None if run.classifier is None else np.array(run.classifier.class_names)
            try:
                if (path / _ABOUT).exists():
                    about = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
                    model.set_params(**{name: _tuple(value) for name, value in about["params"].items()}, device=device)
                    form, classes = Form.from_dict(about["form"]), _classes(about["classes"])
                    if about["n_features_in"] is not None:
                        model.n_features_in_ = int(about["n_features_in"])
                    usual = Usual(**load_tensors((path / _USUAL).read_bytes()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} is damaged ({type(error).__name__}: {error})") from error
            model._files = files_of(RunFolder(path), run.checkpoint)
        model.form_, model._usual = form, usual
        if classes is not None:
            model.classes_ = classes
        model._open()
        return model

    def _about(self) -> dict[str, Any]:
        params = {name: value for name, value in self.get_params().items() if _is_plain(value)}
        classes = None
        if "classes_" in vars(self):
            classes = {"kind": self.classes_.dtype.kind, "values": self.classes_.tolist()}
        params.pop("device", None)
        n_features = vars(self).get("n_features_in_")
        return {"params": params, "form": self.form_.to_dict(), "classes": classes, "n_features_in": n_features}

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("run_", None)  # made again from the files
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "_files" in state:
            self._open()

    def _open(self) -> None:
        """The run, from its files."""
        with tempfile.TemporaryDirectory(prefix="semisight-") as folder:
            for name, content in self._files.items():
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            self.run_: Run = load_run(folder, device=self.device)

    def __sklearn_is_fitted__(self) -> bool:
        return "run_" in vars(self)

    # ---- images ----

    def _array(self, images: Any, reset: bool) -> npt.NDArray[Any]:
        """Numbers, checked; rows also against the number of features seen by fit."""
        if isinstance(images, Tensor):
            images = images.detach().cpu().numpy()
        n_axes = getattr(images, "ndim", None)  # of arrays, sparse matrices and tables alike
        if n_axes is None:
            try:
                n_axes = np.asarray(images).ndim
            except ValueError:  # ragged: scikit-learn has the words for it
                n_axes = 2
        if n_axes > 2:
            array = np.asarray(images)
            kind = {} if array.dtype.kind in "bui" else {"dtype": [np.float64, np.float32]}
            return np.asarray(check_array(array, allow_nd=True, **kind))
        return np.asarray(validate_data(self, images, reset=reset, dtype=[np.float64, np.float32, np.uint8, np.int64]))

    def _set(self, images: Any) -> ImageSet:
        if is_set(images):
            return read_set(images, self.size, self.form_.shape)
        return _as_set(to_images(self._array(images, reset=False), self.form_, self.image_shape))


def _as_set(pixels: Tensor) -> ImageSet:
    return ImageSet(pixels, tuple(f"{i:06d}" for i in range(len(pixels))), source="images")


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _classes(about: Mapping[str, Any] | None) -> npt.NDArray[Any] | None:
    if about is None:
        return None
    return np.array(about["values"], dtype={"i": np.int64, "u": np.uint64, "b": np.bool_}.get(about["kind"]))
