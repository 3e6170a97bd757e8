"""Section 5.3: rows of the other systems of Table 3 (baselines/), trained as our own rows are, on the same features.

    row                   what it is                                    paper (Flickr8k, test split; BLEU-4, perplexity)
    show-and-tell-lite2   pooled features of EfficientNet-Lite2 + LSTM  VggNet+RNN, 0.16, 15.71
    show-and-tell-lite0   the same with EfficientNet-Lite0              GoogLeNet+RNN, 0.16, 15.71
    soft-attention        over the 9 x 9 places, expected               not in the paper
    hard-attention        the same, drawn; REINFORCE                    Hard-Attention, 0.21
    attributes            256 words found in the image, then an LSTM    Attributes-CNN+RNN, 0.27, 12.60
    dmsm                  1,000 words, a language model, a reranker     DMSM, on COCO only

`learn` is given the images to learn from and those to pick weights by, and no others: weights by the CIDEr of captions
written for 300 of the latter, word detectors, DMSM's language model and the similarity by -log p there, the reranker's
weights by CIDEr.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from semisight.baselines import dmsm
from semisight.baselines.attention import Attention
from semisight.baselines.attributes import Detector, Pool, detected, frequent_words, surprise_of, words_present
from semisight.baselines.captioner import (
    Captioner,
    CaptionLearning,
    Standardised,
    Written,
    first_words,
    perplexity_of,
    write,
)
from semisight.baselines.network import Learning
from semisight.baselines.show_and_tell import ShowAndTell
from semisight.data.batches import LabelledAndUnlabelled, Shuffled
from semisight.data.image_set import ImageSet
from semisight.data.tokenizer import tokenize
from semisight.data.vocabulary import Vocabulary
from semisight.experiments.network_rows import started
from semisight.experiments.table import Request, fit
from semisight.experiments.table3 import captions_of
from semisight.metrics.captions import cider
from semisight.model.evaluating import evaluating
from semisight.objectives.captions import EncodedCaptions
from semisight.objectives.step import Objective
from semisight.random import Stream, random_order
from semisight.runs import features
from semisight.runs.captions import FEATURE_STEPS, PASSES, VALIDATIONS
from semisight.training.checkpoint import load_parts
from semisight.training.config import TrainConfig
from semisight.training.devices import bf16_pays
from semisight.training.trainer import Trainer

BEAM, N_BEST = 5, 20
PER_BATCH = 128  # captions
N_CIDER, BEAM_TO_PICK = 300, 3
SCALED_BY = 500  # images that say how features are scaled
N_ATTRIBUTES, N_WORDS = 256, 1000
DETECTOR_STEPS, SIMILARITY_STEPS = 350, 600
LANGUAGE_FASTER = 10.0  # DMSM's tables of words change at the steps that have the word, no others


def steps_for(n_captions: int, per_step: int) -> int:
    """Every caption as often as `semisight train` shows it (runs/captions.py)."""
    return min(max(PASSES * n_captions // per_step, FEATURE_STEPS[0]), FEATURE_STEPS[1])


def on_features(
    request: Request, seed: int, plan: Shuffled | LabelledAndUnlabelled, steps: int, minutes: float, faster: float = 1.0
) -> TrainConfig:
    """How everything on features is trained, ours and the other systems."""
    how = features.DEFAULTS
    return request.training(
        seed=seed,
        learning_rate=faster * how["learning_rate"],
        weight_decay=how["weight_decay"],
        average_decay=how["average_decay"],
        warmup_steps=min(how["warmup_steps"], steps),
        schedule="cosine",
        batch_size=plan.batch_size,
        max_epochs=None,
        max_steps=steps,
        max_minutes=minutes,
        validate_every=max(1, round(steps / VALIDATIONS / plan.steps_per_epoch)),
        precision="bf16" if not request.smoke and bf16_pays() else "32",
    )


@dataclass
class Setting:
    """What a row learns from, and with. `before` counts the seconds that commands which were stopped have spent."""

    train: ImageSet
    pick: ImageSet
    vocabulary: Vocabulary
    seed: int
    place: Path
    request: Request
    minutes: float
    before: float = 0.0
    encoded: EncodedCaptions = field(init=False)

    def __post_init__(self) -> None:
        self.encoded = EncodedCaptions.encode(captions_of(self.train), self.vocabulary)

    @property
    def smoke(self) -> bool:
        return self.request.smoke

    def started(self, build: Callable[[], Any]) -> Any:
        """A network whose first weights follow from the seed, its features scaled by training images."""
        network = started(build, self.seed)
        some = random_order(len(self.train), self.seed, Stream.START)[:SCALED_BY].sort().values
        for part in network.modules():
            if isinstance(part, Standardised):
                part.fit(self.train.batch(some))
        return network

    def fit(
        self,
        name: str,
        objective: nn.Module,
        plan: Shuffled,
        steps: int,
        share: float,
        validate: Callable[[], Mapping[str, float]],
        metric: str,
        metric_rises: bool,
        faster: float = 1.0,
    ) -> None:
        """Trains for a share of the minutes; leaves the weights that `validate` says are the best."""
        steps = 2 if self.smoke else steps
        config = replace(
            on_features(self.request, self.seed, plan, steps, self.minutes * share, faster),
            metric=metric,
            metric_rises=metric_rises,
        )
        learned = cast(Objective, objective)
        trainer = Trainer(
            learned, self.train, self.place / name, config=config, plan=plan, validate=lambda _: validate()
        )
        fitted, before = fit(trainer)
        load_parts(learned.parts(), fitted.checkpoint)
        self.before += before
        objective.eval()

    def fit_captioner(
        self,
        captioner: Captioner,
        per_image: int | None,
        share: float = 1.0,
        faster: float = 1.0,
        by_perplexity: bool = False,
    ) -> None:
        """Every training caption as often as in our own rows (runs/captions.py), while the minutes last; at `faster`
        times their rate. Weights are picked by the CIDEr of captions, or by perplexity."""
        n = len(self.encoded.starts) - 1
        size = PER_BATCH if per_image is not None else max(1, PER_BATCH * len(self.train) // n)
        steps = steps_for(n, PER_BATCH)
        known = EncodedCaptions.encode(captions_of(self.pick), self.vocabulary)
        learning = CaptionLearning(captioner, self.encoded, per_image)

        def validate() -> Mapping[str, float]:
            with evaluating(learning.captioner):
                if by_perplexity:
                    return {"perplexity": perplexity_of(captioner, self.pick, known)}
                return caption_score(captioner, self.vocabulary, self.pick, 4 if self.smoke else N_CIDER)

        plan = Shuffled(len(self.train), min(size, len(self.train)))
        metric = "perplexity" if by_perplexity else "CIDEr"
        self.fit("captions", learning, plan, steps, share, validate, metric, not by_perplexity, faster)

    def fit_detector(self, n: int, content: bool, pool: Pool, share: float) -> tuple[Detector, Tensor]:
        """Which of the frequent words an image shows, and the symbols of these."""
        words = frequent_words(self.encoded, self.vocabulary, 8 if self.smoke else n, content)
        present = words_present(self.encoded, words)
        channels, height, width = self.train.shape
        detector = self.started(lambda: Detector(channels, present.mean(0), height * width, pool))
        truth = words_present(EncodedCaptions.encode(captions_of(self.pick), self.vocabulary), words)
        plan = Shuffled(len(self.train), min(64, len(self.train)))

        def validate() -> Mapping[str, float]:
            return {"nll": surprise_of(detector, self.pick, truth)}

        self.fit("detector", Learning(detector, present), plan, DETECTOR_STEPS, share, validate, "nll", False)
        return detector, words

    def seen_by(self, detector: Detector) -> "Setting":
        """The same with the probabilities of words in the features' place."""
        train, pick = (with_images(of, detected(detector, of)) for of in (self.train, self.pick))
        return replace(self, train=train, pick=pick)


