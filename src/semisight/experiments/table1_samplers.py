"""Section 5.1, Table 1: the rows `gibbs` and `mcem`, the same model learned and tested by sampling.

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
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semisight.experiments.chains import watching
from semisight.experiments.limits import Limits
from semisight.experiments.table1_sets import ERROR, MS, Sets, milliseconds, some
from semisight.metrics.classification import error_rate
from semisight.model.architecture import suggest_architecture
from semisight.model.heads.labels import BayesianSVM
from semisight.model.image_model import ImageModel
from semisight.objectives.image_objective import ImageObjective
from semisight.random import Stream
from semisight.sampling.beta_mode import maximise_beta
from semisight.sampling.gibbs import GibbsChain, GibbsConfig
from semisight.sampling.inference import InferenceConfig, gibbs_decisions
from semisight.sampling.latents import Latents, SweepOptions, posterior_latents
from semisight.sampling.mcem import MCEM, MCEMConfig
from semisight.sampling.parameter_samples import ParameterSamples
from semisight.sampling.parameters import Priors
from semisight.sampling.top_map import MapConfig, map_decisions
from semisight.training.checkpoint import load_weights
from semisight.training.progress import ProgressBar
from semisight.training.trainer import Trainer

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
    "smoke": Sampled(images=60, burn_in=2, n_samples=2, test_images=20, valid_images=20, start_epochs=1),
}
EM = {
    "mnist": Maximised(images=50_000, iterations=4),
    "cifar-10": Maximised(images=3000, iterations=2, test_images=200, valid_images=50, test_steps=50, start_epochs=3),
    "smoke": Maximised(images=60, iterations=2, test_images=20, valid_images=20, test_steps=3, start_epochs=1),
}
# Its rate falls to zero over the passes, so only a longer run can say whether they were enough.
EM_LONGER = {name: replace(setting, iterations=2 * setting.iterations) for name, setting in EM.items()}


def measure_gibbs(setting: Sampled, of: Sets, seed: int, place: Path, limits: Limits) -> tuple[dict[str, float], float]:
    """Metrics, and the minutes it took; what is not finished lies at `place`."""
    saved = place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, Stream.TABLE1_SUBSET)
    begun = start(of, x, y, setting.start_epochs, seed, place, saved.exists(), limits)
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
    chain.seconds = begun.seconds
    if saved.exists():
        chain.resume(saved)
    with watching(chain, config.n_sweeps, saved, limits.minutes, limits.progress) as told:
        samples = chain.run(lambda sweep: told(sweep.alpha0, sweep.mean_square), saved, save_every=5)
    first = InferenceConfig(setting.test_burn_in, setting.test_sweeps, seed, setting.options, anneal=ANNEAL)
    then = replace(first, burn_in=0, anneal=0)

    def decide(drawn: ParameterSamples, images: Tensor, shown: Shown) -> Tensor:
        return gibbs_decisions(drawn, model.decoder, head, images, first, shown, then)

    return tested(decide, samples, begun, setting, of, seed, chain.seconds, limits)


def measure_mcem(
    setting: Maximised, of: Sets, seed: int, place: Path, limits: Limits
) -> tuple[dict[str, float], float]:
    saved = place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, Stream.TABLE1_SUBSET)
    begun = start(of, x, y, setting.start_epochs, seed, place, saved.exists(), limits)
    model, head = begun.model, begun.head
    config = MCEMConfig(setting.iterations, rate=setting.rate, seed=seed, priors=PRIORS, options=setting.options)
    chain = MCEM(model.decoder, x, config, y, head, begun.latents)
    chain.seconds = begun.seconds
    if saved.exists():
        chain.resume(saved)
    with watching(chain, config.iterations, saved, limits.minutes, limits.progress) as told:
        chain.run(lambda iteration: told(iteration.alpha0, iteration.mean_square), saved)
    find = MapConfig(setting.test_steps, seed=seed, options=setting.options)

    def decide(estimates: ParameterSamples, images: Tensor, shown: Shown) -> Tensor:
        estimates.load(-1, model.decoder, head)
        return map_decisions(model.decoder, head, images, find, shown)

    return tested(decide, chain.samples(), begun, setting, of, seed, chain.seconds, limits)


@dataclass(frozen=True)
class Start:
    """Where a chain starts, and what it took to get there."""

    model: ImageModel
    head: BayesianSVM
    latents: Latents | None
    seconds: float


def start(of: Sets, x: Tensor, y: Tensor, epochs: int, seed: int, folder: Path, resumed: bool, limits: Limits) -> Start:
    """For images x [N, C, H, W] and labels y [N]; a resumed chain's file has all but the forms of model and head."""
    model = ImageModel.of(suggest_architecture(of.train.shape), "expected", seed)
    generator = torch.Generator().manual_seed(seed)
    head = label_head(model, of, generator)
    if resumed:
        return Start(model, head, None, 0.0)
    seconds = learn_without_labels(model, of, epochs, seed, folder, limits)
    began = time.monotonic()
    latents = encoded(model, x, generator)
    maximise_beta(head, y, latents.codes, torch.ones(len(y)), seed)
    return Start(model, head, latents, seconds + time.monotonic() - began)


