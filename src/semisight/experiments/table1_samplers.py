"""Section 5.1, Table 1: the rows `gibbs` and `mcem`, the same model learned and tested by sampling; the table's images.

Chains start where an encoder without labels ends after a few epochs over all training images: its decoder, a draw of s
and z from its posterior for each of their own images, and beta at its mode for that draw. Where a chain starts does not
change where it goes, and from the prior an hour does not get it there (docs/experiments.md). New images get no such
help: their chains start from the prior.

Sampling is dear, so Gibbs runs on some of the training images, and both are tested on some of the test images, drawn
by the seed (metric `test_images`); GIBBS and EM below say how many, and how many sweeps. A chain that needs more than
--minutes is saved, and the same command goes on with it.

Whether a chain had come to rest is measured too, on validation images, with the parameters of the first and of the
second half of its sweeps (Gibbs) or the estimates after half and all of its passes (MCEM): metrics `valid_half`,
`valid_end`, and `valid_spread`, the standard error of their difference, both being of the same images.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semisight.data import load
from semisight.data.image_set import ImageSet
from semisight.errors import UserError
from semisight.experiments import table1_caltech
from semisight.experiments.label_rows import LabelRow, Parts, image_model, labels_of, parts, train_without_labels
from semisight.experiments.table import Measured, Request, Unfinished
from semisight.inference.encode import encode
from semisight.inference.labels import decide as decide_labels
from semisight.metrics.classification import error_rate
from semisight.model.heads.labels import BayesianSVM, LabelHead
from semisight.model.image_model import ImageModel
from semisight.random import Stream, random_order
from semisight.sampling.beta_mode import maximise_beta
from semisight.sampling.gibbs import GibbsChain, GibbsConfig
from semisight.sampling.inference import InferenceConfig, gibbs_decisions
from semisight.sampling.latents import Latents, SweepOptions, posterior_latents
from semisight.sampling.mcem import MCEM, MCEMConfig
from semisight.sampling.parameter_samples import ParameterSamples
from semisight.sampling.parameters import Priors
from semisight.sampling.top_map import MapConfig, map_decisions
from semisight.training.interrupts import Interrupted, caught_signals
from semisight.training.progress import ProgressBar

ERROR, MS = "error", "ms"  # metrics of every row
SHAPES = {(1, 28, 28): "mnist", (3, 32, 32): "cifar-10"}
N_VALID = {"mnist": 10_000, "cifar-10": 5_000}
TIMES_VAE, TEST_IMAGES = "times_vae", "test_images"
VALID_HALF, VALID_END, VALID_SPREAD = "valid_half", "valid_end", "valid_spread"
OPTIONS = SweepOptions(batch_size=125, share_above=0.1)
# A dictionary above the first takes most of a sweep's time, 0.27 s per image of CIFAR-10 with the share above.
RARELY_ABOVE = replace(OPTIONS, share_above=0.03)
# Codes are drawn given their labels, and an image leaves most of its code free: where beta may grow large, labels are
# explained by those free directions, and nothing is learned that new images, without labels, could use. With these a
# label moves its own decision value by less than half of the margin (docs/experiments.md).
GAMMA, PRECISION = 1.0, 300.0
# Left to itself alpha0 rises into the thousands within ten sweeps: digits have no noise. From then on places hardly
# move, and the chains of new images do not get to rest. It is held where learning without labels leaves it.
PRIORS = Priors(alpha0_shape=1.5e8, alpha0_rate=1e6)
BETA_STEPS = 5  # draws in a sweep
ANNEAL = 10  # sweeps over which alpha0 rises for new images

Shown = Callable[[int, int], None]  # how much of how much is done


@dataclass(frozen=True)
class Sampled:
    """A Gibbs chain. The paper: all images, 1000 + 50 sweeps; at test, for each of the 50, 300 + 100 sweeps.

    At test the chains of z and s burn in once and go on from one sample of the parameters to the next.
    """

    images: int
    burn_in: int
    n_samples: int
    options: SweepOptions = OPTIONS
    test_images: int = 500
    valid_images: int = 1000
    test_burn_in: int = 15  # alpha0 rises over the first ten, and the chains are then at rest
    test_sweeps: int = 5  # for each sample of the parameters
    start_epochs: int = 5


@dataclass(frozen=True)
class Maximised:
    """Monte Carlo EM by gradient steps, one sweep of each image's chain before each."""

    images: int
    iterations: int
    rate: float = 1e-3
    options: SweepOptions = OPTIONS
    test_images: int = 500
    valid_images: int = 1000
    test_steps: int = 100
    start_epochs: int = 5


