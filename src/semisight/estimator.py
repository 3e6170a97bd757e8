"""`semisight.SemiSight`: the whole model behind scikit-learn's interface, a thin shell over runs/.

model = SemiSight().fit(images, labels)        labels: -1 or None where unknown; images alone work too
model.predict(more), .predict_proba(more)      labels, and how probable they are
model.transform(more), .score_samples(more)    codes, and a novelty score
model.caption(more)                            if fit(images, labels, captions) had captions
model.reconstruct(x), .sample(9), .impute(x)   pictures; impute fills pixels that are NaN
SemiSight(backbone="efficientnet-lite2")       the same on the features of a pretrained network; no impute
model.save("folder"); SemiSight.load("folder") the folder is one that every command takes as RUN

Labels [N, C] of 1, 0 and -1 are several labels per image: predict then gives [N, C] of 1 and 0.
"""

import dataclasses
import json
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

from semisight.backbones import resolve as resolve_backbone
from semisight.backbones.trusted import recorded_backbone, trust
from semisight.data.columns import CAPTIONS, LABELS, TAGS, CaptionColumn, Column, LabelColumn, TagColumn
from semisight.data.feature_cache import cached_features
from semisight.data.features import Features
from semisight.data.from_python import (
    Form,
    InputError,
    Layout,
    form_of,
    from_images,
    is_set,
    read_captions,
    read_labels,
    read_set,
    to_images,
    value_errors,
)
from semisight.data.image_set import ImageSet, skipped_summary
from semisight.data.preprocessing import Backbone
from semisight.data.sources import Kind, kind_of, load
from semisight.files import write_atomic
from semisight.inference.captions import Search
from semisight.inference.encode import mean_codes
from semisight.inference.imputation import impute
from semisight.inference.novelty import Novelty, learn_novelty, redraw_set, squared_error
from semisight.model.pixel_decoder import PixelDecoder
from semisight.random import Stream, random_order
from semisight.runs.images import Sets, parted
from semisight.runs.on_features import judge
from semisight.runs.pixels import Pictures, keep_pixels, learn_pixels, pixel_decoder
from semisight.runs.recipe import compose, suited
from semisight.runs.run import OWN_FEATURES, DataRecord, load_run
from semisight.runs.settings import Settings, resolve
from semisight.runs.train import save_run, train_in_memory
from semisight.training.folder import RunFolder
from semisight.untrusted import MOST_JSON, parse_json, read_bytes, read_text

Floats = npt.NDArray[np.float64]

IN_MEMORY = "arrays given in Python"
_ABOUT, _NOVELTY = "estimator.json", "novelty.safetensors"
_STEPS_BETWEEN_VALIDATIONS = 50
_MOST_NOVELTY = 1 << 30  # bytes
_VIEWS = 2  # of an image by a backbone: plain, and a random part in other light


