"""Section 5.3, Table 3: captions of Flickr8k at 64 and 128 pixels, and of *scenes*.

    semisight reproduce table3 --data FLICKR8K --rows 64/two-step,64/joint            at most 40 minutes a row
    semisight reproduce table3 --data FLICKR8K --rows 128/joint --minutes 90
    semisight reproduce table3 --data builtin:scenes --minutes 30

FLICKR8K holds Images/ and dataset_flickr8k.json. Weights are picked by the perplexity of captions of 500 images of its
training part that are then not trained on; all numbers are of the 1,000 images of the split val, at which nothing else
looks. *Scenes* are drawn: 8,000 to train on, 500 to pick by, 1,000 to report on.

    row                   what it is                                                     paper (256 pixels, test split)
    likeliest             the most frequent training caption, for every image
    nearest               first caption of the nearest training image: pixels, averaged to 16 x 16, Euclidean distance
    two-step              image model alone, then the caption model on its codes         BLEU-4 0.17, perplexity 15.82
    joint                 both together                                                  BLEU-4 0.22, perplexity 15.24
    joint-10, joint-50    joint, from 10 % and 50 % of the images with all their captions, and no others
    joint-10-images, ...  the same captions, the other images uncaptioned
    blind                 the caption model of two-step on one and the same picture: what needs no image
    joint-half-steps      joint, half as many steps, also of the head start
    joint-half-model      joint, half as many maps, hidden units and embeddings

The last three, and 64 against 128 pixels, say what the distance to the paper is due to (docs/experiments.md).

Ours is joint with a wide start of the caption model, captions ten times the paper's weight, learned on moved images,
and the pull of images without a caption (learning/caption_pull.py); on Flickr8k the image model has a head start, as
many steps as two-step gives it. Two-step is the paper's, from the same start.

The column N is the share of captioned images in percent. The vocabulary is that of all training captions in every row:
with another one, perplexities could not be compared. `named rightly` (scenes) is the percentage of captions that name
every shape, colour and relation of the picture, and no other.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from semisight.data.batches import Shuffled
from semisight.data.builtin.scenes import names_rightly
from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.experiments import results
from semisight.experiments.limits import Limits
from semisight.experiments.table3_sets import SCENES, Sets, Setting, captions_of, sets, varied
from semisight.experiments.unfinished import forget, unfinished
from semisight.inference.captions import best_captions, caption_perplexity
from semisight.metrics.captions import score_captions
from semisight.model.architecture import Architecture
from semisight.model.image_model import ImageModel
from semisight.objectives.caption_objective import CaptionObjective, posteriors_of
from semisight.objectives.encoded_captions import EncodedCaptions
from semisight.objectives.image_objective import ImageObjective
from semisight.objectives.step import Plan
from semisight.random import Stream, random_order
from semisight.runs.caption_training import (
    build_caption_objective,
    caption_plan,
    caption_validator,
)
from semisight.training.checkpoint import load_weights
from semisight.training.config import TrainConfig
from semisight.training.trainer import Trainer

TABLE = "table3"
SIZES = (64, 128)
SHARES = {"joint-10": 10, "joint-10-images": 10, "joint-50": 50, "joint-50-images": 50}  # percent
HALVED = ("joint-half-steps", "joint-half-model")
LEARNED = ("two-step", "joint", *SHARES, "blind", *HALVED)
KINDS = ("likeliest", "nearest", *LEARNED)
ROWS = tuple(f"{size}/{kind}" for size in SIZES for kind in KINDS)
METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr", "distinct", "seen in training")
NAMED = "named rightly"
PAPER = {
    "two-step": {"BLEU-1": "0.61", "BLEU-2": "0.41", "BLEU-3": "0.27", "BLEU-4": "0.17", "perplexity": "15.82"},
    "joint": {"BLEU-1": "0.70", "BLEU-2": "0.49", "BLEU-3": "0.33", "BLEU-4": "0.22", "perplexity": "15.24"},
}

N_CODES, BEAM = 20, 5  # for the report; while training 5 codes, see caption_validator
STEPS_TO_VALIDATION, WARMUP = 200, 50
FOR_THE_REPORT = 0.15  # of a row's minutes
START_IMAGES = 1000


@dataclass
class Shared:
    """Folders of image models that several rows start from; kept while a command goes on, and when it is stopped."""

    folder: Path
    used: list[Path] = field(default_factory=list)

    def place(self, name: str) -> Path:
        self.used.append(self.folder / name)
        return self.used[-1]


def rows_of(data: str | Path) -> tuple[str, ...]:
    """The rows that are measured if none are named: *scenes* are small pictures, of which the paper has no row."""
    if str(data) != SCENES:
        return ROWS
    return tuple(f"64/{kind}" for kind in KINDS if kind not in HALVED)


def run(
    data: str | Path,
    out: Path,
    rows: Sequence[str] = ROWS,
    splits: Sequence[int] = (0,),
    minutes: float = 40.0,
    smoke: bool = False,
    threads: int = 2,
    progress: bool = True,
    cache: Path | None = None,
) -> list[results.Row]:
    """Every row that `out` does not hold yet, one after the other; each is added as soon as it is measured."""
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise UserError(f"no row {unknown[0]!r} in Table 3. There are: {', '.join(ROWS)}")
    dataset = "scenes" if str(data) == SCENES else "flickr8k"
    shared = Shared(unfinished(out))
    added = []
    for row in rows:
        size, kind = row.split("/")
        share = SHARES.get(kind, 100)
        needed = (*METRICS, *["perplexity"][: kind in LEARNED], *[NAMED][: dataset == "scenes"])
        for number in splits:
            if results.has(out, TABLE, f"{dataset}/{row}", str(share), needed, number):
                continue
            started = time.monotonic()
            of = varied(kind, sets(data, int(size), number, smoke, cache))
            values, before = measure(kind, of, number, Limits(minutes, threads, progress, smoke), shared)
            spent = (before + time.monotonic() - started) / 60
            paper = PAPER.get(kind, {}) if dataset == "flickr8k" else {}
            origin = {"commit": results.commit(), "hardware": results.hardware(threads)}
            cells = [
                results.Row(
                    TABLE, f"{dataset}/{row}", str(share), metric, number, value, paper.get(metric, ""), spent, **origin
                )
                for metric, value in values.items()
            ]
            results.add(out, cells)
            added += cells
    forget(shared.used)  # and no others: a row that was stopped goes on with its own
    return added


# ---- rows ----


def measure(kind: str, of: Sets, seed: int, limits: Limits, shared: Shared) -> tuple[dict[str, float], float]:
    """Every metric of one row, and the seconds that another row had spent on its image model (in `shared`)."""
    perplexity, before = None, 0.0
    if kind == "likeliest":
        words = [likeliest(of.train)] * len(of.report)
    elif kind == "nearest":
        words = nearest(of.train, of.report)
    else:
        vocabulary = Vocabulary.from_captions(
            (caption for captions in captions_of(of.train) for caption in captions), of.setting.captions.min_count
        )
        objective, before = train_captions(kind, of, vocabulary, seed, limits, shared)
        model, head = objective.images.model, objective.head
        n_codes = 2 if limits.smoke else N_CODES
        words = best_captions(model, head, of.report, vocabulary, n_codes=n_codes, beam=BEAM)
        encoded = EncodedCaptions.encode(captions_of(of.report), vocabulary)
        perplexity = caption_perplexity(model, head, of.report, encoded, n_codes=n_codes)
    references = [[tokenize(caption) for caption in captions] for captions in captions_of(of.report)]
    seen = (tokenize(caption) for captions in captions_of(of.train) for caption in captions)
    scores = score_captions(words, references, training=seen, perplexity=perplexity, with_meteor=not limits.smoke)
    values = scores.as_dict()
    if of.facts is not None:
        right = [names_rightly(" ".join(said), truth) for said, truth in zip(words, of.facts, strict=True)]
        values[NAMED] = 100 * sum(right) / len(right)
    return values, before


def likeliest(train: ImageSet) -> tuple[str, ...]:
    """Of captions equally frequent, the first by the alphabet."""
    counts = Counter(tuple(tokenize(caption)) for captions in captions_of(train) for caption in captions)
    return min(counts, key=lambda words: (-counts[words], words))


def nearest(train: ImageSet, report: ImageSet, side: int = 16) -> list[tuple[str, ...]]:
    def thumbnails(images: ImageSet) -> Tensor:
        parts = torch.arange(len(images)).split(500)
        return torch.cat([F.adaptive_avg_pool2d(images.batch(part), side).flatten(1) for part in parts])

    places = torch.cdist(thumbnails(report), thumbnails(train)).argmin(1).tolist()
    return [tuple(tokenize(captions_of(train)[place][0])) for place in places]


def train_captions(
    kind: str, of: Sets, vocabulary: Vocabulary, seed: int, limits: Limits, shared: Shared
) -> tuple[CaptionObjective, float]:
    """The objective with the weights that gave the pick images' captions the least perplexity; seconds as `measure`."""
    two_step = kind in ("two-step", "blind")
    settings = of.setting.captions
    if two_step:  # the paper's: no bound to balance against, and codes that stay as they are
        settings = replace(settings, two_step=True, xi_scale=1.0, pull=False)
    n = len(of.train)
    kept = torch.zeros(n, dtype=torch.bool)
    kept[random_order(n, seed, Stream.TABLE3_SHARE)[: max(1, round(n * SHARES.get(kind, 100) / 100))]] = True
    texts = [captions if keep else () for captions, keep in zip(captions_of(of.train), kept.tolist(), strict=True)]
    captions = EncodedCaptions.encode(texts, vocabulary)
    uncaptioned = kind.endswith("-images")
    batch_size = of.setting.batch_size * (2 if uncaptioned else 1)
    plan = caption_plan(captions.present, settings, batch_size, uncaptioned=uncaptioned)
    used = torch.cat([plan.labelled_index, plan.unlabelled_index]).sort().values

    model = ImageModel.of(Architecture(of.train.shape, of.layers, "norm-relu"), seed=seed)
    model.start_from(of.train.batch(used[:: max(1, len(used) // START_IMAGES)]))
    images = ImageObjective(model, seed=seed)
    twice = kind == "two-step" or of.setting.head_start  # not blind: one picture has nothing to teach an image model
    minutes = limits.minutes * (1 - FOR_THE_REPORT) / (2 if twice else 1)
    before = train_images(images, of, used, seed, replace(limits, minutes=minutes), shared) if twice else 0.0
    objective = build_caption_objective(
        images, captions, settings, plan, seed, posteriors=posteriors_of(model, of.train) if two_step else None
    )
    training = config(of.setting, plan, batch_size, seed, replace(limits, minutes=minutes))
    if of.setting.patience is not None:
        training = replace(training, patience=max(1, round(of.setting.patience / plan.steps_per_epoch)))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            objective,
            of.train,
            folder,
            config=replace(training, metric="perplexity", metric_rises=False),
            plan=plan,
            validate=caption_validator(of.pick, captions_of(of.pick), vocabulary),
        )
        load_weights(objective, trainer.fit(overwrite=True).checkpoint)
    return objective, before


def train_images(images: ImageObjective, of: Sets, used: Tensor, seed: int, limits: Limits, shared: Shared) -> float:
    """The first of two steps: the bound on the training images of the row, none of whose captions is looked at.

    Rows with the same images have the same image model: it stays in `shared` until the command has measured them all.
    The result is the seconds that were spent on it before.
    """
    train = of.train if len(used) == len(of.train) else of.train.subset(used.tolist())
    plan = Shuffled(len(train), of.setting.batch_size)
    trainer = Trainer(
        images,
        train,
        shared.place(f"{of.dataset}-{train.shape[-1]}-{len(train)}-{seed}-{of.setting.steps}-{of.layers[-1].maps}"),
        config=config(of.setting, plan, of.setting.batch_size, seed, limits),
        valid=of.pick,
        plan=plan,
    )
    began = time.monotonic()
    fitted = trainer.fit(resume=trainer.run.newest.exists())
    load_weights(images, fitted.checkpoint)
    return max(0.0, fitted.seconds - (time.monotonic() - began))


def config(setting: Setting, plan: Plan, batch_size: int, seed: int, limits: Limits) -> TrainConfig:
    """Validation comes every so many steps, in whole epochs: with few captions an epoch is a few steps.

    The rate comes down over a fixed number of steps; the best weights count.
    """
    return TrainConfig(
        seed=seed,
        learning_rate=setting.learning_rate,
        schedule="cosine",
        warmup_steps=0 if limits.smoke else WARMUP,
        batch_size=batch_size,
        average_decay=setting.average,
        max_epochs=None,
        max_steps=setting.steps,
        max_minutes=limits.minutes,
        validate_every=max(1, round(STEPS_TO_VALIDATION / plan.steps_per_epoch)),
        patience=None,
        threads=limits.threads,
        keep_memory=True,
        progress=limits.progress,
        tensorboard=False,
    )