GIBBS = {
    "mnist": Sampled(images=20_000, burn_in=6, n_samples=12),
    "cifar-10": Sampled(
        images=500, burn_in=3, n_samples=4, options=RARELY_ABOVE, test_images=200, valid_images=50, start_epochs=3
    ),
    "smoke": Sampled(60, 2, 2, test_images=20, valid_images=20, test_burn_in=2, test_sweeps=1, start_epochs=1),
}
EM = {
    "mnist": Maximised(images=50_000, iterations=4),
    "cifar-10": Maximised(images=3000, iterations=2, test_images=200, valid_images=50, test_steps=50, start_epochs=3),
    "smoke": Maximised(images=60, iterations=2, test_images=20, valid_images=20, test_steps=3, start_epochs=1),
}
# Its rate falls to zero over the passes, so only a longer run can say whether they were enough.
EM_LONGER = {name: replace(setting, iterations=2 * setting.iterations) for name, setting in EM.items()}


def sets(data: str | Path, seed: int, smoke: bool = False, cache: Path | None = None) -> tuple[str, Parts]:
    """The data set's name, and its parts."""
    if smoke:
        return "smoke", parts(data, 0, seed, smoke)
    if table1_caltech.is_caltech(data):
        return table1_caltech.NAME, table1_caltech.sets(data, seed, cache)
    images = load(data)
    name = SHAPES.get(images.shape)
    if name is None or len(images.class_names) != 10:
        raise UserError(
            f"Table 1 is measured on MNIST, CIFAR-10 and Caltech-101; {data} holds images of {images.shape} "
            f"with {len(images.class_names)} classes"
        )
    return name, parts(data, N_VALID[name], seed)


def some(images: ImageSet, count: int, seed: int, stream: Stream) -> tuple[Tensor, Tensor]:
    """Images [n, C, H, W] and labels, drawn by the seed."""
    index = random_order(len(images), seed, stream)[:count]
    return images.batch(index), labels_of(images)[index]


def milliseconds(model: ImageModel, head: LabelHead, images: Tensor, batch_size: int = 500) -> float:
    """Of the processor, per image, to predict labels; the best of three passes."""
    best, generator = float("inf"), torch.Generator().manual_seed(0)
    for _ in range(3):
        processor = time.process_time()
        for batch in images.split(batch_size):
            decide_labels(head, encode(model, batch, generator))
        best = min(best, time.process_time() - processor)
    return 1000 * best / len(images)


# ---- the two rows ----


def measure_gibbs(setting: Sampled, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """What is not finished lies at `place`."""
    saved = place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, Stream.TABLE1_SUBSET)
    begun = start(of, x, y, setting.start_epochs, seed, place, saved.exists(), request)
    model, head = begun.model, begun.head
    config = GibbsConfig(
        setting.burn_in,
        setting.n_samples,
        beta_steps=BETA_STEPS,
        seed=seed,
        priors=PRIORS,
        options=setting.options,
    )
    chain = GibbsChain(model.decoder, x, config, y, head, begun.latents)
    with watching(chain, config.n_sweeps, saved, begun, request) as (told, before):
        samples = chain.run(lambda sweep: told(sweep.alpha0, sweep.mean_square), saved, save_every=5)
    rises = min(ANNEAL, setting.test_burn_in)
    first = InferenceConfig(setting.test_burn_in, setting.test_sweeps, seed, setting.options, anneal=rises)
    then = replace(first, burn_in=0, anneal=0)

    def decide(drawn: ParameterSamples, images: Tensor, shown: Shown) -> Tensor:
        return gibbs_decisions(drawn, model.decoder, head, images, first, shown, then)

    return Measured(tested(decide, samples, begun, setting, of, seed, request.progress), before)


def measure_mcem(setting: Maximised, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    saved = place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, Stream.TABLE1_SUBSET)
    begun = start(of, x, y, setting.start_epochs, seed, place, saved.exists(), request)
    model, head = begun.model, begun.head
    config = MCEMConfig(setting.iterations, rate=setting.rate, seed=seed, priors=PRIORS, options=setting.options)
    chain = MCEM(model.decoder, x, config, y, head, begun.latents)
    with watching(chain, config.iterations, saved, begun, request) as (told, before):
        chain.run(lambda iteration: told(iteration.alpha0, iteration.mean_square), saved)
    find = MapConfig(setting.test_steps, seed=seed, options=setting.options)

    def decide(estimates: ParameterSamples, images: Tensor, shown: Shown) -> Tensor:
        estimates.load(-1, model.decoder, head)
        return map_decisions(model.decoder, head, images, find, shown)

    return Measured(tested(decide, chain.samples(), begun, setting, of, seed, request.progress), before)


@dataclass(frozen=True)
class Start:
    """Where a chain starts, the seconds it took to get there, and those of them that were spent before."""

    model: ImageModel
    head: BayesianSVM
    latents: Latents | None
    seconds: float = 0.0
    before: float = 0.0


