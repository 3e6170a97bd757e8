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

Ours is joint with a wide start of the caption model, captions ten times the paper's weight, learned on augmented
images, and pseudo-captions of images without one (objectives/captions.py; not on Flickr8k); on Flickr8k the image model
has a head start, as many steps as two-step gives it. Two-step is the paper's, from the same start.

The column N is the share of captioned images in percent. The vocabulary is that of all training captions in every row:
with another one, perplexities could not be compared. `named rightly` (scenes) is the percentage of captions that name
every shape, colour and relation of the picture, and no other.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semisight.data.augment import CAPTION_AUGMENT
from semisight.data.batches import LabelledAndUnlabelled, Shuffled, share_of_batch
from semisight.data.builtin.scenes import Facts, facts_of, make_scenes, names_rightly, read_scenes
from semisight.data.caption_files import read_captions
from semisight.data.columns import CaptionColumn
from semisight.data.image_cache import cached_folder
from semisight.data.image_set import ImageSet, split
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.errors import UserError
from semisight.experiments import results
from semisight.experiments.table import Cell, Measured, Request, fill, fit, forget, unfinished
from semisight.inference.captions import CaptionReader, Search, caption_perplexity, write_captions
from semisight.inference.validation import caption_terms
from semisight.metrics.captions import score_captions
from semisight.model.architecture import Architecture, Layer
from semisight.model.heads.captions import CaptionHead
from semisight.model.image_model import ImageModel
from semisight.objectives.captions import Captions, EncodedCaptions
from semisight.objectives.consistency import Consistency
from semisight.objectives.joint import Joint, Posteriors
from semisight.objectives.targets import Xi
from semisight.random import Stream, random_order, reseed
from semisight.training.checkpoint import load_parts
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
SCENES = "builtin:scenes"
N_PICK, N_SCENES, N_REPORT = 500, 8000, 1000
REPORT_SEED = 1_000_003  # scenes that no split number trains on
REPORT = Search(n_codes=20, beam=5, length_power=0.0)  # the likeliest; while training 5 codes, see caption_terms
STEPS_TO_VALIDATION, WARMUP = 200, 50
FOR_THE_REPORT = 0.15  # of a row's minutes
START_IMAGES = 1000

_TOP = (Layer(32, 3, 2, "same"), Layer(64, 3, 2, "same"), Layer(96, 5))
LAYERS = {64: (Layer(16, 5, 2, "same"), *_TOP), 128: (Layer(24, 5, 4, "same"), *_TOP)}  # 64-32-16-8-4, 128-32-16-8-4
# 64-32-16-2-1, 128-32-16-2-1: 5 x 5 of the 16 x 16 places hold a small shape. Pooled over a quarter of the picture, a
# shape learned in one place is known in all; with places in the code it is learned in each of them anew.
_POOLED = (Layer(32, 5, 2, "same"), Layer(96, 5, 8, "same"), Layer(192, 2))
SCENE_LAYERS = {64: (Layer(16, 5, 2, "same"), *_POOLED), 128: (Layer(24, 5, 4, "same"), *_POOLED)}
SMOKE_SIZE, SMOKE_LAYERS = 16, (Layer(6, 3, 2, "same"), Layer(8, 5))

XI = Xi(times=10)
AUGMENTED = Consistency(contrastive=0, spreading=0, augment=CAPTION_AUGMENT, weak=0.3, strong=1.0, bound_images=16)


@dataclass(frozen=True)
class CaptionRow:
    """How a learned row is trained; images without a caption come beside `batch_size` captioned ones.

    hidden      size of the caption model's state and of its embeddings
    min_count   words that occur less often in training are one unknown word
    per_image   captions of an image that are learned in a step; None takes all it has
    frozen      the image model stays as it is: the second of two steps
    head_start  `steps` of the image model alone before captions are learned with it
    patience    steps without a lower perplexity after which no more captions are learned
    """

    steps: int
    hidden: int = 256
    min_count: int = 5
    per_image: int | None = None
    captioned: int = 32  # of a batch that also holds uncaptioned images
    batch_size: int = 32
    xi: Xi = XI
    consistency: Consistency | None = AUGMENTED
    learning_rate: float = 2e-3
    average: float | None = 0.99
    frozen: bool = False
    head_start: bool = False
    patience: int | None = None