@dataclass(frozen=True)
class Learned:
    """A system that writes captions of feature maps."""

    captioner: Captioner
    vocabulary: Vocabulary
    detector: Detector | None = None  # stands before the captioner
    reranker: "Reranker | None" = None

    def captions(self, images: ImageSet) -> list[tuple[str, ...]]:
        seen = self._seen(images)
        if self.reranker is None:
            return first_words(write(self.captioner, self.vocabulary, seen, beam=BEAM))
        return self.reranker.best(self.reranker.candidates(images, seen))

    def perplexity(self, images: ImageSet) -> float:
        encoded = EncodedCaptions.encode(captions_of(images), self.vocabulary)
        return perplexity_of(self.captioner, self._seen(images), encoded)

    def _seen(self, images: ImageSet) -> ImageSet:
        return images if self.detector is None else with_images(images, detected(self.detector, images))


def with_images(of: ImageSet, images: Tensor) -> ImageSet:
    return replace(of, images=images, views=())


def caption_score(captioner: Captioner, vocabulary: Vocabulary, images: ImageSet, n: int) -> dict[str, float]:
    """CIDEr of captions written for the first n images."""
    some = torch.arange(min(n, len(images)))
    found = first_words(write(captioner, vocabulary, images, index=some, beam=BEAM_TO_PICK))
    return {"CIDEr": cider(found, references_of(images)[: len(some)]).value}