def label_head(model: ImageModel, of: Sets, generator: torch.Generator) -> BayesianSVM:
    size, n_classes = model.architecture.code_size, len(of.train.class_names)
    return BayesianSVM(size, n_classes, GAMMA, generator=generator, precision=PRECISION)


def learn_without_labels(model: ImageModel, of: Sets, epochs: int, seed: int, folder: Path, limits: Limits) -> float:
    """By (10) from the training images alone; the seconds it took."""
    model.start_from(of.train.batch(torch.arange(min(len(of.train), 5000))))
    config = limits.training(seed=seed, learning_rate=1e-3, batch_size=64, schedule="cosine", max_epochs=epochs)
    objective = ImageObjective(model, "local", seed=seed)
    trainer = Trainer(objective, of.train, folder, config=config, valid=of.valid)
    fitted = trainer.fit(resume=trainer.run.newest.exists())
    load_weights(objective, fitted.checkpoint)
    return fitted.seconds


@torch.no_grad()
def encoded(model: ImageModel, images: Tensor, generator: torch.Generator) -> Latents:
    """A draw of s and z from q(s, z | X) for images [N, C, H, W]."""
    parts = [posterior_latents(model.encode(batch, generator)) for batch in images.split(500)]
    places = zip(*(part.places for part in parts), strict=True)
    return Latents(torch.cat([part.s for part in parts], -1), tuple(torch.cat(layer, -1) for layer in places))


def tested(
    decide: Callable[[ParameterSamples, Tensor, Shown], Tensor],
    samples: ParameterSamples,
    begun: Start,
    setting: Sampled | Maximised,
    of: Sets,
    seed: int,
    seconds: float,
    limits: Limits,
) -> tuple[dict[str, float], float]:
    """Error and time of a sampler on some test images, the encoder's time beside it, and the minutes of it all."""
    began = time.monotonic()
    bar = ProgressBar(limits.progress, None, float("inf"), start_step=0)

    def shown(done: int, total: int) -> None:
        bar.step(done, done / total, time.monotonic() - began)

    images, labels = some(of.valid, setting.valid_images, seed, Stream.TABLE1_REST)
    half = len(samples) // 2
    halfway = decide(samples.part(slice(half)), images, shown)
    settled = at_rest(halfway, decide(samples.part(slice(half, None)), images, shown), labels)
    images, labels = some(of.test, setting.test_images, seed, Stream.TABLE1_TESTS)
    encoder_ms = milliseconds(begun.model, begun.head, images)
    processor = time.process_time()
    decisions = decide(samples, images, shown)
    ms = 1000 * (time.process_time() - processor) / len(images)
    bar.close()
    error = 100 * error_rate(decisions.argmax(1), labels)
    values = {ERROR: error, MS: ms, TIMES_VAE: ms / encoder_ms, TEST_IMAGES: float(len(images)), **settled}
    return values, (seconds + time.monotonic() - began) / 60


def at_rest(halfway: Tensor, end: Tensor, labels: Tensor) -> dict[str, float]:
    """From decision values [N, C] of the same images: both errors, and the standard error of their difference."""
    wrong_halfway, wrong_end = (100.0 * (values.argmax(1) != labels).double() for values in (halfway, end))
    spread = (wrong_end - wrong_halfway).std() / len(labels) ** 0.5
    return {VALID_HALF: float(wrong_halfway.mean()), VALID_END: float(wrong_end.mean()), VALID_SPREAD: float(spread)}
