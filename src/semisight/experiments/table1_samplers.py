"""Section 5.1, Table 1: the rows `gibbs` and `mcem`, the same model learned and tested by sampling.

Chains start where an encoder without labels ends after a few epochs over all training images: its decoder, and a draw
of s and z from its posterior for each of their own images. Where a chain starts does not change where it goes, and from
the prior an hour does not get it there (docs/experiments.md). New images get no such help: their chains start from the
prior.

Sampling is dear, so Gibbs runs on some of the training images, and both are tested on some of the test images, drawn
by the seed (metric `test_images`); GIBBS and EM below say how many, and how many sweeps. A chain that needs more than
--minutes is saved, and the same command goes on with it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semisight.evaluation.classification import error_rate
from semisight.experiments.chains import watching
from semisight.experiments.limits import Limits
from semisight.experiments.table1_sets import ERROR, FOR_TESTS, MS, Sets, milliseconds, some
from semisight.learning.checkpoints import load_weights
from semisight.learning.objective import ImageObjective
from semisight.learning.progress import ProgressBar
from semisight.learning.trainer import Trainer
from semisight.model.architecture import suggest_architecture
from semisight.model.image_model import ImageModel
from semisight.model.labels import BayesianSVM, LabelHead
from semisight.sampling.gibbs import GibbsChain, GibbsConfig
from semisight.sampling.inference import InferenceConfig, gibbs_decisions
from semisight.sampling.latents import Latents, SweepOptions, posterior_latents
from semisight.sampling.mcem import MCEM, MCEMConfig
from semisight.sampling.parameters import Priors
from semisight.sampling.top_map import MapConfig, map_decisions

TIMES_VAE, TEST_IMAGES = "times_vae", "test_images"
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
ANNEAL = 10  # sweeps over which alpha0 rises for new images
_SUBSET = 16  # a stream of the seed


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
    test_steps: int = 100
    start_epochs: int = 5


GIBBS = {
    "mnist": Sampled(images=20_000, burn_in=6, n_samples=12),
    "cifar-10": Sampled(images=500, burn_in=3, n_samples=4, options=RARELY_ABOVE, test_images=200, start_epochs=3),
    "smoke": Sampled(images=60, burn_in=2, n_samples=2, test_images=20, start_epochs=1),
}
EM = {
    "mnist": Maximised(images=50_000, iterations=3),
    "cifar-10": Maximised(images=2000, iterations=3, test_images=200, test_steps=50, start_epochs=3),
    "smoke": Maximised(images=60, iterations=2, test_images=20, test_steps=3, start_epochs=1),
}


def measure_gibbs(of: Sets, seed: int, place: Path, limits: Limits) -> tuple[dict[str, float], float]:
    """Metrics, and the minutes it took; what is not finished lies at `place`."""
    setting, saved = GIBBS[of.name], place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, _SUBSET)
    begun = start(of, x, setting.start_epochs, seed, place, saved.exists(), limits)
    model, head = begun.model, begun.head
    config = GibbsConfig(setting.burn_in, setting.n_samples, seed=seed, priors=PRIORS, options=setting.options)
    chain = GibbsChain(model.decoder, x, config, y, head, begun.latents)
    chain.seconds = begun.seconds
    if saved.exists():
        chain.resume(saved)
    with watching(chain, config.n_sweeps, saved, limits.minutes, limits.progress) as told:
        samples = chain.run(lambda sweep: told(sweep.alpha0, sweep.mean_square), saved, save_every=5)
    first = InferenceConfig(setting.test_burn_in, setting.test_sweeps, seed, setting.options, anneal=ANNEAL)
    then = replace(first, burn_in=0, anneal=0)

    def decide(images: Tensor, shown: Callable[[int, int], None]) -> Tensor:
        return gibbs_decisions(samples, model.decoder, head, images, first, shown, then)

    return tested(decide, setting.test_images, model, head, of, seed, chain.seconds, limits)


def measure_mcem(of: Sets, seed: int, place: Path, limits: Limits) -> tuple[dict[str, float], float]:
    setting, saved = EM[of.name], place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, _SUBSET)
    begun = start(of, x, setting.start_epochs, seed, place, saved.exists(), limits)
    model, head = begun.model, begun.head
    config = MCEMConfig(setting.iterations, rate=setting.rate, seed=seed, priors=PRIORS, options=setting.options)
    chain = MCEM(model.decoder, x, config, y, head, begun.latents)
    chain.seconds = begun.seconds
    if saved.exists():
        chain.resume(saved)
    with watching(chain, config.iterations, saved, limits.minutes, limits.progress) as told:
        chain.run(lambda iteration: told(iteration.alpha0, iteration.mean_square), saved)
    find = MapConfig(setting.test_steps, seed=seed, options=setting.options)

    def decide(images: Tensor, shown: Callable[[int, int], None]) -> Tensor:
        return map_decisions(model.decoder, head, images, find, shown)

    return tested(decide, setting.test_images, model, head, of, seed, chain.seconds, limits)


@dataclass(frozen=True)
class Start:
    """Where a chain starts, and what it took to get there."""

    model: ImageModel
    head: BayesianSVM
    latents: Latents | None
    seconds: float


def start(of: Sets, x: Tensor, epochs: int, seed: int, folder: Path, resumed: bool, limits: Limits) -> Start:
    """For images x [N, C, H, W]; a chain that is resumed has all but the model's and head's form in its file."""
    model = ImageModel(suggest_architecture(of.train.shape), "expected", seed)
    generator = torch.Generator().manual_seed(seed)
    size, n_classes = model.architecture.code_size, len(of.train.class_names)
    head = BayesianSVM(size, n_classes, GAMMA, generator=generator, precision=PRECISION)
    if resumed:
        return Start(model, head, None, 0.0)
    model.start_from(of.train.batch(torch.arange(min(len(of.train), 5000))))
    config = limits.training(seed=seed, learning_rate=1e-3, batch_size=64, schedule="cosine", max_epochs=epochs)
    objective = ImageObjective(model, "local", seed=seed)
    trainer = Trainer(objective, of.train, folder, config=config, valid=of.valid)
    fitted = trainer.fit(resume=trainer.run.newest.exists())
    load_weights(objective, fitted.checkpoint)
    return Start(model, head, encoded(model, x, generator), fitted.seconds)


@torch.no_grad()
def encoded(model: ImageModel, images: Tensor, generator: torch.Generator) -> Latents:
    """A draw of s and z from q(s, z | X) for images [N, C, H, W]."""
    parts = [posterior_latents(model.encode(batch, generator)) for batch in images.split(500)]
    places = zip(*(part.places for part in parts), strict=True)
    return Latents(torch.cat([part.s for part in parts], -1), tuple(torch.cat(layer, -1) for layer in places))


def tested(
    decide: Callable[[Tensor, Callable[[int, int], None]], Tensor],
    n_images: int,
    model: ImageModel,
    head: LabelHead,
    of: Sets,
    seed: int,
    seconds: float,
    limits: Limits,
) -> tuple[dict[str, float], float]:
    """Error and time of a sampler on some test images, the encoder's time beside it, and the minutes of it all."""
    images, labels = some(of.test, n_images, seed, FOR_TESTS)
    encoder_ms = milliseconds(model, head, images)
    began, processor = time.monotonic(), time.process_time()
    bar = ProgressBar(limits.progress, None, float("inf"), start_step=0)
    decisions = decide(images, lambda done, total: bar.step(done, done / total, time.monotonic() - began))
    bar.close()
    ms = 1000 * (time.process_time() - processor) / len(images)
    error = 100 * error_rate(decisions.argmax(1), labels)
    values = {ERROR: error, MS: ms, TIMES_VAE: ms / encoder_ms, TEST_IMAGES: float(len(images))}
    return values, (seconds + time.monotonic() - began) / 60
