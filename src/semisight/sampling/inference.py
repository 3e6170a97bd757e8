"""Section 5.1 at test time: codes of new images by Gibbs sampling given the parameters, decision values averaged.

For every sample of the parameters: 300 sweeps of burn-in, then 100 samples of s and z. Decision values are linear in s,
so that their average over samples is the decision value of the average code, exactly.

The parameters of one chain move little from sample to sample: instead of a new burn-in for each, the chains of z and s
may go on from where they were (`gibbs_decisions` with `then`), which costs a small part of the sweeps.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from semisight.errors import UserError
from semisight.model.decoder import Decoder
from semisight.model.heads.labels import BayesianSVM
from semisight.model.posterior import flat_code
from semisight.sampling.chain import check_counts
from semisight.sampling.codes import standard_prior
from semisight.sampling.decoder_matrix import one_hot
from semisight.sampling.latents import (
    Latents,
    SweepOptions,
    checked_images,
    first_latents,
    share_of_alpha0,
    slices,
    sweep_latents,
)
from semisight.sampling.parameter_samples import ParameterSamples


@dataclass(frozen=True)
class InferenceConfig:
    burn_in: int = 300
    n_samples: int = 100
    seed: int = 0
    options: SweepOptions = field(default_factory=SweepOptions)
    anneal: int = 0  # sweeps at the beginning of burn-in over which alpha0 rises to its value (latents.py)

    def __post_init__(self) -> None:
        check_counts(self.burn_in, self.n_samples)
        if not 0 <= self.anneal <= self.burn_in:
            raise UserError(
                f"alpha0 may rise over 0 to {self.burn_in} sweeps, those of burn-in, not over {self.anneal}"
            )


@dataclass(frozen=True)
class LatentMoments:
    """Averages over the kept samples of p(s, z | X)."""

    mean: Tensor  # of s, [N, J]
    variance: Tensor  # of s, [N, J]
    frequency: tuple[Tensor, ...]  # of every place, [P, K_l, h, w, N] per pooled layer; () if not asked for
    last: Latents  # where the chains ended, to go on from


@torch.no_grad()
def infer_latents(
    decoder: Decoder,
    images: Tensor,
    config: InferenceConfig,
    start: Latents | None = None,
    places: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> LatentMoments:
    """Gibbs sampling of p(s, z | X) for images [N, C, H, W]; `progress` is told image-sweeps done and in all."""
    x = checked_images(images, decoder.architecture, decoder.log_alpha0)
    generator = torch.Generator().manual_seed(config.seed)
    count, sweeps = len(images), config.burn_in + config.n_samples
    latents = first_latents(decoder, count, generator, start)
    alpha0 = decoder.log_alpha0.exp()
    sums, squares = torch.zeros_like(latents.s), torch.zeros_like(latents.s)
    layers = decoder.architecture.layers
    frequency = tuple(x.new_zeros(layers[l].pool ** 2, *p.shape) for l, p in enumerate(latents.places) if places)
    for n in slices(count, config.options.batch_size):
        here, rows = x[..., n].contiguous(), latents.rows(n)
        prior = standard_prior(decoder, n.stop - n.start)
        for sweep in range(sweeps):
            precision = share_of_alpha0(sweep, config.anneal) * alpha0
            sweep_latents(decoder, here, rows, prior, precision, generator, config.options)
            if sweep >= config.burn_in:
                sums[..., n] += rows.s
                squares[..., n] += rows.s.square()
                for l, total in enumerate(frequency):
                    total[..., n] += one_hot(rows.places[l], len(total), total.dtype)
            if progress is not None:
                progress(n.start * sweeps + (sweep + 1) * (n.stop - n.start), count * sweeps)
    mean = sums / config.n_samples
    variance = (squares / config.n_samples - mean.square()).clamp_min(0)
    shares = tuple(total / config.n_samples for total in frequency)
    return LatentMoments(flat_code(mean), flat_code(variance), shares, latents)


@torch.no_grad()
def gibbs_decisions(
    samples: ParameterSamples,
    decoder: Decoder,
    head: BayesianSVM | None,
    images: Tensor,
    config: InferenceConfig,
    progress: Callable[[int, int], None] | None = None,
    then: InferenceConfig | None = None,
) -> Tensor:
    """Decision values [N, C] averaged over latent samples and over samples of the parameters.

    `decoder` and `head` say how the model is built; they are not changed. With `then`, chains go on with its numbers
    from the second sample of the parameters on; without, all begin anew. `progress` counts samples of parameters.
    """
    if head is None or samples.head is None:
        raise UserError("this model was sampled without labels and cannot give any: run a chain with labels and a head")
    if len(samples) == 0:
        raise UserError("there are no samples of the parameters to average over")
    decoder, head = copy.deepcopy(decoder), copy.deepcopy(head)
    total = images.new_zeros(len(images), head.n_classes)
    for number, codes in enumerate(mean_codes_of_each(samples, decoder, images, config, then)):
        samples.load(number, decoder, head)
        total = total + head.decision(codes)
        if progress is not None:
            progress(number + 1, len(samples))
    return total / len(samples)


@torch.no_grad()
def mean_codes_of_each(
    samples: ParameterSamples,
    decoder: Decoder,
    images: Tensor,
    config: InferenceConfig,
    then: InferenceConfig | None = None,
) -> Iterator[Tensor]:
    """E[s | X] of every image under each sample of the parameters in turn, [N, J]; as `gibbs_decisions` takes them."""
    decoder = copy.deepcopy(decoder)
    last: Latents | None = None
    for number in range(len(samples)):
        samples.load(number, decoder)
        if last is None or then is None:
            moments = infer_latents(decoder, images, config)
        else:
            moments = infer_latents(decoder, images, replace(then, seed=then.seed + number), last)
        last = moments.last
        yield moments.mean
