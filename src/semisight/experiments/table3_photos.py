"""Section 5.3, Table 3, on the features of a pretrained network: captions of Flickr8k's photographs.

    semisight reproduce table3-photos --data FLICKR8K --rows joint                     about 20 minutes of one core
    semisight reproduce table3-photos --data FLICKR8K --rows two-step,joint-10-images

FLICKR8K holds Images/ and dataset_flickr8k.json. Features: EfficientNet-Lite2 (260 pixels), the plain view of each
image; ours have three augmented ones beside it, but for those on a grid. Weights are picked by the CIDEr of captions
written for 300 of 500 training images that are then not trained on. All numbers are of the 1,000 images of the split
val.

    row                   what it is                                                     paper (256 pixels, test split)
    nearest               first caption of the training image with the nearest features (cosine)
    two-step              image model alone, then the caption model on its codes         BLEU-4 0.17, perplexity 15.82
    joint                 both together                                                  BLEU-4 0.22, perplexity 15.24
    joint-grid            joint on the 9 x 9 map of features
    joint-attention       joint on that map with a code that keeps its places; every word attends to them
    joint-10, joint-50    joint, from 10 % and 50 % of the images with all their captions, and no others
    joint-10-images, ...  the same captions, the other images uncaptioned
    without-bound         joint without the bound of the images: the captions alone
    without-bound-10, -50 the same from 10 % and 50 % of the images with all their captions, and no others
    joint-attention-10, joint-attention-10-images, joint-attention-50, ..., without-bound-attention
                          as without `attention`
    show-and-tell-lite2, show-and-tell-lite0, soft-attention, hard-attention, attributes, dmsm
                          the other systems of the paper's table (caption_rows.py)

Everything is what `semisight train --captions ... --backbone efficientnet-lite2` does (runs/captions.py), but for the
vocabulary: that of all training captions in every row. `R@1`, `R@5`, `R@10`: percent of the images' first captions for
which search by these words (inference/search.py) finds the image among the first 1, 5, 10 of 1,000.
The column N is the share of captioned images in percent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from semisight.data.batches import LabelledAndUnlabelled, Shuffled, share_of_batch
from semisight.data.builtin.scenes import read_scenes
from semisight.data.image_set import ImageSet, split
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.experiments import caption_rows, results
from semisight.experiments.caption_rows import BASELINES, on_features, steps_for
from semisight.experiments.table import Cell, Measured, Request, fill, fit
from semisight.experiments.table3 import METRICS, PAPER, captions_of
from semisight.experiments.table3 import SHARES as JOINT_SHARES
from semisight.inference.captions import CaptionReader, Search, caption_perplexity, write_captions
from semisight.inference.search import WordSearch, recall
from semisight.inference.validation import caption_terms
from semisight.metrics.captions import score_captions
from semisight.model.encoders.feature_network import grid_architecture, place_architecture
from semisight.model.heads.captions import CaptionHead
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import Captions, EncodedCaptions
from semisight.objectives.joint import Joint, Posteriors
from semisight.objectives.targets import Xi
from semisight.random import Stream, random_order, reseed
from semisight.runs import features
from semisight.runs.captions import ON_FEATURES, attending, places_of
from semisight.runs.images import sets_of
from semisight.runs.settings import CAPTION_VIEWS, DataSettings
from semisight.training.checkpoint import load_parts
from semisight.training.trainer import Trainer

TABLE = "table3_photos"
BACKBONE, VIEWS, N_PICK, N_CIDER = "efficientnet-lite2", CAPTION_VIEWS, 500, 300
SHARES = {
    **JOINT_SHARES,
    **{row.replace("joint", "joint-attention"): share for row, share in JOINT_SHARES.items()},
    "without-bound-10": 10,
    "without-bound-50": 50,
}  # percent
LEARNED = ("two-step", "joint", "joint-grid", "joint-attention", "without-bound", "without-bound-attention", *SHARES)
ROWS = ("nearest", *LEARNED, *BASELINES)
HIDDEN, MIN_COUNT, IMAGE_STEPS, START_IMAGES = 512, 5, 1500, 2000
PER_BATCH = 128  # captioned images; of a batch that also holds uncaptioned ones as many of these
REPORT_SHARE = 0.15  # of a row's minutes
REPORT = Search(n_codes=20, beam=5)


@dataclass(frozen=True)
class Sets:
    """Features with captions: to learn from, to pick weights by, to report on."""

    train: ImageSet
    pick: ImageSet
    report: ImageSet
    smoke: bool = False

    @property
    def vocabulary(self) -> Vocabulary:
        texts = (text for texts in captions_of(self.train) for text in texts)
        return Vocabulary.from_captions(texts, 1 if self.smoke else MIN_COUNT)


def sets(request: Request, seed: int, grid: bool, backbone: str = BACKBONE, views: int = VIEWS) -> Sets:
    """At smoke size scenes stand in, their pixels for features."""
    if request.smoke:
        scenes = read_scenes(60, 16, seed)
        side = 3 if grid else 1
        cells = F.adaptive_avg_pool2d(scenes.batch(torch.arange(60)), side).repeat(1, 2, 1, 1)
        more = () if grid else (cells + 0.01,)
        train, rest = split(replace(scenes, images=cells, views=more), 24, seed)
        pick, report = split(rest, 12, seed)
        return Sets(train, pick, report, smoke=True)
    folder = Path(request.source())
    data = DataSettings(source=str(folder / "Images"), captions=str(folder / "dataset_flickr8k.json"), split="train",
                        backbone=backbone, views=views, grid=grid, use_labels=False,
                        valid_fraction=N_PICK / 6000)  # fmt: skip
    learned = sets_of(data, seed)
    report = sets_of(replace(data, split="val", valid_fraction=0.0), seed).train
    assert learned.valid is not None
    return Sets(learned.train, learned.valid, report)


def run(request: Request) -> list[results.Row]:
    """Every row that the results file does not hold yet, one after the other; each is added once it is measured."""
    kept: dict[tuple[int, bool, str, int], Sets] = {}
    name = "smoke" if request.smoke else "flickr8k"

    def cell(row: str, seed: int) -> Cell:
        perplexity, found = ["perplexity"][: row != "nearest"], ["R@1"][: row in LEARNED]
        printed = PAPER.get(row, {})
        if row in BASELINES:
            printed = dict(zip((*METRICS[:4], "perplexity"), BASELINES[row].paper, strict=False))
        return Cell(f"{name}/{row}", seed, (*METRICS, *perplexity, *found), str(SHARES.get(row, 100)), printed)

    def measured(cell: Cell, place: Path) -> Measured:
        kind = cell.row.split("/")[1]
        baseline = BASELINES.get(kind)
        grid = baseline.grid if baseline else "attention" in kind or kind == "joint-grid"
        backbone = baseline.backbone if baseline else BACKBONE
        key = (cell.seed, grid, backbone, 1 if grid or baseline else VIEWS)
        if key not in kept:
            kept.clear()
            kept[key] = sets(request, *key)
        return measure(kind, kept[key], cell.seed, place, request)

    rows = request.chosen(ROWS, "Table 3 on photographs")
    return fill(TABLE, request, [cell(row, seed) for row in rows for seed in request.splits], measured)


def measure(kind: str, of: Sets, seed: int, place: Path, request: Request) -> Measured:
    """Every metric of one row, on the images to report on."""
    if kind == "nearest":
        return Measured(scores(nearest(of), of, request))
    vocabulary = of.vocabulary
    if kind in BASELINES:
        minutes = request.minutes * (1 - REPORT_SHARE)
        system, before = caption_rows.learn(kind, of.train, of.pick, vocabulary, seed, place, request, minutes)
        return Measured(scores(system.captions(of.report), of, request, system.perplexity(of.report)), before)
    model, head, before = learn(kind, of, vocabulary, seed, place, request)
    search = replace(REPORT, n_codes=2) if request.smoke else REPORT
    found = write_captions(model, CaptionReader(head, vocabulary), of.report, search)
    encoded = EncodedCaptions.encode(captions_of(of.report), vocabulary)
    perplexity = caption_perplexity(model, head, of.report, encoded, n_codes=search.n_codes)
    values = scores([best.words for best, *_ in found], of, request, perplexity)
    return Measured(values | recalls(model, head, vocabulary, of.report), before)


def scores(
    words: list[tuple[str, ...]], of: Sets, request: Request, perplexity: float | None = None
) -> dict[str, float]:
    references = [[tokenize(caption) for caption in captions] for captions in captions_of(of.report)]
    seen = (tokenize(caption) for captions in captions_of(of.train) for caption in captions)
    found = score_captions(words, references, training=seen, perplexity=perplexity, with_meteor=not request.smoke)
    return dict(found.as_dict())


def nearest(of: Sets) -> list[tuple[str, ...]]:
    train, report = (F.normalize(part.images.float().flatten(1), dim=1) for part in (of.train, of.report))
    places = (report @ train.T).argmax(1).tolist()
    return [tuple(tokenize(captions_of(of.train)[place][0])) for place in places]


def recalls(model: ImageModel, head: CaptionHead, vocabulary: Vocabulary, report: ImageSet) -> dict[str, float]:
    """How often the first caption of an image finds it."""
    search = WordSearch.of(model, head, vocabulary, report)
    return recall(search, [texts[0] for texts in captions_of(report)])


# ---- learning ----


def learn(
    kind: str, of: Sets, vocabulary: Vocabulary, seed: int, place: Path, request: Request
) -> tuple[ImageModel, CaptionHead, float]:
    """The weights with the best CIDEr on the images to pick by; the last is how many seconds were spent before."""
    n = len(of.train)
    kept = torch.zeros(n, dtype=torch.bool)
    kept[random_order(n, seed, Stream.TABLE3_SHARE)[: max(1, round(n * SHARES.get(kind, 100) / 100))]] = True
    others, train = kind.endswith("-images"), of.train
    if not others:
        train, kept = train.subset(kept), kept[kept]
    texts = [texts if keep else () for texts, keep in zip(captions_of(train), kept.tolist(), strict=True)]
    encoded = EncodedCaptions.encode(texts, vocabulary)
    per_image, size = 1, PER_BATCH
    attends = "attention" in kind
    if attends:
        how = attending(float(encoded.counts[encoded.present].float().mean()))
        per_image, size = how["captions_per_step"], how["batch_size"]
    size = min(size, int(kept.sum()))
    plan = LabelledAndUnlabelled(
        encoded.present.nonzero().squeeze(1),
        (~encoded.present).nonzero().squeeze(1),
        size * (2 if others else 1),
        size,
    )
    if attends:
        architecture = place_architecture(train.shape, 8 if of.smoke else features.PLACE_MAPS)
    else:
        architecture = grid_architecture(train.shape, 8 if of.smoke else features.CODE_SIZE)
    model = features.build(architecture, seed=seed)
    some = random_order(len(train), seed, Stream.START)[:START_IMAGES].sort().values
    model.start_from(train.batch(some))
    minutes, before, frozen = request.minutes * (1 - REPORT_SHARE), 0.0, kind == "two-step"
    if frozen:
        minutes, before = minutes / 2, learn_images(model, train, of.pick, seed, place, minutes / 2, request)
    joint = compose(kind, model, encoded, plan, seed, of.smoke, per_image)
    if frozen:
        joint.posteriors = posteriors(model, train)
    parts = joint.parts()
    head = parts["head.captions"]
    assert isinstance(head, CaptionHead)

    def validate(_: nn.Module) -> Mapping[str, float]:
        n_cider = 4 if of.smoke else N_CIDER
        return caption_terms(model, head, vocabulary, of.pick, captions_of(of.pick), cider_images=n_cider)

    steps = steps_for(len(encoded.starts) - 1, PER_BATCH if attends else size)
    training = on_features(request, seed, plan, 2 if of.smoke else steps, minutes)
    fitted, earlier = fit(
        Trainer(
            joint,
            features.EveryView(train) if train.views else train,
            place,
            config=replace(training, metric="CIDEr", metric_rises=True),
            plan=features.DrawnViews(plan, len(train), 1 + len(train.views)),
            validate=validate,
            about={"row": kind, "captions": encoded.about()},
        )
    )
    load_parts(parts, fitted.checkpoint)
    return model.eval(), head.eval(), before + earlier


def compose(
    kind: str,
    model: ImageModel,
    encoded: EncodedCaptions,
    plan: LabelledAndUnlabelled,
    seed: int,
    smoke: bool,
    per_image: int | None = 1,
) -> Joint:
    size, places = 8 if smoke else HIDDEN, places_of(model, "attention" in kind)
    head = CaptionHead(
        model.code_size,
        encoded.vocab_size,
        hidden_size=size,
        embedding_size=size,
        start="wide",
        code_at_every_step=ON_FEATURES["code_at_every_step"],
        cell="lstm" if places > 1 else "gru",
        places=places,
        dropout=ON_FEATURES["caption_dropout"],
        tied=ON_FEATURES["tied_words"],
        generator=reseed(torch.Generator(), seed, Stream.CAPTION_HEAD, 0),
    )
    frozen = kind == "two-step"
    target = Captions(head, encoded, xi=Xi() if frozen else Xi(times=10), per_image=per_image)
    rho = {"captions": share_of_batch(encoded.present, plan)}
    return Joint(model, [target], frozen=frozen, with_bound=not kind.startswith("without-bound"), rho=rho)


@torch.no_grad()
def posteriors(model: ImageModel, images: ImageSet) -> Posteriors:
    """Of the plain view; they stay as they are."""
    model.eval()
    parts = [model.code_moments(images.batch(index)) for index in torch.arange(len(images)).split(500)]
    return Posteriors(torch.cat([mean for mean, _ in parts]), torch.cat([spread for _, spread in parts]))


def learn_images(
    model: ImageModel, train: ImageSet, pick: ImageSet, seed: int, place: Path, minutes: float, request: Request
) -> float:
    """The first of two steps: the bound alone. Seconds that were spent on it by a command that was stopped."""
    plan, joint = Shuffled(len(train), min(PER_BATCH, len(train))), Joint(model)
    folder = place / "images"
    training = on_features(request, seed, plan, 2 if request.smoke else IMAGE_STEPS, minutes)
    images = features.EveryView(train) if train.views else train
    views = features.DrawnViews(plan, len(train), 1 + len(train.views))
    fitted, before = fit(Trainer(joint, images, folder, config=training, valid=pick, plan=views))
    load_parts(joint.parts(), fitted.checkpoint)
    return before