def references_of(images: ImageSet) -> list[list[tuple[str, ...]]]:
    return [[tokenize(caption) for caption in captions] for captions in captions_of(images)]


# ---- the rows ----


def show_and_tell(of: Setting) -> Learned:
    channels, size = of.train.shape[0], 8 if of.smoke else 512
    captioner = of.started(lambda: ShowAndTell(channels, len(of.vocabulary), size))
    of.fit_captioner(captioner, per_image=1)
    return Learned(captioner, of.vocabulary)


def attention(of: Setting, hard: bool) -> Learned:
    """All captions of an image in one step: its places are read once for five of them."""
    channels, sizes = of.train.shape[0], {"size": 8, "place_size": 8, "keys": 4} if of.smoke else {}
    captioner = of.started(lambda: Attention(channels, len(of.vocabulary), hard=hard, **sizes))
    of.fit_captioner(captioner, per_image=None)
    return Learned(captioner, of.vocabulary)


def attributes(of: Setting) -> Learned:
    detector, _ = of.fit_detector(N_ATTRIBUTES, True, "max", 0.35)
    learned = show_and_tell(seen := replace_minutes(of.seen_by(detector), 0.65))
    of.before += seen.before
    return replace(learned, detector=detector)


def replace_minutes(of: Setting, share: float) -> Setting:
    return replace(of, minutes=of.minutes * share, before=0.0)


def similar_words(of: Setting) -> Learned:
    """DMSM."""
    detector, words = of.fit_detector(N_WORDS, False, "noisy-or", 0.45)
    seen = replace_minutes(of.seen_by(detector), 0.25)
    model = seen.started(lambda: dmsm.LanguageModel(len(of.vocabulary), words, 8 if of.smoke else 256))
    seen.fit_captioner(model, per_image=1, faster=LANGUAGE_FASTER, by_perplexity=True)
    of.before += seen.before
    network = fit_similarity(of, 0.2)
    reranker = Reranker(model, network, of.vocabulary, torch.zeros(len(dmsm.NAMES)))
    some = of.pick.subset(torch.arange(min(4 if of.smoke else N_CIDER, len(of.pick))))
    reranker = reranker.tuned_on(some, with_images(some, detected(detector, some)))
    return Learned(model, of.vocabulary, detector, reranker)