def start(
    of: Parts, x: Tensor, y: Tensor, epochs: int, seed: int, place: Path, resumed: bool, request: Request
) -> Start:
    """For images x [N, C, H, W] and labels y [N]; a resumed chain's file has all but the forms of model and head."""
    model = image_model(LabelRow(pooling="expected"), of.train, seed)
    generator = torch.Generator().manual_seed(seed)
    head = label_head(model, of, generator)
    if resumed:
        return Start(model, head, None)
    seconds, before = learn_without_labels(model, of, epochs, seed, place, request)
    began = time.monotonic()
    latents = encoded(model, x, generator)
    maximise_beta(head, y, latents.codes, torch.ones(len(y)), seed)
    return Start(model, head, latents, seconds + time.monotonic() - began, before)


def label_head(model: ImageModel, of: Parts, generator: torch.Generator) -> BayesianSVM:
    n_classes = len(of.train.class_names)
    return BayesianSVM(model.code_size, n_classes, GAMMA, generator=generator, precision=PRECISION)


def learn_without_labels(
    model: ImageModel, of: Parts, epochs: int, seed: int, place: Path, request: Request
) -> tuple[float, float]:
    """The seconds that it took, and those of them that were spent before."""
    config = request.training(seed=seed, learning_rate=1e-3, batch_size=64, schedule="cosine", max_epochs=epochs)
    return train_without_labels(model, of, place, config)


@torch.no_grad()
def encoded(model: ImageModel, images: Tensor, generator: torch.Generator) -> Latents:
    """A draw of s and z from q(s, z | X) for images [N, C, H, W]."""
    drawn = [posterior_latents(model.encode(batch, generator)) for batch in images.split(500)]
    places = zip(*(part.places for part in drawn), strict=True)
    return Latents(torch.cat([part.s for part in drawn], -1), tuple(torch.cat(layer, -1) for layer in places))


@contextmanager
def watching(
    chain: GibbsChain | MCEM, total: int, saved: Path, begun: Start, request: Request
) -> Iterator[tuple[Callable[[float, float], None], float]]:
    """A chain from its start, or from where it was saved; with the seconds that were spent before.

    What it tells after every sweep is shown; it ends, saved, after a signal or when its time is up.
    """
    chain.seconds, before = begun.seconds, begun.before
    if saved.exists():
        chain.resume(saved)
        before = chain.seconds
    began, minutes = time.monotonic(), request.minutes
    bar = ProgressBar(request.progress, total, minutes * 60, start_step=chain.number)
    with caught_signals(notice=request.progress) as signals:

        def told(alpha0: float, mean_square: float) -> None:
            number, seconds = chain.number, time.monotonic() - began
            terms = {"alpha0": alpha0, "mean_square": mean_square}
            bar.step(number, number, seconds, terms=terms)
            if number % 10 == 0:
                bar.validated(number, number, terms, f" after {seconds / 60:.1f} minutes")
            if signals.number or (seconds > 60 * minutes and number < total):
                chain.save(saved)
                if signals.number:
                    raise Interrupted(f"{number} of {total} sweeps are done and saved.", signals.number)
                raise Unfinished(f"{number} of {total} sweeps are done and saved after {minutes:g} minutes")

        try:
            yield told, before
        finally:
            bar.close()


def tested(
    decide: Callable[[ParameterSamples, Tensor, Shown], Tensor],
    samples: ParameterSamples,
    begun: Start,
    setting: Sampled | Maximised,
    of: Parts,
    seed: int,
    progress: bool,
) -> dict[str, float]:
    """Error and time of a sampler on some test images, and the encoder's time beside it."""
    began = time.monotonic()
    bar = ProgressBar(progress, None, float("inf"), start_step=0)

    def shown(done: int, total: int) -> None:
        bar.step(done, done / total, time.monotonic() - began)

    images, labels = some(of.valid, setting.valid_images, seed, Stream.TABLE1_REST)
    half = len(samples) // 2
    halfway = decide(samples.part(slice(half)), images, shown)
    settled = at_rest(halfway, decide(samples.part(slice(half, None)), images, shown), labels)
    encoder_ms = milliseconds(begun.model, begun.head, images)
    images, labels = some(of.test, setting.test_images, seed, Stream.TABLE1_TESTS)
    processor = time.process_time()
    decisions = decide(samples, images, shown)
    ms = 1000 * (time.process_time() - processor) / len(images)
    bar.close()
    error = 100 * error_rate(decisions.argmax(1), labels)
    return {ERROR: error, MS: ms, TIMES_VAE: ms / encoder_ms, TEST_IMAGES: float(len(images)), **settled}


def at_rest(halfway: Tensor, end: Tensor, labels: Tensor) -> dict[str, float]:
    """From decision values [N, C] of the same images: both errors, and the standard error of their difference."""
    wrong_halfway, wrong_end = (100.0 * (values.argmax(1) != labels).double() for values in (halfway, end))
    spread = (wrong_end - wrong_halfway).std() / len(labels) ** 0.5
    return {VALID_HALF: float(wrong_halfway.mean()), VALID_END: float(wrong_end.mean()), VALID_SPREAD: float(spread)}