# scikit-learn's conventions are inherited: cloning, parameters, scores and tags come from there.
class SemiSight(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Learns from images of which only some have a label or a caption.

    Images are arrays [N, H, W], [N, H, W, C] or [N, C, H, W] (whole numbers 0..255, floats 0..1, or any range that the
    training images show), rows of numbers with `image_shape`, lists of paths, a folder or other source of images, or
    an `ImageSet`. Features take the place of images: those of a pretrained network (`backbone`), or your own as
    `semisight.Features(array)`; labels are learned on them in closed form, and `max_steps` has no say. Pictures that
    such a model draws are small (32 x 32 at most) and blurred: a decoder that is learned beside it, and has no say in
    its codes, draws them; of your own features there are none.

    Args:
        max_steps: steps of learning; more is better and slower.
        image_shape: (H, W), (H, W, C) or (C, H, W) of images that come as rows; "square": rows are made into squares.
        backbone: a pretrained network whose features are learned from: a name, an .onnx file, a folder of transformers
            or a torch module that knows its preprocessing (`semisight.backbones.resolve`).
        pixel_range: the values that are black and white, if they are not 0..255 or 0..1.
        size: scale images to size x size.
        batch_size: images per step; by default as suits the number of labels.
        learning_rate: of Adam.
        head: what tells classes apart, "softmax" or "svm".
        consistency: learn from augmented images and pseudo-labels; False is the paper's setting.
        valid_fraction: share of the images set aside to pick weights and to calibrate.
        unknown_label: what stands for an unknown label besides None and NaN.
        settings: any other setting of `semisight train` by name.
        device: auto, cpu, cuda, cuda:1 or mps.
        threads: CPU threads.
        random_state: the same number gives the same model.
        verbose: show a bar while learning.

    After fit: `classes_` (if labels were given), `n_features_in_` (of rows), `run_` (the model with all its parts).

    Example:
        >>> import numpy as np
        >>> from semisight import SemiSight
        >>> rng = np.random.default_rng(0)
        >>> images = rng.random((40, 8, 8))
        >>> labels = np.where(np.arange(40) < 10, np.arange(40) % 2, -1)
        >>> model = SemiSight(max_steps=3, threads=1).fit(images, labels)
        >>> model.predict(images[:5]).shape
        (5,)

        On the features of a network, here one that has learned nothing:

        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 4, stride=4), torch.nn.ReLU())
        >>> network.pretrained_cfg = {"input_size": (3, 8, 8)}
        >>> model = SemiSight(backbone=network, threads=1).fit(images, labels)
        >>> model.reconstruct(images[:5]).shape, model.sample(2).shape
        ((5, 8, 8), (2, 8, 8))
    """

    __metadata_request__fit: ClassVar = {"labels": UNUSED}  # the second argument, which scikit-learn calls y

    def __init__(
        self,
        *,
        max_steps: int = 500,
        image_shape: tuple[int, ...] | str | None = None,
        backbone: Any = None,
        pixel_range: tuple[float, float] | None = None,
        size: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        head: str | None = None,
        consistency: bool | None = None,
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
        self.backbone = backbone
        self.pixel_range = pixel_range
        self.size = size
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.head = head
        self.consistency = consistency
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
        """Learns from images, from the labels of some, and from captions.

        Without `labels` (and `captions`) those that a set or a source carries are used.

        Args:
            images: see above.
            labels: one for each image, -1, None or NaN where unknown; or [N, C] of 1, 0 and -1 for several labels.
            captions: for each image a text, several, or None.

        Returns:
            The fitted estimator itself.
        """
        if self.backbone is not None or isinstance(images, Features):
            return self._fit_features(images, labels, captions)
        with value_errors():
            form, found = self._read_first(images)
            columns, classes = self._columns(found, labels, captions)
            found = dataclasses.replace(found, columns={column.name: column for column in columns})
            settings = self._settings()
            sets = parted(found, settings.data, settings.train.seed)
            recipe = compose(suited(settings, sets), sets)
            length = max(1, _STEPS_BETWEEN_VALIDATIONS // recipe.plan.steps_per_epoch)
            run = train_in_memory(recipe, length)
        self.form_, self.run_ = form, run
        self.data_ = DataRecord.of(settings.data, sets.train, sets.valid)
        if classes is not None:
            self.classes_ = classes
        elif "classes_" in vars(self):
            del self.classes_
        self._novelty: Novelty | None = self._learn_novelty(sets.train)
        self._pixels: PixelDecoder | None = None
        self._drawn_form: Form | None = None
        return self

    def _fit_features(self, images: Any, labels: Any, captions: Sequence[Any] | None) -> Self:
        """Labels on features, in closed form; all that is chosen is chosen by cross-validation."""
        with value_errors():
            given = isinstance(images, Features)
            pictures, self._drawn_form = (None, None) if given else self._pictures(images, first=True)
            found = self._features(images if pictures is None else pictures, None)
            columns, classes = self._columns(found, labels, captions)
            if [column.name for column in columns] != [LABELS]:
                raise InputError("on features labels are learned, one for each image: fit(features, labels)")
            sets = Sets(dataclasses.replace(found, columns={LABELS: columns[0]}), None)
            settings = self._settings()
            name = str(self.backbone) if isinstance(self.backbone, str | Path) else None
            if name is not None:
                trust(name)  # the saved model may use it from now on
            settings = settings.replace({"backbone": name, "views": 1 + len(found.views)})
            self.run_ = judge(settings, sets).learn()
            self._pixels = None if pictures is None else learn_pixels(self.run_, pictures, sets.train)
        self.form_, self.data_ = Form("features", found.shape), DataRecord.of(settings.data, sets.train, None)
        assert classes is not None
        self.classes_ = classes
        self._novelty = self._learn_novelty(sets.train)
        return self

    def _features(self, images: Any, shape: tuple[int, int, int] | None) -> ImageSet:
        """Features as a set: those given, or what the backbone makes of images; of this shape, once it is known."""
        if isinstance(images, Features):
            views = [images.values(None, view) for view in range(images.views)]
            found = ImageSet(views[0], images.names, source=images.source, views=tuple(views[1:]))
        else:
            spec = self.backbone
            if spec is None and self.__sklearn_is_fitted__() and self.run_.backbone != OWN_FEATURES:
                spec = recorded_backbone(str(self.run_.backbone))
            if spec is None:
                raise InputError("this model learned from features of your own: give them as semisight.Features(array)")
            found = self._by_backbone(images, resolve_backbone(spec))
        if shape is not None and found.shape != shape:
            raise InputError(f"features have {found.shape[0]} numbers for each image, the model takes {shape[0]}")
        return found

    def _pictures(self, images: Any, first: bool = False) -> tuple[Pictures, Form | None]:
        """Images as a network and the decoder beside the model read them, and the form of those that are numbers.

        Files stay files: a network has a size of its own. What is black and white is decided by the `first` ones.
        """
        if isinstance(images, str | Path) and kind_of(images) is not Kind.PICTURES:
            images = load(images)
        if is_set(images):
            return images, None
        array, limits = self._array(images, reset=first), self.pixel_range
        if not first and limits is None and self._drawn_form is not None:
            limits = self._drawn_form.pixel_range
        form = form_of(array, self.image_shape, None, limits)
        return _as_set(to_images(array, form, self.image_shape)), form

    def _by_backbone(self, images: Pictures, network: Backbone) -> ImageSet:
        columns: Mapping[str, Column] = images.columns if isinstance(images, ImageSet) else {}
        made = cached_features(images, network, views=_VIEWS)
        if made.skipped:
            raise InputError(f"{skipped_summary(made.skipped)}: leave them out")
        views = [made.values(None, view) for view in range(made.views)]
        return ImageSet(views[0], made.names, columns, source=made.source, views=tuple(views[1:]))

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
            "consistency": self.consistency,
            "valid_fraction": self.valid_fraction,
            "device": self.device,
            "threads": self.threads,
        }
        quiet = {"progress": self.verbose, "tensorboard": False, "validate_every": 1, "checkpoint_minutes": None}
        settings = resolve({"source": IN_MEMORY, **quiet, **chosen, **(self.settings or {})})
        # the limit is in steps: no default of epochs or patience may end it before
        train = dataclasses.replace(settings.train, max_epochs=None, patience=None)
        return dataclasses.replace(settings, train=train, chosen=settings.chosen | {"max_epochs", "patience"})

    def _read_first(self, images: Any) -> tuple[Form, ImageSet]:
        if is_set(images):
            found = read_set(images, self.size)
            return Form("planes" if found.shape[0] == 1 else "last", found.shape), found
        array = self._array(images, reset=True)
        form = form_of(array, self.image_shape, self.size, self.pixel_range)
        return form, _as_set(to_images(array, form, self.image_shape))

    def _columns(
        self, images: ImageSet, labels: Any, captions: Sequence[Any] | None
    ) -> tuple[list[Column], npt.NDArray[Any] | None]:
        """What the images carry, and the classes."""
        columns: list[Column] = []
        classes: npt.NDArray[Any] | None = None
        shape = () if labels is None or isinstance(labels, list | tuple) else np.asarray(labels).shape
        if len(shape) == 2 and shape[1] > 1:
            column = self._tags(images, labels)
            columns, classes = [column], np.arange(len(column.names))
        else:
            found = self._labels(images, labels)
            if found is not None:
                columns, classes = [found[0]], found[1]
            elif labels is None and images.tags is not None:
                columns, classes = [images.tags], np.array(images.tags.names)
        texts = images.captions if captions is None else read_captions(captions, len(images))
        if texts is not None and any(texts):
            columns.append(CaptionColumn(tuple(texts)))
        return columns, classes

    def _labels(self, images: ImageSet, labels: Any) -> tuple[LabelColumn, npt.NDArray[Any]] | None:
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
        return LabelColumn(known.numbers, known.names), known.classes

    def _tags(self, images: ImageSet, labels: Any) -> TagColumn:
        values = np.asarray(labels, dtype=np.float64)
        check_consistent_length(np.empty(len(images)), values)
        values = np.where(np.isnan(values), -1, values)
        if not np.isin(values, (-1, 0, 1)).all():
            raise InputError("labels [N, C] are several labels per image: 1 (has it), 0 (has it not) or -1 (unknown)")
        return TagColumn(torch.from_numpy(values.astype(np.int8)), tuple(str(c) for c in range(values.shape[1])))

    def _learn_novelty(self, train: ImageSet) -> Novelty:
        some = train.subset(random_order(len(train), 0, Stream.NOVELTY_SAMPLE)[:4000])
        redrawn = redraw_set(self.run_.model, some)
        return learn_novelty(redrawn.codes, squared_error(some.batch(torch.arange(len(some))), redrawn.images))

    # ---- using what was learned ----

    def predict(self, images: Any) -> npt.NDArray[Any]:
        """The most probable label of each image; with several labels per image [N, C] of 1 and 0."""
        values = self._probabilities(images)
        if self.run_.has(TAGS):
            return (values >= 0.5).astype(np.int64)
        return self.classes_[values.argmax(1)]

    def predict_proba(self, images: Any) -> Floats:
        """[N, classes]: how probable each label is; calibrated where enough labels could be held out."""
        return self._probabilities(images)

    def _probabilities(self, images: Any) -> Floats:
        check_is_fitted(self)
        if not (self.run_.has(LABELS) or self.run_.has(TAGS)):
            raise InputError("this model was fitted without labels: fit(images, labels) learns them")
        with value_errors():
            if self.run_.has(TAGS):
                return self.run_.tag(self._set(images)).probabilities.double().numpy()
            values = self.run_.predict(self._set(images)).probabilities.double().numpy()
        return values / values.sum(1, keepdims=True)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of right labels; with several labels per image, of right entries among the known ones."""
        check_is_fitted(self)
        if self.run_.has(TAGS):
            known = np.asarray(y) >= 0
            return float((self.predict(X) == np.asarray(y))[known].mean())
        return float(super().score(X, y, sample_weight))

    def transform(self, images: Any) -> Floats:
        """[N, J]: the codes, as means of q(s | X)."""
        check_is_fitted(self)
        with value_errors():
            return self._codes(self._set(images)).double().numpy()

    def _codes(self, images: ImageSet) -> Tensor:
        return mean_codes(self.run_.model, images)

    @property
    def _n_features_out(self) -> int:
        return int(self.run_.model.code_size)

    def score_samples(self, images: Any) -> Floats:
        """[N]: a novelty score. 0 is the middle of the training images, far below is strange."""
        check_is_fitted(self)
        if self._novelty is None:
            raise InputError("this model was not fitted in Python and does not know how its training images vary")
        with value_errors():
            found = self._set(images)
            redrawn = redraw_set(self.run_.model, found)
            unlike = squared_error(found.batch(torch.arange(len(found))), redrawn.images)
            return self._novelty.score(redrawn.codes, unlike).numpy()

    def caption(self, images: Any, n_codes: int = 20, beam: int = 5) -> list[str]:
        """The best caption of each image."""
        check_is_fitted(self)
        if not self.run_.has(CAPTIONS):
            raise InputError("this model was fitted without captions: fit(images, labels, captions) learns them")
        with value_errors():
            found = self.run_.caption(self._set(images), Search(n_codes=n_codes, beam=beam))
            return [best[0].text if best else "" for best in found]

    def reconstruct(self, images: Any) -> Floats:
        """The images as the model draws them from their codes, in the layout and range of the training images."""
        with value_errors():
            decoder = self._decoder()
            found = self._set(images)
            drawn = redraw_set(self.run_.model, found).images if decoder is None else decoder(self._codes(found))
            return self._as_given(drawn)

    def sample(self, n: int = 1, random_state: Any = 0) -> Floats:
        """n images that the model makes up."""
        with value_errors(), torch.no_grad():
            decoder = self._decoder()
            seed = int(check_random_state(random_state).randint(2**31 - 1))
            draw = self.run_.model.generate if decoder is None else decoder.sample
            return self._as_given(draw(n, torch.Generator().manual_seed(seed)).cpu())

    def impute(self, images: Any) -> Floats:
        """The images with every pixel that is NaN drawn by the model; the others stay as they are."""
        check_is_fitted(self)
        if self.form_.layout == "features":
            raise InputError("impute fills in pixels, and this model learned from features: fit one without a backbone")
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

    def _decoder(self) -> PixelDecoder | None:
        """What draws the pictures of a model of features; None of one that draws them itself."""
        check_is_fitted(self)
        if self.form_.layout == "features" and self._pixels is None:
            raise InputError("this model was fitted to features without their pictures: it draws no pictures")
        return self._pixels

    def _as_given(self, drawn: Tensor) -> Floats:
        """Pictures [N, C, H, W] in [0, 1] as the training images came; after files as [N, H, W] or [N, H, W, C]."""
        form = self.form_
        if form.layout == "features":
            shape: tuple[int, int, int] = (drawn.shape[1], drawn.shape[2], drawn.shape[3])
            form = self._drawn_form or Form("planes" if shape[0] == 1 else "last", shape)
            if form.layout == "rows" and shape != form.shape:
                raise InputError(
                    f"the model draws pictures of {shape[2]} x {shape[1]}, which do not go back to rows: fit it to "
                    "images [N, H, W, C]"
                )
        return from_images(drawn, form, self.image_shape)

    # ---- keeping it ----

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Writes a folder of safetensors and JSON that `load`, and every command that takes a RUN, can read."""
        check_is_fitted(self)
        path = Path(folder).expanduser()
        if not overwrite and path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InputError(f"{path} is not empty: choose another folder, or give overwrite=True")
        with value_errors():
            save_run(self.run_, path, self.data_)
            keep_pixels(RunFolder(path), self._pixels)
        if self._novelty is not None:
            write_atomic(path / _NOVELTY, save_tensors(dataclasses.asdict(self._novelty)))
        write_atomic(path / _ABOUT, json.dumps(self._about(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Self:
        """What `save` wrote, or a run of `semisight train`."""
        path = Path(folder).expanduser()
        with value_errors():
            model = cls(device=device)
            run = model.run_ = load_run(path, device=device)
            model.data_ = run.data()
            shape = run.architecture.image_shape
            layout: Layout = "features" if run.backbone is not None else "planes" if shape[0] == 1 else "last"
            model.form_, model._novelty, model._drawn_form = Form(layout, shape), None, None
            decoder = pixel_decoder(run)
            model._pixels = None if decoder is None else decoder.cpu()
            if run.has(LABELS) or run.has(TAGS):
                model.classes_ = np.array(run.labels.class_names if run.has(LABELS) else run.tags.names)
            try:
                if (path / _ABOUT).exists():
                    about = parse_json(read_text(path / _ABOUT, MOST_JSON), str(path / _ABOUT))
                    params = {name: _tuple(value) for name, value in about["params"].items() if name != "backbone"}
                    model.set_params(**params, device=device)
                    model.form_ = Form.from_dict(about["form"])
                    if about.get("drawn_form") is not None:
                        model._drawn_form = Form.from_dict(about["drawn_form"])
                    if about["classes"] is not None:
                        model.classes_ = _classes(about["classes"])
                    if about["n_features_in"] is not None:
                        model.n_features_in_ = int(about["n_features_in"])
                    model._novelty = Novelty(**load_tensors(read_bytes(path / _NOVELTY, _MOST_NOVELTY)))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path} is damaged ({type(error).__name__}: {error})") from error
        return model

    def _about(self) -> dict[str, Any]:
        params = {name: value for name, value in self.get_params().items() if _is_plain(value)}
        classes = None
        if "classes_" in vars(self):
            classes = {"kind": self.classes_.dtype.kind, "values": self.classes_.tolist()}
        for name in ("device", "backbone"):  # the run itself names its network
            params.pop(name, None)
        about = {"params": params, "form": self.form_.to_dict(), "classes": classes}
        about["n_features_in"] = vars(self).get("n_features_in_")
        about["drawn_form"] = None if self._drawn_form is None else self._drawn_form.to_dict()
        return about

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
        if self.form_.layout == "features":
            given = images if isinstance(images, Features) else self._pictures(images)[0]
            return self._features(given, self.form_.shape)
        if isinstance(images, Features):
            raise InputError("this model learned from images, not from features")
        if is_set(images):
            return read_set(images, self.size, self.form_.shape)
        return _as_set(to_images(self._array(images, reset=False), self.form_, self.image_shape))


def _as_set(pixels: Tensor) -> ImageSet:
    return ImageSet.of(pixels, tuple(f"{i:06d}" for i in range(len(pixels))), source="images")


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _classes(about: Mapping[str, Any]) -> npt.NDArray[Any]:
    return np.array(about["values"], dtype={"i": np.int64, "u": np.uint64, "b": np.bool_}.get(about["kind"]))