def fit_similarity(of: Setting, share: float) -> dmsm.Similarity:
    texts = [[" ".join(tokenize(text)) for text in own] for own in captions_of(of.train)]
    firsts = [" ".join(tokenize(own[0])) for own in captions_of(of.pick)]
    trigrams, size = dmsm.Trigrams(texts), 8 if of.smoke else 300
    network = of.started(lambda: dmsm.Similarity(of.train.shape[0], trigrams, texts, size))

    def validate() -> Mapping[str, float]:
        return {"nll": dmsm.surprise_of(network, of.pick, firsts)}

    plan = Shuffled(len(of.train), min(PER_BATCH, len(of.train)))
    learning = Learning(network, torch.arange(len(of.train)))
    of.fit("similarity", learning, plan, SIMILARITY_STEPS, share, validate, "nll", False)
    return network


@dataclass(frozen=True)
class Reranker:
    """Of the best sentences of the language model the one to say."""

    model: dmsm.LanguageModel
    network: dmsm.Similarity
    vocabulary: Vocabulary
    weights: Tensor

    def candidates(self, images: ImageSet, seen: ImageSet) -> tuple[list[list[Written]], list[Tensor]]:
        """Sentences of feature maps, `seen` being the words detected in them; and what speaks for each (dmsm.py)."""
        found = write(self.model, self.vocabulary, seen, beam=N_BEST, n_best=N_BEST)
        texts = [[" ".join(one.words) for one in sentences] for sentences in found]
        close = dmsm.similarity_of(self.network, images, texts)
        index = torch.arange(len(seen))
        there = torch.cat([self.model.see(seen.batch(some)) > 0 for some in index.split(100)])
        words = [frozenset(self.vocabulary.words[i] for i in row.nonzero().squeeze(1).tolist()) for row in there]
        return found, dmsm.numbers_of(found, words, close)

    def tuned_on(self, images: ImageSet, seen: ImageSet) -> "Reranker":
        found, numbers = self.candidates(images, seen)
        references = references_of(images)

        def score(chosen: list[int]) -> float:
            return cider([of[i].words for of, i in zip(found, chosen, strict=True)], references).value

        return replace(self, weights=dmsm.tuned(numbers, score))

    def best(self, candidates: tuple[list[list[Written]], list[Tensor]]) -> list[tuple[str, ...]]:
        found, numbers = candidates
        return [of[i].words for of, i in zip(found, dmsm.choose(numbers, self.weights), strict=True)]


@dataclass(frozen=True)
class Baseline:
    """How a row is learned, and on which features; `paper`: BLEU-1 to 4 and perplexity there."""

    learn: Callable[[Setting], Learned]
    grid: bool = False
    backbone: str = "efficientnet-lite2"
    paper: tuple[str, ...] = ()


BASELINES = {
    "show-and-tell-lite2": Baseline(show_and_tell, paper=("0.56", "0.37", "0.24", "0.16", "15.71")),
    "show-and-tell-lite0": Baseline(
        show_and_tell, backbone="efficientnet-lite0", paper=("0.56", "0.38", "0.24", "0.16", "15.71")
    ),
    "soft-attention": Baseline(lambda of: attention(of, hard=False), grid=True),
    "hard-attention": Baseline(lambda of: attention(of, hard=True), grid=True, paper=("0.67", "0.46", "0.31", "0.21")),
    "attributes": Baseline(attributes, grid=True, paper=("0.74", "0.54", "0.38", "0.27", "12.60")),
    "dmsm": Baseline(similar_words, grid=True),
}


def learn(
    kind: str,
    train: ImageSet,
    pick: ImageSet,
    vocabulary: Vocabulary,
    seed: int,
    place: Path,
    request: Request,
    minutes: float,
) -> tuple[Learned, float]:
    """A row, and the seconds that were spent on it before."""
    of = Setting(train, pick, vocabulary, seed, place, request, minutes)
    return BASELINES[kind].learn(of), of.before
