"""Section 5.1, beyond the paper: the row `gibbs-chains`, several chains whose conditionals all move. Do they agree?

What `gibbs` (table1_samplers.py) holds or thins out to learn from 20,000 images is free here: alpha0 has a weak prior,
every number of every dictionary is drawn in every sweep. That is dear, so there are few images. Each chain starts from
an encoder of its own, learned without labels from another seed.

    error            decision values averaged over the samples of all chains
    error_mean_s     the same codes, beta at its mode for the running means of s of the training images
    r_hat            the largest split R-hat (metrics/chains.py) of log alpha0 and of validation images' decision values
    r_hat_alpha0     of log alpha0 alone
    effective_draws  the smallest effective number of draws among the same quantities, of `draws` in all

Codes and dictionaries are not compared between chains: any permutation of maps is as likely.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from semisight.experiments.label_rows import Parts
from semisight.experiments.table import Measured, Request
from semisight.experiments.table1_samplers import (
    ANNEAL,
    BETA_STEPS,
    ERROR,
    MS,
    TEST_IMAGES,
    Sampled,
    some,
    start,
    watching,
)
from semisight.metrics.chains import effective_draws, split_r_hat
from semisight.metrics.classification import error_rate
from semisight.random import Stream
from semisight.sampling.beta_mode import maximise_beta
from semisight.sampling.gibbs import GibbsChain, GibbsConfig
from semisight.sampling.inference import InferenceConfig, mean_codes_of_each
from semisight.sampling.latents import SweepOptions

ERROR_MEAN_S, R_HAT, R_HAT_ALPHA0 = "error_mean_s", "r_hat", "r_hat_alpha0"
DRAWS, EFFECTIVE_DRAWS = "draws", "effective_draws"
ALL_MOVE = SweepOptions(batch_size=125, share_above=1.0)


@dataclass(frozen=True)
class Chains:
    """So many chains of one kind."""

    each: Sampled
    n: int = 3


SMOKE = Sampled(images=60, burn_in=2, n_samples=4, options=ALL_MOVE, test_images=20, valid_images=10, start_epochs=1)
CHAINS = {
    "mnist": Chains(replace(SMOKE, images=500, burn_in=10, n_samples=20, test_images=200, valid_images=50)),
    "cifar-10": Chains(replace(SMOKE, images=100, burn_in=5, n_samples=10, test_images=100, valid_images=20)),
    "smoke": Chains(SMOKE, n=2),
}


@dataclass(frozen=True)
class Told:
    """What one chain says, sample by sample: log alpha0 [S], decision values [S, N, C] of validation and of test
    images, of the latter also by the beta of the running means."""

    log_alpha0: Tensor
    valid: Tensor
    test: Tensor
    test_mean_s: Tensor
    ms: float


def measure_chains(setting: Chains, of: Parts, seed: int, place: Path, request: Request) -> Measured:
    """One chain after the other; what is not finished lies in the folder `place`."""
    place.mkdir(parents=True, exist_ok=True)
    told, before = [], 0.0
    for number in range(setting.n):
        found, spent = _one(setting.each, of, seed, number, place / f"chain-{number}", request)
        told.append(found)
        before += spent
    labels = some(of.test, setting.each.test_images, seed, Stream.TABLE1_TESTS)[1]
    return Measured(summary(told, labels), before)


def summary(told: list[Told], labels: Tensor) -> Mapping[str, float]:
    alpha0 = torch.stack([chain.log_alpha0 for chain in told])  # [chains, S]
    valid = torch.stack([chain.valid.flatten(1) for chain in told])
    followed = torch.cat([alpha0[..., None].double(), valid.double()], 2)
    effective = effective_draws(followed)

    def error(decisions: list[Tensor]) -> float:
        return 100 * error_rate(torch.stack(decisions).mean((0, 1)).argmax(1), labels)

    return {
        ERROR: error([chain.test for chain in told]),
        MS: sum(chain.ms for chain in told),
        ERROR_MEAN_S: error([chain.test_mean_s for chain in told]),
        R_HAT: float(split_r_hat(followed).max()),
        R_HAT_ALPHA0: float(split_r_hat(alpha0)),
        DRAWS: float(alpha0.numel()),
        EFFECTIVE_DRAWS: float(effective[~effective.isnan()].min()),
        TEST_IMAGES: float(len(labels)),
    }


def _one(setting: Sampled, of: Parts, seed: int, number: int, place: Path, request: Request) -> tuple[Told, float]:
    """A chain with random numbers of its own, on the same images; and the seconds that were spent before."""
    own, saved = 1000 * (number + 1) + seed, place.with_suffix(".safetensors")
    x, y = some(of.train, setting.images, seed, Stream.TABLE1_SUBSET)
    begun = start(of, x, y, setting.start_epochs, own, place, saved.exists(), request)
    decoder, head = begun.model.decoder, begun.head
    config = GibbsConfig(setting.burn_in, setting.n_samples, beta_steps=BETA_STEPS, seed=own, options=setting.options)
    chain = GibbsChain(decoder, x, config, y, head, begun.latents)
    with watching(chain, config.n_sweeps, saved, begun, request) as (told, before):
        samples = chain.run(lambda sweep: told(sweep.alpha0, sweep.mean_square), saved, save_every=5)
    first = InferenceConfig(setting.test_burn_in, setting.test_sweeps, own, setting.options, anneal=ANNEAL)
    then = replace(first, burn_in=0, anneal=0)
    images = [some(of.valid, setting.valid_images, seed, Stream.TABLE1_REST)[0]]
    images.append(some(of.test, setting.test_images, seed, Stream.TABLE1_TESTS)[0])
    codes, ms = [], 0.0
    for part in images:
        began = time.process_time()
        codes.append(list(mean_codes_of_each(samples, decoder, part, first, then)))
        ms = 1000 * (time.process_time() - began) / len(part)
    drawn: list[list[Tensor]] = [[], []]
    for sample in range(len(samples)):
        samples.load(sample, decoder, head)
        for decided, of_part in zip(drawn, codes, strict=True):
            decided.append(head.decision(of_part[sample]).detach())
    maximise_beta(head, y, chain.mean_codes, torch.ones(len(y)), own)
    by_means = torch.stack([head.decision(code).detach() for code in codes[1]])
    return Told(samples.decoder["log_alpha0"], torch.stack(drawn[0]), torch.stack(drawn[1]), by_means, ms), before