SCENE = CaptionRow(3000, min_count=1)
# People word one picture in many ways, so few words are sure; to look for them would take half as long again.
FLICKR = CaptionRow(
    2000,
    per_image=2,
    consistency=replace(AUGMENTED, pseudo_labels=0),
    learning_rate=1e-3,
    head_start=True,
    patience=800,
)
SMOKE = CaptionRow(2, hidden=8, min_count=1, captioned=4, batch_size=8, head_start=True)


# ---- which images are for what ----


@dataclass(frozen=True)
class Sets:
    """Images with captions: to learn from, to pick weights by, and to report on (with what is to be seen, if known)."""

    dataset: str
    train: ImageSet
    pick: ImageSet
    report: ImageSet
    facts: tuple[Facts, ...] | None
    row: CaptionRow
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
    row, layers = (SMOKE, SMOKE_LAYERS) if smoke else (SCENE, SCENE_LAYERS[size])
    return Sets("scenes", train, pick, report, facts, row, layers)


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
    row, layers = (SMOKE, SMOKE_LAYERS) if smoke else (FLICKR, LAYERS[size])
    return Sets("flickr8k", parts[0], parts[1], parts[2], None, row, layers)


def varied(kind: str, of: Sets) -> Sets:
    """What a row changes in the images or in the settings."""
    if kind in ("two-step", "blind"):  # the paper's: no bound to balance against, and codes that stay as they are
        of = replace(of, row=replace(of.row, frozen=True, xi=Xi(), consistency=None, head_start=True))
    if kind == "blind":  # one picture has nothing to teach an image model
        mean = of.train.mean_image()
        train, pick, report = (of_mean(images, mean) for images in (of.train, of.pick, of.report))
        return replace(of, train=train, pick=pick, report=report, row=replace(of.row, head_start=False))
    if kind == "joint-half-steps":
        return replace(of, row=replace(of.row, steps=of.row.steps // 2))
    if kind == "joint-half-model":
        layers = tuple(replace(layer, maps=layer.maps // 2) for layer in of.layers)
        return replace(of, row=replace(of.row, hidden=of.row.hidden // 2), layers=layers)
    return of


def of_mean(images: ImageSet, mean: Tensor) -> ImageSet:
    """Every picture replaced by `mean`; no memory is taken for the copies."""
    return replace(images, images=mean.expand(len(images), *mean.shape))


def captions_of(images: ImageSet) -> tuple[tuple[str, ...], ...]:
    assert images.captions is not None
    return images.captions


# ---- the table ----


@dataclass
class Shared:
    """Folders of image models that several rows start from; kept while a command goes on, and when it is stopped."""

    folder: Path
    used: list[Path] = field(default_factory=list)

    def place(self, name: str) -> Path:
        self.used.append(self.folder / name)
        return self.used[-1]


def run(request: Request) -> list[results.Row]:
    """Every row that the results file does not hold yet, one after the other; each is added once it is measured."""
    data = request.data or SCENES
    dataset = "scenes" if str(data) == SCENES else "flickr8k"
    rows = request.chosen(ROWS, "Table 3")
    if dataset == "scenes" and not request.rows:  # small pictures, of which the paper has no row
        rows = tuple(f"64/{kind}" for kind in KINDS if kind not in HALVED)
    shared = Shared(unfinished(request.file(TABLE)))

    def cell(row: str, number: int) -> Cell:
        kind = row.partition("/")[2]
        needed = (*METRICS, *["perplexity"][: kind in LEARNED], *[NAMED][: dataset == "scenes"])
        paper = PAPER.get(kind, {}) if dataset == "flickr8k" else {}
        return Cell(f"{dataset}/{row}", number, needed, str(SHARES.get(kind, 100)), paper)

    def measured(cell: Cell, place: Path) -> Measured:
        _, size, kind = cell.row.split("/")
        of = varied(kind, sets(data, int(size), cell.seed, request.smoke, request.cache))
        return measure(kind, of, cell.seed, place, request, shared)

    added = fill(TABLE, request, [cell(row, number) for row in rows for number in request.splits], measured)
    forget(shared.used)  # and no others: a row that was stopped goes on with its own
    return added


def measure(kind: str, of: Sets, seed: int, place: Path, request: Request, shared: Shared) -> Measured:
    """Every metric of one row."""
    perplexity, before = None, 0.0
    if kind == "likeliest":
        words = [likeliest(of.train)] * len(of.report)
    elif kind == "nearest":
        words = nearest(of.train, of.report)
    else:
        vocabulary = Vocabulary.from_captions(
            (text for texts in captions_of(of.train) for text in texts), of.row.min_count
        )
        model, head, before = train_captions(kind, of, vocabulary, seed, place, request, shared)
        search = replace(REPORT, n_codes=2) if request.smoke else REPORT
        found = write_captions(model, CaptionReader(head, vocabulary), of.report, search)
        words = [best.words for best, *_ in found]
        encoded = EncodedCaptions.encode(captions_of(of.report), vocabulary)
        perplexity = caption_perplexity(model, head, of.report, encoded, n_codes=search.n_codes)
    references = [[tokenize(caption) for caption in captions] for captions in captions_of(of.report)]
    seen = (tokenize(caption) for captions in captions_of(of.train) for caption in captions)
    scores = score_captions(words, references, training=seen, perplexity=perplexity, with_meteor=not request.smoke)
    values = scores.as_dict()
    if of.facts is not None:
        right = [names_rightly(" ".join(said), truth) for said, truth in zip(words, of.facts, strict=True)]
        values[NAMED] = 100 * sum(right) / len(right)
    return Measured(values, before)


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


# ---- learned rows ----


@dataclass(frozen=True)
class Given:
    """What a row learns from: the captions it keeps, and its batches. The captions of the others are hidden."""

    captions: EncodedCaptions
    plan: LabelledAndUnlabelled

    @property
    def used(self) -> Tensor:
        """Positions of the training images that come in batches, sorted."""
        return torch.cat([self.plan.labelled_index, self.plan.unlabelled_index]).sort().values


def given(kind: str, of: Sets, vocabulary: Vocabulary, seed: int, kept: Tensor | None = None) -> Given:
    """`kept`, bool [N], are the images whose captions are kept; by default the row's share, drawn by the seed."""
    row, n = of.row, len(of.train)
    if kept is None:
        share = max(1, round(n * SHARES.get(kind, 100) / 100))
        kept = torch.zeros(n, dtype=torch.bool)
        kept[random_order(n, seed, Stream.TABLE3_SHARE)[:share]] = True
    texts = [texts if keep else () for texts, keep in zip(captions_of(of.train), kept.tolist(), strict=True)]
    captions = EncodedCaptions.encode(texts, vocabulary)
    others = kind.endswith("-images")
    without = (~captions.present).nonzero().squeeze(1)
    plan = LabelledAndUnlabelled(
        captions.present.nonzero().squeeze(1),
        without if others else without[:0],
        row.batch_size * (2 if others else 1),
        row.captioned,
    )
    return Given(captions, plan)


def image_model(of: Sets, used: Tensor, seed: int) -> ImageModel:
    model = ImageModel.of(Architecture(of.train.shape, of.layers, "norm-relu"), seed=seed)
    model.start_from(of.train.batch(used[:: max(1, len(used) // START_IMAGES)]))
    return model


def compose(of: Sets, model: ImageModel, learned: Given, seed: int) -> Joint:
    row = of.row
    head = CaptionHead(
        model.code_size,
        learned.captions.vocab_size,
        hidden_size=row.hidden,
        embedding_size=row.hidden,
        start="wide",
        generator=reseed(torch.Generator(), seed, Stream.CAPTION_HEAD, 0),
    )
    rate = min(1.0, row.hidden / model.code_size)
    target = Captions(head, learned.captions, xi=row.xi, per_image=row.per_image, code_rate=rate)
    rho = {"captions": share_of_batch(learned.captions.present, learned.plan)}
    joint = Joint(model, [target], consistency=row.consistency, frozen=row.frozen, rho=rho)
    if row.frozen:
        joint.posteriors = posteriors(model, of.train)
    return joint


@torch.no_grad()
def posteriors(model: ImageModel, images: ImageSet) -> Posteriors:
    """They stay as they are. By the pass that training takes: that of inference is faster, and one bit off at times."""
    generator = torch.Generator().manual_seed(0)
    parts = [model.encode(images.batch(index), generator) for index in torch.arange(len(images)).split(200)]
    return Posteriors(torch.cat([part.mean for part in parts]), torch.cat([part.log_spread for part in parts]))


def train_captions(
    kind: str, of: Sets, vocabulary: Vocabulary, seed: int, place: Path, request: Request, shared: Shared
) -> tuple[ImageModel, CaptionHead, float]:
    """The weights that gave the captions of the images to pick by, and of no others, the least perplexity.

    The last is how many seconds were spent before.
    """
    row, learned = of.row, given(kind, of, vocabulary, seed)
    plan, minutes = learned.plan, request.minutes * (1 - FOR_THE_REPORT) / (2 if of.row.head_start else 1)
    model, before = image_model(of, learned.used, seed), 0.0
    if row.head_start:
        before = train_images(model, of, learned.used, seed, minutes, request, shared)
    joint = compose(of, model, learned, seed)
    parts = joint.parts()
    head = parts["head.captions"]
    assert isinstance(head, CaptionHead)

    def validate(_: nn.Module) -> Mapping[str, float]:
        return caption_terms(model, head, vocabulary, of.pick, captions_of(of.pick))

    training = config(row, plan, seed, minutes, request)
    if row.patience is not None:
        training = replace(training, patience=max(1, round(row.patience / plan.steps_per_epoch)))
    trainer = Trainer(
        joint,
        of.train,
        place,
        config=replace(training, metric="perplexity", metric_rises=False),
        plan=plan,
        validate=validate,
        about={"row": asdict(row), "captions": learned.captions.about()},
    )
    fitted, earlier = fit(trainer)
    load_parts(parts, fitted.checkpoint)
    return model, head, before + earlier


def train_images(
    model: ImageModel, of: Sets, used: Tensor, seed: int, minutes: float, request: Request, shared: Shared
) -> float:
    """The first of two steps: the bound on the training images of the row, none of whose captions is looked at.

    Rows with the same images have the same image model: it stays in `shared` until the command has measured them all.
    The result is the seconds that were spent on it before.
    """
    train = of.train if len(used) == len(of.train) else of.train.subset(used)
    plan, joint = Shuffled(len(train), of.row.batch_size), Joint(model)
    name = f"{of.dataset}-{train.shape[-1]}-{len(train)}-{seed}-{of.row.steps}-{of.layers[-1].maps}"
    training = config(of.row, plan, seed, minutes, request)
    fitted, before = fit(Trainer(joint, train, shared.place(name), config=training, valid=of.pick, plan=plan))
    load_parts(joint.parts(), fitted.checkpoint)
    return before


def config(
    row: CaptionRow, plan: Shuffled | LabelledAndUnlabelled, seed: int, minutes: float, request: Request
) -> TrainConfig:
    """Validation comes every so many steps, in whole epochs: with few captions an epoch is a few steps.

    The rate comes down over a fixed number of steps; the best weights count.
    """
    return request.training(
        seed=seed,
        learning_rate=row.learning_rate,
        schedule="cosine",
        warmup_steps=0 if request.smoke else WARMUP,
        batch_size=plan.batch_size,
        average_decay=row.average,
        max_epochs=None,
        max_steps=row.steps,
        max_minutes=minutes,
        validate_every=max(1, round(STEPS_TO_VALIDATION / plan.steps_per_epoch)),
        validation_batch_size=64,
    )
