"""What the rows of Table 3 learn from and with: images in three parts, a network and settings for each data set."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from semisight.data.builtin.scenes import Facts, facts_of, make_scenes, read_scenes
from semisight.data.caption_files import read_captions
from semisight.data.columns import CaptionColumn
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet, split
from semisight.errors import UserError
from semisight.model.architecture import Layer
from semisight.random import Stream, random_order
from semisight.runs.caption_training import CaptionSettings

SCENES = "builtin:scenes"
N_PICK, N_SCENES, N_REPORT = 500, 8000, 1000
REPORT_SEED = 1_000_003  # scenes that no split number trains on

_TOP = (Layer(32, 3, 2, "same"), Layer(64, 3, 2, "same"), Layer(96, 5))
LAYERS = {64: (Layer(16, 5, 2, "same"), *_TOP), 128: (Layer(24, 5, 4, "same"), *_TOP)}  # 64-32-16-8-4, 128-32-16-8-4
# 64-32-16-2-1, 128-32-16-2-1: 5 x 5 of the 16 x 16 places hold a small shape. Pooled over a quarter of the picture, a
# shape learned in one place is known in all; with places in the code it is learned in each of them anew.
_POOLED = (Layer(32, 5, 2, "same"), Layer(96, 5, 8, "same"), Layer(192, 2))
SCENE_LAYERS = {64: (Layer(16, 5, 2, "same"), *_POOLED), 128: (Layer(24, 5, 4, "same"), *_POOLED)}
SMOKE_SIZE, SMOKE_LAYERS = 16, (Layer(6, 3, 2, "same"), Layer(8, 5))


@dataclass(frozen=True)
class Setting:
    """How the learned rows are trained; images without a caption come beside `batch_size` captioned ones."""

    captions: CaptionSettings
    steps: int
    batch_size: int = 32
    learning_rate: float = 2e-3
    average: float | None = 0.99
    head_start: bool = False  # `steps` of the image model alone before captions are learned with it
    patience: int | None = None  # steps without a lower perplexity after which no more captions are learned


_OURS = CaptionSettings(
    hidden_size=256, embedding_size=256, start="wide", pull=True, xi_scale=10.0, captions_per_step=None
)
# People word one picture in many ways, so few words are sure; to look for them would take half as long again.
FLICKR = Setting(
    replace(_OURS, confident=0.0, captions_per_step=2), steps=2000, learning_rate=1e-3, head_start=True, patience=800
)
SCENE = Setting(replace(_OURS, min_count=1), steps=3000)
SMOKE = Setting(
    replace(_OURS, min_count=1, hidden_size=8, embedding_size=8, captioned_per_batch=4),
    steps=2,
    batch_size=8,
    head_start=True,
)


@dataclass(frozen=True)
class Sets:
    """Images with captions: to learn from, to pick weights by, and to report on (with what is to be seen, if known)."""

    dataset: str
    train: ImageSet
    pick: ImageSet
    report: ImageSet
    facts: tuple[Facts, ...] | None
    setting: Setting
    layers: tuple[Layer, ...]


def sets(data: str | Path, size: int, seed: int, smoke: bool = False, cache: Path | None = None) -> Sets:
    if str(data) == SCENES:
        return _scenes(size, seed, smoke)
    if str(data).startswith("builtin:"):
        raise UserError(
            f"Table 3 is measured on {SCENES} (without options) or on the folder of Flickr8k, not on {data}"
        )
    return _flickr8k(Path(data), size, seed, smoke, cache)


def _scenes(size: int, seed: int, smoke: bool) -> Sets:
    side, n_train, n_pick, n_report = (SMOKE_SIZE, 40, 12, 12) if smoke else (size, N_SCENES, N_PICK, N_REPORT)
    train, pick = split(read_scenes(n_train + n_pick, side, seed), n_pick, seed)
    report = read_scenes(n_report, side, REPORT_SEED)
    facts = tuple(facts_of(scene) for scene in make_scenes(n_report, REPORT_SEED))
    setting, layers = (SMOKE, SMOKE_LAYERS) if smoke else (SCENE, SCENE_LAYERS[size])
    return Sets("scenes", train, pick, report, facts, setting, layers)


def _flickr8k(folder: Path, size: int, seed: int, smoke: bool, cache: Path | None) -> Sets:
    """Each part from a cache of its own: images stay on the disk, mapped."""
    table = read_captions(folder / "dataset_flickr8k.json", folder / "Images")
    train, val = table.subset("train"), table.subset("val")
    order = random_order(len(train), seed, Stream.TABLE3_PICK).tolist()
    n_pick = min(N_PICK, len(train) // 4)
    parts = []
    for of, chosen in ((train, sorted(order[n_pick:])), (train, sorted(order[:n_pick])), (val, range(len(val)))):
        captions = {of.names[i]: of.captions[i] for i in chosen}
        side = SMOKE_SIZE if smoke else size
        images = cached_folder(folder / "Images", size=side, names=list(captions), cache=cache)
        parts.append(images.with_column(CaptionColumn(tuple(captions[name] for name in images.names))))
    setting, layers = (SMOKE, SMOKE_LAYERS) if smoke else (FLICKR, LAYERS[size])
    return Sets("flickr8k", parts[0], parts[1], parts[2], None, setting, layers)


def varied(kind: str, of: Sets) -> Sets:
    """What a row changes in the images or in the settings."""
    if kind == "blind":
        mean = of.train.mean_image()
        train, pick, report = (of_mean(images, mean) for images in (of.train, of.pick, of.report))
        return replace(of, train=train, pick=pick, report=report, setting=replace(of.setting, head_start=False))
    if kind == "joint-half-steps":
        return replace(of, setting=replace(of.setting, steps=of.setting.steps // 2))
    if kind == "joint-half-model":
        words = of.setting.captions
        words = replace(words, hidden_size=words.hidden_size // 2, embedding_size=words.embedding_size // 2)
        layers = tuple(replace(layer, maps=layer.maps // 2) for layer in of.layers)
        return replace(of, setting=replace(of.setting, captions=words), layers=layers)
    return of


def of_mean(images: ImageSet, mean: Tensor) -> ImageSet:
    """Every picture replaced by `mean`; no memory is taken for the copies."""
    return replace(images, images=mean.expand(len(images), *mean.shape))


def captions_of(images: ImageSet) -> tuple[tuple[str, ...], ...]:
    assert images.captions is not None
    return images.captions
